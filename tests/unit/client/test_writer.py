"""What one task of a connector writes into somebody else's transaction (I6, I9, I34)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from oncelog import writer as module
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog._core.transaction import WriterPart
from oncelog.protocol import Protocol
from oncelog.writer import Writer
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, blocking_over, produced

PRODUCER = pb.Producer(producer_id=5, generation=2)
# Seconds: only ends a test that would hang.
PATIENCE_S = 30


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


class Leader:
    """Leads both partitions of topic "a"; what it takes, by partition."""

    def __init__(self) -> None:
        self.transport = ScriptedTransport(7, 7)
        self.transport.handlers["partition_leader.produce"] = self._produce
        self.requests: list[leader.ProduceRequest] = []
        self.taken: dict[int, list[tuple[int, list[bytes]]]] = {}
        # Come before its own answers.
        self.script: list[errors.OncelogError] = []
        # Cleared: it answers nobody.
        self.answers = threading.Event()
        self.answers.set()
        self.unanswered_bytes = self.unanswered_bytes_max = 0

    async def _produce(self, _to: Endpoint, request: Any) -> leader.ProduceReply:
        asked = produced(request)
        self.requests.append(asked)
        size = sum(len(batch.payload) for batch in asked.batches)
        self.unanswered_bytes += size
        self.unanswered_bytes_max = max(self.unanswered_bytes_max, self.unanswered_bytes)
        while not self.answers.is_set():
            await asyncio.sleep(0.001)
        self.unanswered_bytes -= size
        if self.script:
            raise self.script.pop(0)
        return leader.ProduceReply(results=[self._append(batch) for batch in asked.batches])

    def _append(self, batch: pb.Batch) -> leader.BatchResult:
        records.validate(batch.encoding, batch.payload, batch.record_count, batch.crc32c)
        values = records.decode(batch.encoding, batch.payload).column("value").to_pylist()
        taken = self.taken.setdefault(batch.partition.number, [])
        count = sum(len(values) for _, values in taken)
        if batch.base_sequence > count:
            gap = errors.OutOfOrderSequence(f"{batch.base_sequence} behind {count}")
            return leader.BatchResult(error=errors.to_status(gap))
        if batch.base_sequence == count:
            taken.append((count, values))
        return leader.BatchResult()

    def values(self, number: int) -> list[bytes]:
        """In the order of their sequences."""
        return [value for _, values in self.taken[number] for value in values]


@pytest.fixture
def of() -> Leader:
    return Leader()


@pytest.fixture
def protocol(of: Leader) -> Iterator[Protocol]:
    with blocking_over(of.transport) as opened:
        yield opened


def part(number: int, count: int) -> WriterPart:
    return WriterPart(PartitionKey(TOPIC_ID, number), 11, count)


def write(protocol: Protocol, sent: Sequence[tuple[int, pa.RecordBatch]]) -> list[WriterPart]:
    with Writer(protocol, tx_id=77, producer=PRODUCER, writer=11) as writer:
        for number, batch in sent:
            writer.send("a", number, batch)
        return sorted(writer.finish())


def test_i9_sequences_count_records_per_partition(of: Leader, protocol: Protocol) -> None:
    sent = [(0, rows(b"0", b"1")), (1, rows(b"2")), (0, rows(b"3")), (1, rows(b"4", b"5"))]
    assert write(protocol, sent) == [part(0, 3), part(1, 3)]
    assert of.values(0) == [b"0", b"1", b"3"]
    assert of.values(1) == [b"2", b"4", b"5"]
    for request in of.requests:
        assert (request.tx_id, request.writer, request.producer) == (77, 11, PRODUCER)


def test_i6_what_was_not_answered_goes_again_as_it_was(of: Leader, protocol: Protocol) -> None:
    of.script = [errors.UnknownOutcome("the answer was lost")]
    assert write(protocol, [(0, rows(b"0")), (0, rows(b"1"))]) == [part(0, 2)]
    assert of.values(0) == [b"0", b"1"]
    bases = [batch.base_sequence for request in of.requests for batch in request.batches]
    assert sorted(set(bases)) == [0, 1]
    assert len(bases) > len(set(bases)), "it went again under its sequence"


def test_several_are_in_flight_up_to_a_bound(
    of: Leader, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OUTSTANDING_BYTES_MAX", 40_000)
    of.answers.clear()
    sent = [(0, rows(b"%d" % number * 10_000)) for number in range(10)]
    parts: list[list[WriterPart]] = []
    writing = threading.Thread(target=lambda: parts.append(write(protocol, sent)))
    writing.start()
    give_up = time.monotonic() + PATIENCE_S
    while of.unanswered_bytes < 30_000:
        assert time.monotonic() < give_up, "they do not fly together"
        time.sleep(0.001)
    of.answers.set()
    writing.join(PATIENCE_S)
    assert parts == [[part(0, 10)]]
    assert of.unanswered_bytes_max <= 40_000


def test_i34_finish_waits_until_all_of_it_is_durable(of: Leader, protocol: Protocol) -> None:
    of.answers.clear()
    parts: list[list[WriterPart]] = []
    writing = threading.Thread(target=lambda: parts.append(write(protocol, [(0, rows(b"0"))])))
    writing.start()
    give_up = time.monotonic() + PATIENCE_S
    while not of.requests:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    # Long enough for who does not wait to be through.
    writing.join(0.3)
    assert not parts, "nobody said that it is durable"
    of.answers.set()
    writing.join(PATIENCE_S)
    assert parts == [[part(0, 1)]]


def test_i34_what_was_refused_fails_whoever_goes_on(of: Leader, protocol: Protocol) -> None:
    of.script = [errors.ProducerFenced("a later run")]
    with Writer(protocol, tx_id=77, producer=PRODUCER, writer=11) as writer:
        writer.send("a", 0, rows(b"0"))
        with pytest.raises(errors.ProducerFenced):
            writer.finish()
        with pytest.raises(errors.ProducerFenced):
            writer.send("a", 0, rows(b"1"))
        with pytest.raises(errors.ProducerFenced):
            writer.finish()


def test_i34_what_makes_room_is_not_yet_written(
    of: Leader, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were there room before there is an error, who finishes between the two would take a batch
    that failed for written."""
    made_room = Writer._settled

    def slowly(self: Writer, size: int) -> None:
        made_room(self, size)
        time.sleep(0.1)

    monkeypatch.setattr(Writer, "_settled", slowly)
    of.script = [errors.ProducerFenced("a later run")]
    with pytest.raises(errors.ProducerFenced):
        write(protocol, [(0, rows(b"0"))])


