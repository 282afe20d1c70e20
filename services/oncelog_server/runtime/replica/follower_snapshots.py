"""Snapshots of a follower, which has no machine: so that it need not replay its whole log when it
is elected (docs/adr/0049).

    enough frames below the known HW ──► its turn ──► a fresh machine: newest snapshot, frames
                 ▲                                                     │ up to the known HW
                 └────── later, and later each time ◄── failed ── written, the machine is dropped

It costs what the leader's own `apply` cost, once more, in small slices between which the loop goes
on; one replica of the process does it at a time.

Invariants (I27, I35):
  * what is replayed is below the HW that this replica knows, synced here, and in a log that agrees
    with the leader's; nothing else is in the snapshot, or shown to the projection;
  * after `halt` none is begun, and after `halted` none is being written: a log that is cut, closed
    or loaded is touched by nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica import snapshots
from oncelog_server.runtime.replica.compacting import Compacting, Turns
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.healing import Healing
from oncelog_server.runtime.replica.projecting import Projecting
from oncelog_server.runtime.replica.replaying import Slice, record_of, restore
from oncelog_server.runtime.replica.settling import Settling
from oncelog_server.runtime.replica.snapshots import SNAPSHOT_RETRY_MS, Snapshots, too_many_slots
from oncelog_server.runtime.replica.trimming import Trimming
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb.errors import CorruptLog

# Between two turns of the loop: others answer callers there, and nobody waits for this.
SLICE_FRAMES: Final = 200
SLICE_BYTES: Final = 1 << 20
# One read of the log, which is verified and decoded in one turn.
READ_BYTES: Final = 256 << 10
# Of a snapshot, so many bytes are read in the time in which a small frame is applied.
FRAME_WORTH_BYTES: Final = 4 << 10
# One that failed is tried again after twice as long each time, up to this: it reads all of it anew.
RETRY_MS_MAX: Final = 600_000


class FollowerSnapshots:
    """Of one followership. Whoever made it calls `look`, and at last `end` and `halted`."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        journal: Journal,
        around: ReplicaEnv,
        *,
        covered: Callable[[], int],
        agrees_in: Callable[[], int],
        found_damage: Callable[[Exception], None],
    ) -> None:
        """`covered`: exclusive; below it all is durable, synced here, and as the leader has it.
        `agrees_in`: the epoch, while the logs agree; else 0. `found_damage`: what is synced here
        cannot be read."""
        self._partition = partition
        self._role = role
        self._journal = journal
        self._around = around
        self._covered = covered
        self._found_damage = found_damage
        self.trimming = Trimming(partition, journal, around)
        settler = role.settler()
        self.settling = Settling(
            partition,
            settler,
            journal,
            around,
            self.trimming,
            found_damage=found_damage,
            again=self.look,
        )
        self.compacting = Compacting(partition, settler, journal, around, self.settling)
        self._turns = Turns(self.settling, self.compacting)
        self._settler = settler
        self.healing = Healing(
            partition,
            settler,
            journal.data,
            around,
            agrees_in=agrees_in,
            tombstones_below=lambda: self.compacting.asked.tombstones_below,
            synced_end=lambda: journal.synced_end,
        )
        self._snapshots = Snapshots(
            partition, journal, around, self.trimming, self._turns, self.healing
        )
        self._working: asyncio.Task[None] | None = None
        # It has the process's turn: what it does then is waited for, not cancelled.
        self._has_turn = False
        self._halt = asyncio.Event()
        # Bytes of the newest snapshot and its tables, once it was read.
        self._restored_bytes = 0
        # In a row; and not before this moment is it tried again.
        self._failures = 0
        self._not_before_ms = 0

    # --------------------------------------------------------------------------- when, and how long

    def look(self) -> None:
        """About every second."""
        behind = self._behind_bytes
        self._show(behind)
        if self._halt.is_set() or (self._working is not None and not self._working.done()):
            return
        if self._is_worth_it(behind):
            self._working = vital.spawn(self._work(), self._around.fatal)
        elif self.trimming.is_due:
            self._working = vital.spawn(self._trim(), self._around.fatal)
        elif self.healing.is_due:
            self._working = vital.spawn(self._heal(), self._around.fatal)
        elif self._turns.is_due:
            self._working = vital.spawn(self._settle(), self._around.fatal)
        elif self.healing.is_scrub_due:
            self._working = vital.spawn(self._scrub(), self._around.fatal)

    @property
    def rests_ms(self) -> int:
        """For how long `look` has nothing to do, unless there are more frames, or the known HW
        moves; 0: it has."""
        if self._halt.is_set() or (self._working is not None and not self._working.done()):
            return 0
        waits = (
            self._are_enough(self._behind_bytes)
            or self._is_uncounted()
            or self.settling.waits_for_snapshot
            or self.trimming.is_due
            or self.trimming.is_waiting
            or self.healing.is_waiting
            or self._turns.is_waiting
        )
        return 0 if waits else self.healing.rests_ms

    @property
    def _behind_bytes(self) -> int:
        """The newest snapshot: who is elected replays so much."""
        return self._journal.bytes_between(self._journal.snapshot_offset, self._covered())

    @property
    def _must_give_way(self) -> bool:
        """What goes on step by step, for hours maybe."""
        is_asked_to = self._halt.is_set() or self.trimming.is_due
        return is_asked_to or self._is_worth_it(self._behind_bytes)

    def _is_worth_it(self, behind_bytes: int) -> bool:
        is_worth_it = self._are_enough(behind_bytes) or self._is_uncounted()
        return is_worth_it and self._now_ms() >= self._not_before_ms

    def _are_enough(self, behind_bytes: int) -> bool:
        """Reading a large snapshot costs as much as replaying as many frames, here and for who is
        elected: so it is not read for fewer."""
        enough = max(self._around.snapshot_every_bytes, self._restored_bytes)
        frames = max(snapshots.SNAPSHOT_EVERY_FRAMES, self._restored_bytes // FRAME_WORTH_BYTES)
        are_enough = behind_bytes and self._journal.frames_since_snapshot >= frames
        return behind_bytes >= enough or bool(are_enough)

    def _is_uncounted(self) -> bool:
        """Without a machine nobody knows what it is that no snapshot counts."""
        if self._settler is None or self._covered() <= self._journal.snapshot_offset:
            return self.settling.lacks_snapshot(has_uncounted=False)
        asked = self._settler.asked(self._around.configs_of(self._partition))
        is_wanted = self.settling.decided(asked).wanted or self.settling.may_be_worth_it(asked)
        return self.settling.lacks_snapshot(has_uncounted=is_wanted)

    def halt(self) -> None:
        """In one turn: no more is begun. `halted` waits for what runs."""
        self._halt.set()
        self.compacting.give_way()
        self.healing.halt()
        if self._working is not None and not self._has_turn:
            self._working.cancel()

    async def halted(self) -> None:
        """After `halt`: returns when it touches the log no more: a slice, or a write, later."""
        if self._working is not None:
            await asyncio.wait([self._working])

    def go_on(self) -> None:
        """After `halted`, and where the log was cut, or is another one. What was known of its
        snapshots may be of states that were taken back."""
        self.trimming.begin_anew()
        self.settling.begin_anew()
        self._halt.clear()
        self.healing.go_on()

    def end(self) -> None:
        """Halts for good, and shows nothing any more."""
        self.halt()
        self._snapshots.drop()
        self._show(0)

    def _show(self, behind_bytes: int) -> None:
        self._around.reporter.gauge(
            "follower_replay_bytes", behind_bytes, partition=str(self._partition)
        )

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms

    # ------------------------------------------------------------------------------------- the work

    async def _work(self) -> None:
        try:
            async with self._around.replication.replaying:
                self._has_turn = True
                await self._replay_and_save()
        finally:
            self._has_turn = False

    async def _trim(self) -> None:
        self._has_turn = True
        try:
            await self.trimming.step()
        finally:
            self._has_turn = False

    async def _settle(self) -> None:
        self._has_turn = True
        try:
            while await self._turns.step():
                if self._must_give_way or self.healing.is_due:
                    return
        finally:
            self._has_turn = False

    async def _heal(self) -> None:
        self._has_turn = True
        try:
            while await self.healing.step():
                if self._must_give_way:
                    return
        finally:
            self._has_turn = False

    async def _scrub(self) -> None:
        self._has_turn = True
        try:
            await self.healing.scrubbing.step()
        finally:
            self._has_turn = False

    async def _replay_and_save(self) -> None:
        try:
            machine = self._role.machine(self._partition)
            end, time_ms = await self._replay(machine)
            # The log may not agree with the leader's for the moment.
            if self._halt.is_set() or end <= self._journal.snapshot_offset:
                return
            if await self._snapshots.save_now(machine, end, time_ms=time_ms):
                self._failures = 0
                self.trimming.roll()
            else:
                self._failed()
        except (CorruptLog, JournalDamaged) as error:
            self._found_damage(error)
        except Exception as error:
            # It is done ahead of time, and nobody waits for it. What a later version wrote, say, or
            # a bug in `apply`, is met when this replica leads, where it counts.
            self._snapshots.failed(error)
            self._failed()

    def _failed(self) -> None:
        pause_ms = min(SNAPSHOT_RETRY_MS << min(self._failures, 16), RETRY_MS_MAX)
        self._failures += 1
        self._not_before_ms = self._now_ms() + pause_ms

    async def _replay(self, machine: Any) -> tuple[int, int]:
        """Where the machine stands then, and the time of the last frame that it applied. Less than
        is covered where it was halted. Raises CorruptLog, OSError, ValueError."""
        journal = self._journal
        position, self._restored_bytes = await restore(machine, journal, self._around.offload)
        covered, time_ms = self._covered(), 0
        projecting = Projecting(self._role.projection(self._partition, journal.slots.open), covered)
        part = Slice(frames_max=SLICE_FRAMES, bytes_max=SLICE_BYTES)
        while position < covered and not self._halt.is_set():
            frames = await journal.read(position, READ_BYTES, below=covered)
            if not frames:
                break
            for stored in frames:
                if self._halt.is_set():
                    return position, time_ms
                record = record_of(self._role, stored)
                machine.apply(record, stored.at)
                projecting.saw(record, stored.at)
                position, time_ms = stored.end, stored.at.time_ms
                if part.is_full(stored):
                    await asyncio.sleep(0)
            await self._make_room_for_slots()
        return position, time_ms

    async def _make_room_for_slots(self) -> None:
        await self._snapshots.make_room_for_slots()
        if self._snapshots.holds_too_much:
            raise too_many_slots()
