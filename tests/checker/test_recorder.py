"""The recorder writes what was asked and told, no more and no less: against services by script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from oncelog import checker
from oncelog._core.routing import Endpoint
from oncelog.aio.log import Log
from oncelog.checker.events import Event, HistoryWriter
from oncelog.checker.recorder import RecordedLog
from oncelog.options import ConnectOptions
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, produced, protocol_over
from tests.unit.client.test_transactions import Services

METHODS = (
    "coordinator.init_producer",
    "coordinator.begin_transaction",
    "coordinator.commit_transaction",
    "coordinator.abort_transaction",
    "coordinator.transact",
    "coordinator.get_transaction",
)


class Leaders:
    """Of the two partitions of topic "a", at ports 5 and 6: they append, each in its epoch."""

    def __init__(self) -> None:
        self.ends = {0: 10, 1: 20}
        self.epochs = {0: 3, 1: 4}
        self.script: list[Exception | bool] = []

    def produce(self, to: Endpoint, request: Any) -> leader.ProduceReply:
        """An exception of the script is raised; True answers as a repeat."""
        said = self.script.pop(0) if self.script else False
        if isinstance(said, Exception):
            raise said
        reply = leader.ProduceReply()
        for batch in produced(request).batches:
            number = batch.partition.number
            reply.results.add(
                partition=batch.partition,
                journal_offset=self.ends[number],
                leader_epoch=self.epochs[number],
                duplicate=said,
            )
            self.ends[number] += batch.record_count
        return reply


Work = Callable[[RecordedLog, Leaders, Services], Awaitable[None]]


def recording(work: Work) -> list[Event]:
    """What stands in the history afterwards."""

    async def main() -> list[Event]:
        transport, services, leaders = ScriptedTransport(5, 6), Services(), Leaders()
        for method in METHODS:
            transport.handlers[method] = services.handler(method)
        transport.handlers["partition_leader.produce"] = leaders.produce
        protocol = protocol_over(transport, timeout_ms=2_000)
        history = HistoryWriter(client="c")
        log = RecordedLog(Log("boot:1", ConnectOptions(), protocol=protocol), history)
        await work(log, leaders, services)
        await log.log.close()
        return history.events

    return on_virtual_time(main)[0]


def told(events: list[Event], do: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The operations of that kind: what was asked, and what was told."""
    ends = {event["op"]: event for event in events if event["event"] in ("ok", "fail", "unknown")}
    return [
        (event, ends.get(event["op"], {"event": "nothing"}))
        for event in events
        if event["event"] == "invoke" and event["do"] == do
    ]


def acks(events: list[Event]) -> list[dict[str, Any]]:
    return [ack for _, told_ in told(events, "acknowledge") for ack in told_.get("acks", ())]


def test_a_plain_record_is_acknowledged_by_its_flush_and_the_leader_is_named() -> None:
    async def work(log: RecordedLog, leaders: Leaders, _: Services) -> None:
        producer = await log.producer()
        for number in range(3):
            await producer.send("a", b"v%d" % number, partition=number % 2)
        assert told(log.history.events, "produce")[0][1]["event"] == "nothing"
        await producer.flush()
        await producer.close()

    events = recording(work)
    assert [(asked["partition"], asked["values"]) for asked, _ in told(events, "produce")] == [
        (0, ["v0"]),
        (1, ["v1"]),
        (0, ["v2"]),
    ]
    assert {answer["event"] for _, answer in told(events, "produce")} == {"ok"}
    assert sorted(acks(events), key=lambda ack: ack["partition"]) == [
        {
            "topic": "a",
            "partition": 0,
            "epoch": 3,
            "leader": "boot:5",
            "first_offset": 10,
            "count": 2,
        },
        {
            "topic": "a",
            "partition": 1,
            "epoch": 4,
            "leader": "boot:6",
            "first_offset": 20,
            "count": 1,
        },
    ]
    assert checker.check(events).clean


