"""Records that were deleted before they were read, over real processes: what each kind of reader
tells, or passes over, once the front of a journal has gone as well (I14, I15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import oncelog
from oncelog import aio, errors
from oncelog.batch import TopicPartition
from tests.integration.cluster import Cluster, running, until
from tests.integration.shell import Shell

# Of each record: so that a few hundred fill several segments.
SIZE = 10_000
# Segments are kept small, and snapshots near: what is deleted goes soon.
SETTINGS = (
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=262144",
)
WAYS = ["leader", "buffered"]
STARTS = (300, 301, 317, 320, 399, 455)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


@pytest.fixture
def journal(cluster: Cluster, log: oncelog.Log, topic: str) -> str:
    """600 records in partition 0: transactions of 20 that lie across each other, two by two, every
    third of them aborted. Below offset 300 all are deleted, and the front of the journal is gone.
    """
    producers = [log.transactional_producer() for _ in range(2)]
    written = number = 0
    while written < 600:
        pair = [producer.transaction(wait="visible") for producer in producers]
        for tx in pair:
            tx.__enter__()
        for one in range(20):
            for tx in pair:
                tx.send(topic, b"%d/%d " % (number, one) + b"x" * SIZE, partition=0)
                if one % 5 == 0:
                    tx.flush()
        for tx in pair:
            number += 1
            if number % 3 == 0:
                tx.abort()
            else:
                tx.commit()
                written += 20
    end = log.admin.offsets(topic)[0]
    [told] = log.admin.truncate(topic, before=300, partition=0)
    assert (told.start_before, told.start_after, told.record_count) == (0, 300, 300)
    assert log.admin.offsets(topic, "earliest")[0] == 300
    assert log.admin.offsets(topic)[0] == end
    until(lambda: journal_start(log, topic) > 0, "the front of the journal goes")
    return topic


def journal_start(log: oncelog.Log, topic: str) -> int:
    return log.admin.offsets(topic, "earliest", isolation="uncommitted")[0]


def read_to_end(consumer: oncelog.Consumer, end: int) -> list[int]:
    """Offsets of partition 0."""
    found: list[int] = []
    while not found or found[-1] < end - 1:
        batch = consumer.poll(20.0)
        assert batch is not None, "nothing more comes"
        found += [record.offset for record in batch if record.partition == 0]
    return found


def values_from(log: oncelog.Log, topic: str, start: int, delivery: str) -> list[bytes | None]:
    with log.consumer([topic], delivery=delivery) as consumer:
        consumer.seek(topic, 0, start)
        end = consumer.end_offset(topic, 0)
        found: dict[int, bytes | None] = {}
        while not found or max(found) < end - 1:
            batch = consumer.poll(20.0)
            assert batch is not None
            found |= {record.offset: record.value for record in batch if record.partition == 0}
    assert sorted(found) == list(range(start, end))
    return [found[offset] for offset in sorted(found)]


def test_i14_every_reader_meets_the_gap_as_it_was_told_to(log: oncelog.Log, journal: str) -> None:
    topic, place = journal, TopicPartition(journal, 0)
    end = log.admin.offsets(topic)[0]
    for delivery in WAYS:
        with log.consumer([topic], delivery=delivery, group=f"{topic}-{delivery}") as consumer:
            # It begins at the earliest that is kept.
            assert consumer.lag()[place] == end - 300
            assert read_to_end(consumer, end) == list(range(300, end))
            consumer.seek(topic, 0, 120)
            for _ in range(2):
                with pytest.raises(errors.OffsetOutOfRange, match="120 to 299") as caught:
                    consumer.poll(10.0)
                assert caught.value.metadata["start"] == "300"
            assert consumer.lag()[place] == end - 300, "what is deleted waits for nobody"
            consumer.seek_to_beginning(place)
            assert read_to_end(consumer, end) == list(range(300, end))
        for if_deleted, first in (("earliest", 300), ("latest", end)):
            with log.consumer([topic], delivery=delivery, if_deleted=if_deleted) as consumer:
                consumer.seek(topic, 0, 120)
                if first < end:
                    assert read_to_end(consumer, end) == list(range(first, end))
                else:
                    assert consumer.poll(1.0) is None
                assert consumer.position(topic, 0) == end
                assert consumer.skipped == {place: first - 120}


def test_i14_both_deliveries_give_the_same_from_any_offset(
    cluster: Cluster, log: oncelog.Log, journal: str
) -> None:
    """A buffered reader without its journal's front counts right, wherever it begins: in the middle
    of a transaction, and where others lie across it; also from a leader that began without it."""
    before = {start: values_from(log, journal, start, "leader") for start in STARTS}
    assert {start: values_from(log, journal, start, "buffered") for start in STARTS} == before
    cluster.kill("partition_leader")
    cluster.start("partition_leader")
    cluster.wait_ready()
    for delivery in WAYS:
        assert {start: values_from(log, journal, start, delivery) for start in STARTS} == before


def test_i15_a_group_goes_on_where_it_stood_or_passes_over_and_commits_that(
    log: oncelog.Log, journal: str
) -> None:
    topic, place = journal, TopicPartition(journal, 0)
    end = log.admin.offsets(topic)[0]
    for delivery in WAYS:
        group = f"{topic}-stood-{delivery}"
        log.admin.reset_offsets(group, {place: 330})
        with log.consumer([topic], delivery=delivery, group=group) as consumer:
            batch = consumer.poll(10.0)
            assert batch is not None
            assert batch.chunks[0].first_offset == 330
            consumer.commit({place: 340})
        with log.consumer([topic], delivery=delivery, group=group) as consumer:
            assert read_to_end(consumer, end) == list(range(340, end))
    # One that fell behind: it says so until somebody decides.
    with log.consumer([topic], group=f"{topic}-late") as consumer:
        consumer.seek(topic, 0, 300)
        assert consumer.poll(10.0) is not None
        consumer.commit({place: 310})
    log.admin.truncate(topic, before=400, partition=0)
    with (
        log.consumer([topic], group=f"{topic}-late") as consumer,
        pytest.raises(errors.OffsetOutOfRange, match="310 to 399"),
    ):
        consumer.poll(10.0)
    [lag] = [row.lag for row in log.admin.group_offsets(f"{topic}-late") if row.partition == 0]
    assert lag == end - 400
    with log.consumer([topic], group=f"{topic}-late", if_deleted="earliest") as consumer:
        producer = log.transactional_producer()
        seen: list[int] = []
        for _ in range(2):
            # Aborted once: it comes again, and is counted once.
            try:
                with producer.transaction(consumer):
                    batch = consumer.poll(10.0)
                    assert batch is not None
                    seen.append(batch.chunks[0].first_offset)
                    if len(seen) == 1:
                        raise KeyError
            except KeyError:
                continue
        assert seen == [400, 400]
        assert consumer.skipped == {place: 90}
        committed = consumer.committed(topic, 0)
        assert committed is not None
        assert committed > 400


def test_i3_whole_transactions_are_given_from_the_gap_on(log: oncelog.Log, journal: str) -> None:
    topic = journal
    end = log.admin.offsets(topic)[0]
    # In the middle of a transaction: what is kept of it is given.
    log.admin.truncate(topic, before=330, partition=0)
    for delivery in WAYS:
        options: dict[str, Any] = {"delivery": delivery, "if_deleted": "earliest"}
        with log.consumer([topic], **options) as consumer:
            consumer.seek(topic, 0, 0)
            units = []
            for transaction in consumer.transactions():
                units.append((transaction.first_offset, transaction.record_count))
                assert len(transaction.read()) == transaction.record_count
                if sum(units[-1]) == end:
                    break
        assert units[0] == (330, 10)
        assert set(units[1:]) == {(at, 20) for at in range(340, end, 20)}
        with log.consumer([topic], **options) as consumer:
            consumer.seek(topic, 0, 0)
            given = 0
            for whole in consumer.transactions(across=True):
                given += whole.record_count
                if given == end - 330:
                    break
            assert consumer.skipped == {TopicPartition(topic, 0): 330}


def test_readers_of_everything_are_told_in_journal_offsets(log: oncelog.Log, journal: str) -> None:
    begins = journal_start(log, journal)
    with log.consumer([journal], isolation="uncommitted") as consumer:
        consumer.seek(journal, 0, 0)
        with pytest.raises(errors.OffsetOutOfRange, match=f"journal offsets 0 to {begins - 1}"):
            consumer.poll(10.0)
    options: dict[str, Any] = {"isolation": "uncommitted", "if_deleted": "earliest"}
    with log.consumer([journal], **options) as consumer:
        consumer.seek(journal, 0, 0)
        batch = consumer.poll(10.0)
        assert batch is not None
        assert batch.chunks[0].first_offset >= begins


def test_a_member_of_a_group_goes_on_behind_the_gap_with_asyncio(
    cluster: Cluster, journal: str
) -> None:
    async def main() -> None:
        async with aio.connect(cluster.bootstrap) as log:
            group = f"{journal}-members"
            place = TopicPartition(journal, 0)
            await log.admin.reset_offsets(group, {place: 305})
            await log.admin.truncate(journal, before=400, partition=0)
            async with await log.consumer(group=group, if_deleted="earliest") as consumer:
                await consumer.subscribe([journal])
                batch = None
                while batch is None:
                    batch = await consumer.poll(10.0)
                assert batch.chunks[0].first_offset == 400
                assert consumer.skipped == {place: 95}
                await consumer.commit()
                assert (await consumer.committed(journal, 0) or 0) > 400
            told = await log.admin.truncate(journal, before="end", dry_run=True)
            assert [row.start_before for row in told] == [400, 0]
            assert told.to_arrow().column("record_count").to_pylist()[1] == 0

    asyncio.run(main())


def test_i32_what_is_deleted_frees_the_disk_and_operators_see_that(
    cluster: Cluster, log: oncelog.Log, journal: str
) -> None:
    shell = Shell(cluster.bootstrap)

    def of_partition(number: int) -> dict[str, Any]:
        rows: list[dict[str, Any]] = shell.ask("cluster", "partitions", journal, "--disk")
        [row] = [row for row in rows if row["partition"] == f"{journal}/{number}"]
        return row

    kept = (log.admin.offsets(journal)[0] - 300) * SIZE
    full, empty = of_partition(0), of_partition(1)
    assert full["log_start"] > 0
    assert kept < full["segment_bytes"]
    assert full["snapshot_bytes"] > 0
    assert full["total_bytes"] >= full["segment_bytes"] + full["snapshot_bytes"]
    # A segment is preallocated.
    assert 0 < empty["segment_bytes"] < kept
    log.admin.truncate(journal, before="end", partition=0)
    until(lambda: of_partition(0)["segment_bytes"] < kept, "the disk gets its space back")
    assert of_partition(0)["held"] == "nothing: it goes by segments"


def test_operators_see_what_holds_a_journal_and_delete_by_hand(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    shell = Shell(cluster.bootstrap)

    def held() -> str:
        [told] = shell.ask("topic", "describe", topic, "--disk")
        [row] = [row for row in told["disk"] if row["partition"] == f"{topic}/0"]
        return str(row["held"])

    with log.transactional_producer(f"holder-{topic}") as producer:
        with producer.transaction(wait="visible") as tx:
            for _ in range(5):
                tx.send(topic, b"x" * SIZE, partition=0)
            tx.flush()
            assert f"of producer 'holder-{topic}', open for" in held()
        assert held() == "records: kept for ever, no retention is set"
    assert shell.run("topic", "alter", topic, "--config", "retention.ms=3600000").exit_code == 0
    until(lambda: held() == "records: retention.ms=3600000", "the leader hears of it")
    tried = shell.ask("topic", "truncate", topic, "--before", "end", "--dry-run")
    assert [row["records"] for row in tried["partitions"]] == [5, 0]
    assert log.admin.offsets(topic, "earliest") == [0, 0]
    done = shell.ask("topic", "truncate", topic, "--before", "end", "--yes")
    assert done["executed"]
    assert log.admin.offsets(topic, "earliest") == [5, 0]
    assert held() == "nothing: it goes by segments"
