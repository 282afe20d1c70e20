"""What was given of a partition beyond its position, by whom transactions are given whole over
several partitions (`oncelog._core.across`). PURE.

Between transactions that were given there may lie others that wait for their parts elsewhere. The
position is before the first one that was not given; `beyond` says what was given behind it: by
journal partition of their TxIds, one offset, below which all of that journal partition's
transactions were. It travels with the group's offset, in front of what else its metadata say:

    oncelog-across/1 3:1200,7:1215 ...

Where nothing was given beyond, nothing is written.
"""

from __future__ import annotations

from typing import Final

# (journal partition, offset), ascending.
Beyond = tuple[tuple[int, int], ...]
FORMAT: Final = "oncelog-across/1"


def encode(beyond: Beyond, rest: str) -> str:
    """As metadata of a group's offset; `rest`: what stands there else."""
    if not beyond:
        return rest
    return f"{FORMAT} {','.join(f'{at}:{to}' for at, to in beyond)} {rest}".rstrip(" ")


def decode(metadata: str) -> tuple[Beyond, str]:
    """And what else stands there. Nothing, where it says something else, or in a layout that we do
    not know."""
    words = metadata.split(" ", 2)
    if words[0] != FORMAT or len(words) < 2:
        return (), metadata
    pairs = [pair.split(":") for pair in words[1].split(",")]
    if not all(len(pair) == 2 and all(map(_is_number, pair)) for pair in pairs):
        return (), metadata
    beyond = tuple(sorted((int(at), int(to)) for at, to in pairs))
    return beyond, words[2] if len(words) > 2 else ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
