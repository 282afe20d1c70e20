"""Fetch, Subscribe and ListOffsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog_server.core.ids import PartitionId
from oncelog_server.participant.handler import ParticipantHandler
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.fetching import SUBSCRIBE_BYTES_LEAST
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import bulk, errors, records
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.partition_leader.fakes import FIRST, SECOND, FakeCall, World
from tests.unit.partition_leader.messages import (
    batch,
    commit,
    fetch,
    partition_of,
    plain,
    send,
    values_of,
)


class Session:
    """A world with its handlers; replies as messages."""

    def __init__(self) -> None:
        self.world = World()
        self.service = PartitionLeaderService(self.world.env, self.world.config)
        self.participant = ParticipantHandler(self.world.env)
        self.call = FakeCall()

    async def produce(self, request: pb.ProduceRequest) -> None:
        reply = await self.service.produce(request, self.call)
        assert not any(result.HasField("error") for result in reply.results), reply

    async def commit(self, *arguments: Any, **options: Any) -> None:
        reply = await self.participant.write_markers(commit(*arguments, **options), self.call)
        assert not reply.groups[0].HasField("error"), reply

    async def fetch(self, *arguments: Any, **options: Any) -> pb.FetchedPartition:
        return (await self.fetch_all(fetch(*arguments, **options)))[0]

    async def fetch_all(self, request: pb.FetchRequest) -> list[pb.FetchedPartition]:
        encoded = await self.service.fetch(request, self.call)
        return list(decoded(encoded).partitions)


def decoded(reply: bulk.Encoded) -> pb.FetchReply:
    return pb.FetchReply.FromString(bulk.join(reply.chunks))


def run(story: Callable[[Session], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await story(Session())

    asyncio.run(main())


async def a_log(session: Session) -> None:
    """Journal: 0 epoch, 1-2 plain, 3 t5, 4-5 t6, 6 marker t6, 7 marker t5, 8 one-shot t9."""
    await session.produce(plain(batch([b"a", b"b"])))
    await session.produce(send(5, batch([b"t5"])))
    await session.produce(send(6, batch([b"t6-0", b"t6-1"])))
    await session.commit(6, 10, 2)
    await session.commit(5, 11, 1)
    await session.commit(9, 12, one_shot=batch([b"one"]))


def shape(fetched: pb.FetchedPartition) -> list[tuple[str, int, int]]:
    kind = pb.FetchedBatch.Kind.Name
    return [(kind(b.kind)[5:], b.first_offset, b.record_count) for b in fetched.batches]


def test_i08_committed_is_in_commit_order_and_dense() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        fetched = await session.fetch()
        assert values_of(fetched) == [b"a", b"b", b"t6-0", b"t6-1", b"t5", b"one"]
        assert shape(fetched) == [("DATA", 0, 2), ("DATA", 2, 2), ("DATA", 4, 1), ("DATA", 5, 1)]
        assert (fetched.start_offset, fetched.end_offset) == (0, 6)
        assert [b.journal_offset for b in fetched.batches] == [1, 4, 3, 8]
        assert [b.tx_id for b in fetched.batches] == [0, 6, 5, 9]
        one_shot = fetched.batches[3]
        assert (one_shot.writer, one_shot.base_sequence) == (0, 0)
        for one in fetched.batches:
            assert records.checksum(one.payload) == one.crc32c

    run(story)


def test_i08_an_open_transaction_holds_back_nobody() -> None:
    async def story(session: Session) -> None:
        await session.produce(send(5, batch([b"open"])))
        await session.produce(plain(batch([b"plain"])))
        await session.produce(send(6, batch([b"t6"])))
        await session.commit(6, 10, 1)
        assert values_of(await session.fetch()) == [b"plain", b"t6"]

    run(story)


@pytest.mark.parametrize(
    ("offset", "first", "values"),
    [(0, 0, 6), (1, 0, 6), (2, 2, 4), (3, 2, 4), (4, 4, 2), (5, 5, 1), (6, None, 0)],
)
def test_i15_resume_from_any_offset(offset: int, first: int | None, values: int) -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        fetched = await session.fetch(offset)
        assert len(values_of(fetched)) == values
        if first is not None:
            assert fetched.batches[0].first_offset == first

    run(story)


@pytest.mark.parametrize(("action", "kind"), [("EXPOSE", "EXPOSED"), ("DROP", "DROPPED")])
def test_i8_raw_says_what_became_of_a_damaged_part(action: str, kind: str) -> None:
    async def story(session: Session) -> None:
        await session.produce(send(5, batch([b"a", b"b"])))
        await session.commit(5, 10, 3)
        request = pb.ResolveTransactionRequest(
            tx_id=5,
            partition=partition_of(FIRST),
            action=pb.ResolveTransactionRequest.Action.Value(f"ACTION_{action}"),
        )
        await session.service.resolve_transaction(request, session.call)
        raw = await session.fetch(isolation=pb.ISOLATION_RAW)
        assert shape(raw)[1:] == [("DATA", 1, 2), ("DAMAGED", 3, 1), (kind, 4, 1)]
        assert raw.batches[3].tx_id == 5

    run(story)


def test_journal_views() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        uncommitted = await session.fetch(isolation=pb.ISOLATION_UNCOMMITTED)
        assert shape(uncommitted) == [
            ("DATA", 1, 2),
            ("DATA", 3, 1),
            ("DATA", 4, 2),
            ("DATA", 8, 1),
        ]
        assert (uncommitted.start_offset, uncommitted.end_offset) == (0, 9)
        raw = await session.fetch(isolation=pb.ISOLATION_RAW)
        assert shape(raw) == [
            ("CONTROL", 0, 1),
            ("DATA", 1, 2),
            ("DATA", 3, 1),
            ("DATA", 4, 2),
            ("COMMITTED", 6, 1),
            ("COMMITTED", 7, 1),
            ("ONE_SHOT", 8, 1),
        ]
        marker = raw.batches[4]
        assert marker.tx_id == 6
        assert (list(marker.marker_writers), list(marker.marker_counts)) == ([0], [2])
        ends = [b.first_offset + b.record_count for b in raw.batches]
        assert ends == [b.first_offset for b in raw.batches[1:]] + [9], "a reader can go on"

    run(story)


def test_uncommitted_reads_on_over_markers() -> None:
    """Were a page of markers only an empty answer, the reader would ask for it for ever."""

    async def story(session: Session) -> None:
        for n in range(20):
            await session.produce(send(5 + n, batch([b"x"])))
        for n in range(20):
            await session.commit(5 + n, 100 + n, 1)
        await session.produce(plain(batch([b"end"])))
        fetched = await session.fetch(21, isolation=pb.ISOLATION_UNCOMMITTED, max_bytes=1)
        assert values_of(fetched) == [b"end"]

    run(story)


def test_rows_for_languages_without_arrow() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"%d" % n for n in range(30)])))
        stored = await session.fetch()
        assert stored.batches[0].encoding == types_pb2.ENCODING_ARROW_V1
        rows = await session.fetch(format_=pb.FORMAT_ROWS)
        assert rows.batches[0].encoding == types_pb2.ENCODING_ROWS
        assert values_of(rows) == values_of(stored)
        assert records.checksum(rows.batches[0].payload) == rows.batches[0].crc32c

    run(story)


def test_i27_nothing_above_the_high_watermark() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"a"])))
        session.world.first.hold = True
        waiting = asyncio.create_task(session.produce(plain(batch([b"b"], sequence=1))))
        await asyncio.sleep(0.01)
        for isolation in (pb.ISOLATION_COMMITTED, pb.ISOLATION_UNCOMMITTED, pb.ISOLATION_RAW):
            assert b"b" not in values_of_data(await session.fetch(isolation=isolation))
        session.world.first.sync()
        await waiting
        assert values_of(await session.fetch()) == [b"a", b"b"]

    run(story)


def values_of_data(fetched: pb.FetchedPartition) -> list[bytes]:
    data = [b for b in fetched.batches if b.kind == pb.FetchedBatch.KIND_DATA]
    return values_of(pb.FetchedPartition(batches=data))


def test_an_offset_that_is_not_durable_yet_waits_and_is_not_out_of_range() -> None:
    async def story(session: Session) -> None:
        session.world.first.hold = True
        sending = asyncio.create_task(session.produce(plain(batch([b"a", b"b"]))))
        await asyncio.sleep(0.01)
        assert not (await session.fetch(2)).HasField("error")
        beyond = await session.fetch(3)
        refusal = errors.from_status(beyond.error)
        assert refusal.reason == "OFFSET_OUT_OF_RANGE"
        assert (refusal.metadata["start"], refusal.metadata["end"]) == ("0", "0")
        session.world.first.lease_valid = False
        assert errors.from_status((await session.fetch(3)).error).reason == "NOT_LEADER"
        session.world.first.sync()
        await sending

    run(story)


def test_without_a_lease_it_gives_what_is_there_and_does_not_say_that_there_is_nothing() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"a"])))
        poll = asyncio.create_task(session.fetch(1, max_wait_ms=50))
        await asyncio.sleep(0.01)
        session.world.first.lease_valid = False
        assert errors.from_status((await poll).error).reason == "NOT_LEADER"
        assert errors.from_status((await session.fetch(1)).error).reason == "NOT_LEADER"
        assert values_of(await session.fetch(0)) == [b"a"]

    run(story)


def test_long_poll_is_woken_by_the_commit() -> None:
    async def story(session: Session) -> None:
        await session.produce(send(5, batch([b"t5"])))
        poll = asyncio.create_task(session.fetch(max_wait_ms=30_000))
        await asyncio.sleep(0.01)
        await session.produce(send(5, batch([b"more"], sequence=1)))
        assert not poll.done(), "pending batches are nothing to read"
        await session.commit(5, 9, 2)
        assert values_of(await poll) == [b"t5", b"more"]

    run(story)


def test_long_poll_waits_for_min_bytes_over_all_partitions() -> None:
    async def story(session: Session) -> None:
        request = pb.FetchRequest(
            partitions=[pb.FetchPartition(partition=partition_of(p)) for p in (FIRST, SECOND)],
            max_wait_ms=30_000,
            min_bytes=2_000,
        )
        poll = asyncio.create_task(session.fetch_all(request))
        await session.produce(plain(batch([b"x" * 1_500])))
        await asyncio.sleep(0.01)
        assert not poll.done()
        await session.produce(plain(batch([b"y" * 1_500], partition=SECOND)))
        first, second = await poll
        assert (values_of(first), values_of(second)) == ([b"x" * 1_500], [b"y" * 1_500])

    run(story)


def test_what_was_read_counts_in_the_budget_of_what_comes() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"x" * 1_500])))
        wanted = [pb.FetchPartition(partition=partition_of(p)) for p in (FIRST, SECOND)]
        request = pb.FetchRequest(
            partitions=wanted, max_wait_ms=30_000, min_bytes=9_000_000, max_bytes=2_000
        )
        poll = asyncio.create_task(session.fetch_all(request))
        await asyncio.sleep(0.01)
        both = [batch([b"y" * 1_500], partition=SECOND, sequence=n) for n in range(2)]
        await session.produce(plain(*both))
        first, second = await poll
        assert (len(first.batches), len(second.batches)) == (1, 1)

    run(story)


class RoomCall(FakeCall):
    """A caller with room for so many bytes that it has not read yet."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.left = room
        self.took: list[int] = []
        self.held: list[int] = []

    async def room(self, size: int) -> None:
        assert self.has_room(size), "it would wait"
        self.took.append(size)

    def has_room(self, size: int) -> bool:
        return size <= self.left

    def room_left(self) -> int:
        return self.left

    def holds(self, size: int) -> None:
        self.held.append(size)


