"""`log.table` over real processes: a dictionary that follows a topic, whatever is written, aborted,
killed, deleted or added."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest

import oncelog
from oncelog import aio, errors
from oncelog.batch import TopicPartition
from oncelog.errors import Closed
from tests.integration.cluster import PARTITION_LEADER, Cluster, until

KEYS = [b"key-%d" % number for number in range(40)]


def expected_of(log: oncelog.Log, topic: str) -> dict[bytes, bytes]:
    """What a consumer reads, put together by hand. Each key lies in one partition."""
    found: dict[bytes, bytes] = {}
    ends = log.admin.offsets(topic)
    left = sum(
        end - start for start, end in zip(log.admin.offsets(topic, "earliest"), ends, strict=True)
    )
    with log.consumer([topic]) as consumer:
        while left > 0:
            batch = consumer.poll(20.0)
            assert batch is not None, "nothing more comes"
            left -= len(batch)
            for record in batch:
                assert record.key is not None
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = record.value
    return found


def write(log: oncelog.Log, topic: str, seed: int, transactions: int) -> None:
    """Puts and removals: plain ones, in small transactions and in larger ones, every fourth of them
    aborted."""
    chance = random.Random(seed)
    with log.producer() as plain, log.transactional_producer() as producer:
        for number in range(transactions):
            for _ in range(5):
                plain.send(topic, b"plain-%d" % number, key=chance.choice(KEYS))
            plain.flush()
            with contextlib.suppress(KeyError), producer.transaction(wait="visible") as tx:
                for part in range(chance.choice([1, 1, 3])):
                    for key in chance.sample(KEYS, 8):
                        value = None if chance.random() < 0.3 else b"%d/%d" % (number, part)
                        tx.send(topic, value, key=key)
                    if part:
                        tx.flush()
                if number % 4 == 3:
                    raise KeyError


@pytest.fixture
def other(cluster: Cluster) -> Iterator[oncelog.Log]:
    """A second connection, of another program as it were."""
    with cluster.connect() as made:
        yield made


def test_i33_a_table_shows_the_last_committed_value_of_each_key(
    log: oncelog.Log, other: oncelog.Log, topic: str
) -> None:
    table = log.table(topic)
    table.caught_up()
    assert table == {}
    changes = table.changes()
    write(other, topic, seed=1, transactions=40)
    table.caught_up()
    expected = expected_of(other, topic)
    assert table == expected
    assert len(table) == len(expected) > 10
    assert table.to_arrow().sort_by("key").column("key").to_pylist() == sorted(expected)
    assert table.positions == {
        TopicPartition(topic, number): end for number, end in enumerate(log.admin.offsets(topic))
    }
    # Who follows what changes has the same in the end.
    followed: dict[bytes, bytes] = {}
    while changed := changes.poll(1.0):
        for key, value in changed.items():
            if value is None:
                followed.pop(key, None)
            else:
                followed[key] = value
    assert followed == expected
    # So has a table that is opened now.
    with other.table(topic) as late:
        late.caught_up()
        assert late == expected
    with pytest.raises(Closed):
        late.get(b"key-1")
    table.close()
    table.close()


def test_i3_no_thread_sees_half_of_a_transaction_in_one_partition(
    cluster: Cluster, log: oncelog.Log, other: oncelog.Log, topic: str
) -> None:
    """Amounts go from one account to another: their sum is always the same, also while the leader
    is killed."""
    accounts = [b"account-%d" % number for number in range(50)]
    with other.transactional_producer() as producer:
        with producer.transaction(wait="visible") as tx:
            for account in accounts:
                tx.send(topic, b"100", key=account, partition=0)
        table = log.table(topic)
        table.caught_up()
        is_over = threading.Event()
        sums: set[int] = set()
        looks = 0

        def look() -> None:
            nonlocal looks
            while not is_over.is_set():
                sums.add(sum(map(int, table.values())))
                looks += 1

        looking = threading.Thread(target=look)
        looking.start()
        try:
            chance = random.Random(3)
            amounts = dict.fromkeys(accounts, 100)
            for number in range(60):
                if number == 30:
                    cluster.kill(PARTITION_LEADER)
                    cluster.start(PARTITION_LEADER)
                moved = dict(amounts)
                for _ in range(10):
                    giver, taker = chance.sample(accounts, 2)
                    moved[giver] -= 7
                    moved[taker] += 7
                try:
                    with producer.transaction(wait="visible", commit_seq=("moves", number)) as tx:
                        for index, account in enumerate(accounts):
                            tx.send(topic, b"%d" % moved[account], key=account, partition=0)
                            if index % 10 == 9:
                                tx.flush()
                except errors.OncelogError:
                    # Killed: aborted, or in doubt; the next one says all again.
                    cluster.wait_ready()
                    time.sleep(0.5)
                    continue
                amounts = moved
            table.caught_up()
        finally:
            is_over.set()
            looking.join()
        assert table == expected_of(other, topic)
        assert sums == {100 * len(accounts)}
        assert looks > 50


def test_a_table_survives_a_kill_of_its_leader_and_takes_added_partitions(
    cluster: Cluster, log: oncelog.Log, other: oncelog.Log, topic: str
) -> None:
    with log.table(topic) as table:
        write(other, topic, seed=5, transactions=10)
        table.caught_up()
        cluster.kill(PARTITION_LEADER)
        # What it has is shown, whoever is away.
        assert len(table) > 5
        with pytest.raises(errors.OncelogError):
            table.caught_up(timeout_s=0.5)
        cluster.start(PARTITION_LEADER)
        cluster.wait_ready()
        write(other, topic, seed=6, transactions=10)
        table.caught_up()
        assert table == expected_of(other, topic)
        other.admin.alter_topic(topic, partitions=5)
        # Keys move, and their last values and tombstones count, wherever the first ones are.
        with other.producer() as producer:
            for number, key in enumerate(KEYS):
                producer.send(topic, None if number % 3 else b"moved", key=key)
        table.caught_up()
        moved = {key: b"moved" for number, key in enumerate(KEYS) if not number % 3}
        assert table == moved
        assert len(table.positions) == 5
        for _ in range(3):
            with other.table(topic) as late:
                late.caught_up()
                assert late == moved


def test_a_table_of_a_topic_that_deletes_its_records(
    log: oncelog.Log, other: oncelog.Log, topic: str
) -> None:
    with other.producer() as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, key=b"%d" % number, partition=0)
    other.admin.truncate(topic, before=10, partition=0)
    with log.table(topic) as table:
        table.caught_up()
        assert sorted(map(int, table)) == list(range(10, 20))
        assert table.skipped == {}
        # What it has read stays, as long as it follows.
        other.admin.truncate(topic, before=15, partition=0)
        table.caught_up()
        assert len(table) == 10
    with pytest.raises(errors.UnknownTopic):
        log.table("no-such-topic")
    gone = log.table(topic)
    gone.caught_up()
    other.admin.delete_topic(topic)

    def is_told() -> bool:
        try:
            len(gone)
        except errors.UnknownTopic:
            return True
        return False

    until(is_told, "the table ends")
    with pytest.raises(errors.UnknownTopic, match="deleted"):
        gone.caught_up()


def test_a_table_with_asyncio(cluster: Cluster, topic: str) -> None:
    async def main() -> None:
        async with aio.connect(cluster.bootstrap) as log:
            table = await log.table(topic, memory_bytes_max=100_000)
            changes = table.changes()
            async with await log.producer() as producer:
                await producer.send(topic, b"1", key=b"a")
                await producer.send(topic, b"2", key=b"b")
                await producer.flush()
                await table.caught_up()
                assert dict(table) == {b"a": b"1", b"b": b"2"}
                told: dict[bytes, bytes | None] = {}
                async for changed in changes:
                    told |= changed
                    if len(told) == 2:
                        break
                assert told == {b"a": b"1", b"b": b"2"}
                for number in range(400):
                    await producer.send(topic, b"x" * 100, key=b"%d" % number)
                await producer.flush()
            with pytest.raises(errors.TooLarge, match="memory_bytes_max = 100000"):
                await table.caught_up()
        with pytest.raises(Closed):
            table.get(b"a")

    asyncio.run(main())
