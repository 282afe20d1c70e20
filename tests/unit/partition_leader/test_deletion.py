"""What is deleted is told to whoever asks for it; what is left is where it was. TruncatePartition,
and reads, positions and settings of a partition that begins later than it did."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.core.ids import Offset
from oncelog_server.partition_leader.commands import Truncate
from oncelog_server.partition_leader.outbox import PartitionOutbox
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import FIRST, TOPIC
from tests.unit.partition_leader.messages import batch, partition_of, plain, send, values_of
from tests.unit.partition_leader.test_reads import Session, a_log, run

SIZE = len(batch([b"a", b"b"]).payload)


async def truncate(session: Session, **how: Any) -> pb.TruncatePartitionReply:
    request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), **how)
    return await session.service.truncate_partition(request, session.call)


async def listed(session: Session, **query: Any) -> pb.ListedOffset:
    isolation = query.pop("isolation", pb.ISOLATION_COMMITTED)
    request = pb.ListOffsetsRequest(
        queries=[pb.OffsetQuery(partition=partition_of(FIRST), **query)],
        isolation=isolation,
        with_journal_points=True,
    )
    (one,) = (await session.service.list_offsets(request, session.call)).offsets
    return one


def refusal(status: Any) -> errors.OncelogError:
    return errors.from_status(status)


def test_truncate_says_what_it_deletes_and_a_repeat_nothing() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        preview = await truncate(session, offset=3, dry_run=True)
        assert (preview.start_before, preview.start_after, preview.record_count) == (0, 3, 3)
        assert values_of(await session.fetch())[0] == b"a"
        done = await truncate(session, offset=3)
        assert done == preview
        assert done.payload_bytes == SIZE
        again = await truncate(session, offset=3)
        assert (again.start_before, again.start_after, again.record_count) == (3, 3, 0)
        assert (await truncate(session, offset=1)).start_after == 3
        fetched = await session.fetch(3)
        assert fetched.start_offset == 3
        # Batches are not cut.
        assert values_of(fetched) == [b"t6-0", b"t6-1", b"t5", b"one"]

    run(story)


def test_truncate_all_leaves_what_is_open_and_what_comes() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        await session.produce(send(20, batch([b"open"])))
        assert (await truncate(session, end=True)).record_count == 6
        assert (await truncate(session, end=True)).record_count == 0
        session.world.first.machine.committed.drop(session.world.first.high_watermark)
        session.world.first.trim()
        await session.commit(20, 21, 1)
        assert values_of(await session.fetch(6)) == [b"open"]

    run(story)


@pytest.mark.parametrize("how", [{}, {"end": False}, {"offset": 7}, {"offset": 7, "dry_run": True}])
def test_truncate_never_goes_above_the_end(how: dict[str, Any]) -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        with pytest.raises(errors.OncelogError) as caught:
            await truncate(session, **how)
        wanted = "OFFSET_OUT_OF_RANGE" if "offset" in how else "INVALID_ARGUMENT"
        assert caught.value.reason == wanted
        assert len(values_of(await session.fetch())) == 6

    run(story)


def test_i27_truncate_deletes_nothing_that_is_not_durable() -> None:
    """Neither what it is asked for, nor by "all": readers have not seen that yet."""

    async def story(session: Session) -> None:
        await a_log(session)
        session.world.first.hold = True
        late = asyncio.ensure_future(
            session.service.produce(plain(batch([b"late"], sequence=2)), session.call)
        )
        await asyncio.sleep(0)
        above = asyncio.ensure_future(truncate(session, offset=7))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert above.done(), "it is refused at once"
        with pytest.raises(errors.OffsetOutOfRange):
            await above
        all_ = asyncio.ensure_future(truncate(session, end=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # The start is not durable either: nothing is hidden yet.
        assert not all_.done()
        assert len(values_of(await session.fetch())) == 6
        assert (await listed(session, earliest=True)).offset == 0
        session.world.first.sync()
        assert (await all_).start_after == 6
        await late
        assert values_of(await session.fetch(6)) == [b"late"]

    run(story)


def test_i14_reads_below_the_start_name_it() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        await truncate(session, offset=3)
        (error,) = [refusal((await session.fetch(offset)).error) for offset in (2,)]
        assert error.reason == "OFFSET_OUT_OF_RANGE"
        assert (error.metadata["start"], error.metadata["end"]) == ("3", "6")
        assert "deleted" in str(error)
        assert values_of(await session.fetch(6)) == []

    run(story)


def test_reads_of_the_journal_below_its_start_name_that() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        await truncate(session, offset=4)
        session.world.first.trim()
        for isolation in (pb.ISOLATION_RAW, pb.ISOLATION_UNCOMMITTED):
            error = refusal((await session.fetch(2, isolation=isolation)).error)
            assert (error.reason, error.metadata["start"]) == ("OFFSET_OUT_OF_RANGE", "3")
            fetched = await session.fetch(3, isolation=isolation)
            assert fetched.start_offset == 3
            assert values_of(fetched)[0] == b"t5"
            assert (await listed(session, earliest=True, isolation=isolation)).offset == 3

    run(story)


@pytest.mark.parametrize("isolation", [pb.ISOLATION_COMMITTED, pb.ISOLATION_RAW])
def test_what_is_deleted_while_it_is_read_is_told_in_the_readers_numbering(
    isolation: pb.Isolation.ValueType,
) -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        reading = asyncio.ensure_future(session.fetch(0, isolation=isolation))
        replica = session.world.first
        while not replica.reads:
            await asyncio.sleep(0)
        replica.submit(Truncate(Offset(6)))
        replica.sync()
        replica.trim()
        error = refusal((await reading).error)
        start = 6 if isolation == pb.ISOLATION_COMMITTED else replica.log_start
        assert (error.reason, error.metadata.get("start")) == ("OFFSET_OUT_OF_RANGE", str(start))

    run(story)


def test_i26_a_committed_record_that_the_journal_lacks_is_damage_and_never_out_of_range() -> None:
    """The journal's own start is of another numbering: a reader would pass over records."""

    async def story(session: Session) -> None:
        await a_log(session)
        replica = session.world.first
        # Whatever let go of it.
        replica.log_start = replica.log_end
        error = refusal((await session.fetch(0)).error)
        assert (error.reason, dict(error.metadata)) == ("CORRUPT_LOG", {})
        assert replica.unreadable_for == ["CORRUPT_LOG"], "who has it leads on"

    run(story)