@pytest.mark.parametrize("how", ["rows", "batch"])
def test_arrow_is_recorded_by_partition_in_order(how: str) -> None:
    columns = {"value": [b"a", b"b", b"c", b"d"], "partition": [1, 0, 1, 1]}
    table = pa.table(columns) if how == "rows" else pa.RecordBatch.from_pydict(columns)
    free = pa.table({"value": [b"e", b"f"]})

    async def work(log: RecordedLog, leaders: Leaders, _: Services) -> None:
        producer = await log.producer()
        await producer.send_arrow("a", table)
        await producer.send_arrow("a", free)
        await producer.flush()
        transactional = await log.transactional_producer("t")
        async with transactional.transaction() as tx:
            await tx.send_arrow("a", table.slice(0, 2))

    events = recording(work)
    asked = [(one.get("partition"), one["values"]) for one, _ in told(events, "produce")]
    assert asked == [(1, ["a", "c", "d"]), (0, ["b"]), (None, ["e"]), (None, ["f"])]
    assert {answer["event"] for _, answer in told(events, "produce")} == {"ok"}
    sent = [(one["partition"], one["values"], one["tx"]) for one, _ in told(events, "send")]
    ((commit, _),) = told(events, "commit")
    assert sent == [(1, ["a"], commit["tx"]), (0, ["b"], commit["tx"])]


def test_what_failed_is_told_apart_from_what_nobody_knows() -> None:
    async def work(log: RecordedLog, leaders: Leaders, _: Services) -> None:
        producer = await log.producer()
        leaders.script = [errors.TooLarge("no", limit="max_batch_bytes")]
        await producer.send("a", b"refused", partition=0)
        with pytest.raises(errors.TooLarge):
            await producer.flush()
        transactional = await log.transactional_producer("t")
        with pytest.raises(ZeroDivisionError):
            async with transactional.transaction() as tx:
                await tx.send("a", b"dropped", partition=0)
                raise ZeroDivisionError

    events = recording(work)
    # Its receipt says that it is not there.
    assert [answer["event"] for _, answer in told(events, "produce")] == ["fail"]
    assert [answer["event"] for _, answer in told(events, "acknowledge")] == ["fail"]
    assert [answer["event"] for _, answer in told(events, "abort")] == ["ok"]
    assert told(events, "commit") == []


def test_a_lost_answer_says_nothing_and_a_repeat_gives_no_offsets_twice() -> None:
    async def work(log: RecordedLog, leaders: Leaders, _: Services) -> None:
        producer = await log.producer()
        leaders.script = [errors.UnknownOutcome("cut"), True]
        await producer.send("a", b"v", partition=0)
        await producer.flush()

    events = recording(work)
    assert [answer["event"] for _, answer in told(events, "acknowledge")] == ["unknown", "ok"]
    assert acks(events) == [{"topic": "a", "partition": 0, "epoch": 3, "leader": "boot:5"}]


def test_i18_two_leaders_of_one_epoch_are_found_in_what_was_recorded() -> None:
    async def work(log: RecordedLog, leaders: Leaders, _: Services) -> None:
        producer = await log.producer()
        leaders.script = [
            False,
            errors.NotLeader("moved", leader_host="boot", leader_port=6),
            False,
        ]
        for value in (b"at 5", b"at 6"):
            await producer.send("a", value, partition=0)
            await producer.flush()

    report = checker.check(recording(work))
    assert [violation.invariant for violation in report.violations] == [18]
    assert "boot:5" in str(report)
    assert "boot:6" in str(report)


def test_a_commit_says_what_its_producer_was_told() -> None:
    async def work(log: RecordedLog, leaders: Leaders, services: Services) -> None:
        producer = await log.transactional_producer("t")
        async with producer.transaction(commit_seq=("s", 1)) as tx:
            await tx.send("a", b"v", partition=0)
        services.script["transact"] = [errors.UnknownOutcome("lost")] * 1_000
        with pytest.raises(errors.UnknownOutcome):
            async with producer.transaction() as tx:
                await tx.send("a", b"w", partition=0)
        await asyncio.sleep(0)

    events = recording(work)
    (first, told_first), (second, told_second) = told(events, "commit")
    assert (first["generation"], first["commit_seq"]) == (1, ["s", 1])
    assert told_first["event"] == "ok"
    assert told_first["tx_id"]
    assert told_second["event"] == "unknown"
    assert second["tx"] != first["tx"]
    assert len(told(events, "init_producer")) == 1
