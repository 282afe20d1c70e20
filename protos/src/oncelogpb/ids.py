"""How ids are shown to people: in errors, messages and metadata, in logs, by the `oncelog` command.
One form each, so that what one of them prints can be searched in the others, and given to `oncelog
tx`; and how they are read back.

In protobuf they stay what they are: numbers of 64 bits, and 16 raw bytes for UUIDs.
"""

from __future__ import annotations

import re
from typing import Final

# Names under which errors and logs carry a TxId or a producer id, beside all that end in _tx_id.
_ID_NAMES: Final = frozenset({"tx_id", "held_by", "producer_id"})
_GENERATION_NAME: Final = "generation"
_ID: Final = re.compile("[0-9a-f]{16}")
_GENERATION: Final = re.compile(r"([0-9]+)\.([0-9]+)")
_HALF_MASK: Final = 0xFFFFFFFF


def show_id(identity: int) -> str:
    """A TxId or a producer id: 16 hexadecimal digits, of which the first four are the partition of
    the transaction journal that it is of: 0003000000000005."""
    return f"{identity:016x}"


def parse_id(text: str) -> int:
    """What `show_id` shows. Raises ValueError."""
    if _ID.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no TxId or producer id: those have 16 hexadecimal digits")
    return int(text, 16)


def show_generation(generation: int) -> str:
    """7.3 for epoch 7, counter 3."""
    return f"{generation >> 32}.{generation & _HALF_MASK}"


def parse_generation(text: str) -> int:
    """What `show_generation` shows. Raises ValueError."""
    halves = _GENERATION.fullmatch(text)
    if halves is not None:
        epoch, counter = int(halves[1]), int(halves[2])
        if epoch <= _HALF_MASK and counter <= _HALF_MASK:
            return epoch << 32 | counter
    raise ValueError(f"{text!r} is no generation: those are shown as epoch and counter, like 7.3")


def show_named(name: str, value: object) -> object:
    """`value` as people are shown what stands under this name: TxIds and producer ids, generations
    and UUIDs in their one form, all else unchanged."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):
        if name in _ID_NAMES or name.endswith("_tx_id"):
            return show_id(value)
        if name == _GENERATION_NAME:
            return show_generation(value)
    return value
