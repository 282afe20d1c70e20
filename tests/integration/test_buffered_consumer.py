"""A consumer that makes commit order itself (`delivery="buffered"`) beside one that is given it:
the same records at the same offsets, whatever it is stopped by."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog.aio.buffering import BufferedPrefetcher
from oncelog.batch import Record
from tests.integration.cluster import Cluster

# So small that all but the smallest transactions go to disk.
MEMORY_BYTES = 64 * 1024


def fill(log: oncelog.Log, topic: str, seed: int, transactions: int) -> None:
    """Three producers whose transactions lie across each other, some aborted; plain records."""
    chance = random.Random(seed)
    producers = [log.transactional_producer() for _ in range(3)]
    plain = log.producer()
    open_: dict[int, Any] = {}
    for number in range(transactions * 4):
        which = chance.randrange(3)
        if chance.random() < 0.1:
            plain.send(topic, b"plain %d" % number, partition=number % 2)
            plain.flush()
        if which not in open_:
            open_[which] = producers[which].transaction(wait="visible")
            open_[which].__enter__()
        tx = open_[which]
        for one in range(chance.randint(1, 20)):
            value = b"%d/%d " % (number, one) + b"x" * chance.choice([10, 3_000])
            tx.send(topic, value, partition=chance.randrange(2))
        if chance.random() < 0.5:
            tx.flush()
        if chance.random() < 0.25:
            ended = open_.pop(which)
            ended.abort() if chance.random() < 0.3 else ended.commit()
    for tx in open_.values():
        tx.commit()


def read(consumer: oncelog.Consumer, ends: list[int]) -> list[list[Record]]:
    """By partition, up to these offsets."""
    found: list[list[Record]] = [[] for _ in ends]
    while any(len(one) < end for one, end in zip(found, ends, strict=True)):
        batch = consumer.poll(10.0)
        assert batch is not None, "nothing more comes"
        for record in batch:
            found[record.partition].append(record)
    return found


@pytest.fixture
def buffered(tmp_path: Path) -> dict[str, Any]:
    return {
        "delivery": "buffered",
        "buffer_memory_bytes": MEMORY_BYTES,
        "buffer_dir": tmp_path / "buffers",
    }


@pytest.fixture
def filled(log: oncelog.Log, topic: str) -> str:
    fill(log, topic, seed=7, transactions=60)
    return topic


def test_i8_it_gives_what_the_leaders_committed_log_has(
    log: oncelog.Log, filled: str, buffered: dict[str, Any]
) -> None:
    ends = log.admin.offsets(filled)
    expected = read(log.consumer([filled]), ends)
    consumer = log.consumer([filled], **buffered)
    assert read(consumer, ends) == expected
    prefetcher = consumer.twin._prefetcher
    assert isinstance(prefetcher, BufferedPrefetcher)
    held = prefetcher.held
    assert held.written_bytes > 0, "it needed its disk"
    assert (held.memory_bytes, held.disk_bytes) == (0, 0)
    consumer.close()
    assert not list(buffered["buffer_dir"].glob("consumer-*"))


def test_i15_stopped_again_and_again_it_goes_on_with_the_next_record(
    log: oncelog.Log, filled: str, buffered: dict[str, Any]
) -> None:
    """By commits, by seeks and rewinds, and by consumers of both kinds in turn."""
    chance = random.Random(3)
    ends = log.admin.offsets(filled)
    expected = read(log.consumer([filled]), ends)
    found: list[list[Record]] = [[] for _ in ends]
    while [len(one) for one in found] != ends:
        options = buffered if chance.random() < 0.8 else {}
        consumer = log.consumer(
            [filled], group=f"of {filled}", batch_records_max=chance.randint(1, 200), **options
        )
        for _ in range(chance.randint(0, 3)):
            batch = consumer.poll(10.0 if [len(one) for one in found] != ends else 0.0)
            for record in batch or ():
                found[record.partition].append(record)
            consumer.commit()
        if chance.random() < 0.5:
            # Given, and not committed: it comes again.
            consumer.poll(1.0)
        consumer.close()
        for one, all_ in zip(found, expected, strict=True):
            assert one == all_[: len(one)]


@pytest.fixture
def large(log: oncelog.Log, topic: str) -> str:
    """A transaction of 10,000 records in two partitions, across another one of 1,000 that begins
    before it and ends behind it, an aborted one, and plain records."""
    with log.producer() as plain:
        around, whole = log.transactional_producer(), log.transactional_producer()
        with around.transaction(wait="visible") as outer:
            with whole.transaction(wait="visible") as tx:
                for number in range(10_000):
                    tx.send(topic, b"whole %d" % number, partition=number % 2)
                    if number % 10 == 0:
                        outer.send(topic, b"around %d" % number, partition=number // 10 % 2)
                    if number % 1_000 == 0:
                        tx.flush()
                        outer.flush()
                        plain.send(topic, b"plain %d" % number, partition=number // 1_000 % 2)
                        plain.flush()
            with whole.transaction() as dropped:
                dropped.send(topic, b"aborted", partition=0)
                dropped.flush()
                dropped.abort()
        plain.send(topic, b"last", partition=0)
        plain.send(topic, b"last", partition=1)
    return topic


def test_i15_readers_of_both_kinds_in_turn_go_through_a_transaction_of_10_000_records(
    log: oncelog.Log, large: str, buffered: dict[str, Any]
) -> None:
    """Stopped at sampled records of it; every record of it is `test_pending`'s. Each reader goes on
    from what the one before has committed: an offset, and beside it the tuple."""
    chance = random.Random(11)
    ends = log.admin.offsets(large)
    assert sum(ends) == 10_000 + 1_000 + 10 + 2
    expected = read(log.consumer([large]), ends)
    assert read(log.consumer([large], **buffered), ends) == expected
    found: list[list[Record]] = [[] for _ in ends]
    while [len(one) for one in found] != ends:
        consumer = log.consumer(
            [large],
            group=f"of {large}",
            batch_records_max=chance.choice([1, 2, 199, 500, 999]),
            **(buffered if chance.random() < 0.8 else {}),
        )
        for _ in range(2):
            batch = consumer.poll(10.0 if [len(one) for one in found] != ends else 0.0)
            for record in batch or ():
                found[record.partition].append(record)
            consumer.commit()
        consumer.close()
    assert found == expected


def test_i21_a_step_that_fails_sees_its_records_again(
    log: oncelog.Log, filled: str, buffered: dict[str, Any]
) -> None:
    ends = log.admin.offsets(filled)
    expected = read(log.consumer([filled]), ends)
    out = log.admin.create_topic(f"{filled}-copy", partitions=2).name
    consumer = log.consumer([filled], group="copier", batch_records_max=100, **buffered)
    producer = log.transactional_producer()
    chance = random.Random(5)
    while (batch := consumer.poll(2.0)) is not None:
        try:
            with producer.transaction(consumer, wait="visible") as tx:
                for record in batch:
                    tx.send(out, record.value, partition=record.partition)
                if chance.random() < 0.3:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            continue
    copied = read(log.consumer([out]), ends)
    for one, all_ in zip(copied, expected, strict=True):
        assert [record.value for record in one] == [record.value for record in all_]


def _read_and_hang(bootstrap: str, topic: str, options: dict[str, Any], at: Any) -> None:
    with oncelog.connect(bootstrap) as log:
        # Alone: a member that is killed keeps its partitions for a session.
        consumer = log.consumer(
            [topic], group="killed", partitions="all", batch_records_max=50, **options
        )
        consumer.poll(10.0)
        consumer.commit()
        while not list(options["buffer_dir"].glob("consumer-*/part-*")):
            consumer.poll(0.1)
        at.set()
        time.sleep(600)


def test_i15_a_process_that_is_killed_leaves_nothing_and_is_gone_on_for(
    cluster: Cluster, log: oncelog.Log, filled: str, buffered: dict[str, Any]
) -> None:
    ends = log.admin.offsets(filled)
    expected = read(log.consumer([filled]), ends)
    producer = log.transactional_producer()
    with producer.transaction() as tx:
        for _ in range(100):
            tx.send(filled, b"open" * 1_000, partition=0)
        tx.flush()
        spawn = multiprocessing.get_context("spawn")
        at = spawn.Event()
        process = spawn.Process(
            target=_read_and_hang, args=(cluster.bootstrap, filled, buffered, at)
        )
        process.start()
        assert at.wait(60)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        left = list(buffered["buffer_dir"].glob("consumer-*"))
        assert left
        consumer = log.consumer([filled], group="killed", partitions="all", **buffered)
        assert not left[0].exists()
        position = [consumer.position(filled, number) for number in range(2)]
        found = read(consumer, [e - p for e, p in zip(ends, position, strict=True)])
        for one, all_, at_ in zip(found, expected, position, strict=True):
            assert one == all_[at_:]
