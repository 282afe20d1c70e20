"""One task attempt writes: its rows in order, under its own writer, and what it reports stands
there (I9, I34). How they are delivered: tests/unit/client/test_writer.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from oncelog.protocol import Protocol
from oncelog_spark import producing
from oncelog_spark.batch_transaction import Entered, Standing, TransactionLost
from oncelog_spark.manifest import PartCount
from oncelog_spark.producing import TaskProducer
from oncelogpb import errors
from tests.unit.client.scripted import TOPIC_ID, blocking_over
from tests.unit.client.test_writer import Leader

ENTERED = Entered(Standing.OPEN, 77, 5, 2)


def rows(values: Sequence[int], partitions: Sequence[int] | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": pa.array([b"%d" % value for value in values], pa.binary())}
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    return pa.record_batch(columns)


@pytest.fixture
def of() -> Leader:
    made = Leader()
    made.transport.partitions = [7, 7, 7]
    return made


@pytest.fixture
def protocol(of: Leader) -> Iterator[Protocol]:
    with blocking_over(of.transport) as opened:
        yield opened


def produce(
    protocol: Protocol, batches: Sequence[pa.RecordBatch], *, unkeyed: int = 0
) -> tuple[PartCount, ...]:
    with TaskProducer(protocol, ENTERED, writer=11, topic="a", unkeyed=unkeyed) as producer:
        for batch in batches:
            producer.write(batch)
        return producer.finish()


def test_i9_rows_keep_their_order_over_all_that_a_task_sends(
    of: Leader, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "COLLECT_BYTES", 1)
    batches = [rows([0, 1, 2], [0, 1, 0]), rows([3, 4], [0, 0]), rows([5], [1]), rows([6], [0])]
    assert produce(protocol, batches) == (PartCount(TOPIC_ID, 0, 5), PartCount(TOPIC_ID, 1, 2))
    assert of.values(0) == [b"0", b"2", b"3", b"4", b"6"]
    assert of.values(1) == [b"1", b"5"]


def test_i34_every_message_is_of_the_batchs_transaction_and_of_this_writer(
    of: Leader, protocol: Protocol
) -> None:
    produce(protocol, [rows(range(100))])
    for request in of.requests:
        assert (request.tx_id, request.writer) == (77, 11)
        assert (request.producer.producer_id, request.producer.generation) == (5, 2)


def test_rows_are_collected_before_they_are_split(
    of: Leader, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "COLLECT_BYTES", 2_000)
    count = 3_000
    batches = [
        rows(range(low, low + 100), [n % 3 for n in range(low, low + 100)])
        for low in range(0, count, 100)
    ]
    assert sum(each.record_count for each in produce(protocol, batches)) == count
    for number in range(3):
        assert of.values(number) == [b"%d" % value for value in range(number, count, 3)]
        assert 1 < len(of.taken[number]) < len(batches)


def test_rows_without_a_key_stay_together_and_move_on_with_each_split(
    of: Leader, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "BATCH_BYTES", 1)
    produce(protocol, [rows([0, 1]), rows([2]), rows([3])], unkeyed=4)
    assert of.taken == {1: [(0, [b"0", b"1"])], 2: [(0, [b"2"])], 0: [(0, [b"3"])]}


def test_a_large_batch_of_which_no_row_says_where_it_goes_goes_as_it_is(
    of: Leader, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "BATCH_BYTES", 500)
    monkeypatch.setattr(producing, "COLLECT_BYTES", 2_000)
    large = [rows(range(low, low + 100)) for low in (0, 100, 200)]
    assert large[0].nbytes > 500
    produce(protocol, large)
    assert [len(taken) for taken in of.taken.values()] == [1, 1, 1]
    of.taken.clear()
    produce(protocol, [rows(range(low, low + 100), [0] * 100) for low in (0, 100, 200)])
    assert len(of.taken[0]) < 3, "those that are split are collected first"


def test_nothing_to_write_writes_nothing(of: Leader, protocol: Protocol) -> None:
    assert produce(protocol, []) == produce(protocol, [rows([])]) == ()
    assert not of.requests


@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (errors.TransactionEnded("timeout"), TransactionLost),
        (errors.ProducerFenced("later run"), errors.ProducerFenced),
        (errors.CorruptBatch("broken"), errors.CorruptBatch),
    ],
    ids=lambda item: getattr(item, "reason", ""),
)
@pytest.mark.parametrize("count", [1, 20])
def test_i34_a_task_of_which_a_batch_is_not_durable_fails(
    of: Leader,
    protocol: Protocol,
    monkeypatch: pytest.MonkeyPatch,
    refusal: errors.OncelogError,
    raised: type[Exception],
    count: int,
) -> None:
    monkeypatch.setattr(producing, "COLLECT_BYTES", 1)
    of.script = [refusal]
    with pytest.raises(raised):
        produce(protocol, [rows([number]) for number in range(count)])
