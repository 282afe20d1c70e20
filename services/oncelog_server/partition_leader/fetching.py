"""The handlers of Fetch (a long poll over many partitions) and Subscribe (a stream of replies).

Both keep a cursor per partition, read, and wait until the HW of one of them moves. What was read is
kept while others are waited for. Back-pressure of a Subscribe is the transport's: the generator
goes on only when its reply was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Call
from oncelog_server.partition_leader import wire
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelog_server.partition_leader.reads import Found, Reader, readable
from oncelogpb import bulk
from oncelogpb.errors import InvalidArgument, OncelogError, TooLarge, to_status
from oncelogpb.v1 import partition_leader_pb2 as pb

# A long poll ends so long before its caller gives up.
REPLY_MARGIN_MS: Final = 100
# What a reply of a Subscribe may hold where its caller, or all callers together, have not read much
# already: so little, or one batch, that thousands who read nothing do not add up.
SUBSCRIBE_BYTES_LEAST: Final = 64 * 1024


class Bell:
    """Rung by all cursors of a request, and heard by its handler."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, timeout_ms: int | None) -> None:
        """Until it is rung, or the time is over."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = None if timeout_ms is None else loop.call_later(timeout_ms / 1000, self.ring)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()


class Cursor:
    """Where one partition of a request stands."""

    __slots__ = (
        "_bell", "_unwatch", "error", "found", "has_moved", "max_bytes", "offset", "partition",
        "wanted",
    )  # fmt: skip

    def __init__(
        self, wanted: pb.FetchPartition, max_bytes: int, refusal: OncelogError | None, bell: Bell
    ) -> None:
        self.wanted = wanted
        self.partition: PartitionId = wire.topic_partition(wanted.partition)
        self.offset = wanted.offset
        self.max_bytes = max_bytes
        self.found: Found | None = None
        # To be told; nothing more is read. From the beginning: its caller has no right to it.
        self.error = refusal
        # There may be more to read.
        self.has_moved = False
        self._unwatch: Callable[[], object] | None = None
        self._bell = bell

    @property
    def payload_bytes(self) -> int:
        return self.found.payload_bytes if self.found is not None else 0

    @property
    def has_news(self) -> bool:
        return self.error is not None or bool(self.found and self.found.batches)

    @property
    def may_have_more(self) -> bool:
        """Behind what was found: where the budget ended, or what came while that was sent."""
        found = self.found
        if found is None or not self.is_watching:
            return True
        return found.next_offset < found.ends.end

    @property
    def is_watching(self) -> bool:
        """It will ring when the HW moves."""
        return self._unwatch is not None

    def item(self) -> bulk.Encoded | pb.FetchedPartition:
        if self.error is not None:
            return pb.FetchedPartition(partition=self.wanted.partition, error=to_status(self.error))
        assert self.found is not None, "it was read before it is encoded"
        return readable(self.found, self.wanted.partition)

    def watch(self, replica: PartitionReplica) -> None:
        """The HW, from here on."""
        self.has_moved = False
        self._unwatch = replica.watch(self._moved)

    def _moved(self) -> None:
        self.has_moved, self._unwatch = True, None
        self._bell.ring()

    def fail(self, error: OncelogError) -> None:
        """Nothing more is read, and nobody is woken because of it."""
        self.forget()
        self.error, self.found = error, None

    def forget(self) -> None:
        """Stops watching the HW."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