def test_a_fetch_takes_room_before_it_reads_and_holds_what_it_found() -> None:
    async def story(session: Session) -> None:
        session.call = call = RoomCall(10_000)
        await session.produce(plain(batch([b"x" * 900])))
        (found,) = [batch.payload for batch in (await session.fetch(max_bytes=5_000)).batches]
        assert (call.took, call.held) == ([5_000], [len(found)])

    run(story)


def test_a_long_poll_that_finds_no_more_room_answers_with_what_it_has() -> None:
    """Two of one caller, each with something found, would wait for each other's room."""

    async def story(session: Session) -> None:
        session.call = call = RoomCall(9_000_000)
        await session.produce(plain(batch([b"x" * 900])))
        wanted = [pb.FetchPartition(partition=partition_of(id_)) for id_ in (FIRST, SECOND)]
        request = pb.FetchRequest(partitions=wanted, max_wait_ms=30_000, min_bytes=2_000)
        polling = asyncio.create_task(session.fetch_all(request))
        await asyncio.sleep(0.01)
        assert not polling.done()
        assert 0 < call.held[-1] < 2_000
        call.left = 0
        await session.produce(plain(batch([b"y" * 1_200], partition=SECOND)))
        first, second = await polling
        assert (len(first.batches), len(second.batches)) == (1, 0)

    run(story)


