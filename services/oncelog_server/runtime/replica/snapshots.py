"""When a replica's machine is put into a snapshot, and when that goes to disk.

    enough appended ──► captured, as of the log end ──► the HW passes it ──► written, off the loop
                                   ▲                                              │ no space, EIO
                                   └───────── another one, after a while ◄────────┘

Each is whole by itself: it leaves out the rows that an earlier one has brought to the disk, and
none that one was only to bring there.

Slots go to the disk with each snapshot, and by themselves where many are held. By turns with both,
what is in front of the log goes (`trimming`), what is readable is settled (`settling`), and what is
superseded of that is taken out (`compacting`). It is looked at, and healed (`healing`). What of
that goes on step by step, for hours maybe, ends with a step where a snapshot is due, or the process
stops.

Invariants: a snapshot holds only what is below the HW when it is written, and stands only when the
slots of all before it are durable; one at a time, and one of an epoch that is over is never written
after `drop`.
"""

from __future__ import annotations

import asyncio
from errno import ENOSPC
from typing import Any, Final

from oncelog_server.core import failpoints
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Machine, Snapshot, needs_of
from oncelog_server.runtime.replica.compacting import Turns
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.healing import Healing
from oncelog_server.runtime.replica.trimming import Trimming
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.slots import SLOTS_HELD_MAX, SLOTS_WORTH_A_FLUSH

# What a frame adds to its payload, for deciding when a snapshot is due.
FRAME_BYTES_GUESS: Final = 128
# Small frames cost by their number: a replay of so many takes a second or two, whatever their size.
SNAPSHOT_EVERY_FRAMES: Final = 50_000
# A snapshot that could not be written (no space) is tried again after so long.
SNAPSHOT_RETRY_MS: Final = 10_000
# After each commit is looked so often for what is done beside snapshots: mostly there is nothing,
# and to find that out goes through as much code as a tenth of a small transaction.
LOOK_EVERY_MS: Final = 50


