"""The plain producer and its sender, against scripted leaders on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.buffers import RECORD_BYTES_MAX
from oncelog._core.routing import Endpoint
from oncelog.aio.producer import Producer
from oncelog.batch import Chunk
from oncelog.errors import Closed, DeliveryFailed
from oncelog.options import ProducerOptions
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, produced, protocol_over


class Log:
    """What the leaders have: per (producer id, partition) their rule of sequences."""

    def __init__(self) -> None:
        self.batches: dict[tuple[int, int], list[Any]] = {}
        self.storms: list[str] = []

    def receive(self, to: Endpoint, request: Any) -> Any:
        message = produced(request)
        storm = self.storms.pop(0) if self.storms else "calm"
        if storm == "lost request":
            raise errors.UnknownOutcome(storm)
        if storm == "throttled":
            raise errors.Throttled(storm, retry_after_ms=10)
        reply = leader.ProduceReply()
        for batch in message.batches:
            result = reply.results.add(partition=batch.partition)
            refusal = self._append(message.producer.producer_id, batch)
            if refusal is not None:
                result.error.CopyFrom(errors.to_status(refusal))
        if storm == "lost answer":
            raise errors.UnknownOutcome(storm)
        return reply

    def _append(self, producer_id: int, batch: Any) -> errors.OncelogError | None:
        log = self.batches.setdefault((producer_id, batch.partition.number), [])
        expected = sum(earlier.record_count for earlier in log)
        if batch.base_sequence > expected:
            return errors.OutOfOrderSequence("gap", expected=expected)
        if batch.base_sequence == expected:
            log.append(batch)
        return None

    def values(self, partition: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        for (_, number), batches in self.batches.items():
            for batch in batches if number == partition else []:
                chunk = Chunk(
                    "a",
                    number,
                    first_offset=0,
                    encoding=batch.encoding,
                    payload=batch.payload,
                    skip=0,
                    count=batch.record_count,
                )
                found.extend(record.value for record in chunk.records())
        return found


Work = Callable[[Producer, ScriptedTransport], Awaitable[Any]]


def producing(
    work: Work, *, partitions: tuple[int, ...] = (5,), log: Log | None = None, **options: Any
) -> tuple[Log, Any, float]:
    log = log or Log()

    async def main() -> Any:
        transport = ScriptedTransport(*partitions)
        transport.handlers["partition_leader.produce"] = log.receive
        producer = Producer(protocol_over(transport), ProducerOptions(**options))
        return await work(producer, transport)

    result, seconds = on_virtual_time(main)
    return log, result, seconds


def test_records_of_a_partition_keep_their_order_over_many_batches() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        for number in range(5_000):
            await producer.send("a", b"%05d" % number + b"x" * 95)
        await producer.flush()

    log, _, _ = producing(work, batch_bytes=16 * 1024)
    assert log.values(0) == [b"%05d" % number + b"x" * 95 for number in range(5_000)]


@pytest.mark.parametrize("storm", ["lost request", "lost answer", "throttled"])
def test_i6_bad_weather_neither_loses_nor_repeats_nor_reorders(storm: str) -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        for number in range(2_000):
            await producer.send("a", b"%04d" % number + b"x" * 96)
        await producer.flush()

    log = Log()
    log.storms = [storm, "calm", storm, storm, "calm", "calm", storm]
    producing(work, log=log, batch_bytes=8 * 1024)
    assert log.values(0) == [b"%04d" % number + b"x" * 96 for number in range(2_000)]
    assert len(log.batches) == 1, "one producer id: a retry is no new producer"


def test_a_lone_record_goes_after_the_linger_without_a_flush() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("a", b"v")
        await asyncio.sleep(0.02)

    log, _, _ = producing(work, linger_ms=5)
    assert log.values(0) == [b"v"]


def test_all_partitions_of_one_leader_go_in_one_message() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> int:
        for partition in range(8):
            await producer.send("a", b"v", partition=partition)
        await producer.flush()
        return transport.count("partition_leader.produce")

    _, messages, _ = producing(work, partitions=(5,) * 8)
    assert messages == 1


def test_a_leader_that_moved_is_found() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        receive = transport.handlers["partition_leader.produce"]

        def moved(to: Endpoint, request: Any) -> Any:
            if to.port == 5:
                transport.partitions = [6]
                raise errors.NotLeader("x")
            return receive(to, request)

        transport.handlers["partition_leader.produce"] = moved
        await producer.send("a", b"v")
        await producer.flush()

    log, _, _ = producing(work)
    assert log.values(0) == [b"v"]


def test_failures_are_told_once_by_flush_and_to_nobody_who_sends_other_records() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        for topic in ("first", "second"):
            await producer.send(topic, b"v")
        await asyncio.sleep(2)
        await producer.send("a", b"v")
        with pytest.raises(DeliveryFailed) as told:
            await producer.flush()
        assert isinstance(told.value, errors.UnknownTopic)
        assert [(one.topic, one.index) for one in told.value.failures] == [
            ("first", 0),
            ("second", 0),
        ]
        await producer.flush()

    log, _, _ = producing(work)
    assert log.values(0) == [b"v"]
    assert all(producer_id >> 63 for producer_id, _ in log.batches), "no named producer has it"


def test_an_unknown_topic_is_raised_by_flush_and_the_producer_goes_on() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("nowhere", b"v")
        with pytest.raises(errors.UnknownTopic):
            await producer.flush()
        await producer.send("a", b"v")
        await producer.flush()

    log, _, _ = producing(work)
    assert log.values(0) == [b"v"]


def test_i31_what_cannot_be_delivered_fails_at_its_deadline_and_the_rest_goes_on() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> float:
        receive = transport.handlers["partition_leader.produce"]

        def full(to: Endpoint, request: Any) -> Any:
            raise errors.DiskFull("x")

        transport.handlers["partition_leader.produce"] = full
        await producer.send("a", b"too late")
        with pytest.raises(errors.DiskFull):
            await producer.flush()
        ended = asyncio.get_running_loop().time()
        transport.handlers["partition_leader.produce"] = receive
        await producer.send("a", b"in time")
        await producer.flush()
        return ended

    log, ended, _ = producing(work, delivery_timeout_ms=5_000)
    assert log.values(0) == [b"in time"]
    assert 5.0 <= ended < 7.0


def test_a_refused_batch_does_not_take_the_others_of_its_partition_with_it() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        receive = transport.handlers["partition_leader.produce"]

        def picky(to: Endpoint, request: Any) -> Any:
            reply = leader.ProduceReply()
            accepted = leader.ProduceRequest(producer=produced(request).producer)
            for batch in produced(request).batches:
                if b"bad" in batch.payload:
                    refusal = errors.to_status(errors.CorruptBatch("x"))
                    reply.results.add(partition=batch.partition, error=refusal)
                    continue
                accepted.ClearField("batches")
                accepted.batches.append(batch)
                reply.results.extend(receive(to, accepted).results)
            return reply

        transport.handlers["partition_leader.produce"] = picky
        for value in (b"good", b"bad", b"fine"):
            await producer.send("a", value)
            await asyncio.sleep(0)
            await producer.send_arrow("a", _nothing())
        with pytest.raises(errors.CorruptBatch):
            await producer.flush()
        await producer.send("a", b"last")
        await producer.flush()

    log, _, _ = producing(work)
    assert log.values(0) == [b"good", b"fine", b"last"]


def test_more_than_the_buffer_holds_makes_send_wait_until_there_is_room() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> int:
        most = 0
        for _ in range(200):
            await producer.send("a", b"x" * 10_000)
            most = max(most, producer.recorder.outstanding)
        await producer.flush()
        assert producer.recorder.outstanding == 0
        return most

    log, most, _ = producing(work, batch_bytes=16 * 1024, buffer_bytes_max=64 * 1024)
    assert len(log.values(0)) == 200
    assert most < 128 * 1024


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"value": b"x" * (RECORD_BYTES_MAX + 1)}, errors.TooLarge),
        ({"value": "text"}, errors.InvalidArgument),
        ({"value": b"v", "key": 7}, errors.InvalidArgument),
        ({"value": b"v", "headers": {"a": "text"}}, errors.InvalidArgument),
        ({"value": b"v", "headers": [(b"a", b"b")]}, errors.InvalidArgument),
        # A lone surrogate is no text.
        ({"value": b"v", "headers": {"\ud800": b""}}, errors.InvalidArgument),
        ({"value": b"v", "partition": -1}, errors.InvalidArgument),
        ({"value": b"v", "partition": "0"}, errors.InvalidArgument),
        ({"value": b"v", "timestamp_us": 1.5}, errors.InvalidArgument),
        ({"value": b"v", "topic": ""}, errors.InvalidArgument),
        ({"value": b"v", "topic": ["a"]}, errors.InvalidArgument),
    ],
)
def test_what_cannot_be_sent_is_refused_at_the_call_and_takes_nothing_with_it(
    record: dict[str, Any], error: type[Exception]
) -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("a", b"before")
        with pytest.raises(error):
            await producer.send(**{"topic": "a", **record})
        await producer.send("a", b"behind")
        await producer.flush()

    log, _, _ = producing(work)
    assert log.values(0) == [b"before", b"behind"]


def test_a_closed_producer_says_so_and_has_flushed() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("a", b"v")
        await producer.close()
        await producer.close()
        with pytest.raises(Closed):
            await producer.send("a", b"w")

    log, _, _ = producing(work)
    assert log.values(0) == [b"v"]


def test_batches_are_no_larger_than_their_topic_takes() -> None:
    """`max.batch.bytes` of the topic, and not only the client's own size."""

    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        metadata = transport.metadata

        def described(to: Endpoint, request: Any) -> Any:
            reply = metadata(to, request)
            for topic in reply.topics:
                topic.configs["max.batch.bytes"] = "2048"
            return reply

        transport.handlers["cluster.get_metadata"] = described
        receipts = [await producer.send("a", b"x" * 300) for _ in range(100)]
        large = await producer.send("a", b"x" * 4_000)
        with pytest.raises(errors.TooLarge, match=r"max\.batch\.bytes = 2048"):
            await producer.flush()
        assert all([(await receipt).error is None for receipt in receipts])
        with pytest.raises(errors.TooLarge):
            await large

    log, _, _ = producing(work)
    assert len(log.values(0)) == 100
    assert max(len(b.payload) for batches in log.batches.values() for b in batches) <= 2_048


def _nothing() -> Any:
    """An empty table: it seals what was sent before."""
    import pyarrow as pa

    return pa.table({"value": pa.array([], pa.binary())})
