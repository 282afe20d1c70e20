"""Reads of what is settled: record by record what the journal gave before, from every offset, in
any size, as rows too, and by time; and what is said where the journal is gone."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.partition_leader.commands import Truncate
from oncelogpb import errors, records
from oncelogpb.records import Compression
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.partition_leader.fakes import FIRST
from tests.unit.partition_leader.messages import (
    batch,
    commit,
    fetch,
    partition_of,
    plain,
    send,
    values_of,
)
from tests.unit.partition_leader.settled import Record, frames_in, records_of, stretches_of
from tests.unit.partition_leader.test_reads import Session, decoded


class Step(NamedTuple):
    """Of a history: a batch of a transaction, or a plain one, and what is committed after it."""

    # 0: plain.
    producer: int
    times_us: list[int]
    compression: Compression
    commits: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 3),
        st.lists(st.integers(0, 60), min_size=1, max_size=20),
        st.sampled_from(Compression),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


class History(Session):
    """Who writes what steps say."""

    def __init__(self) -> None:
        super().__init__()
        self._plain = 0
        self._tx_ids = iter(range(10, 10_000))
        # By producer: TxId, and records so far.
        self._open: dict[int, tuple[int, int]] = {}

    async def do(self, step: Step) -> None:
        values = [f"{step.producer}-{number}".encode() for number in range(len(step.times_us))]
        count = len(values)
        options: dict[str, Any] = {"timestamp_us": step.times_us, "compression": step.compression}
        if not step.producer:
            await self.produce(plain(batch(values, sequence=self._plain, **options)))
            self._plain += count
            return
        tx_id, written = self._open.get(step.producer, (0, 0))
        tx_id = tx_id or next(self._tx_ids)
        request = send(tx_id, batch(values, sequence=written, **options))
        request.producer.producer_id += step.producer
        await self.produce(request)
        self._open[step.producer] = tx_id, written + count
        if step.commits:
            markers = commit(tx_id, self.world.first.log_end + 1_000, written + count)
            markers.groups[0].markers[0].producer.CopyFrom(request.producer)
            reply = await self.participant.write_markers(markers, self.call)
            assert reply.groups[0].results[0].exposed, reply
            del self._open[step.producer]

    # -------------------------------------------------------------------------------------- reads

    async def records(
        self, offset: int, *, max_bytes: int = 0, format_: pb.Format.ValueType = pb.FORMAT_STORED
    ) -> dict[int, Record]:
        """All from an offset on, read after read."""
        found: dict[int, Record] = {}
        while True:
            fetched = await self.fetch(offset, max_bytes=max_bytes, format_=format_)
            assert not fetched.HasField("error"), fetched.error
            if not fetched.batches:
                assert offset == fetched.end_offset
                return found
            for one in fetched.batches:
                assert one.crc32c == records.checksum(one.payload)
                if format_ == pb.FORMAT_ROWS:
                    assert one.encoding == types_pb2.ENCODING_ROWS
                content = records_of(one.encoding, one.payload)
                assert len(content) == one.record_count
                for number, record in enumerate(content, one.first_offset):
                    if number >= offset:
                        assert number == offset, "dense, and in order (I14)"
                        found[number] = record
                        offset += 1

    async def by_time(self, timestamps_us: Sequence[int]) -> list[tuple[int, int | None]]:
        listed = await self.list(*(pb.OffsetQuery(timestamp_us=us) for us in timestamps_us))
        return [
            (one.offset, one.timestamp_us if one.HasField("timestamp_us") else None)
            for one in listed
        ]

    async def list(self, *queries: pb.OffsetQuery) -> Sequence[pb.ListedOffset]:
        for query in queries:
            query.partition.CopyFrom(partition_of(FIRST))
        request = pb.ListOffsetsRequest(queries=queries, with_journal_points=True)
        listed = (await self.service.list_offsets(request, self.call)).offsets
        assert not any(one.HasField("error") for one in listed), listed
        return listed

    async def truncate(self, share: int) -> None:
        replica = self.world.first
        replica.submit(Truncate(Offset(replica.machine.committed.end_offset * share // 4)))
        replica.sync()


def history(story: Callable[[History], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await story(History())

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_i08_i14_what_is_settled_is_read_as_it_was(
    before: list[Step], after: list[Step], early: int, late: int, all_settled: bool
) -> None:
    """`early` is deleted before anything is settled, `late` behind it: quarters of all."""

    async def story(log: History) -> None:
        replica = log.world.first
        for step in before:
            await log.do(step)
        await log.truncate(early)
        replica.settle()
        for step in after:
            await log.do(step)
        await log.truncate(late)
        blocks, replica.blocks = replica.blocks, []
        start = replica.machine.committed.start_offset
        times = range(-1, 62)
        expected = await log.records(start)
        listed = await log.by_time(times)
        replica.blocks = blocks
        if all_settled:
            replica.settle()
            replica.trim_settled()
        for offset in range(start, start + len(expected) + 1):
            wanted = {at: one for at, one in expected.items() if at >= offset}
            assert await log.records(offset) == wanted
        assert await log.records(start, max_bytes=1) == expected
        assert await log.records(start, max_bytes=1, format_=pb.FORMAT_ROWS) == expected
        assert await log.by_time(times) == listed

    history(story)


async def small_transactions(log: History, count: int, *, commits: bool = True) -> None:
    for number in range(count):
        await log.do(Step(1 + number % 3, [number], Compression.NONE, commits))


def test_a_merged_batch_tells_whose_its_records_were() -> None:
    async def story(log: History) -> None:
        await small_transactions(log, 4)
        await log.do(Step(0, [7, 8], Compression.NONE, True))
        as_sent = (await log.fetch()).batches
        log.world.first.settle()
        (merged,) = (await log.fetch()).batches
        assert (merged.first_offset, merged.record_count) == (0, 6)
        assert merged.time_ms == as_sent[-1].time_ms
        told = [f.name for f, _ in merged.ListFields()]
        assert set(told).isdisjoint({"tx_id", "producer", "writer", "journal_offset", "units"})

        request = fetch()
        request.with_units = True
        ((merged,),) = [one.batches for one in await log.fetch_all(request)]
        units = merged.units
        assert units.record_counts == [one.record_count for one in as_sent]
        assert units.tx_ids == [one.tx_id for one in as_sent]
        assert units.producer_ids == [one.producer.producer_id for one in as_sent]
        assert units.generations == [one.producer.generation for one in as_sent]
        assert units.journal_offsets == [one.journal_offset for one in as_sent]
        assert units.times_ms == [as_sent[0].time_ms], "one for all of them"
        assert not units.writers, "0 for all of them"
        assert not units.base_sequences, "0 for all of them"

        subscribed = pb.SubscribeRequest(partitions=request.partitions, with_units=True)
        replies = log.service.subscribe(subscribed, log.call)
        ((told_again,),) = [one.batches for one in decoded(await anext(replies)).partitions]
        assert told_again.units == units

    history(story)


def test_what_is_settled_alone_is_told_as_it_was_sent() -> None:
    async def story(log: History) -> None:
        await log.do(Step(1, [5], Compression.NONE, True))
        as_sent = await log.fetch()
        log.world.first.settle()
        assert await log.fetch() == as_sent
        request = fetch()
        request.with_units = True
        assert await log.fetch_all(request) == [as_sent]

    history(story)


def test_the_units_of_tiny_records_count_for_the_size_of_a_reply() -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        for _ in range(3):
            await small_transactions(log, 30)
            replica.settle()
        request = fetch()
        request.partitions[0].max_bytes = len(replica.blocks[0].payload) + 1
        assert len((await log.fetch_all(request))[0].batches) == 2
        request.with_units = True
        assert len((await log.fetch_all(request))[0].batches) == 1

    history(story)


def test_what_was_settled_while_it_was_looked_for_is_read_from_its_block() -> None:
    """The journal went between the look at the index and the read."""

    async def story(log: History) -> None:
        replica = log.world.first
        await small_transactions(log, 5)
        before = values_of(await log.fetch())
        read_frames = replica.read_frames

        async def settles_first(offsets: Sequence[int]) -> Any:
            replica.settle()
            replica.trim_settled()
            return await read_frames(offsets)

        replica.read_frames = settles_first  # type: ignore[method-assign]
        assert values_of(await log.fetch()) == before
        assert not replica.unreadable_for

    history(story)


def test_times_are_found_while_it_is_settled() -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        await small_transactions(log, 5)
        before = await log.by_time([3])
        read = replica.read

        async def settles_first(*arguments: Any, **options: Any) -> Any:
            replica.settle()
            replica.trim_settled()
            return await read(*arguments, **options)

        replica.read = settles_first  # type: ignore[method-assign]
        assert await log.by_time([3]) == before == [(3, 3)]
        assert not replica.unreadable_for

    history(story)


def test_i26_what_is_in_a_damaged_block_is_read_from_the_journal_while_that_is_there() -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        for _ in range(3):
            await small_transactions(log, 4)
            replica.settle()
        expected, times = await log.records(0), await log.by_time(range(5))
        replica.damaged = {5}
        assert await log.records(0) == expected
        assert await log.records(6) == {at: one for at, one in expected.items() if at >= 6}
        assert await log.by_time(range(5)) == times
        assert not replica.unreadable_for, "nothing is lost yet"

    history(story)


def test_i26_what_is_in_a_damaged_block_alone_is_not_served() -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        for _ in range(3):
            await small_transactions(log, 4)
            replica.settle()
        replica.trim_settled()
        replica.damaged = {5}
        first = await log.fetch()
        assert [one.first_offset for one in first.batches] == [0]
        for offset in range(4, 8):
            fetched = await log.fetch(offset)
            assert errors.from_status(fetched.error).reason == errors.CorruptLog.reason
            assert not fetched.batches
        assert replica.unreadable_for == ["CORRUPT_LOG"] * 4, "who has it leads on"
        assert [one.first_offset for one in (await log.fetch(8)).batches] == [8]

    history(story)


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS)
def test_a_journal_point_is_told_only_where_the_journal_is(
    before: list[Step], after: list[Step]
) -> None:
    """Else the offset from which on it is."""

    async def story(log: History) -> None:
        replica = log.world.first
        for step in before:
            await log.do(step)
        replica.settle()
        replica.trim_settled()
        for step in after:
            await log.do(step)
        end = replica.machine.committed.end_offset
        offsets = range(end + 1)
        machine = replica.machine
        lowest = [machine.find_point(at, replica.high_watermark).earliest for at in offsets]
        assert lowest == sorted(lowest)
        kept = bisect_left(lowest, replica.log_start)
        listed = await log.list(*(pb.OffsetQuery(offset=at) for at in offsets))
        for at, one in zip(offsets, listed, strict=True):
            assert one.offset == at
            if at >= kept:
                assert one.journal_point.earliest == lowest[at]
                assert not one.HasField("journal_has_from")
            else:
                assert not one.HasField("journal_point")
                assert one.journal_has_from == kept

    history(story)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([1, 2, 1_000]))
def test_stretches_are_the_rest_of_the_log_from_wherever_it_is_settled(
    steps: list[Step], rows_a_piece: int
) -> None:
    async def story(log: History) -> None:
        for step in steps:
            await log.do(step)
        fetched = await log.fetch()
        for begin in [one.first_offset for one in fetched.batches]:
            stretches = stretches_of(log.world.first.machine, begin, rows_a_piece)
            found = [
                (stretch.first_offset + stored.at.offset - stretch.journal_offset, stored.at.offset)
                for stretch, stored in frames_in(stretches, log.world.first.frames)
            ]
            assert found == [
                (one.first_offset, one.journal_offset)
                for one in fetched.batches
                if one.first_offset >= begin
            ]
        assert not stretches_of(log.world.first.machine, fetched.end_offset, rows_a_piece)

    history(story)


def test_a_run_goes_on_where_it_is_settled() -> None:
    async def story(log: History) -> None:
        for number in range(3):
            await log.do(Step(0, [number, number], Compression.NONE, True))
        (whole,) = stretches_of(log.world.first.machine, 0)
        assert (whole.first_offset, whole.journal_offset, whole.record_count) == (0, 1, 6)
        (rest,) = stretches_of(log.world.first.machine, 2)
        assert (rest.first_offset, rest.journal_offset, rest.record_count) == (2, 3, 4)

    history(story)


def test_a_time_that_was_deleted_is_looked_for_in_its_entry_alone() -> None:
    """So late was what is gone: where the log begins is never too late."""

    async def story(log: History) -> None:
        for time_us in (50, 10, 60):
            await log.do(Step(1, [time_us] * 2, Compression.NONE, True))
        await log.truncate(2)
        before = await log.by_time([40])
        log.world.first.settle()
        assert await log.by_time([40]) == before == [(3, None)]

    history(story)


def test_i03_the_journal_is_there_from_the_next_whole_transaction_on() -> None:
    async def story(log: History) -> None:
        replica = log.world.first
        await log.do(Step(1, [0], Compression.NONE, False))
        await log.do(Step(0, [0], Compression.NONE, True))
        await log.do(Step(1, [0], Compression.NONE, True))
        await log.do(Step(0, [0], Compression.NONE, True))
        replica.settle()
        replica.log_start = JournalOffset(3)
        listed = await log.list(*(pb.OffsetQuery(offset=at) for at in range(5)))
        assert [one.journal_has_from for one in listed] == [3, 3, 3, 0, 0]
        assert [one.HasField("journal_point") for one in listed] == [False] * 3 + [True] * 2

    history(story)