def test_a_time_that_is_deleted_while_it_is_looked_for_is_found_in_what_is_left() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"a"], timestamp_us=5), batch([b"b"], sequence=1)))
        looking = asyncio.ensure_future(listed(session, timestamp_us=5))
        replica = session.world.first
        while not replica.reads:
            await asyncio.sleep(0)
        replica.submit(Truncate(Offset(2)))
        replica.sync()
        replica.trim()
        assert (await looking).offset == 2

    run(story)


def test_offsets_by_time_are_never_below_the_start() -> None:
    """What was deleted counts for the running maximum: too early is harmless, too late loses."""

    async def story(session: Session) -> None:
        await session.produce(send(5, batch([b"a", b"b"], timestamp_us=[900, 100])))
        await session.commit(5, 10, 2)
        await session.produce(plain(batch([b"c"], timestamp_us=950)))
        await truncate(session, offset=1)
        assert (await listed(session, timestamp_us=800)).offset == 1
        assert (await listed(session, timestamp_us=940)).offset == 2
        assert (await listed(session, timestamp_us=990)).offset == 3
        assert (await truncate(session, timestamp_us=940)).start_after == 2

    run(story)


def test_list_offsets_tells_where_an_offset_lies_in_the_journal() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        found = [await listed(session, offset=offset) for offset in range(7)]
        points = [(p.journal_point.earliest, p.journal_point.iterator) for p in found]
        assert points == [(1, 1), (1, 1), (3, 6), (3, 6), (3, 7), (8, 8), (9, 9)]
        assert [one.journal_point.given for one in found] == [0, 1, 0, 1, 0, 0, 0]
        await truncate(session, offset=5)
        assert refusal((await listed(session, offset=4)).error).reason == "OFFSET_OUT_OF_RANGE"
        assert (await listed(session, earliest=True)).journal_point.iterator == 8
        assert refusal((await listed(session, offset=7)).error).reason == "OFFSET_OUT_OF_RANGE"
        in_journal = await listed(session, latest=True, isolation=pb.ISOLATION_RAW)
        assert not in_journal.HasField("journal_point")

    run(story)