def test_batches_are_no_larger_than_the_topic_takes(of: Leader, protocol: Protocol) -> None:
    of.transport.configs = {"max.batch.bytes": "20000"}
    values = [b"%d" % number * 1_000 for number in range(10)] * 10
    assert write(protocol, [(1, rows(*values))]) == [part(1, 100)]
    assert of.values(1) == values
    sizes = [len(batch.payload) for request in of.requests for batch in request.batches]
    assert max(sizes) <= 20_000
    with pytest.raises(errors.TooLarge, match=r"max\.batch\.bytes = 20000"):
        write(protocol, [(0, rows(b"x" * 30_000))])


def test_nothing_sent_is_nothing_written(of: Leader, protocol: Protocol) -> None:
    assert write(protocol, [(0, rows())]) == write(protocol, []) == []
    assert not of.requests


def test_who_waits_is_told_that_the_connection_was_closed(of: Leader, protocol: Protocol) -> None:
    of.answers.clear()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            write(protocol, [(0, rows(b"0"))])
        except errors.OncelogError as error:
            raised.append(error)

    writing = threading.Thread(target=work)
    writing.start()
    give_up = time.monotonic() + PATIENCE_S
    while not of.requests:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    protocol.close()
    writing.join(PATIENCE_S)
    assert not writing.is_alive()
    assert len(raised) == 1