def test_long_poll_ends_with_nothing() -> None:
    async def story(session: Session) -> None:
        fetched = await session.fetch(max_wait_ms=1)
        assert not fetched.batches
        assert fetched.end_offset == 0

    run(story)


def test_a_partition_that_cannot_be_read_fails_alone_and_at_once() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"a"])))
        del session.world.replicas.replicas[SECOND]
        wanted = [pb.FetchPartition(partition=partition_of(p)) for p in (FIRST, SECOND)]
        first, second = await session.fetch_all(
            pb.FetchRequest(partitions=wanted, max_wait_ms=30_000, min_bytes=1_000_000)
        )
        assert values_of(first) == [b"a"]
        assert errors.from_status(second.error).reason == "NOT_LEADER"

    run(story)


def test_the_budget_of_a_reply_goes_round() -> None:
    """Two full partitions, room for one batch: both get their turn."""

    async def story(session: Session) -> None:
        for partition in (FIRST, SECOND):
            await session.produce(plain(batch([b"x" * 5_000], partition=partition)))
        wanted = [pb.FetchPartition(partition=partition_of(p)) for p in (FIRST, SECOND)]
        request = pb.FetchRequest(partitions=wanted, max_bytes=1_000)
        served = set()
        for _ in range(2):
            served |= {p.partition.number for p in await session.fetch_all(request) if p.batches}
        assert served == {0, 1}

    run(story)


