"""The client against the three services in this process (oncelog.testing): what users do."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import oncelog
import oncelog.testing
from oncelog import errors
from oncelog.batch import Record, TopicPartition

README = Path(__file__).parents[2] / "clients" / "python" / "README.md"
_names = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[oncelog.testing.Cluster]:
    with oncelog.testing.cluster() as made:
        yield made


@pytest.fixture
def log(cluster: oncelog.testing.Cluster) -> Iterator[oncelog.Log]:
    with oncelog.connect(cluster.bootstrap) as made:
        yield made


@pytest.fixture
def topic(log: oncelog.Log) -> str:
    return log.admin.create_topic(f"topic-{next(_names)}", partitions=3).name


@pytest.fixture
def group() -> str:
    return f"group-{next(_names)}"


def read(consumer: oncelog.Consumer, count: int) -> list[Record]:
    """So many records; fails where they do not come."""
    found: list[Record] = []
    while len(found) < count:
        batch = consumer.poll(10.0)
        assert batch is not None, f"{len(found)} of {count} records came"
        found.extend(batch)
    return found


def values(log: oncelog.Log, topic: str) -> list[bytes | None]:
    """All that is committed and visible, by partition and offset."""
    ends = log.admin.offsets(topic)
    consumer = log.consumer([topic])
    left = {TopicPartition(topic, n) for n, end in enumerate(ends) if end}
    found: list[Record] = []
    while left:
        batch = consumer.poll(10.0)
        assert batch is not None, f"nothing more of {left}"
        found.extend(batch)
        left -= {place for place, to in batch.next_offsets().items() if to >= ends[place.partition]}
    consumer.close()
    return [record.value for record in sorted(found, key=lambda r: (r.partition, r.offset))]


# ------------------------------------------------------------------------------------------ plain


def test_i5_what_was_flushed_can_be_read_in_order_without_gaps(
    log: oncelog.Log, topic: str
) -> None:
    with log.producer() as producer:
        for number in range(1_000):
            producer.send(topic, b"%d" % number, key=b"k%d" % (number % 7))
    found = read(log.consumer([topic]), 1_000)
    for partition in range(3):
        mine = [record for record in found if record.partition == partition]
        assert [record.offset for record in mine] == list(range(len(mine)))
        by_key = [[int(r.value or b"") for r in mine if r.key == b"k%d" % k] for k in range(7)]
        assert all(numbers == sorted(numbers) for numbers in by_key)
    assert sorted(int(record.value or b"") for record in found) == list(range(1_000))


def test_everything_of_a_record_comes_back(log: oncelog.Log, topic: str) -> None:
    with log.producer() as producer:
        producer.send(
            topic, None, key=b"", headers={"a": b"1", "b": None}, partition=2, timestamp_us=123
        )
    (record,) = read(log.consumer([topic]), 1)
    assert record == Record(topic, 2, 0, b"", None, 123, (("a", b"1"), ("b", None)))


def test_arrow_goes_in_and_comes_out(log: oncelog.Log, topic: str) -> None:
    sent = pa.table({"value": [b"%d" % n for n in range(10_000)], "partition": [0] * 10_000})
    with log.producer(compression="zstd") as producer:
        producer.send_arrow(topic, sent)
    consumer, tables, count = log.consumer([topic]), [], 0
    while count < 10_000:
        batch = consumer.poll(10.0)
        assert batch is not None
        tables.append(batch.table)
        count += len(batch)
    got = pa.concat_tables(tables)
    assert got.column("value").to_pylist() == sent.column("value").to_pylist()
    assert got.column("offset").to_pylist() == list(range(10_000))


def test_many_threads_may_send_through_one_producer(log: oncelog.Log, topic: str) -> None:
    with log.producer(batch_bytes=4 * 1024) as producer:

        def send(thread: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d:%d" % (thread, number), partition=0)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [tuple(map(int, (v or b"").split(b":"))) for v in values(log, topic)]
    for thread_number in range(4):
        assert [n for t, n in found if t == thread_number] == list(range(500))


# ----------------------------------------------------------------------------------- transactions


def fill(log: oncelog.Log, topic: str, count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


@pytest.mark.parametrize("size", [10, 2_000])
def test_i3_a_transaction_is_seen_whole_or_not_at_all(
    log: oncelog.Log, topic: str, size: int
) -> None:
    producer = log.transactional_producer()
    with producer.transaction(wait="visible") as tx:
        for number in range(size):
            tx.send(topic, b"%d" % number + b"x" * 300, partition=number % 3)
    assert sum(part.record_count for part in tx.exposed) == size
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        for number in range(size):
            tx.send(topic, b"never", partition=number % 3)
        raise ZeroDivisionError
    assert tx.state == "aborted"
    found = values(log, topic)
    assert len(found) == size
    assert b"never" not in found


def test_i8_an_open_transaction_holds_back_nobody(log: oncelog.Log, topic: str) -> None:
    early, late = log.transactional_producer(), log.transactional_producer()
    consumer = log.consumer([topic])
    with early.transaction(wait="visible") as open_one:
        open_one.send(topic, b"first sent", partition=0)
        open_one.flush()
        # Visible: else the plain record, which is readable at once, may come before it.
        with late.transaction(wait="visible") as tx:
            tx.send(topic, b"committed", partition=0)
        with log.producer() as plain:
            plain.send(topic, b"plain", partition=0)
        assert [record.value for record in read(consumer, 2)] == [b"committed", b"plain"]
    assert [record.value for record in read(consumer, 1)] == [b"first sent"]


@pytest.mark.parametrize("size", [1, 3_000], ids=["one-shot", "begun"])
def test_i21_records_and_positions_commit_as_one_and_an_abort_rewinds(
    log: oncelog.Log, topic: str, group: str, size: int
) -> None:
    fill(log, topic, 200)
    output = log.admin.create_topic(f"{topic}-out", partitions=2).name
    consumer = log.consumer([topic], group=group, batch_records_max=50)
    producer = log.transactional_producer()
    failures = 0
    for round_number in itertools.count():
        batch = consumer.poll(2.0)
        if batch is None:
            break
        try:
            with producer.transaction(consumer) as tx:
                for record in batch:
                    tx.send(output, record.value, key=record.key)
                for _ in range(size):
                    tx.send(output, b"padding" * 30)
                if round_number % 2:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            failures += 1
    assert failures >= 3
    out = [value for value in values(log, output) if value and not value.startswith(b"padding")]
    assert sorted(out, key=lambda v: int(v)) == [b"%d" % number for number in range(200)]
    positions = {place.partition: place.offset for place in log.admin.group_offsets(group)}
    assert [positions[n] for n in range(3)] == log.admin.offsets(topic)


def test_i15_the_next_consumer_of_the_group_continues(
    log: oncelog.Log, topic: str, group: str
) -> None:
    fill(log, topic, 90)
    producer = log.transactional_producer()
    seen: list[bytes | None] = []
    while len(seen) < 90:
        with log.consumer([topic], group=group, batch_records_max=10) as consumer:
            batch = consumer.poll(10.0)
            assert batch is not None
            # Fewer where the other partitions have not answered yet.
            assert 1 <= len(batch) <= 10
            with producer.transaction(consumer):
                seen += [record.value for record in batch]
    assert sorted(int(value or b"") for value in seen) == list(range(90))


def test_two_consumers_of_one_group_never_both_commit_the_same_input(
    log: oncelog.Log, topic: str, group: str
) -> None:
    fill(log, topic, 30)
    first = log.consumer([topic], group=group, partitions="all")
    second = log.consumer([topic], group=group, partitions="all")
    mine, theirs = log.transactional_producer(), log.transactional_producer()
    assert len(read(first, 30)) == len(read(second, 30)) == 30
    with mine.transaction(first) as tx:
        tx.send(topic, b"mine", partition=0)
    with pytest.raises(errors.StalePosition), theirs.transaction(second) as tx:
        tx.send(topic, b"theirs", partition=0)
    # The loser goes on from where the group stands.
    assert [record.value for record in read(second, 1)] == [b"mine"]


def test_i16_a_newer_instance_of_a_name_fences_the_older(
    log: oncelog.Log, topic: str, group: str
) -> None:
    older = log.transactional_producer(group)
    with pytest.raises(errors.ProducerFenced), older.transaction() as tx:
        tx.send(topic, b"old", partition=0)
        tx.flush()
        newer = log.transactional_producer(group)
    with newer.transaction(wait="visible") as tx:
        tx.send(topic, b"new", partition=0)
    with pytest.raises(errors.ProducerFenced):
        older.transaction()
    assert values(log, topic) == [b"new"]


def test_a_commit_seq_that_was_committed_changes_nothing(
    log: oncelog.Log, topic: str, group: str
) -> None:
    producer = log.transactional_producer(group)
    for number, expected in [(1, False), (1, True), (2, False), (1, True)]:
        with producer.transaction(commit_seq=("scope", number), wait="visible") as tx:
            tx.send(topic, b"%d" % number, partition=0)
        assert tx.already_committed is expected
    with producer.transaction(commit_seq=("scope", 2)) as tx:
        for _ in range(3_000):
            tx.send(topic, b"again" * 50)
    assert tx.already_committed
    assert values(log, topic) == [b"1", b"2"]


def test_offsets_of_another_consumer_go_with_the_transaction(
    log: oncelog.Log, topic: str, group: str
) -> None:
    fill(log, topic, 10)
    consumer = log.consumer([topic], group=group)
    metadata = consumer.group_metadata()
    read(consumer, 10)
    producer = log.transactional_producer()
    with producer.transaction(wait="visible") as tx:
        tx.send_offsets({TopicPartition(topic, 1): 2}, metadata)
    assert consumer.committed(topic, 1) == 2
    assert consumer.committed(topic, 0) is None


def test_i21_offsets_that_are_sent_in_a_loop_go_on_where_the_last_commit_ended(
    log: oncelog.Log, topic: str, group: str
) -> None:
    with log.producer() as plain:
        for number in range(20):
            plain.send(topic, b"%d" % number, partition=0)
    consumer = log.consumer([topic], group=group, batch_records_max=5)
    producer = log.transactional_producer()
    output = log.admin.create_topic(f"{topic}-out", partitions=1).name
    for _ in range(4):
        metadata = consumer.group_metadata()
        records = read(consumer, 5)
        with producer.transaction(wait="visible") as tx:
            for record in records:
                tx.send(output, record.value)
            tx.send_offsets({TopicPartition(topic, 0): records[-1].offset + 1}, metadata)
    assert consumer.committed(topic, 0) == 20
    assert values(log, output) == [b"%d" % number for number in range(20)]


def test_i21_of_two_that_send_offsets_of_the_same_input_one_is_told(
    log: oncelog.Log, topic: str, group: str
) -> None:
    fill(log, topic, 9)
    place = TopicPartition(topic, 0)
    # Taken before anybody has polled, as users do.
    both = [log.consumer([topic], group=group, partitions="all") for _ in range(2)]
    standings = [consumer.group_metadata() for consumer in both]
    producers = [log.transactional_producer() for _ in range(2)]
    for consumer in both:
        read(consumer, 9)
    with producers[0].transaction() as tx:
        tx.send_offsets({place: 3}, standings[0])
    with pytest.raises(errors.StalePosition), producers[1].transaction() as tx:
        tx.send_offsets({place: 2}, standings[1])
    assert both[1].position(topic, 0) == 3, "it goes on from where the group stands"


def test_an_operator_aborts_an_open_transaction_and_its_producer_is_told(
    log: oncelog.Log, topic: str
) -> None:
    producer = log.transactional_producer()
    with pytest.raises(errors.TransactionEnded), producer.transaction() as tx:
        tx.send(topic, b"v", partition=0)
        tx.flush()
        assert [info.tx_id for info in log.admin.transactions(states=["ongoing"])] == [tx.tx_id]
        log.admin.abort_transaction(tx.tx_id)
    assert log.admin.describe_transaction(tx.tx_id).cause == "operator"
    with producer.transaction(wait="visible") as tx:
        tx.send(topic, b"next", partition=0)
    assert values(log, topic) == [b"next"]


def test_run_repeats_what_passes_by_itself_and_stops_at_what_does_not(
    log: oncelog.Log, topic: str, group: str
) -> None:
    fill(log, topic, 60)
    output = log.admin.create_topic(f"{topic}-out", partitions=1).name
    consumer = log.consumer([topic], group=group, batch_records_max=20)
    producer = log.transactional_producer()
    trouble = [errors.TransactionEnded("made up"), errors.UnknownOutcome("made up")]
    thread = threading.get_ident()

    def step(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
        assert threading.get_ident() == thread
        for record in batch:
            tx.send(output, record.value)
        if trouble:
            raise trouble.pop()

    assert log.run(consumer, step, producer, idle_timeout_s=1.0) >= 3
    assert sorted(int(v or b"") for v in values(log, output)) == list(range(60))

    fill(log, topic, 1)

    def broken(batch: oncelog.Batch, tx: oncelog.Transaction) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        log.run(consumer, broken, producer, idle_timeout_s=10.0)


# --------------------------------------------------------------------------------------- consumers


def test_seek_pause_and_positions(log: oncelog.Log, topic: str) -> None:
    with log.producer() as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2)
    consumer = log.consumer([topic])
    read(consumer, 20)
    assert [consumer.position(topic, n) for n in range(3)] == [10, 10, 0]
    assert consumer.end_offset(topic, 0) == 10
    consumer.seek(topic, 0, 7)
    assert [record.offset for record in read(consumer, 3)] == [7, 8, 9]
    consumer.pause(TopicPartition(topic, 0))
    consumer.seek_to_beginning()
    assert {record.partition for record in read(consumer, 10)} == {1}
    assert consumer.poll(0.05) is None
    consumer.resume(TopicPartition(topic, 0))
    assert {record.partition for record in read(consumer, 10)} == {0}
    consumer.seek_to_end()
    assert consumer.poll(0.05) is None


def test_plain_commits_are_checked_against_the_group(
    log: oncelog.Log, topic: str, group: str
) -> None:
    fill(log, topic, 10)
    first, second = (log.consumer([topic], group=group, partitions="all") for _ in range(2))
    assert second.position(topic, 0) == 0
    read(first, 10)
    first.commit()
    first.commit()
    fill(log, topic, 5)
    read(second, 15)
    with pytest.raises(errors.StalePosition):
        second.commit()
    assert len(read(second, 5)) == 5, "it goes on from where the group stands"
    second.commit()
    assert second.poll(0.05) is None


def test_only_the_chosen_partitions_from_the_latest(log: oncelog.Log, topic: str) -> None:
    fill(log, topic, 30)
    consumer = log.consumer([topic], partitions=[(topic, 1)], start="latest")
    assert consumer.assignment == [TopicPartition(topic, 1)]
    assert consumer.poll(0.05) is None
    with log.producer() as producer:
        producer.send(topic, b"here", partition=1)
        producer.send(topic, b"there", partition=0)
    assert [record.value for record in read(consumer, 1)] == [b"here"]


def test_uncommitted_readers_see_what_is_open(log: oncelog.Log, topic: str) -> None:
    producer = log.transactional_producer()
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        tx.send(topic, b"open", partition=0)
        tx.flush()
        reader = log.consumer([topic], isolation="uncommitted")
        assert [record.value for record in read(reader, 1)] == [b"open"]
        raise ZeroDivisionError
    assert values(log, topic) == []


def test_an_offset_beyond_the_end_is_told_once_and_a_seek_heals_it(
    log: oncelog.Log, topic: str
) -> None:
    fill(log, topic, 30)
    consumer = log.consumer([topic], partitions=[(topic, 0)])
    consumer.seek(topic, 0, 10_000)
    with pytest.raises(errors.OffsetOutOfRange):
        consumer.poll(10.0)
    consumer.seek_to_beginning()
    assert read(consumer, 1)[0].offset == 0


# ------------------------------------------------------------------------------------------- rest


def test_topics_are_administered(log: oncelog.Log, topic: str) -> None:
    assert topic in [info.name for info in log.admin.topics()]
    with pytest.raises(errors.TopicExists):
        log.admin.create_topic(topic)
    assert len(log.admin.describe_topic(topic).partitions) == 3
    log.admin.delete_topic(topic)
    with pytest.raises(errors.UnknownTopic):
        log.consumer([topic])
    assert {role for node in log.admin.nodes() for role in node.roles} == set(oncelog.testing.ROLES)


def test_connecting_to_nobody_says_so() -> None:
    with pytest.raises(errors.CannotConnect, match="nobody listens"):
        oncelog.connect("127.0.0.1:1", timeout_ms=1_500)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_to_connect_again(log: oncelog.Log, topic: str) -> None:
    producer = log.producer()
    child = os.fork()
    if child == 0:
        try:
            producer.flush()
        except errors.Forked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_asyncio_face(cluster: oncelog.testing.Cluster, topic: str, group: str) -> None:
    async def main() -> list[bytes | None]:
        async with oncelog.aio.connect(cluster.bootstrap) as log:
            async with await log.producer() as plain:
                for number in range(10):
                    await plain.send(topic, b"%d" % number)
            consumer = await log.consumer([topic], group=group)
            producer = await log.transactional_producer()
            seen: list[bytes | None] = []
            async for batch in consumer:
                async with producer.transaction(consumer) as tx:
                    seen += [record.value for record in batch]
                    await tx.send(topic, b"one more")
                if b"one more" in seen:
                    await consumer.close()
            return seen

    seen = asyncio.run(asyncio.wait_for(main(), 30))
    assert seen[:10] == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("number", range(len(re.findall("```python", README.read_text()))))
def test_the_samples_of_the_readme_run(
    cluster: oncelog.testing.Cluster, log: oncelog.Log, number: int
) -> None:
    sample = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[number]
    for name in ("payments", "enriched"):
        if name not in [info.name for info in log.admin.topics()]:
            log.admin.create_topic(name, partitions=2)
    fill(log, "payments", 5)
    # A sample's endless loop ends at its first batch.
    sample = sample.replace("localhost:7400", cluster.bootstrap)
    sample = re.sub(r"^( +)(.*# endless.*)$", r"\1\2\n\1break", sample, flags=re.MULTILINE)
    exec(compile(sample, f"README sample {number}", "exec"), {"__name__": "__main__"})
