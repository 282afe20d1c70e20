"""A dictionary that follows a topic: the last committed value of each key (`oncelog._core.latest`).

    table = await log.table("prices")
    await table.caught_up()
    table[b"apple"]

A task of its own reads all partitions and shows what comes, in one turn of the loop per step. What
is looked up is what was shown last: nobody waits for a leader. Whoever wants to see all that was
committed before a moment asks `caught_up`.

Promised:
- of a transaction, all that it has in one partition is shown at one moment; its parts in several
  partitions, each at a moment of its own (a consumer's `transactions(across=True)` gives such, but
  not those that coordinators have forgotten, and a table begins at the first record);
- it shows no key whose tombstone was compacted away before it came there: a table that is so slow,
  or was away for so long, that this could be begins anew (`oncelog._core.pace`);
- a table that cannot go on (its topic was deleted, its memory is full) says so at every use, and
  shows nothing that it does not know to be true. One that only waits, for a leader say, shows what
  it has.

Left out: a file. A process that starts reads the topic again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Final, NamedTuple

import pyarrow as pa

from oncelog._core.buffers import check_bytes
from oncelog._core.latest import Keys, Latest, Values
from oncelog._core.merged import moments
from oncelog._core.pace import ASKS_EVERY, LATE, Moment, Pace
from oncelog.aio.following import Following
from oncelog.batch import Chunk, TopicPartition
from oncelog.errors import Closed
from oncelog.options import CALL_TIMEOUT_MS_MAX, TableOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2

log = logging.getLogger("oncelog.table")

# How long nothing may come before it looks for partitions that were added, seconds.
# A shorter wait would be none.
LEAST_WAIT_S: Final = 0.001
IDLE_S: Final = 1.0
# Removed keys that are remembered before it looks whether they may be forgotten, and how long that
# may take, seconds.
REMOVED_MAX: Final = 1_000
FORGET_S: Final = 60.0
# Keys that may wait in one `TableChanges`.
CHANGES_KEYS_MAX: Final = 1_000_000
# How often it is looked whether the topic's tombstones go, at most, milliseconds.
LOOK_MS: Final = 600_000
# The columns of `to_arrow`.
KEY_VALUE_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)


class TableChanges:
    """What changes in a table from here on: made by `TableView.changes`. Used by one task."""

    def __init__(self, table: TableView) -> None:
        self._table = table
        self._keys: set[bytes | None] = set()
        # More waited than is kept.
        self._is_lost = False
        self._arrived = asyncio.Event()

    async def poll(self, timeout_s: float = 1.0) -> dict[bytes, bytes | None] | None:
        """Each key that was written since the last call, with its value now (None: removed); None
        where there was none in time. Raises as looking up does, and TooLarge where too many have
        waited for it: call `changes` again, and begin with a `snapshot`."""
        self._require_kept()
        if not self._keys:
            self._arrived.clear()
            arrival = asyncio.ensure_future(self._arrived.wait())
            try:
                await asyncio.wait((arrival,), timeout=timeout_s)
            finally:
                arrival.cancel()
            self._require_kept()
        keys, self._keys = self._keys, set()
        return self._table.now(keys) if keys else None

    def __aiter__(self) -> TableChanges:
        return self

    async def __anext__(self) -> dict[bytes, bytes | None]:
        """Waits as long as it takes; ends when the table is closed."""
        while not self._table.closed:
            try:
                changed = await self.poll(IDLE_S)
            except Closed:
                break
            if changed is not None:
                return changed
        raise StopAsyncIteration

    def note(self, keys: Iterable[bytes | None]) -> None:
        """These were written. Of the table, in its step."""
        if self._is_lost:
            return
        self._keys.update(keys)
        self._keys.discard(None)
        if len(self._keys) > CHANGES_KEYS_MAX:
            self._is_lost = True
            self._keys.clear()

    def wake(self) -> None:
        """Ends a `poll` that has something to give, or to raise. Of the table, after its step."""
        if self._keys or self._is_lost or not self._table.is_following:
            self._arrived.set()

    def _require_kept(self) -> None:
        self._table.require_following()
        if self._is_lost:
            raise errors.TooLarge(
                f"more than changes_keys_max = {CHANGES_KEYS_MAX} keys of {self._table.topic!r} "
                "have changed since they were asked for last: call `changes` again, and begin with "
                "a `snapshot`",
                limit="changes_keys_max",
            )


class TableView(Mapping[bytes, bytes]):
    """Made by `Log.table`; close it. Looked at from any thread, all else on its loop. What is
    iterated over (`keys`, `items`, `for`) is a copy of one moment."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        topic: partition_leader_pb2.TopicDescription,
        options: TableOptions,
    ) -> None:
        """Begins to read."""
        self.topic = topic.name
        self._protocol = protocol
        self._latest = Latest(options.memory_bytes_max)
        self._following = Following(
            protocol,
            topic,
            if_deleted=options.if_deleted,
            prefetch_bytes_max=options.prefetch_bytes_max,
            on_begun=self._wake_all,
            on_passed_over=self._begin_anew,
        )
        # Held while something is shown: so that other threads see it whole.
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        # The last error that was met and may pass, and when.
        self._trouble: tuple[float, errors.OncelogError] | None = None
        self._closed = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None
        self._changes: weakref.WeakSet[TableChanges] = weakref.WeakSet()
        # Set, and replaced, by each step.
        self._moved = asyncio.Event()
        self._forgetting: asyncio.Task[None] | None = None
        self._pace = Pace(self._moment())
        self._task = asyncio.get_running_loop().create_task(self._follow())
        self._pacing = asyncio.get_running_loop().create_task(self._look_how_far())

    # ------------------------------------------------------------------------------- looking it up

    def __getitem__(self, key: bytes) -> bytes:
        """Raises KeyError, InvalidArgument where the key is not bytes, and, as all that looks at
        it, why the table does not go on: UnknownTopic (deleted), TooLarge, OffsetOutOfRange, Closed
        and the like."""
        checked = check_bytes("key", key)
        with self._lock:
            self.require_following()
            found = None if checked is None else self._latest.entries.get(checked)
        if found is None:
            raise KeyError(key)
        return found[0]

    def __contains__(self, key: object) -> bool:
        checked = check_bytes("key", key)
        with self._lock:
            self.require_following()
            return checked in self._latest.entries

    def __len__(self) -> int:
        self.require_following()
        return len(self._latest.entries)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.snapshot())

    def keys(self) -> KeysView[bytes]:
        """Of one moment."""
        return self.snapshot().keys()

    def values(self) -> ValuesView[bytes]:
        """Of one moment."""
        return self.snapshot().values()

    def items(self) -> ItemsView[bytes, bytes]:
        """Of one moment."""
        return self.snapshot().items()

    def snapshot(self, keys: Iterable[bytes] | None = None) -> dict[bytes, bytes]:
        """A copy of one moment: of all, or of those of these keys that are there."""
        if keys is None:
            with self._lock:
                self.require_following()
                return {key: value for key, (value, _) in self._latest.entries.items()}
        found = self.now([check_bytes("key", key) for key in keys])
        return {key: value for key, value in found.items() if value is not None}

    def to_arrow(self) -> pa.Table:
        """Columns key and value, of one moment."""
        found = self.snapshot()
        columns = [
            pa.array(list(found), pa.binary()),
            pa.array(list(found.values()), pa.binary()),
        ]
        return pa.Table.from_arrays(columns, schema=KEY_VALUE_SCHEMA)

    def now(self, keys: Iterable[bytes | None]) -> dict[bytes, bytes | None]:
        """The values of these at one moment; None: it is not there."""
        with self._lock:
            self.require_following()
            entries = self._latest.entries
            return {
                key: found[0] if (found := entries.get(key)) else None
                for key in keys
                if key is not None
            }

    # -------------------------------------------------------------------------------- following it

    async def caught_up(self, timeout_s: float = 60.0) -> None:
        """Returns when all is shown that could be read when this was called, in every partition
        that the topic had then: what was committed with wait="visible" before, too. Raises
        Unavailable where that takes longer than `timeout_s`, and says how far it is; and why the
        table does not go on."""
        timeout_ms = int(min(max(1.0, timeout_s * 1000), CALL_TIMEOUT_MS_MAX))
        began_ms = self._protocol.now_ms()
        self.require_following()
        ends = await self._following.ends(timeout_ms)
        while left := self._left(ends):
            moved = self._moved
            self.require_following()
            wait_s = (began_ms - self._protocol.now_ms()) / 1000 + timeout_s
            if wait_s < LEAST_WAIT_S:
                raise self._too_slow(left, timeout_s, began_ms)
            waiting = asyncio.ensure_future(moved.wait())
            try:
                await asyncio.wait((waiting,), timeout=wait_s)
            finally:
                waiting.cancel()
        self.require_following()

    def changes(self) -> TableChanges:
        """What changes from now on, for `async for`: dicts, each with the keys that were written
        since the one before, and their values now (None: removed), as one moment shows them. A key
        that is written more often than it is asked for comes once. To see each record, read with a
        consumer. Let go of it, and it ends."""
        self.require_following()
        made = TableChanges(self)
        self._changes.add(made)
        self._latest.on_changed = self._note
        return made

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @property
    def is_following(self) -> bool:
        """`require_following` raises nothing."""
        return not self._closed and self._failure is None

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Of each partition: all records below are shown."""
        self.require_following()
        with self._lock:
            found = self._following.positions()
            return {
                place: self._latest.shown_up_to(place.partition, position)
                for place, position in found.items()
            }

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """How many offsets were deleted before it read them, of those partitions where some were:
        these began anew, with what was kept."""
        return self._following.skipped

    @property
    def without_key(self) -> int:
        """Records without a key that it has read: they are in no table."""
        return self._latest.without_key

    @property
    def memory_bytes(self) -> int:
        """What it takes, as `memory_bytes_max` counts."""
        return self._latest.bytes_held

    async def close(self) -> None:
        """Ends reading, and lets go of all. Safe to repeat."""
        self._closed = True
        tasks = [self._task, self._pacing, *([self._forgetting] if self._forgetting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._following.close()
        with self._lock:
            self._latest.clear()
        self._wake_all()
        self.on_closed()

    async def __aenter__(self) -> TableView:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def require_following(self) -> None:
        """Raises why it does not go on."""
        if self._closed:
            raise Closed("this table is closed: open another one")
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    # ------------------------------------------------------------------------------------- inside

    async def _follow(self) -> None:
        attempt = 0
        try:
            while True:
                try:
                    chunks = await self._following.poll(IDLE_S)
                except errors.OncelogError as error:
                    if not may_pass(error):
                        raise
                    self._met(error)
                    await self._protocol.back_off(attempt, error)
                    attempt += 1
                    continue
                if chunks:
                    attempt = 0
                    if self._pace.is_late(self._moment(), self._following.tombstones_kept_ms):
                        self._read_again()
                    else:
                        self._show(chunks)
                # Others have their turn, also where there is always something to take.
                await asyncio.sleep(0)
        except Exception as error:
            self._failure = error
            with self._lock:
                self._latest.clear()
        finally:
            self._wake_all()

    def _show(self, chunks: list[Chunk]) -> None:
        without_key = self._latest.without_key
        self._latest.remembers_removed = self._following.partition_count > 1
        with self._lock:
            for chunk in chunks:
                self._add(chunk)
        if not without_key and self._latest.without_key:
            log.warning("topic %r has records without a key: they are in no table", self.topic)
        self._wake_all()
        is_idle = self._forgetting is None or self._forgetting.done()
        if is_idle and self._latest.removed_count > REMOVED_MAX:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_removed())

    def _add(self, chunk: Chunk) -> None:
        if not chunk.count:
            if chunk.is_last:
                self._latest.end(chunk.partition)
            return
        assert chunk.written is not None, "the prefetcher was told to say who wrote it"
        if chunk.merged is None:
            self._latest.add(
                chunk.partition,
                chunk,
                tx_id=chunk.written.tx_id,
                time_ms=chunk.written.time_ms,
                first_offset=chunk.first_offset,
                is_last=chunk.is_last,
            )
            return
        keys, values = chunk.keys_and_values()
        for run in moments(chunk.merged.runs(chunk.skip, chunk.count)):
            first = run.start - chunk.skip
            behind = first + run.record_count
            self._latest.add(
                chunk.partition,
                _Rows(keys[first:behind], values[first:behind]),
                tx_id=run.written.tx_id,
                time_ms=run.written.time_ms,
                first_offset=chunk.offset_at(first),
                is_last=chunk.is_last or behind < chunk.count,
            )

    def _begin_anew(self, partition: int) -> None:
        """Records of it were deleted that were not read, and all that were."""
        with self._lock:
            self._latest.drop(partition)
        self._wake_all()

    def _read_again(self) -> None:
        """What it has shown before may be removed, and nothing left that says so."""
        log.warning(
            "the table of %r has not shown all within %s of delete.retention.ms, when tombstones "
            "go: it reads the topic anew. Raise that setting where this comes again",
            self.topic,
            LATE,
        )
        self._pace.begin_anew(self._moment())
        with self._lock:
            for partition in self._following.begin_anew():
                self._latest.drop(partition)
        self._wake_all()

    async def _look_how_far(self) -> None:
        """Whether all that can be read now is shown soon, again and again, where tombstones go."""
        while self.is_following:
            kept_ms = self._following.tombstones_kept_ms
            asked = self._moment()
            if kept_ms is None:
                self._pace.read_all(asked)
            else:
                try:
                    await self.caught_up(kept_ms / 1000)
                except errors.OncelogError as error:
                    # Who looks something up is told what is the matter.
                    log.info("%s", error.message)
                else:
                    self._pace.read_all(asked)
            await asyncio.sleep(min((kept_ms or LOOK_MS) * ASKS_EVERY, LOOK_MS) / 1000)

    def _moment(self) -> Moment:
        return Moment(self._protocol.now_ms(), self._protocol.wall_ns() / 1_000_000)

    async def _forget_removed(self) -> None:
        """Once all that can be read now was: what comes then is later."""
        self._latest.mark_removed()
        try:
            await self.caught_up(FORGET_S)
        except errors.OncelogError as error:
            log.info("removed keys of %r are remembered on: %s", self.topic, error)
            # Not at once again.
            await asyncio.sleep(IDLE_S)
        else:
            self._latest.forget_removed()

    def _note(self, keys: Iterable[bytes | None]) -> None:
        if not self._changes:
            self._latest.on_changed = None
        for one in self._changes:
            one.note(keys)

    def _wake_all(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        for one in list(self._changes):
            one.wake()

    def _met(self, error: errors.OncelogError) -> None:
        before = self._trouble
        self._trouble = self._protocol.now_ms(), error
        if before is None or str(before[1]) != str(error):
            log.warning("the table of %r waits: %s", self.topic, error.message)

    def _left(self, ends: Mapping[int, int]) -> list[str]:
        """Partitions of which not all below is shown, with where they stand."""
        left = []
        for partition, end in ends.items():
            position = self._following.position(partition)
            shown = None if position is None else self._latest.shown_up_to(partition, position)
            if shown is None or shown < end:
                left.append(f"partition {partition} is at offset {shown or 0} of {end}")
        return left

    def _too_slow(self, left: list[str], timeout_s: float, began_ms: float) -> errors.Unavailable:
        why = ""
        if self._trouble is not None and self._trouble[0] >= began_ms:
            why = f"; it met: {self._trouble[1].message}"
        return errors.Unavailable(
            f"the table of {self.topic!r} has not caught up within {timeout_s} s: "
            f"{', '.join(left[:10])}{why}. Wait again"
        )


class _Rows(NamedTuple):
    """A part of a batch that was merged."""

    keys: Keys
    values: Values

    def keys_and_values(self) -> tuple[Keys, Values]:
        return self


def may_pass(error: errors.OncelogError) -> bool:
    """Reading goes on by itself once it is over. What the topic is, and what was asked for, stays
    as it is."""
    if isinstance(error, errors.CorruptBatch | errors.LimitExceeded):
        return True
    return not isinstance(error, errors.BadRequest | Closed)
