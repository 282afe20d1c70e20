"""What was deleted before a consumer read it stands in its history: where it went on, before the
records that it was given there, and where a partition begins, as it was told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from oncelog import checker
from oncelog._core.routing import Endpoint
from oncelog.aio.consumer import Consumer
from oncelog.checker.events import Event, HistoryWriter
from oncelog.checker.recorded_consumer import RecordedConsumer
from oncelog.checker.recorded_transport import RecordedTransport
from oncelog.checker.recorded_truncations import TRUNCATE
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import consuming, reply
from tests.unit.client.test_deletions import KEY, deleted


def recorded(*streams: list[Any], polls: int, **options: Any) -> list[Event]:
    """What a consumer of "a" is given in so many polls, of what its leader says."""
    ticks = itertools.count()
    history = HistoryWriter(client="c", now_us=lambda: next(ticks))

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        recorder = RecordedConsumer(consumer, history, "committed", 0)
        for _ in range(polls):
            await recorder.poll(5.0)

    consuming(work, *streams, start="earliest", **options)
    return history.events


def steps(events: list[Event]) -> list[tuple[str, Any]]:
    """In the order in which a judge takes them."""
    asked = {event["op"]: event for event in events if event["event"] == "invoke"}
    told = {event["op"]: event for event in events if event["event"] == "ok"}
    found: list[tuple[str, Any]] = []
    for op in sorted(told, key=lambda op: int(asked[op]["time_us"])):
        if asked[op]["do"] == "read":
            found += [("read", [row[0] for row in part["records"]]) for part in told[op]["parts"]]
        else:
            found += [
                ("position", (item["offset"], item.get("start"))) for item in told[op]["positions"]
            ]
    return found


STREAMS = ([reply(0, 0, 9), deleted(10, 12)], [reply(0, 10, 2)])


def test_i14_i15_a_read_that_passes_over_what_is_deleted_says_so_before_what_it_gives() -> None:
    """One poll meets the gap and gives what is behind it."""
    events = recorded(*STREAMS, polls=2, if_deleted="earliest")
    assert steps(events) == [
        ("position", (0, None)),
        ("read", list(range(9))),
        ("position", (10, 10)),
        ("read", [10, 11]),
    ]
    assert not {14, 15} & set(checker.check(events).invariants())


def test_i14_i15_one_that_goes_on_at_the_end_says_so() -> None:
    streams = [reply(0, 0, 9), deleted(10, 12)], [reply(0, 12, 2)]
    events = recorded(*streams, polls=2, if_deleted="latest")
    assert ("position", (12, 10)) in steps(events)
    assert not {14, 15} & set(checker.check(events).invariants())


def test_i32_a_read_that_is_refused_says_where_the_partition_begins() -> None:
    ticks = itertools.count()
    history = HistoryWriter(client="c", now_us=lambda: next(ticks))

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        recorder = RecordedConsumer(consumer, history, "committed", 0)
        await recorder.poll(5.0)
        with pytest.raises(errors.OffsetOutOfRange):
            await recorder.poll(5.0)

    consuming(work, *STREAMS, start="earliest")
    [refused] = [event for event in history.events if event["event"] == "fail"]
    assert refused["starts"] == [{"topic": "a", "partition": 0, "start": 10}]


def test_i32_a_truncation_is_recorded_as_it_goes_out_with_where_the_partition_begins_then() -> None:
    history = HistoryWriter(client="c")

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.handlers["partition_leader.truncate_partition"] = lambda to, request: (
            partition_leader_pb2.TruncatePartitionReply(start_before=1, start_after=request.offset)
        )
        await consumer._protocol.topic("a")
        directory = consumer._protocol.directory
        recorder = RecordedTransport(transport, history, directory)
        request = partition_leader_pb2.TruncatePartitionRequest(offset=7)
        request.partition.CopyFrom(KEY.wire())
        await recorder.call(Endpoint("boot", 5), TRUNCATE, request, 1_000)

    consuming(work)
    told = [
        {key: event[key] for key in ("topic", "partition", "before", "starts") if key in event}
        for event in history.events
    ]
    assert told == [
        {"topic": "a", "partition": 0, "before": 7},
        {"starts": [{"topic": "a", "partition": 0, "start": 7}]},
    ]