class Snapshots:
    """Of the machine of one leadership; or of a follower, which makes one for each
    (`follower_snapshots`)."""

    def __init__(
        self,
        partition: PartitionId,
        journal: Journal,
        around: ReplicaEnv,
        trimming: Trimming,
        turns: Turns,
        healing: Healing,
    ) -> None:
        self._partition = partition
        self._journal = journal
        self._trimming = trimming
        self._turns = turns
        self._healing = healing
        self._clock = around.clock
        self._reporter = around.reporter
        self._offload = around.offload
        self._every_bytes = around.snapshot_every_bytes
        self._bytes_since = self._frames_since = 0
        self._captured: tuple[int, Snapshot] | None = None
        # One failed, or was asked for while steps were under way, and none has been captured since.
        self.is_owed = False
        self._saving: asyncio.Task[None] | None = None
        # That is one step after the other, and ends with the next one where a snapshot is due.
        self._is_by_steps = False
        # Nothing more is begun.
        self._is_stopping = False
        # Not before this moment is one that failed tried again.
        self._save_after_ms = 0
        # Not before this moment is looked for other work again.
        self._look_after_ms = 0
        # False: the leadership is over.
        self._wanted = True
        # What the alarm says.
        self._failing = False

    def drop(self) -> None:
        """It is over: what was captured is not written any more."""
        self._wanted = self.is_owed = False
        if self._failing:
            self._failing = False
            self._reporter.gauge("snapshot_failing", 0, partition=str(self._partition))
        self._captured = None
        self._turns.drop()
        self._healing.drop()

    async def ended(self) -> None:
        """Returns when none is being written."""
        if self._saving is not None:
            await asyncio.wait([self._saving])

    def appended(self, payload_bytes: int) -> None:
        """A frame of so much payload, or one that was replayed: no snapshot holds that either."""
        self._bytes_since += payload_bytes + FRAME_BYTES_GUESS
        self._frames_since += 1

    @property
    def is_due(self) -> bool:
        enough = self._frames_since >= SNAPSHOT_EVERY_FRAMES
        return enough or self._bytes_since >= self._every_bytes or self.is_owed

    def capture(self, machine: Machine[Any, Any, Any]) -> None:
        """The state as of the log end; written when the HW has passed it. One that waits stays: it
        will be written sooner. Where something is under way, the next call does it."""
        if not self._wanted or self._captured is not None:
            return
        if self._saving is not None:
            self.is_owed = self.is_owed or self._is_by_steps
            return
        self._bytes_since = self._frames_since = 0
        self.is_owed = False
        taken = self._taken(machine, time_ms=self._journal.last_time_ms)
        self._captured = (self._journal.log_end, taken)

    def _taken(self, machine: Machine[Any, Any, Any], *, time_ms: int) -> Snapshot:
        """`time_ms`: of the last frame that it applied. Not while one is being written: which rows
        are saved changes then."""
        assert self._saving is None
        taken = machine.snapshot(self._journal.rows_saved)
        needs, settled = needs_of(machine), machine.settled()
        return taken._replace(needs=needs, time_ms=time_ms, settled=settled)

    def save(self, high_watermark: int, *, moved: bool = False) -> None:
        """Begins to write what was captured, where the HW has passed it, or slots where many are
        held, or what is done beside snapshots. Called whenever the HW moved, about every second,
        and when something else has ended. `moved`: the HW did, and what is done beside snapshots
        is looked for every `LOOK_EVERY_MS` only."""
        if self._saving is not None or self._is_stopping:
            return
        now_ms = self._now_ms()
        if now_ms < self._save_after_ms:
            return
        if self._captured is not None and self._captured[0] <= high_watermark:
            (offset, snapshot), self._captured = self._captured, None
            self._saving = asyncio.get_running_loop().create_task(self._write(offset, snapshot))
        elif self._journal.slots.held >= SLOTS_WORTH_A_FLUSH:
            self._saving = asyncio.get_running_loop().create_task(self._flush_slots())
        elif moved and now_ms < self._look_after_ms:
            return
        elif self._wanted and (self._captured is not None or not self.is_due):
            self._look_after_ms = now_ms + LOOK_EVERY_MS
            self._take_turn()

    def _take_turn(self) -> None:
        """Of what is done beside snapshots. Not while one is to be captured: the next append does
        that, or the next second, and would find something under way again."""
        if self._trimming.is_due:
            self._saving = asyncio.get_running_loop().create_task(self._trim())
        elif self._healing.is_due:
            self._saving = asyncio.get_running_loop().create_task(self._heal())
        elif self._turns.is_due:
            self._saving = asyncio.get_running_loop().create_task(self._settle())
        else:
            self.scrub()

    def scrub(self) -> None:
        """About every second, or more seldom: where nothing else is to be done."""
        may_begin = self._saving is None and self._wanted and not self._is_stopping
        if may_begin and self._healing.is_scrub_due:
            self._saving = asyncio.get_running_loop().create_task(self._scrub())

    async def make_room_for_slots(self) -> None:
        """During a replay, which writes many. A disk that does not take them is borne with as long
        as memory holds them: see `holds_too_much`."""
        worth_it = self._journal.slots.held >= SLOTS_WORTH_A_FLUSH
        may_try = self.holds_too_much or self._now_ms() >= self._save_after_ms
        if worth_it and may_try and self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._flush_slots())
            await self.ended()

    @property
    def holds_too_much(self) -> bool:
        """The disk has not taken slots for so long that memory must take no more of them."""
        return self._journal.slots.held > SLOTS_HELD_MAX

    @property
    def are_waiting(self) -> bool:
        """Something is to be written, or is being written."""
        held = self._journal.slots.held >= SLOTS_WORTH_A_FLUSH
        return self.is_due or self._captured is not None or self._saving is not None or held

    async def checkpoint(
        self, machine: Machine[Any, Any, Any] | None, high_watermark: int, *, worth_bytes: int
    ) -> None:
        """At a clean stop: all that is durable, so the next start replays little. `machine` is None
        where this replica does not answer."""
        self._is_stopping = True
        await self.ended()
        captured, self._captured = self._captured, None
        if machine is None or not self._wanted:
            return
        is_worth_it = captured is not None or self.is_owed or self._bytes_since >= worth_bytes
        if high_watermark == self._journal.log_end and is_worth_it:
            taken = self._taken(machine, time_ms=self._journal.last_time_ms)
            await self._write(high_watermark, taken)
        elif captured is not None and captured[0] <= high_watermark:
            await self._write(*captured)

    async def save_now(self, machine: Machine[Any, Any, Any], offset: int, *, time_ms: int) -> bool:
        """The state at `offset`, which is durable, of a machine that nobody else has; its last
        frame has that time. False: the disk did not take it."""
        self.is_owed = False
        taken: list[Snapshot] = []
        await self._offload(lambda: taken.append(self._taken(machine, time_ms=time_ms)))
        await self._write(offset, taken[0])
        return not self.is_owed

    async def _write(self, offset: int, snapshot: Snapshot) -> None:
        try:
            failpoints.reach("driver.snapshot.before")
            await self._offload(lambda: self._journal.save_snapshot(offset, snapshot))
            failpoints.reach("driver.snapshot.after")
            self._reporter.count("snapshots")
            self._trimming.snapshot_stood(offset, snapshot.needs)
            self._turns.settling.snapshot_stood(offset, snapshot.settled)
            self._worked()
        except OSError as error:
            self.is_owed = self._wanted
            self.failed(error)
        finally:
            self._ended()

    async def _trim(self) -> None:
        try:
            await self._trimming.step()
        finally:
            self._ended()

    async def _settle(self) -> None:
        """Step by step, as long as nothing else waits for its turn."""
        self._is_by_steps = True
        try:
            while await self._turns.step():
                if self._must_give_way or self._trimming.is_due or self._healing.is_due:
                    return
        finally:
            self._is_by_steps = False
            self._ended()

    async def _heal(self) -> None:
        self._is_by_steps = True
        try:
            while await self._healing.step():
                if self._must_give_way:
                    return
        finally:
            self._is_by_steps = False
            self._ended()

    @property
    def _must_give_way(self) -> bool:
        """What goes on step by step: to a snapshot, to a stop, to the end of the leadership."""
        is_asked_to = self.is_due or self._captured is not None
        return is_asked_to or self._is_stopping or not self._wanted

    async def _scrub(self) -> None:
        try:
            await self._healing.scrubbing.step()
        finally:
            self._ended()

    async def _flush_slots(self) -> None:
        try:
            await self._offload(self._journal.slots.flush)
            self._worked()
        except OSError as error:
            self.failed(error)
        finally:
            self._ended()

    def _ended(self) -> None:
        """Whatever waited for its end is looked for with the next commit."""
        self._saving = None
        self._look_after_ms = 0

    def _worked(self) -> None:
        if self._failing:
            self._failing = False
            self._reporter.gauge("snapshot_failing", 0, partition=str(self._partition))
            self._reporter.event("snapshots work again", partition=str(self._partition))

    def failed(self, error: Exception) -> None:
        """Until it succeeds, starts are slower, and outcomes take memory. Nothing is lost."""
        self._save_after_ms = self._now_ms() + SNAPSHOT_RETRY_MS
        self._reporter.count("snapshot_failures")
        self._reporter.event(
            "snapshot failed",
            level="error",
            partition=str(self._partition),
            error=str(error),
            slots_held=self._journal.slots.held,
        )
        if self._wanted:
            self._failing = True
            self._reporter.gauge("snapshot_failing", 1, partition=str(self._partition))

    def _now_ms(self) -> int:
        return self._clock.now().monotonic_ms


def too_many_slots() -> OSError:
    """Why a replica that the disk takes no slots of cannot go on."""
    return OSError(
        ENOSPC,
        f"more than slots_held_max ({SLOTS_HELD_MAX}) outcomes are held in memory, for the disk "
        "does not take them; see the event `snapshot failed`",
    )
