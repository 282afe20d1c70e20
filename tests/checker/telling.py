"""Histories told in a line or two, for the corners of the rules. Times are microseconds; operations
overlap where their times do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oncelog.checker import Report, check

Op = list[dict[str, Any]]
Rows = Sequence[tuple[int, str]]


def op(
    do: str, begin: int, end: int, told: dict[str, Any] | None = None, how: str = "ok", **asked: Any
) -> Op:
    """An operation. `how`: ok, fail or unknown."""
    return [
        {"event": "invoke", "time_us": begin, "do": do, **asked},
        {"event": how, "time_us": end, **(told or {})},
    ]


def plain(begin: int, end: int, value: str, partition: int | None = 0, **more: Any) -> Op:
    return op("produce", begin, end, topic="t", partition=partition, values=[value], **more)


def send(begin: int, end: int, tx: str, value: str, partition: int = 0, **more: Any) -> Op:
    asked = {"topic": "t", "partition": partition, "values": [value], **more}
    return op("send", begin, end, tx=tx, **asked)


def commit(begin: int, end: int, tx: str, told: dict[str, Any] | None = None, **more: Any) -> Op:
    return op("commit", begin, end, told, tx=tx, **more)


def abort(begin: int, end: int, tx: str, **more: Any) -> Op:
    return op("abort", begin, end, tx=tx, **more)


def read(begin: int, end: int, rows: Rows, partition: int = 0, **more: Any) -> Op:
    part = {"topic": "t", "partition": partition, "records": [list(row) for row in rows]}
    return op("read", begin, end, {"parts": [part]}, **more)


def raw(begin: int, end: int, rows: Sequence[Sequence[Any]], markers: Sequence[Any] = ()) -> Op:
    part = {"topic": "t", "partition": 0, "records": rows, "markers": markers}
    return op("read", begin, end, {"parts": [part]}, isolation="raw")


def ends(begin: int, end: int, *offsets: int, **more: Any) -> Op:
    return op("list_offsets", begin, end, {"offsets": list(offsets)}, topic="t", **more)


def lookup(begin: int, end: int, state: str, **told: Any) -> Op:
    return op("get_transaction", begin, end, {"state": state, **told}, tx_id="7")


def register(begin: int, end: int, generation: int, instance: str | None) -> Op:
    told = {"producer": "p", "generation": generation}
    return op("init_producer", begin, end, told, instance=instance)


def step(since: int | str, to: int, **more: Any) -> dict[str, Any]:
    return {"group": "g", "topic": "in", "partition": 0, "from": since, "to": to, **more}


def move(begin: int, end: int, since: int | str, to: int, how: str = "ok", **more: Any) -> Op:
    """A commit of offsets: plain, or pending under `tx`."""
    consumer = {"consumer": more.pop("consumer")} if "consumer" in more else {}
    offsets = [step(since, to, **consumer)]
    return op("commit_offsets", begin, end, how=how, group="g", offsets=offsets, **more)


def fetch(begin: int, end: int, offset: int | None, *, stable: bool = True) -> Op:
    told = {"offsets": [{"topic": "in", "partition": 0, "offset": offset}]}
    return op("fetch_offsets", begin, end, told, group="g", stable=stable)


def stands(begin: int, end: int, offset: int, **more: Any) -> Op:
    """A consumer says where it is in partition 0 of topic "in"."""
    told = {"positions": [{"topic": "in", "partition": 0, "offset": offset}]}
    return op("position", begin, end, told, **more)


def settled(at: int) -> Op:
    return [{"event": "mark", "time_us": at, "what": "settled"}]


def judge(*ops: Op, sort: bool = True) -> Report:
    """Of operations that took place at their times; unsorted: as several files give them."""
    events: list[dict[str, Any]] = []
    for number, lines in enumerate(ops):
        events += [
            line if line["event"] == "mark" else {**line, "op": str(number)} for line in lines
        ]
    if sort:
        events.sort(key=lambda event: int(event["time_us"]))
    return check(events)


ID = {"tx_id": "7"}
IN0 = {"topic": "in"}
MADE = [send(0, 1, "x", "a"), send(2, 3, "x", "b")]


def story(name: str, broken: Sequence[int], *ops: Op) -> Any:
    return pytest.param(list(broken), ops, id=name)
