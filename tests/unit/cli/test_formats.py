"""What a format puts out, and what is said of one that is none."""

from __future__ import annotations

import click
import pytest

from oncelog_server.cli.formats import FORMATS, Format, Shown, parse_escapes
from oncelog_server.cli.lines import parse_json
from oncelog_server.cli.times import parse_time
from oncelogpb.v1 import types_pb2

DAY_US = 86_400_000_000
ROW = types_pb2.Row(
    key=b"k",
    value=b"\xff\x00",
    timestamp_us=1_767_225_600_000_123,
    headers=[
        types_pb2.Header(key="a", value=b"first"),
        types_pb2.Header(key="a", value=b"last"),
        types_pb2.Header(key="none"),
    ],
)
RECORD = Shown("payments", 3, 41, 3 << 48 | 5, ROW)
BARE = Shown("payments", 0, 0, 0, types_pb2.Row())


@pytest.mark.parametrize(
    ("text", "out", "bare"),
    [
        ("{topic}[{partition}]@{offset}", b"payments[3]@41", b"payments[0]@0"),
        ("{key}={value}", b"k=\xff\x00", b"="),
        ("{value:base64}", b"/wA=", b""),
        ("{value:hex}", b"ff00", b""),
        ("{key:json}", b'"k"', b"null"),
        ("{value:json}", b'{"base64": "/wA="}', b"null"),
        ("{key:size},{value:size}", b"1,2", b"0,0"),
        ("{timestamp}", b"2026-01-01T00:00:00.000123Z", b"1970-01-01T00:00:00.000000Z"),
        ("{timestamp:ms} {timestamp:us}", b"1767225600000 1767225600000123", b"0 0"),
        ("{headers}", b"a=first,a=last,none=", b""),
        ("{header.a} {header.none} {header.other}", b"last  ", b"  "),
        ("{header.a:hex}", b"6c617374", b""),
        ("{tx_id}", b"0003000000000005", b""),
        (r"{{{key}}}\t\n\r\0\\\x41\xff", b"{k}\t\n\r\0\\A\xff", b"{}\t\n\r\0\\A\xff"),
        ("\u2192{key}", "\u2192k".encode(), "\u2192".encode()),
    ],
)
def test_fields(text: str, out: bytes, bare: bytes) -> None:
    assert Format.parse(text).render(RECORD) == out
    assert Format.parse(text).render(BARE) == bare


@pytest.mark.parametrize("name", FORMATS)
def test_every_named_format_takes_every_record(name: str) -> None:
    far = Shown("t", 0, 0, 0, types_pb2.Row(timestamp_us=(1 << 63) - 1))
    for record in (RECORD, BARE, far):
        Format.parse(name).render(record)


def test_json_is_read_back() -> None:
    again = parse_json(Format.parse("json").render(RECORD))
    assert (again.key, again.value, again.timestamp_us) == (b"k", b"\xff\x00", ROW.timestamp_us)
    assert again.headers == [("a", b"first"), ("a", b"last"), ("none", None)]
    assert parse_json(Format.parse("json").render(BARE)).value is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("values", "is no format"),
        ("{valeu}", "did you mean {value}"),
        ("{}", "There is no field {}"),
        ("{offset:hex}", "there are: {offset}"),
        ("{value:octal}", "{value:base64}"),
        ("{header.a:x}", "{header.a:hex}"),
        ("{key} {", "A brace is left over"),
        ("{key} }", "A brace is left over"),
        (r"{key}\q", r"There is no \q"),
        ("{key}\\", "There is no \\"),
        (r"{key}\x1", r"There is no \x"),
    ],
)
def test_what_is_no_format_is_told_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(click.UsageError) as refusal:
        Format.parse(text)
    assert said in refusal.value.message


def test_a_delimiter_has_no_fields() -> None:
    assert parse_escapes(r"\r\n{key}") == b"\r\n{key}"
    assert parse_escapes("") == b""


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-02", DAY_US),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01T00:00:01.000001Z", 1_000_001),
        ("1970-01-01 01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("90s", DAY_US - 90_000_000),
        ("2h", DAY_US - 7_200_000_000),
        ("1d", 0),
    ],
)
def test_times(text: str, time_us: int) -> None:
    assert parse_time(text, now_us=DAY_US) == time_us


@pytest.mark.parametrize("text", ["", "5", "noon", "5w", "-5m", "2026-13-01", "20260101"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text, now_us=0)
