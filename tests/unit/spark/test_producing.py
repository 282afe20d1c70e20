"""One task attempt writes: its rows in order, under its own writer and sequences, and what it
reports stands there (I6, I9, I34)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from oncelog_spark import producing
from oncelog_spark.batch_transaction import Entered, Standing, TransactionLost
from oncelog_spark.manifest import PartCount
from oncelog_spark.producing import TaskProducer
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import TOPIC_ID, Leaders

ENTERED = Entered(Standing.OPEN, 77, 5, 2)


def rows(values: Sequence[int], partitions: Sequence[int] | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": pa.array([b"%d" % value for value in values], pa.binary())}
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    return pa.record_batch(columns)


def produce(
    leaders: Leaders, batches: Sequence[pa.RecordBatch], *, unkeyed: int = 0
) -> tuple[PartCount, ...]:
    with TaskProducer(leaders.protocol, ENTERED, writer=11, topic="t", unkeyed=unkeyed) as producer:
        for batch in batches:
            producer.write(batch)
        return producer.finish()


def written(leaders: Leaders) -> dict[int, list[tuple[int, list[int]]]]:
    """By partition: (base sequence, values) of each batch, as they were sent."""
    found: dict[int, list[tuple[int, list[int]]]] = {}
    for request in leaders.of("produce"):
        for batch in request.batches:
            values = records.decode(batch.encoding, batch.payload).column("value").to_pylist()
            numbers = [int(value) for value in values]
            found.setdefault(batch.partition.number, []).append((batch.base_sequence, numbers))
    return found


def test_i9_sequences_count_records_per_partition_over_all_that_a_task_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "COLLECT_BYTES", 1)
    leaders = Leaders([], [])
    parts = produce(
        leaders, [rows([0, 1, 2], [0, 1, 0]), rows([3, 4], [0, 0]), rows([5], [1]), rows([6], [0])]
    )
    assert written(leaders) == {
        0: [(0, [0, 2]), (2, [3, 4]), (4, [6])],
        1: [(0, [1]), (1, [5])],
    }
    assert parts == (PartCount(TOPIC_ID, 0, 5), PartCount(TOPIC_ID, 1, 2))


def test_i34_every_message_is_of_the_batchs_transaction_and_of_this_writer() -> None:
    leaders = Leaders([])
    produce(leaders, [rows(range(100))])
    for request in leaders.of("produce"):
        assert (request.tx_id, request.writer) == (77, 11)
        assert request.producer == pb.Producer(producer_id=5, generation=2)
        for batch in request.batches:
            records.validate(batch.encoding, batch.payload, batch.record_count, batch.crc32c)


def test_large_rows_are_cut_into_messages_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "MESSAGE_BYTES", 5_000)
    monkeypatch.setattr(producing, "COLLECT_BYTES", 20_000)
    leaders = Leaders([], [], [])
    count = 3_000
    batches = [
        rows(range(low, low + 100), [n % 3 for n in range(low, low + 100)])
        for low in range(0, count, 100)
    ]
    parts = produce(leaders, batches)
    assert sum(part.record_count for part in parts) == count
    for number, sent in written(leaders).items():
        assert [value for _, values in sent for value in values] == list(range(number, count, 3))
        expected = 0
        for sequence, values in sent:
            assert sequence == expected
            expected += len(values)
    assert len(leaders.of("produce")) > 3


def test_rows_without_a_key_stay_together_and_move_on_with_each_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "COLLECT_BYTES", 1)
    leaders = Leaders([], [], [])
    produce(leaders, [rows([0, 1]), rows([2]), rows([3])], unkeyed=4)
    assert written(leaders) == {1: [(0, [0, 1])], 2: [(0, [2])], 0: [(0, [3])]}


def test_nothing_to_write_writes_nothing() -> None:
    leaders = Leaders([])
    assert produce(leaders, []) == produce(leaders, [rows([])]) == ()
    assert leaders.asked == []


@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (errors.TransactionEnded("timeout"), TransactionLost),
        (errors.ProducerFenced("later run"), errors.ProducerFenced),
        (errors.UnknownOutcome("lost"), errors.UnknownOutcome),
    ],
    ids=lambda item: getattr(item, "reason", ""),
)
@pytest.mark.parametrize("of_one_batch", [True, False])
def test_i34_a_task_whose_last_batch_is_not_durable_fails(
    refusal: errors.OncelogError, raised: type[Exception], of_one_batch: bool
) -> None:
    def refuse(request: Any) -> Any:
        if not of_one_batch:
            return refusal
        results = [leader.BatchResult(), leader.BatchResult(error=errors.to_status(refusal))]
        return leader.ProduceReply(results=results)

    leaders = Leaders([], [])
    leaders.script["produce"] = [refuse]
    with pytest.raises(raised):
        produce(leaders, [rows([0, 1], [0, 1])])


def test_i34_a_message_that_was_refused_long_ago_fails_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producing, "COLLECT_BYTES", 1)
    leaders = Leaders([])
    leaders.script["produce"] = [errors.CorruptBatch("the first")]
    with pytest.raises(errors.CorruptBatch, match="the first"):
        produce(leaders, [rows([number]) for number in range(20)])


def test_finish_waits_for_what_is_under_way() -> None:
    leaders, answered = Leaders([]), threading.Event()

    def slowly(request: Any) -> Any:
        answered.wait(0.2)
        answered.set()
        return leaders._produce(request)

    leaders.script["produce"] = [slowly]
    produce(leaders, [rows([0])])
    assert answered.is_set()
