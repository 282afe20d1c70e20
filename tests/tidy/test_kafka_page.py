"""docs/from_confluent_kafka.md names what there is: calls and arguments, settings, errors."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import fields

import pytest

import oncelog
from oncelog._core.kafka_names import HINTS, hint
from oncelog.options import ConnectOptions, ConsumerOptions, ProducerOptions, Tls, make_options
from oncelogpb import errors
from tests.tidy.proto_files import ROOT

PAGE = ROOT / "docs" / "from_confluent_kafka.md"
TEXT = PAGE.read_text()
OBJECTS: dict[str, list[type]] = {
    "log": [oncelog.Log],
    "log.admin": [oncelog.Admin],
    "consumer": [oncelog.Consumer],
    "producer": [oncelog.Producer, oncelog.TransactionalProducer],
    "tx": [oncelog.Transaction],
}
CALL = re.compile(r"^(log\.admin|log|consumer|producer|tx)\.(\w+)(?:\((.*)\))?$")
OPTIONS = {
    field.name
    for kind in (ConnectOptions, ConsumerOptions, ProducerOptions, Tls)
    for field in fields(kind)
}
# Arguments, not options.
ARGUMENTS = {"group", "tls"}


def rows(name: str) -> list[list[str]]:
    block = TEXT.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    lines = [line for line in block.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


CALLS = [
    span
    for row in rows("calls")
    for span in re.findall(r"`([^`]+)`", row[1])
    if not span.startswith("oncelog ")
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_named_can_be_made(call: str) -> None:
    found = CALL.match(call)
    assert found, f"{call} is no call of ours"
    owner, name, arguments = found.groups()
    kinds = [kind for kind in OBJECTS[owner] if hasattr(kind, name)]
    assert kinds, f"{owner} has no {name}"
    if arguments is None:
        return
    known = set(inspect.signature(getattr(kinds[0], name)).parameters) | OPTIONS
    for argument in filter(None, arguments.split(", ")):
        assert argument.partition("=")[0].lstrip("*") in known, f"{call}: no {argument}"


def settings_table() -> str:
    lines = ["", "| of Kafka | here |", "| --- | --- |"]
    lines += [f"| `{name.replace('_', '.')}` | {told} |" for name, told in HINTS.items()]
    return "\n".join([*lines, ""])


def test_the_settings_are_those_that_the_client_tells() -> None:
    before, _, rest = TEXT.partition("<!-- settings -->\n")
    _, _, after = rest.partition("<!-- end of settings -->")
    wanted = f"{before}<!-- settings -->\n{settings_table()}\n<!-- end of settings -->{after}"
    if os.environ.get("ONCELOG_REWRITE"):
        PAGE.write_text(wanted)
    assert wanted == TEXT, f"ONCELOG_REWRITE=1 pytest {__file__}"


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_names_what_there_is(name: str) -> None:
    for span in re.findall(r"`(\w+)`", HINTS[name]):
        assert span in OPTIONS | ARGUMENTS | {"consumer", "end_offset"}, span


def test_whoever_comes_with_a_name_of_kafkas_is_told_ours() -> None:
    for name in ("auto.offset.reset", "auto_offset_reset"):
        with pytest.raises(errors.InvalidArgument, match="`start`: earliest or latest"):
            make_options(ConsumerOptions, {name: "latest"})
    with pytest.raises(errors.InvalidArgument, match="'session_timeout_ms'"):
        make_options(ConsumerOptions, {"session.timeout.ms": 6_000})
    with pytest.raises(errors.InvalidArgument, match="did you mean 'linger_ms'"):
        make_options(ProducerOptions, {"lingerms": 1})
    assert hint("nothing", []) is None


def test_the_errors_are_ours() -> None:
    table = TEXT.partition("## Errors")[2]
    for row in (line for line in table.splitlines() if line.startswith("| ")):
        for name in re.findall(r"`([A-Z][a-z]\w+)`", row.split(" | ")[1]):
            assert hasattr(oncelog.errors, name), name
