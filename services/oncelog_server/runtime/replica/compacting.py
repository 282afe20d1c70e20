"""When a replica's data log is compacted, piece by piece (docs/adr/0074). Leader and follower do
the same, each for itself, from what snapshots that stand say (`settling`):

    dirty enough, or late, or behind the point ──► one pass, a piece at a time ──► noted
                       ▲                              │ a full disk, damage, a file that changed
                       └────────────── later ◄────────┘

*Dirty* is what is settled and was not compacted since. *The point* is journaled by a leader that is
compacted so far: who leads next serves nothing below it that it has not compacted itself, so who is
behind it begins at once, and a leader makes the snapshot that says so (`lacks_snapshot`).

Invariants:
  * one pass runs at a time in a process, for it holds a map of keys in memory; one for which
    readers wait goes before all others (`pass_turn`);
  * one piece of it at a time, by turns with what else touches the log (`Turns`): so nothing is cut
    or deleted under it, and nobody who writes or reads waits for it;
  * tombstones go below the point only that a snapshot which stands has for them.

Left out: which records go (`core/cleaning`), and how files are rewritten
(`storage/data_cleaning`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from oncelog_server.core import failpoints
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Compaction, Settled
from oncelog_server.core.settling import Settler
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.settling import (
    AGAIN_MS,
    DAMAGED_AGAIN_MS,
    REST_FACTOR,
    Settling,
)
from oncelog_server.runtime.storage.data_cleaning import DataCleaning, Overtaken, dirty_bytes
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb.errors import CorruptLog, OncelogError

# A pass is worth it where one of so many bytes is dirty (Kafka: min.cleanable.dirty.ratio = 0.5),
# and so many bytes are.
DIRTY_ONE_OF: Final = 2
DIRTY_WORTH_BYTES: Final = 1 << 20
# After so long one is made for less, and for tombstones that may go.
COMPACT_AT_LAST_MS: Final = 3_600_000
# How dirty a log is, is looked at no more often.
LOOK_EVERY_MS: Final = 10_000


class _Looked(NamedTuple):
    """How dirty the log was."""

    # Of what was settled by then, and asked for.
    settled_end: int
    asked: Compaction
    history: int
    # Bytes.
    dirty: int
    total: int


def _nobody_waits(error: CorruptLog) -> None:
    """Only who leads has readers."""


class _Late(NamedTuple):
    """A pass did nothing, for all that it was to look at became readable too late."""

    asked: Compaction
    history: int
    # Of the wall clock: then the first of it has the age that is asked for.
    until_ms: int


class Compacting:
    """Of one leadership, or one followership. Whoever made it calls `step` by turns with what else
    touches the log, and at last `drop`."""

    def __init__(
        self,
        partition: PartitionId,
        settler: Settler | None,
        journal: Journal,
        around: ReplicaEnv,
        settling: Settling,
        *,
        found_damage: Callable[[CorruptLog], object] = _nobody_waits,
        has_readers: bool = False,
    ) -> None:
        """`settler`: None where there is no committed log. `found_damage`: what is damaged keeps it
        behind the point, so readers, who would meet it, are refused before they do.
        `has_readers`: they are refused below the point until it has come to it."""
        self._partition = partition
        self._settler = settler
        self._data = journal.data
        self._around = around
        self._settling = settling
        self._found_damage = found_damage
        self._has_readers = has_readers
        self._looked: _Looked | None = None
        self._late: _Late | None = None
        # Not before this moment is it looked at again.
        self._look_after_ms = 0
        # Since when there is something to do.
        self._since_ms: int | None = None
        # The last pass did not come to the end of what it was for: memory was full.
        self._goes_on = False
        # The pass that is under way; it has the process's turn.
        self._pass: DataCleaning | None = None
        self._is_in_a_thread = self._gives_way = self._is_over = False
        self._not_before_ms = 0
        # Why nothing is compacted, as operators were told; "": nothing is in its way.
        self.why_waits = ""

    # ------------------------------------------------------------------------------ what is due

    @property
    def asked(self) -> Compaction:
        """By the newest snapshot that stands."""
        counted = self._settling.counted
        return Compaction() if counted is None else counted.compaction

    @property
    def is_waiting(self) -> bool:
        """There is something to do, once it is its turn: whoever is quiet goes on being asked."""
        if self._settler is None or self._is_over:
            return False
        return self._pass is not None or self._is_behind_point or self._is_worth_a_look

    @property
    def is_due(self) -> bool:
        """`step` has something to do."""
        if self._settler is None or self._is_over or self._now_ms() < self._not_before_ms:
            return False
        if self._pass is not None:
            return True
        turn = self._around.compacting
        if not turn.is_free_for(self):
            return self.holds_up_readers and not turn.is_hurried_by(self)
        if self._is_behind_point:
            return True
        may_look = self._goes_on_anew or self._now_ms() >= self._look_after_ms
        return may_look and self._is_worth_a_look

    @property
    def holds_up_readers(self) -> bool:
        """They are refused until its next pass is through, which could go on now."""
        if not self._has_readers or self._is_over or self._now_ms() < self._not_before_ms:
            return False
        return self._is_behind_point

    @property
    def _is_behind_point(self) -> bool:
        """Also where compaction is wanted no more: below the point nobody serves what is
        superseded."""
        data, counted = self._data, self._settling.counted
        if counted is None:
            return False
        point = counted.compaction.compacted_below
        if data.compacted_to >= min(point, data.settled_end):
            return False
        # One pass, once all that it is for is settled.
        return data.settled_end >= min(point, counted.end)

    def lacks_snapshot(self, known: Settled | None) -> bool:
        """`known`: what the leader's machine says. It knows of a point to which nothing is
        compacted here, which no snapshot says: until one does, reads below are refused."""
        if known is None or not self._settling.has_looked:
            return False
        point = known.compaction.compacted_below
        return max(self._data.compacted_to, self.asked.compacted_below) < point

    @property
    def _goes_on_anew(self) -> bool:
        """The last pass did not come to the end of what it was for, or not behind all by which
        something is gone here: memory was full, or that was not settled yet."""
        return self._goes_on or 0 < self._data.compacted_to < self._data.holes_end

    @property
    def _is_worth_a_look(self) -> bool:
        asked, data = self.asked, self._data
        if not asked.wanted or self._is_all_late:
            return False
        return data.compacted_to < data.settled_end or self._has_tombstones_to_go

    @property
    def _is_all_late(self) -> bool:
        late = self._late
        if late is None or late[:2] != (self.asked, self._data.history):
            return False
        return self._around.clock.now().wall_ms < late.until_ms

    @property
    def _has_tombstones_to_go(self) -> bool:
        data = self._data
        return data.cleanness.dropped_to < min(self.asked.tombstones_below, data.compacted_to)

    # ------------------------------------------------------------------------------------ a step

    async def step(self) -> bool:
        """Whatever it meets, it is tried again later. False: there is nothing to do now."""
        if not self.is_due:
            return False
        if self._around.compacting.should_end(self):
            self._end_pass()
            return False
        began_ms = self._now_ms()
        try:
            if self._pass is None and not await self._begin():
                return False
            # What is rewritten stands twice until the old files go.
            self._around.require_room_to_settle()
            await self._go_on()
        except Overtaken:
            self._end_pass()
        except (OSError, OncelogError) as error:
            self._end_pass()
            self._failed(error)
            if isinstance(error, CorruptLog) and self._is_behind_point and not self._is_over:
                self._found_damage(error)
            return False
        if self._gives_way or self._is_over:
            self._end_pass()
            return False
        self._worked()
        await asyncio.sleep(REST_FACTOR * (self._now_ms() - began_ms) / 1000)
        return self.is_due

    async def _begin(self) -> bool:
        """False: it is not worth it yet, or not its turn."""
        is_wanted = self._is_behind_point or self._goes_on_anew
        if not is_wanted and not await self._is_worth_it():
            return False
        turn = self._around.compacting
        if self.holds_up_readers and turn.locked():
            turn.hurry(self)
        if self._is_over or not turn.is_free_for(self):
            return False
        self._pass = self._new_pass()
        turn.take(self)
        return True

    def _new_pass(self) -> DataCleaning:
        assert self._settler is not None, "it is due"
        asked, data = self.asked, self._data
        assert self._settling.counted_at is not None, "a snapshot asks for it"
        now_ms = self._around.clock.now().wall_ms
        return DataCleaning(
            data,
            self._settler,
            below=data.settled_end if asked.wanted else asked.compacted_below,
            at_least=asked.compacted_below,
            visible_until_ms=now_ms - asked.min_lag_ms if asked.min_lag_ms else None,
            tombstones_below=asked.tombstones_below,
            said_at=self._settling.counted_at,
            map_bytes_max=self._around.compaction_map_bytes,
        )

    async def _is_worth_it(self) -> bool:
        looked, now_ms = await self._look(), self._now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        is_dirty = looked.dirty >= DIRTY_WORTH_BYTES and looked.dirty * DIRTY_ONE_OF >= looked.total
        return is_dirty or now_ms >= self._since_ms + COMPACT_AT_LAST_MS

    async def _look(self) -> _Looked:
        data, asked = self._data, self.asked
        self._look_after_ms = self._now_ms() + LOOK_EVERY_MS
        old = self._looked
        if old is not None and old[:3] == (data.settled_end, asked, data.history):
            return old
        found: list[tuple[int, int]] = []
        await self._around.offload(lambda: found.append(dirty_bytes(data)))
        self._looked = _Looked(data.settled_end, asked, data.history, *found[0])
        return self._looked

    async def _go_on(self) -> None:
        """A piece of the pass. Raises Overtaken, OncelogError, OSError."""
        under_way = self._pass
        assert under_way is not None, "it has begun"
        step = under_way.next_step
        if step:
            failpoints.reach(f"driver.{step}.before")
        self._is_in_a_thread = True
        try:
            await self._around.offload(under_way.piece)
        finally:
            self._is_in_a_thread = False
        if step:
            failpoints.reach(f"driver.{step}.after")
        if under_way.is_over:
            self._end_pass()
            self._goes_on = under_way.was_full
            if under_way.has_noted:
                self._tell(under_way)
            elif under_way.late_ms is not None:
                asked = self.asked
                until_ms = under_way.late_ms + asked.min_lag_ms
                self._late = _Late(asked, self._data.history, until_ms)
            self._since_ms = None

    def _end_pass(self) -> None:
        under_way, self._pass, self._gives_way = self._pass, None, False
        if under_way is not None:
            under_way.abandon()
            self._around.compacting.release(self)

    def give_way(self) -> None:
        """The log is cut, or held still: a pass that is under way begins anew later, and others of
        the process have its turn. What it wrote, and does not stand, goes with the next one."""
        if self._is_in_a_thread:
            self._gives_way = True
        else:
            self._end_pass()

    def drop(self) -> None:
        """Its epoch is over: nothing more is begun."""
        self._is_over = True
        self.give_way()
        self._worked()

    # ------------------------------------------------------------------------------- what it says

    def _tell(self, done: DataCleaning) -> None:
        reporter = self._around.reporter
        reporter.count("compactions")
        reporter.count("compacted_records", done.records_taken_out)
        if done.records_taken_out:
            reporter.event(
                "data log compacted",
                partition=str(self._partition),
                compacted_to=self._data.compacted_to,
                taken_out=done.records_taken_out,
            )

    def _failed(self, error: Exception) -> None:
        again_ms = DAMAGED_AGAIN_MS if isinstance(error, CorruptLog) else AGAIN_MS
        self._not_before_ms = self._now_ms() + again_ms
        self._around.reporter.event(
            "compaction waits, trying again",
            level="warning",
            partition=str(self._partition),
            error=str(error),
        )
        self.why_waits = str(error)
        self._around.reporter.gauge("compaction_waits", 1, partition=str(self._partition))

    def _worked(self) -> None:
        if self.why_waits:
            self.why_waits = ""
            self._around.reporter.event("compaction goes on", partition=str(self._partition))
            self._around.reporter.gauge("compaction_waits", 0, partition=str(self._partition))

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms


class Turns:
    """Settling and compacting, a step of each in turn."""

    def __init__(self, settling: Settling, compacting: Compacting) -> None:
        self.settling = settling
        self._compacting = compacting

    @property
    def is_due(self) -> bool:
        return self.settling.is_due or self._compacting.is_due

    @property
    def is_waiting(self) -> bool:
        return self.settling.is_waiting or self._compacting.is_waiting

    async def step(self) -> bool:
        """False: there is nothing to do now."""
        is_settling = await self.settling.step()
        is_compacting = await self._compacting.step()
        return is_settling or is_compacting

    def drop(self) -> None:
        self.settling.drop()
        self._compacting.drop()
