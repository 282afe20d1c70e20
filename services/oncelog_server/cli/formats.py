"""How records look as text: what `oncelog consume --format` understands.

A format is a name of FORMATS, or a text with fields in braces:

    {topic} {partition} {offset}    where the record stands
    {key} {value}                   as they are; nothing where there is none
    {timestamp}                     RFC 3339 in UTC; {timestamp:ms}, {timestamp:us} since 1970
    {headers}                       name=value, with commas between; {headers:json}
    {header.NAME}                   the value of the last header of that name
    {tx_id} {producer_id}           of the transaction, of who wrote it; nothing where there is none
    {visible}                       since when it can be read (with --isolation uncommitted and raw:
                                    when it was appended), like {timestamp}; {visible:ms}

Bytes (keys, values, headers) go out as they are, or as {value:base64}, {value:hex}, {value:json}
(null where there is none), {value:size}. Outside of braces, \\n \\t \\r \\0 \\\\ and \\xHH are what
they are in C, and {{ and }} are braces.

PURE: no record is read here.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from oncelog_server.cli.output import show_micros
from oncelogpb.ids import show_id

if TYPE_CHECKING:
    from oncelogpb.v1 import types_pb2

# By name; json is no text with fields.
JSON: Final = "json"
FORMATS: Final = {
    "value": "{value}",
    "key-value": r"{key}\t{value}",
    "long": r"{topic}/{partition}@{offset} {timestamp} {key} {value} {headers}",
    JSON: "",
}

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE: Final = re.compile(
    r"\{\{|\}\}"  # a brace
    r"|\{(?P<field>[^{}]*)\}"
    r"|\\x(?P<hex>[0-9a-fA-F]{2})"
    r"|\\(?P<escape>.)?",
    re.DOTALL,
)

Bytes = bytes | None


class Shown(NamedTuple):
    """A record, as formats see it."""

    topic: str
    partition: int
    offset: int
    # 0: plain.
    tx_id: int
    row: types_pb2.Row
    # 0: of a plain batch without one.
    producer_id: int = 0
    # Milliseconds since 1970.
    visible_ms: int = 0

    @property
    def key(self) -> Bytes:
        return self.row.key if self.row.HasField("key") else None

    @property
    def value(self) -> Bytes:
        return self.row.value if self.row.HasField("value") else None

    @property
    def headers(self) -> list[tuple[str, Bytes]]:
        return [
            (header.key, header.value if header.HasField("value") else None)
            for header in self.row.headers
        ]


Part = bytes | Callable[[Shown], bytes]


class Format:
    """A format that was understood."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    @classmethod
    def parse(cls, text: str) -> Format:
        """Of a name, or of a text with fields. Raises UsageError."""
        if text == JSON:
            return cls([lambda record: json.dumps(describe(record)).encode()])
        if text not in FORMATS and "{" not in text:
            known = ", ".join(FORMATS)
            raise click.UsageError(
                f"{text!r} is no format: take one of {known}, or a text with fields, for example "
                "'{partition} {offset} {key}={value}'."
            )
        return cls(_parts(FORMATS.get(text, text)))

    def render(self, record: Shown) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in self._parts)


def parse_escapes(text: str) -> bytes:
    """A text without fields, such as a delimiter. Raises UsageError."""
    parts = _parts(text.replace("{", "{{").replace("}", "}}"))
    return b"".join(part for part in parts if isinstance(part, bytes))


def describe(record: Shown) -> dict[str, Any]:
    """As JSON, and as `oncelog produce --format json` reads it. Bytes that are not UTF-8 stand
    under `key_base64`, `value_base64`."""
    described: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
    if record.tx_id:
        described["tx_id"] = show_id(record.tx_id)
    if record.producer_id:
        described["producer_id"] = str(record.producer_id)
    if record.visible_ms:
        described["visible"] = show_micros(record.visible_ms * 1000)
    return (
        described
        | {"timestamp": show_micros(record.row.timestamp_us)}
        | {"timestamp_us": record.row.timestamp_us}
        | _as_json("key", record.key)
        | _as_json("value", record.value)
        | {"headers": [{"key": name} | _as_json("value", value) for name, value in record.headers]}
    )


def _as_json(name: str, value: Bytes) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


# --------------------------------------------------------------------------------------- parsing