@pytest.mark.parametrize("count", [0, 2, 1_001])
def test_a_request_names_each_partition_once(count: int) -> None:
    async def story(session: Session) -> None:
        wanted = [pb.FetchPartition(partition=partition_of(FIRST))] * count
        with pytest.raises((errors.InvalidArgument, errors.TooLarge)):
            await session.fetch_all(pb.FetchRequest(partitions=wanted))

    run(story)


def test_max_bytes_ends_a_page_and_the_next_goes_on() -> None:
    async def story(session: Session) -> None:
        values = [b"%03d" % n * 400 for n in range(40)]
        for n, value in enumerate(values):
            request = plain if n % 3 else (lambda one, n=n: send(50 + n, one))
            sequence = sum(1 for k in range(n) if k % 3) if n % 3 else 0
            await session.produce(request(batch([value], sequence=sequence)))
            if n % 3 == 0:
                await session.commit(50 + n, 100 + n, 1)
        read: list[bytes] = []
        pages = 0
        while len(read) < len(values):
            fetched = await session.fetch(len(read), max_bytes=3_000)
            assert 0 < len(fetched.batches) <= 4
            read += values_of(fetched)
            pages += 1
        assert read == values
        assert pages > 5

    run(story)


def test_subscribe_gives_what_comes_and_ends_when_nobody_leads() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"a"])))
        request = pb.SubscribeRequest(
            partitions=[pb.FetchPartition(partition=partition_of(p)) for p in (FIRST, SECOND)],
            max_bytes=1,
        )
        replies = session.service.subscribe(request, session.call)
        assert values_of(decoded(await anext(replies)).partitions[0]) == [b"a"]
        coming = asyncio.ensure_future(anext(replies))
        await session.produce(plain(batch([b"b"], partition=SECOND), batch([b"c"], sequence=1)))
        got = values_in(decoded(await coming))
        while len(got) < 2:
            got += values_in(decoded(await anext(replies)))
        assert sorted(got) == [b"b", b"c"]
        assert session.world.reporter.counted["subscriptions"] == 1
        session.world.replicas.replicas.clear()
        told: list[pb.FetchedPartition] = []
        # Its end says why, too: who looks at nothing else must not take it for the end of the data.
        with pytest.raises(errors.NotLeader):
            async for reply in replies:
                told += decoded(reply).partitions
        reasons = [errors.from_status(partition.error).reason for partition in told]
        assert reasons == ["NOT_LEADER", "NOT_LEADER"], "each is told once, then the stream ends"
        assert session.world.reporter.counted["subscriptions"] == 0

    run(story)


@pytest.mark.parametrize(("room", "batches"), [(1 << 20, 3), (100_000, 2), (0, 1)])
def test_a_subscription_reads_no_more_than_its_caller_has_room_for(room: int, batches: int) -> None:
    """Where there is none, so little that thousands who read nothing do not add up; but all who
    read go on."""

    async def story(session: Session) -> None:
        call = RoomCall(room)
        for sequence in range(3):
            await session.produce(plain(batch([b"x" * 70_000], sequence=sequence)))
        wanted = [pb.FetchPartition(partition=partition_of(FIRST))]
        replies = session.service.subscribe(pb.SubscribeRequest(partitions=wanted), call)
        first = decoded(await anext(replies))
        assert len(first.partitions[0].batches) == batches
        budget, found = call.held
        assert budget == min(
            max(room, SUBSCRIBE_BYTES_LEAST), PartitionLeaderConfig().subscribe_bytes
        )
        assert found == sum(len(one.payload) for one in first.partitions[0].batches)
        got = values_in(first)
        while len(got) < 3:
            got += values_in(decoded(await anext(replies)))
        assert call.took == [], "it never waits: who reads one of its streams only would for ever"
        waiting = asyncio.ensure_future(anext(replies))
        await asyncio.sleep(0.01)
        assert call.held[-1] == 0, "who waits for news holds nothing"
        waiting.cancel()
        await asyncio.wait([waiting])

    run(story)


