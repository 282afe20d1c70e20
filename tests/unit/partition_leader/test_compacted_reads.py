"""Reads of a log with holes: every record that is left, in order, from every offset, whoever reads,
and in any size; by time; and what is refused below the point of compaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.partition_leader.commands import Configure, Settings
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.records import CompactionPoint
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import errors, records
from oncelogpb.records import Compression
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.partition_leader.compacted import without
from tests.unit.partition_leader.fakes import FakeReplica
from tests.unit.partition_leader.messages import fetch
from tests.unit.partition_leader.settled import Record, records_of
from tests.unit.partition_leader.test_settled_reads import STEPS, History, Step, history

FORMATS = (pb.FORMAT_STORED, pb.FORMAT_ROWS)


def offsets_of(one: pb.FetchedBatch) -> list[int]:
    """Of each record, as a reader knows them."""
    if not one.offsets:
        return list(range(one.first_offset, one.first_offset + one.record_count))
    assert one.offsets[0] == 0
    assert len(one.offsets) == one.record_count
    assert list(one.offsets) == sorted(set(one.offsets))
    assert one.offsets[-1] >= one.record_count, "told only where there are holes"
    return [one.first_offset + behind for behind in one.offsets]


async def read(
    log: History,
    offset: int,
    *,
    with_offsets: bool,
    max_bytes: int = 0,
    format_: pb.Format.ValueType = pb.FORMAT_STORED,
) -> dict[int, Record]:
    """All from an offset on. Each read lets its reader go on."""
    found: dict[int, Record] = {}
    while True:
        request = fetch(offset, max_bytes=max_bytes, format_=format_)
        request.with_offsets = with_offsets
        (fetched,) = await log.fetch_all(request)
        assert not fetched.HasField("error"), fetched.error
        if offset == fetched.end_offset:
            assert not fetched.batches
            return found
        assert fetched.batches, f"nobody comes behind offset {offset}"
        before = offset
        for one in fetched.batches:
            assert one.crc32c == records.checksum(one.payload)
            assert with_offsets or not one.offsets, "who did not ask for them knows none"
            if format_ == pb.FORMAT_ROWS:
                assert one.encoding == types_pb2.ENCODING_ROWS
            given = dict(zip(offsets_of(one), records_of(one.encoding, one.payload), strict=True))
            assert len(given) == one.record_count
            new = {at: record for at, record in given.items() if at >= offset}
            found |= new
            offset = max([offset, *(at + 1 for at in new)])
        assert offset > before, "every read goes on"


def point(replica: FakeReplica, below: int, tombstones_below: int = 0) -> None:
    """Journals it, and makes it durable."""
    record = CompactionPoint(below, tombstones_below)
    replica._append(replica._codec.encode(record), record)
    replica.sync()


def compact(replica: FakeReplica, gone: Sequence[int]) -> None:
    """All that is settled; the last record stays."""
    replica.blocks = [without(block, gone) for block in replica.blocks]
    replica.compacted_to = replica.settled_end


@settings(max_examples=80, deadline=None)
@given(STEPS, STEPS, st.sets(st.integers(0, 120)), st.booleans())
def test_i08_i14_i33_what_is_left_is_read_from_everywhere_by_everybody(
    before: list[Step], after: list[Step], gone: set[int], pointed: bool
) -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        for step in before:
            await log.do(step)
        replica.settle()
        settled_end = replica.settled_end
        for step in after:
            await log.do(step)
        expected = await log.records(0)
        end = replica.machine.committed.end_offset
        # Behind the last record of all nothing is left out.
        gone.intersection_update(range(min(settled_end, end - 1)))
        compact(replica, sorted(gone))
        if pointed and settled_end:
            point(replica, min(settled_end, end - 1))
        left = {at: one for at, one in expected.items() if at not in gone}
        for offset in range(end + 1):
            wanted = {at: one for at, one in left.items() if at >= offset}
            for with_offsets in (True, False):
                assert await read(log, offset, with_offsets=with_offsets) == wanted
        for format_ in FORMATS:
            for with_offsets in (True, False):
                options = {"with_offsets": with_offsets, "max_bytes": 1}
                assert await read(log, 0, format_=format_, **options) == left  # type: ignore[arg-type]

    history(story)


async def settled_steps(log: History, *counts: int, compression: Compression) -> FakeReplica:
    for number, count in enumerate(counts):
        times = list(range(number * 100, number * 100 + count))
        await log.do(Step(1 + number % 3, times, compression, commits=True))
    log.world.first.settle()
    return log.world.first


def test_what_one_unit_has_left_is_told_as_it_was_sent() -> None:
    """Also when it became readable: the last one of its block, which is gone, was later."""

    async def story(log: History) -> None:
        replica = log.world.first
        for number in range(3):
            await log.do(Step(1 + number, [number], Compression.NONE, commits=True))
            log.world.clock.monotonic_ms += 1_000
        (_, sent, _) = (await log.fetch()).batches
        replica.settle()
        assert len(replica.blocks) == 1
        compact(replica, [0, 2])
        for with_offsets in (True, False):
            request = fetch(0)
            request.with_offsets = with_offsets
            ((left,),) = [one.batches for one in await log.fetch_all(request)]
            assert left.time_ms == sent.time_ms
            assert (left.tx_id, left.producer) == (sent.tx_id, sent.producer)
            assert (left.writer, left.base_sequence) == (sent.writer, sent.base_sequence)
            assert left.journal_offset == sent.journal_offset

    history(story)


def test_rows_of_neighbours_are_given_to_who_does_not_know_of_holes_and_no_more_than_a_reply() -> (
    None
):
    async def story(log: History) -> None:
        replica = await settled_steps(log, 20, 20, compression=Compression.LZ4)
        compact(replica, [it for it in range(38) if it % 2])
        most = log.world.config.fetch_batches_max
        assert most > 21
        (fetched,) = await log.fetch_all(fetch(0))
        assert [it.first_offset for it in fetched.batches] == [*range(0, 38, 2), 38]
        assert [it.record_count for it in fetched.batches] == [1] * 19 + [2]
        encodings = {it.encoding for it in fetched.batches}
        assert encodings == {types_pb2.ENCODING_ROWS}, "few records are smaller so"
        (fetched,) = await log.fetch_all(fetch(7, max_bytes=300))
        assert fetched.batches[0].first_offset == 8
        assert len(fetched.batches) < 5

    history(story)


def test_so_many_rows_of_neighbours_are_in_a_reply() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 20, 20, compression=Compression.NONE)
        compact(replica, [it for it in range(38) if it % 2])
        config = PartitionLeaderConfig(fetch_batches_max=3)
        log.service = PartitionLeaderService(log.world.env, config)
        (fetched,) = await log.fetch_all(fetch(0))
        assert [it.first_offset for it in fetched.batches] == [0, 2, 4]

    history(story)


def test_holes_between_two_records_are_told_and_those_around_them_are_not() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 10, compression=Compression.NONE)
        compact(replica, [0, 1, 8])
        request = fetch(0)
        request.with_offsets = True
        ((one,),) = [it.batches for it in await log.fetch_all(request)]
        assert (one.first_offset, one.record_count) == (2, 7)
        assert list(one.offsets) == [0, 1, 2, 3, 4, 5, 7]
        compact(replica, [0, 1, 2, 8])
        replica.blocks = [without(replica.blocks[0], [9])]
        ((one,),) = [it.batches for it in await log.fetch_all(request)]
        assert (one.first_offset, one.record_count, list(one.offsets)) == (3, 5, [])

    history(story)


def test_units_tell_of_what_is_left_of_them() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 3, 3, 3, compression=Compression.NONE)
        compact(replica, [1, 3, 4, 5, 6])
        request = fetch(0)
        request.with_units = request.with_offsets = True
        (fetched,) = await log.fetch_all(request)
        (one,) = fetched.batches
        assert (one.record_count, list(one.units.record_counts)) == (4, [2])
        assert len(one.units.tx_ids) == 2
        whose = list(one.units.tx_ids)
        request.with_offsets = False
        (fetched,) = await log.fetch_all(request)
        told = [(it.first_offset, it.record_count, it.tx_id) for it in fetched.batches]
        assert told == [(0, 1, whose[0]), (2, 1, whose[0]), (7, 2, whose[1])]
        assert [it.base_sequence for it in fetched.batches] == [0, 1, 0]

    history(story)


def test_i14_a_read_in_a_hole_goes_on_with_the_first_record_behind_it() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 5, compression=Compression.NONE)
        await settled_steps(log, 5, 5, compression=Compression.NONE)
        compact(replica, [3, 4, *range(5, 15 - 2)])
        assert [it.record_count for it in replica.blocks] == [3, 2]
        for offset in range(3, 14):
            for with_offsets in (True, False):
                request = fetch(offset, max_bytes=1)
                request.with_offsets = with_offsets
                ((one,),) = [it.batches for it in await log.fetch_all(request)]
                assert offsets_of(one) == [13, 14], "the one before has nothing to give"
        replica.blocks[1] = without(replica.blocks[1], range(15))
        await settled_steps(log, 1, compression=Compression.NONE)
        ((one,),) = [it.batches for it in await log.fetch_all(fetch(7, max_bytes=1))]
        assert offsets_of(one) == [15], "nothing at all is left in a block"

    history(story)


# ---------------------------------------------------------------------------------------- by time


def test_i33_the_time_of_a_record_that_is_gone_leads_to_the_next_one() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 3, 3, 3, compression=Compression.NONE)
        replica.submit(Configure(Settings(1, is_compacted=True)))
        replica.sync()
        assert await log.by_time([101, 102, 201]) == [(4, 101), (5, 102), (7, 201)]
        compact(replica, [4, 5, 6])
        assert await log.by_time([101, 102, 201]) == [(7, 201), (7, 201), (7, 201)]
        await settled_steps(log, 1, compression=Compression.NONE)
        compact(replica, [7, 8])
        replica.compacted_to = 9
        assert await log.by_time([201]) == [(9, None)], "too early, never too late"

    history(story)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sets(st.integers(0, 120)))
def test_i33_a_time_is_found_too_early_and_never_too_late(
    steps: list[Step], gone: set[int]
) -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        replica.submit(Configure(Settings(1, is_compacted=True)))
        replica.sync()
        for step in steps:
            await log.do(step)
        replica.settle()
        end = replica.settled_end
        gone.intersection_update(range(end - 1))
        compact(replica, sorted(gone))
        left = {at: one.timestamp_us for at, one in (await log_all(log)).items()}
        found = await log.by_time(range(-1, 62))
        positions = [offset for offset, _ in found]
        assert positions == sorted(positions), "positions by time never go back"
        for us, (offset, told_us) in zip(range(-1, 62), found, strict=True):
            later = [at for at, at_us in left.items() if at_us >= us]
            assert offset <= min(later, default=end)
            if told_us is not None:
                assert left[offset] == told_us >= us

    async def log_all(log: History) -> dict[int, Record]:
        return await read(log, 0, with_offsets=True)

    history(story)


# --------------------------------------------------------------------------- the rule of reads


def test_i33_below_the_point_nothing_is_served_that_is_compacted_less() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 5, 5, compression=Compression.NONE)
        point(replica, 6)
        for cleaned in (0, 5):
            replica.compacted_to = cleaned
            for offset in (0, 5):
                fetched = await log.fetch(offset)
                refusal = errors.from_status(fetched.error)
                assert isinstance(refusal, errors.Loading)
                assert refusal.retriable
                for word in ("below offset 6", f"below {cleaned}", "try again"):
                    assert word in str(refusal)
            assert len((await log.fetch(6)).batches) == 1, "above it is as it is everywhere"
        replica.compacted_to = 10
        assert not (await log.fetch(0)).HasField("error")

    history(story)


def test_i33_below_the_point_nothing_is_read_from_the_journal() -> None:
    """It has what is superseded; what superseded it may be a tombstone that is gone."""

    async def story(log: History) -> None:
        replica = await settled_steps(log, 5, compression=Compression.NONE)
        first = list(replica.blocks)
        await settled_steps(log, 4, compression=Compression.NONE)
        assert len(replica.blocks) > len(first)
        replica.compacted_to = replica.settled_end
        for offset, damaged in ((0, 0), (5, 5)):
            replica.damaged = {damaged}
            assert not (await log.fetch(offset)).HasField("error"), "the journal has it still"
        point(replica, 7)
        for offset, damaged in ((0, 0), (5, 5)):
            replica.damaged = {damaged}
            replica.unreadable_for.clear()
            error = errors.from_status((await log.fetch(offset)).error)
            assert isinstance(error, errors.CorruptLog)
            assert replica.unreadable_for, "who has it leads next"
        (one,) = (await log.fetch(0)).batches
        assert one.record_count == 5, "what is intact before it is given"

    history(story)


def test_i33_a_reader_of_the_journal_begins_no_lower_than_the_point() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 5, 5, compression=Compression.NONE)
        compact(replica, [0, 1])
        queries = [pb.OffsetQuery(offset=it) for it in (0, 3, 7, 10)]
        assert all(it.HasField("journal_point") for it in await log.list(*queries))
        point(replica, 7)
        listed = await log.list(*[pb.OffsetQuery(offset=it) for it in (0, 3, 7, 10)])
        assert [it.HasField("journal_point") for it in listed] == [False, False, True, True]
        assert [it.journal_has_from for it in listed[:2]] == [7, 7]
        assert listed[2].journal_point.given == 2, "inside of a transaction it begins, too"

    history(story)


@pytest.mark.parametrize("isolation", [pb.ISOLATION_UNCOMMITTED, pb.ISOLATION_RAW])
def test_the_journal_is_read_as_it_was_written(isolation: pb.Isolation.ValueType) -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 5, 5, compression=Compression.NONE)
        before = await log.fetch(0, isolation=isolation)
        compact(replica, [0, 1, 5])
        assert list((await log.fetch(0, isolation=isolation)).batches) == list(before.batches)

    history(story)


def test_earliest_and_offsets_in_holes_are_as_they_were() -> None:
    async def story(log: History) -> None:
        replica = await settled_steps(log, 5, 5, compression=Compression.NONE)
        compact(replica, [0, 1, 5])
        queries = [pb.OffsetQuery(earliest=True), pb.OffsetQuery(latest=True)]
        queries += [pb.OffsetQuery(offset=it) for it in (1, 5)]
        assert [it.offset for it in await log.list(*queries)] == [0, 10, 1, 5]

    history(story)