def _parts(text: str) -> list[Part]:
    parts: list[Part] = []
    end = 0
    for piece in _PIECE.finditer(text):
        parts.append(_literal(text[end : piece.start()]))
        end = piece.end()
        if piece["field"] is not None:
            parts.append(_field(piece["field"]))
        elif piece["hex"] is not None:
            parts.append(bytes.fromhex(piece["hex"]))
        elif piece[0].startswith("\\"):
            parts.append(_escape(piece["escape"]))
        else:
            parts.append(piece[0][:1].encode())
    parts.append(_literal(text[end:]))
    return [part for part in parts if part != b""]


def _literal(text: str) -> bytes:
    if "{" in text or "}" in text:
        raise click.UsageError(f"A brace is left over in {text!r}; write {{{{ or }}}} for one.")
    # As it was typed, in whatever encoding.
    return text.encode(errors="surrogateescape")


def _escape(letter: str | None) -> bytes:
    if letter not in _ESCAPES:
        raise click.UsageError(
            f"There is no \\{letter or ''}: there are \\n \\t \\r \\0 \\xHH, and \\\\ for one \\."
        )
    return _ESCAPES[letter]


def _field(text: str) -> Callable[[Shown], bytes]:
    name, _, form = text.partition(":")
    if name.startswith("header."):
        return _bytes_field(_header(name.removeprefix("header.")), form, text)
    forms = _FIELDS.get(name)
    if forms is None:
        nearest = difflib.get_close_matches(name, [*_FIELDS, "header.NAME"], n=1, cutoff=0.0)
        known = ", ".join([*_FIELDS, "header.NAME"])
        raise click.UsageError(
            f"There is no field {{{name}}}; did you mean {{{nearest[0]}}}? There are: {known}."
        )
    if form not in forms:
        raise _no_form(text, forms)
    return forms[form]


def _header(name: str) -> Callable[[Shown], Bytes]:
    def value(record: Shown) -> Bytes:
        found = [value for key, value in record.headers if key == name]
        return found[-1] if found else None

    return value


def _bytes_field(value: Callable[[Shown], Bytes], form: str, text: str) -> Callable[[Shown], bytes]:
    encode = _BYTES_FORMS.get(form)
    if encode is None:
        raise _no_form(text, _BYTES_FORMS)
    return lambda record: encode(value(record))


def _no_form(text: str, forms: Any) -> click.UsageError:
    name = text.partition(":")[0]
    known = ", ".join(f"{{{name}:{form}}}" if form else f"{{{name}}}" for form in forms)
    return click.UsageError(f"There is no {{{text}}}; there are: {known}.")


def _headers_text(record: Shown) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def _headers_json(record: Shown) -> bytes:
    return json.dumps(describe(record)["headers"]).encode()


def _value_json(value: Bytes) -> bytes:
    """A string; {"base64": ...} of what is no text."""
    if value is None:
        return b"null"
    try:
        return json.dumps(value.decode()).encode()
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(value).decode()}).encode()


_BYTES_FORMS: Final[dict[str, Callable[[Bytes], bytes]]] = {
    "": lambda value: value or b"",
    "base64": lambda value: base64.b64encode(value or b""),
    "hex": lambda value: (value or b"").hex().encode(),
    "json": _value_json,
    "size": lambda value: b"%d" % len(value or b""),
}
# Field -> form -> what it puts out.
_FIELDS: Final[dict[str, dict[str, Callable[[Shown], bytes]]]] = {
    "topic": {"": lambda record: record.topic.encode()},
    "partition": {"": lambda record: b"%d" % record.partition},
    "offset": {"": lambda record: b"%d" % record.offset},
    "key": {
        form: (lambda record, encode=encode: encode(record.key))  # type: ignore[misc]
        for form, encode in _BYTES_FORMS.items()
    },
    "value": {
        form: (lambda record, encode=encode: encode(record.value))  # type: ignore[misc]
        for form, encode in _BYTES_FORMS.items()
    },
    "timestamp": {
        "": lambda record: show_micros(record.row.timestamp_us).encode(),
        "ms": lambda record: b"%d" % (record.row.timestamp_us // 1000),
        "us": lambda record: b"%d" % record.row.timestamp_us,
    },
    "headers": {"": _headers_text, "json": _headers_json},
    "tx_id": {"": lambda record: show_id(record.tx_id).encode() if record.tx_id else b""},
    "producer_id": {
        "": lambda record: show_id(record.producer_id).encode() if record.producer_id else b""
    },
    "visible": {
        "": lambda record: show_micros(record.visible_ms * 1000).encode(),
        "ms": lambda record: b"%d" % record.visible_ms,
    },
}