def values_in(reply: pb.FetchReply) -> list[bytes]:
    return [value for partition in reply.partitions for value in values_of(partition)]


def query(partition: PartitionId = FIRST, **at: Any) -> pb.OffsetQuery:
    return pb.OffsetQuery(partition=partition_of(partition), **at)


def test_list_offsets_by_time_is_the_first_record_of_the_running_maximum() -> None:
    async def story(session: Session) -> None:
        await session.produce(plain(batch([b"a", b"b", b"c"], timestamp_us=[10, 30, 20])))
        await session.produce(send(5, batch([b"d", b"e"], timestamp_us=[50, 60])))
        await session.produce(plain(batch([b"f"], sequence=3, timestamp_us=40)))
        await session.commit(5, 9, 2)
        asked = [0, 10, 11, 30, 31, 40, 41, 55, 60, 61]
        reply = await session.service.list_offsets(
            pb.ListOffsetsRequest(queries=[query(timestamp_us=t) for t in asked]), session.call
        )
        found = [
            (one.offset, one.timestamp_us if one.HasField("timestamp_us") else None)
            for one in reply.offsets
        ]
        assert found == [
            (0, 10),
            (0, 10),
            (1, 30),
            (1, 30),
            (3, 40),
            (3, 40),
            (4, 50),
            (5, 60),
            (5, 60),
            (6, None),
        ]

    run(story)


def test_list_offsets_by_time_inside_a_run() -> None:
    """Neighbouring plain batches share an index entry; the batch is found in it."""

    async def story(session: Session) -> None:
        for n, time_us in enumerate([10, 30, 20, 40]):
            await session.produce(plain(batch([b"x"], sequence=n, timestamp_us=time_us)))
        assert len(session.world.first.machine.committed) == 1
        asked = [5, 11, 31, 41]
        reply = await session.service.list_offsets(
            pb.ListOffsetsRequest(queries=[query(timestamp_us=t) for t in asked]), session.call
        )
        assert [one.offset for one in reply.offsets] == [0, 1, 3, 4]

    run(story)


def test_list_offsets_ends() -> None:
    async def story(session: Session) -> None:
        await a_log(session)
        queries = [query(earliest=True), query(latest=True)]
        committed = await session.service.list_offsets(
            pb.ListOffsetsRequest(queries=queries), session.call
        )
        assert [one.offset for one in committed.offsets] == [0, 6]
        raw = await session.service.list_offsets(
            pb.ListOffsetsRequest(
                queries=[*queries, query(timestamp_us=1)], isolation=pb.ISOLATION_RAW
            ),
            session.call,
        )
        assert [one.offset for one in raw.offsets[:2]] == [0, 9]
        assert errors.from_status(raw.offsets[2].error).reason == "UNSUPPORTED"

    run(story)


def test_list_offsets_fails_alone_and_only_within_the_lease() -> None:
    async def story(session: Session) -> None:
        session.world.second.lease_valid = False
        reply = await session.service.list_offsets(
            pb.ListOffsetsRequest(
                queries=[query(latest=True), query(SECOND, latest=True), query(SECOND)]
            ),
            session.call,
        )
        assert not reply.offsets[0].HasField("error")
        assert errors.from_status(reply.offsets[1].error).reason == "NOT_LEADER"
        session.world.second.lease_valid = True
        reply = await session.service.list_offsets(
            pb.ListOffsetsRequest(queries=[query(SECOND)]), session.call
        )
        assert errors.from_status(reply.offsets[0].error).reason == "INVALID_ARGUMENT"

    run(story)


def test_records_of_a_transaction_are_of_the_time_of_its_commit() -> None:
    async def story(session: Session) -> None:
        await session.produce(send(5, batch([b"t5"])))
        sent_ms = session.world.clock.now().wall_ms
        session.world.clock.monotonic_ms += 60_000
        await session.commit(5, 11, 1)
        await session.produce(plain(batch([b"a"])))
        found = await session.fetch(0)
        assert [head.time_ms - sent_ms for head in found.batches] == [60_000, 60_000]

    run(story)