def test_describe_journals_says_what_is_needed_and_by_what() -> None:
    async def described(session: Session) -> pb.JournalDescription:
        request = pb.DescribeJournalsRequest(partitions=[partition_of(FIRST)])
        (journal,) = (await session.service.describe_journals(request, session.call)).journals
        return journal

    async def story(session: Session) -> None:
        await a_log(session)
        await truncate(session, offset=2)
        journal = await described(session)
        assert (journal.committed_start_offset, journal.committed_end_offset) == (2, 6)
        assert (journal.retention_ms, journal.retention_bytes) == (-1, -1)
        assert (journal.needed_from, journal.needed_by.kind) == (3, pb.NeededBy.KIND_RECORDS)
        assert 0 < journal.committed_bytes < 4 * SIZE
        await session.produce(send(20, batch([b"open"])))
        await truncate(session, end=True)
        journal = await described(session)
        assert journal.needed_by.kind == pb.NeededBy.KIND_OPEN_TRANSACTION
        assert (journal.needed_by.tx_id, journal.needed_by.producer.producer_id) == (20, 77)
        assert journal.committed_bytes == 0
        await session.commit(20, 21, 2)
        assert (await described(session)).needed_by.kind == pb.NeededBy.KIND_DAMAGED

    run(story)


def test_the_leader_takes_over_what_the_topics_settings_say() -> None:
    async def story(session: Session) -> None:
        world, replica = session.world, session.world.first
        outbox = PartitionOutbox(replica, world.env)

        def look() -> None:
            world.clock.monotonic_ms += 1_000
            outbox.wake()

        frames = len(replica.frames)
        look()
        assert len(replica.frames) == frames, "there is nothing to say of a topic without limits"
        configs = {"retention.ms": "60000"}
        world.metadata.by_name[TOPIC.name] = TOPIC._replace(configs=configs, version=1)
        look()
        look()
        assert len(replica.frames) == frames + 1
        assert replica.machine.settings.retention_ms == 60_000
        # An older memory of the topic.
        world.metadata.by_name[TOPIC.name] = TOPIC
        look()
        assert replica.machine.settings.retention_ms == 60_000
        world.metadata.by_name[TOPIC.name] = TOPIC._replace(version=2)
        look()
        assert replica.machine.settings.retention_ms == -1

    run(story)


def test_the_index_lets_go_of_what_is_deleted_once_that_is_durable() -> None:
    async def story(session: Session) -> None:
        world, replica = session.world, session.world.first
        outbox = PartitionOutbox(replica, world.env)
        for number in range(10):
            await session.produce(send(20 + number, batch([b"x"])))
            await session.commit(20 + number, 100 + number, 1)
        replica.hold = True
        truncating = asyncio.ensure_future(truncate(session, offset=8))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert replica.machine.committed.start_offset == 8
        world.clock.monotonic_ms += 1_000
        outbox.wake()
        assert len(values_of(await session.fetch())) == 10
        replica.sync()
        await truncating
        world.clock.monotonic_ms += 1_000
        outbox.wake()
        assert len(replica.machine.committed) == 2
        assert len(values_of(await session.fetch(8))) == 2
        assert world.reporter.counted["committed_start_offset"] == 8

    run(story)
