"""`consumer.transactions()`: each transaction of a partition whole, by both deliveries."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import errors
from oncelog.batch import Record


@pytest.fixture(params=["leader", "buffered"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {
        "delivery": request.param,
        "buffer_memory_bytes": 64 * 1024,
        "buffer_dir": tmp_path / "buffers",
    }


def write(log: oncelog.Log, topic: str) -> list[int]:
    """The TxIds in commit order; 0: plain. Two partitions; the first one has all."""
    first, second, third = (log.transactional_producer() for _ in range(3))
    with first.transaction(wait="visible") as one:
        for number in range(300):
            one.send(topic, b"one %d " % number + b"x" * 1_000, partition=0)
            one.send(topic, b"one %d" % number, partition=1)
        one.flush()
        with second.transaction(wait="visible") as two:
            two.send(topic, b"two", partition=0)
        with third.transaction(wait="visible") as three:
            three.send(topic, b"aborted", partition=0)
            three.flush()
            three.abort()
        with log.producer() as plain:
            plain.send(topic, b"plain", partition=0)
    with second.transaction(wait="visible") as four:
        for number in range(100):
            four.send(topic, b"four %d " % number + b"x" * 1_000, partition=0)
            if number % 10 == 0:
                four.flush()
    return [two.tx_id, 0, one.tx_id, four.tx_id]


def read(
    transactions: oncelog.Transactions, count: int, partition: int = 0
) -> list[oncelog.CommittedTransaction]:
    found: list[oncelog.CommittedTransaction] = []
    while len(found) < count:
        transaction = transactions.poll(10.0)
        assert transaction is not None
        if transaction.partition == partition:
            found.append(transaction)
    return found


def test_i3_each_transaction_comes_whole_and_in_commit_order(
    log: oncelog.Log, topic: str, options: dict[str, Any]
) -> None:
    before_ms = time.time() * 1000
    wanted = write(log, topic)
    consumer = log.consumer([topic], **options)
    transactions = consumer.transactions()
    records: dict[int, list[Record]] = {0: [], 1: []}
    told: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, told.values())) < 5:
        transaction = transactions.poll(10.0)
        assert transaction is not None
        mine = list(transaction.read())
        assert len(mine) == transaction.record_count
        assert mine[0].offset == transaction.first_offset
        assert before_ms - 1 <= transaction.committed_ms <= time.time() * 1000 + 1
        assert {record.partition for record in mine} == {transaction.partition}
        told[transaction.partition].append(transaction.tx_id)
        records[transaction.partition] += mine
    # The last one is known to be whole though nothing comes behind it.
    assert told == {0: wanted, 1: [wanted[2]]}
    ends = log.admin.offsets(topic)
    reader = log.consumer([topic])
    expected: dict[int, list[Record]] = {0: [], 1: []}
    while [len(expected[number]) for number in (0, 1)] != ends:
        for record in reader.poll(10.0) or ():
            expected[record.partition].append(record)
    assert records == expected
    consumer.close()
    assert not list(options["buffer_dir"].glob("consumer-*"))


def test_i15_what_was_given_is_committed_and_the_next_one_follows(
    log: oncelog.Log, topic: str, options: dict[str, Any]
) -> None:
    """By members of a group, one after the other."""
    wanted = write(log, topic)
    told = []
    for _ in wanted:
        with log.consumer([topic], group=f"of {topic}", **options) as one:
            (transaction,) = read(one.transactions(), 1)
            told.append(transaction.tx_id)
            one.commit()
    assert told == wanted


def test_i21_a_transaction_that_was_not_processed_comes_again(
    log: oncelog.Log, topic: str, options: dict[str, Any]
) -> None:
    wanted = write(log, topic)
    out = log.admin.create_topic(f"{topic}-out", partitions=1).name
    producer = log.transactional_producer()
    consumer = log.consumer([topic], group=f"of {topic}", partitions=[(topic, 0)], **options)
    told: list[int] = []
    for transaction in consumer.transactions():
        try:
            with producer.transaction(consumer, wait="visible") as tx:
                tx.send(out, b"%d" % transaction.tx_id)
                if len(told) % 2 == 0:
                    told.append(-1)
                    raise ZeroDivisionError
        except ZeroDivisionError:
            continue
        told.append(transaction.tx_id)
        if transaction.tx_id == wanted[-1]:
            break
    assert told == [one for tx_id in wanted for one in (-1, tx_id)]


def test_a_consumer_gives_either_transactions_or_batches(
    log: oncelog.Log, topic: str, options: dict[str, Any]
) -> None:
    wanted = write(log, topic)
    consumer = log.consumer([topic], partitions=[(topic, 0)], batch_records_max=50, **options)
    given = 0
    while given < 10:
        given += len(consumer.poll(10.0) or ())
    transactions = consumer.transactions()
    # The rest of the one in which it stands.
    (rest,) = read(transactions, 1)
    assert (rest.tx_id, rest.first_offset) == (wanted[2], given)
    assert [record.offset for record in rest.read()] == list(range(given, 302))
    with pytest.raises(errors.InvalidArgument, match="gives whole transactions since"):
        for _ in range(10):
            consumer.poll(1.0)
    with pytest.raises(errors.InvalidArgument, match="for isolation='committed'"):
        log.consumer([topic], isolation="uncommitted").transactions()
