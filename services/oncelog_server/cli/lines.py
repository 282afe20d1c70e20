"""What `oncelog produce` reads: from pieces of a stream to records.

    value        the piece is the value
    key-value    key, separator, value
    json         one JSON object, as `oncelog consume --format json` prints it

PURE, but for the stream that it is given.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple

import click

from oncelog_server.cli.times import parse_time

FORMATS: Final = ("value", "key-value", "json")
DEFAULT_SEPARATOR: Final = "\t"
LINE: Final = b"\n"
CHUNK_BYTES: Final = 64 * 1024
# Where no end of a piece comes. A record has 15 MiB at most (the client's record_bytes_max), which
# base64 makes a third longer, and JSON that escapes each letter three times as long.
PIECE_BYTES_MAX: Final = 64 * 1024 * 1024

# What a JSON object may say. Where a record stood says nothing about where it goes.
_READ: Final = ("key", "key_base64", "value", "value_base64", "headers", "partition")
_TIMES: Final = ("timestamp", "timestamp_us")
_IGNORED: Final = ("topic", "offset", "tx_id", "producer_id", "visible")
_KNOWN: Final = (*_READ, *_TIMES, *_IGNORED)

Headers = Sequence[tuple[str, bytes | None]]


class BadLine(click.UsageError):
    """A piece of the input that is no record."""

    def __init__(self, message: str, before: int) -> None:
        super().__init__(message)
        # Records before it.
        self.before = before


class EndlessPiece(Exception):
    """No delimiter came within piece_bytes_max."""

    def __init__(self, delimiter: bytes) -> None:
        sought = "end of a line" if delimiter == LINE else f"{delimiter!r}"
        super().__init__(
            f"has no {sought} within piece_bytes_max ({PIECE_BYTES_MAX}) bytes: is it the right "
            "file, and the right --delimiter?"
        )


class Record(NamedTuple):
    """What one piece says. None: nothing."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_us: int | None = None


# Raises ValueError, with words that go behind "line 7".
Parse = Callable[[bytes], Record]


def pieces(source: IO[bytes], delimiter: bytes) -> Iterator[tuple[bytes, int]]:
    """Each piece without its delimiter, and how many bytes it took. After the last delimiter comes
    a piece only where something stands there. Raises EndlessPiece instead of reading on."""
    if delimiter == LINE:
        yield from _lines(source)
        return
    kept = bytearray()
    while chunk := source.read(CHUNK_BYTES):
        # What was kept has no delimiter, but may end with a part of one.
        sought_from = max(0, len(kept) - len(delimiter))
        kept += chunk
        if kept.find(delimiter, sought_from) >= 0:
            *whole, kept = kept.split(delimiter)
            for piece in whole:
                yield bytes(piece), len(piece) + len(delimiter)
        if len(kept) > PIECE_BYTES_MAX:
            raise EndlessPiece(delimiter)
    if kept:
        yield bytes(kept), len(kept)


def _lines(source: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    while line := source.readline(PIECE_BYTES_MAX + len(LINE)):
        if len(line) > PIECE_BYTES_MAX and not line.endswith(LINE):
            raise EndlessPiece(LINE)
        # Lines of Windows, too.
        yield line.removesuffix(LINE).removesuffix(b"\r"), len(line)


def parser(form: str, separator: bytes, *, as_base64: bool) -> Parse:
    """Of one of FORMATS. `as_base64`: keys and values are base64."""
    decode = _from_base64 if as_base64 else _as_it_is
    if form == "json":
        return parse_json
    if form == "value":
        return lambda piece: Record(decode(piece))

    def key_value(piece: bytes) -> Record:
        key, found, value = piece.partition(separator)
        if not found:
            shown = separator.decode(errors="backslashreplace")
            raise ValueError(f"has no key: {shown!r} does not stand in it")
        return Record(decode(value), decode(key))

    return key_value


def parse_json(piece: bytes) -> Record:
    """Raises ValueError."""
    try:
        told = json.loads(piece)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise ValueError('is no JSON object, like {"key": "k", "value": "v"}')
    for name in told:
        if name not in _KNOWN:
            nearest = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.0)[0]
            raise ValueError(f"says {name!r}, which a record does not have; is it {nearest!r}?")
    return Record(
        value=_bytes(told, "value"),
        key=_bytes(told, "key"),
        headers=_headers(told.get("headers")),
        partition=_whole(told, "partition"),
        timestamp_us=_timestamp_us(told),
    )


def parse_headers(pairs: Sequence[str]) -> Headers:
    """Of NAME=VALUE each. Raises UsageError."""
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--header {pair!r} is not NAME=VALUE.")
        found.append((name, value.encode(errors="surrogateescape")))
    return found


def _bytes(told: Mapping[str, Any], name: str) -> bytes | None:
    text, encoded = told.get(name), told.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise ValueError(f"says both {name} and {name}_base64")
    if encoded is not None:
        if not isinstance(encoded, str):
            raise ValueError(f"{name}_base64 is no text")
        return _from_base64(encoded.encode())
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name} is no text; write {name} as a string, or {name}_base64")
    return text.encode(errors="surrogatepass")


def _headers(told: Any) -> Headers:
    """As a list of {"key", "value"}, or as an object."""
    if told is None:
        return ()
    if isinstance(told, dict):
        return [(name, _bytes({"value": value}, "value")) for name, value in told.items()]
    if not isinstance(told, list):
        raise ValueError('headers are {"name": "value"}, or a list of {"key": ..., "value": ...}')
    found = []
    for one in told:
        if not isinstance(one, dict) or not isinstance(one.get("key"), str):
            raise ValueError('a header is {"key": ..., "value": ...}')
        found.append((one["key"], _bytes(one, "value")))
    return found


def _whole(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} is {value!r}, not a whole number")
    return value


def _timestamp_us(told: Mapping[str, Any]) -> int | None:
    """Both may stand there; the exact one counts."""
    exact = _whole(told, "timestamp_us")
    text = told.get("timestamp")
    if exact is not None or text is None:
        return exact
    if not isinstance(text, str):
        raise ValueError(f"timestamp is {text!r}, not a time like 2026-01-31T12:00:00Z")
    try:
        return parse_time(text, now_us=0)
    except ValueError:
        raise ValueError(f"timestamp is {text!r}, not a time like 2026-01-31T12:00:00Z") from None


def _as_it_is(piece: bytes) -> bytes:
    return piece


def _from_base64(piece: bytes) -> bytes:
    try:
        return base64.b64decode(piece, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is no base64: {error}") from None