class Fetching:
    """See the module."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config
        self._reader = Reader(env, config)
        # Where the next request begins to read, so that its first partitions do not always win.
        self._rotation = 0
        self._subscriptions = 0

    async def fetch(self, request: pb.FetchRequest, call: Call) -> bulk.Encoded:
        wire.require_reading(request)
        bell = Bell()
        cursors = self._cursors(request.partitions, call, bell)
        budget = min(request.max_bytes or self._config.fetch_bytes, self._config.fetch_bytes_max)
        wait_ms = min(
            request.max_wait_ms,
            self._config.fetch_wait_ms_max,
            max(call.timeout_ms - REPLY_MARGIN_MS, 0),
        )
        deadline_ms = self._env.clock.now().monotonic_ms + wait_ms
        try:
            await call.room(budget)
            await self._read_all(self._rotated(cursors), request, budget)
            while not _is_enough(cursors, min(request.min_bytes or 1, budget)):
                call.holds(_size(cursors))
                left_ms = deadline_ms - self._env.clock.now().monotonic_ms
                moved = await _wait_for_any(cursors, bell, left_ms) if left_ms > 0 else []
                if not moved:
                    break
                kept = _size(cursor for cursor in cursors if cursor not in moved)
                if kept and not call.has_room(budget):
                    # It answers with what it has. Two fetches that wait for room, each of which
                    # holds some, might wait for each other for ever.
                    break
                await call.room(budget)
                await self._read_all(moved, request, budget - kept)
            self._require_now(cursors)
            call.holds(_size(cursors))
        finally:
            for cursor in cursors:
                cursor.forget()
        self._count_out(cursors)
        return bulk.fetch_reply([cursor.item() for cursor in cursors])

    async def subscribe(
        self, request: pb.SubscribeRequest, call: Call
    ) -> AsyncIterator[bulk.Encoded]:
        """Ends when every partition has failed, with the error of the last one; each is told its
        own once, before. It never ends without an error: who looks at the end alone must not take
        it for the end of the data."""
        wire.require_reading(request)
        bell = Bell()
        following = self._cursors(request.partitions, call, bell)
        budget = min(
            request.max_bytes or self._config.subscribe_bytes, self._config.fetch_bytes_max
        )
        self._subscribed(1)
        try:
            stale: Sequence[Cursor] = following
            while True:
                room = min(budget, max(call.room_left(), SUBSCRIBE_BYTES_LEAST))
                call.holds(room)
                await self._read_all(self._rotated(stale), request, room)
                call.holds(_size(following))
                news = [cursor for cursor in following if cursor.has_news]
                if news:
                    self._count_out(news)
                    yield bulk.fetch_reply([cursor.item() for cursor in news])
                    failed = [cursor.error for cursor in following if cursor.error is not None]
                    following = [cursor for cursor in following if cursor.error is None]
                    if not following:
                        raise failed[-1]
                stale = [cursor for cursor in following if news and cursor.may_have_more]
                for cursor in following:
                    _move_on(cursor)
                if not stale:
                    call.holds(0)
                    # Who waits here waits for ever, and is woken when the lease runs out.
                    self._require_now(following)
                    stale = [cursor for cursor in following if cursor.error is not None]
                    stale = stale or await _wait_for_any(following, bell, None)
        finally:
            self._subscribed(-1)
            for cursor in following:
                cursor.forget()

    # -------------------------------------------------------------------------------------- parts

    def _cursors(
        self, partitions: Sequence[pb.FetchPartition], call: Call, bell: Bell
    ) -> list[Cursor]:
        limit = self._config.fetch_partitions_max
        if not partitions:
            raise InvalidArgument("name at least one partition", field="partitions")
        if len(partitions) > limit:
            raise TooLarge(
                f"{len(partitions)} partitions are above fetch_partitions_max = {limit}",
                limit="fetch_partitions_max",
                maximum=limit,
            )
        default = self._config.fetch_partition_bytes
        cursors = [
            Cursor(wanted, wanted.max_bytes or default, call.refused.get(place), bell)
            for place, wanted in enumerate(partitions)
        ]
        if len({cursor.partition for cursor in cursors}) != len(cursors):
            raise InvalidArgument("name each partition once", field="partitions")
        return cursors

    def _rotated(self, cursors: Sequence[Cursor]) -> list[Cursor]:
        self._rotation += 1
        start = self._rotation % len(cursors)
        return [*cursors[start:], *cursors[:start]]

    async def _read_all(
        self,
        cursors: Iterable[Cursor],
        request: pb.FetchRequest | pb.SubscribeRequest,
        budget: int,
    ) -> None:
        """Whoever comes when the budget has ended finds nothing this time."""
        for cursor in cursors:
            await self._read(cursor, request, max(budget, 0))
            budget -= cursor.payload_bytes

    async def _read(
        self, cursor: Cursor, request: pb.FetchRequest | pb.SubscribeRequest, budget: int
    ) -> None:
        if cursor.error is not None:
            return
        cursor.forget()
        try:
            replica = self._env.replicas.lead(cursor.partition)
            # Before reading: what comes while we read must not be missed.
            cursor.watch(replica)
            cursor.found = await self._reader.read(
                replica,
                cursor.offset,
                isolation=request.isolation,
                format_=request.format,
                max_bytes=min(cursor.max_bytes, budget),
                with_units=request.with_units,
                with_offsets=request.with_offsets,
            )
        except OncelogError as error:
            cursor.fail(error)

    def _require_now(self, cursors: Iterable[Cursor]) -> None:
        """What is there, is there for ever, and also who leads no more may give it. "There is
        nothing" is an answer about now: only within the lease. Else its
        caller would go on asking here, and never find the new leader."""
        for cursor in cursors:
            if cursor.has_news:
                continue
            try:
                self._env.replicas.lead(cursor.partition).require_lease()
            except OncelogError as error:
                cursor.fail(error)

    def _subscribed(self, change: int) -> None:
        self._subscriptions += change
        self._env.reporter.gauge("subscriptions", self._subscriptions)

    def _count_out(self, cursors: Sequence[Cursor]) -> None:
        found = [cursor.found for cursor in cursors if cursor.found is not None]
        records_out = sum(one.record_count for one in found)
        if records_out:
            self._env.reporter.count("records_out", records_out)
            self._env.reporter.count("bytes_out", sum(one.payload_bytes for one in found))


def _size(cursors: Iterable[Cursor]) -> int:
    return sum(cursor.payload_bytes for cursor in cursors)


def _is_enough(cursors: Sequence[Cursor], min_bytes: int) -> bool:
    if any(cursor.error is not None for cursor in cursors):
        return True
    return _size(cursors) >= min_bytes


def _move_on(cursor: Cursor) -> None:
    """Reads on behind what was sent, and behind control records that nobody wanted."""
    if cursor.found is not None:
        cursor.offset = cursor.found.next_offset
        cursor.found = None


async def _wait_for_any(
    cursors: Sequence[Cursor], bell: Bell, timeout_ms: int | None
) -> list[Cursor]:
    """Those whose HW moved, or that are led no more; none at the timeout."""
    if not any(cursor.has_moved for cursor in cursors):
        if not any(cursor.is_watching for cursor in cursors):
            return []
        await bell.wait(timeout_ms)
    return [cursor for cursor in cursors if cursor.has_moved]
