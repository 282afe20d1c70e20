"""One epoch, led by this process: made when the epoch is loaded, dropped when it ends, and with it
all that must not outlive it: the machine, the high watermark, parked replies, the outbox.

    load ──► EPOCH_START appended ──► the HW passes it: ready ──► end, in one turn ──► closed

Invariants:
  * decide and apply run in one loop turn, with no await between them;
  * a reply, also a refusal, is released only when the HW covers the log end that it was decided on,
    and only within this node's own lease deadline (docs/leadership.md, "Leases lie");
  * projections and snapshots see only what is below the HW;
  * nothing is appended while fewer than `min_insync_replicas` keep up, but EPOCH_START;
  * when it ends, everything parked fails with UNKNOWN_OUTCOME or NOT_LEADER.

Left out: who follows, and who of them is in sync (`followers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from oncelog_server.core import failpoints
from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import EpochStart, Settled, Tick, needs_of
from oncelog_server.core.ports import Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime.replica import replaying
from oncelog_server.runtime.replica.compacting import Compacting, Turns
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.followers import Followers
from oncelog_server.runtime.replica.healing import Healing
from oncelog_server.runtime.replica.projecting import Projecting
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.replica.replaying import Slice, record_of
from oncelog_server.runtime.replica.replies import Replies
from oncelog_server.runtime.replica.settling import Settling
from oncelog_server.runtime.replica.settling_lag import SettlingLag
from oncelog_server.runtime.replica.snapshots import Snapshots, too_many_slots
from oncelog_server.runtime.replica.trimming import Trimming
from oncelog_server.runtime.storage.frames import encoded_bytes, require_size
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.target import Lead
from oncelogpb.errors import CorruptLog, NotLeader, Unavailable

# A clock that is so much behind what a journal has seen is told to operators.
CLOCK_BEHIND_MS: Final = 60_000
# A replica rests when it had nothing to do for so long: its outbox has looked once more, and it has
# shown what that found. One that has appended nothing since it leads does so at once.
REST_AFTER_MS: Final = 2_000
# While it still owes a note, a snapshot, or what is made of these, it is looked at this often, not
# ticked, and reports then, which brings that along: at a start thousands do.
LOOK_AT_WORK_MS: Final = 1_000
# Turns of the loop from a reply that is released to its message in the transport: the handler, the
# stream's writer. What is owed goes out behind it, for only the answer is waited for.
TURNS_TO_ANSWER: Final = 2


class Leadership:
    """Of one replica. Whoever made it calls `load`, `begin`, and at last `end` and `closed`."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        journal: Journal,
        around: ReplicaEnv,
        *,
        granted: Lead,
        known_high_watermark: int,
        readers: Readers,
        make_outbox: Callable[[], Outbox],
        passed_epoch_start: Callable[[], None],
        write_failed: Callable[[OSError], None],
        found_damage: Callable[[Exception], None],
        broken: Callable[[Exception], None],
        stirred: Callable[[], None],
    ) -> None:
        """`known_high_watermark`: a lower bound, of earlier epochs. `passed_epoch_start` is called
        once, before the first answer. `write_failed`: bytes are in doubt. `found_damage`: what is
        synced cannot be read, and others have it. `broken`: a decision was carried out in part.
        `stirred`: it rests no more."""
        self.epoch = granted.epoch
        self._granted = granted
        self.machine: Any = None
        self._partition = partition
        self._role = role
        self._journal = journal
        self._around = around
        self._make_outbox = make_outbox
        self._passed_epoch_start = passed_epoch_start
        self._write_failed = write_failed
        self._broken = broken
        self._stirred = stirred
        self._is_over = False
        self._is_ready = False
        self._outbox: Outbox | None = None
        self._wake_is_due = False
        self._hw = inherited = self._inherited(known_high_watermark)
        self.followers = Followers(
            partition,
            journal,
            around,
            granted=granted,
            readers=readers,
            moved=self._advance,
            found_damage=found_damage,
            stirred=self._stir,
        )
        self._replies = Replies(partition, around.lease_valid)
        projection = role.projection(partition, journal.slots.open)
        self._projecting = Projecting(projection, inherited)
        # Who wants to know when the HW moves; and whether anybody has since it did.
        self._watchers: dict[Callable[[], None], None] = {}
        self.is_watched = False
        self.trimming = Trimming(partition, journal, around, held_by=self.followers.held_by)
        self.settling = Settling(
            partition,
            role.settler(),
            journal,
            around,
            self.trimming,
            found_damage=self.followers.unreadable,
            again=self._save,
            holes_are_damage=granted.unclean_epoch == 0,
        )
        self.compacting = Compacting(
            partition,
            role.settler(),
            journal,
            around,
            self.settling,
            found_damage=self.unreadable,
            has_readers=True,
        )
        self.healing = Healing(
            partition,
            role.settler(),
            journal.data,
            around,
            agrees_in=lambda: self.agrees_in,
            tombstones_below=lambda: self.compacting.asked.tombstones_below,
            synced_end=lambda: journal.synced_end,
        )
        turns = Turns(self.settling, self.compacting)
        self._snapshots = Snapshots(partition, journal, around, self.trimming, turns, self.healing)
        self._settling_lag = SettlingLag(partition, journal, around.reporter)
        # When the oldest append that is not durable yet was made; 0 while all is durable.
        self._oldest_append_ms = 0
        # Since when ticks have nothing to do, and nothing is owed either; None: not so.
        self._idle_since_ms: int | None = None
        self._done_since_ms: int | None = None
        # A report was made since.
        self._is_shown = False
        # Log end behind EPOCH_START.
        self._begun_end: int = journal.log_end

    @property
    def high_watermark(self) -> int:
        """Exclusive: everything below is durable and may be seen."""
        return self._hw

    @property
    def agrees_in(self) -> int:
        """The epoch, once its log is that of the epoch; else 0."""
        has_begun = self.followers.book is not None and not self._is_over
        return self.epoch if has_begun else 0

    # ------------------------------------------------------------------------------- its beginning

    def _inherited(self, known: int) -> int:
        """A lower bound of the high watermark. Who needs nobody else, and is alone in sync, shows
        all that it has synced: no other log can win."""
        journal, granted = self._journal, self._granted
        wanted = self._around.replication.min_insync_replicas
        needs_others = min(wanted, granted.replication_factor) > 1
        if not needs_others and set(granted.isr.members) <= {journal.incarnation}:
            return journal.synced_end
        return min(known, journal.synced_end)

    async def load(self) -> None:
        """Brings a fresh machine to the log end. Returns early where the epoch ends meanwhile.
        Raises JournalDamaged, OSError."""
        machine = self._role.machine(self._partition)
        failpoints.reach("driver.replay.before")
        await self._replay(machine)
        if self._journal.may_lack_front:
            # Of a leader that had more: blocks may be of records that this log never shows.
            journal = self._journal
            start, end = journal.log_start, journal.log_end
            await self._around.offload(lambda: journal.data.cut(end, journal_start=start))
        failpoints.reach("driver.replay.after")
        self.machine = machine

    async def _replay(self, machine: Any) -> None:
        position, _ = await replaying.restore(machine, self._journal, self._around.offload)
        self._covered_by_snapshot(position)
        part = Slice(frames_max=replaying.SLICE_FRAMES, bytes_max=replaying.SLICE_BYTES)
        for stored in self._journal.replay(position):
            record = record_of(self._role, stored)
            machine.apply(record, stored.at)
            self._snapshots.appended(len(stored.frame.payload))
            self._projecting.saw(record, stored.at)
            if part.is_full(stored):
                await asyncio.sleep(0)
                await self._snapshots.make_room_for_slots()
                if self._is_over:
                    return
                if self._snapshots.holds_too_much:
                    raise too_many_slots()

    def _covered_by_snapshot(self, offset: int) -> None:
        """A snapshot holds only what the HW covered when it was written, so after a restart, too,
        at least that is known, and is neither hidden nor held back from the projection."""
        self._hw = max(self._hw, offset)
        self._projecting.advance(self._hw)

    def begin(self, *, skip: int) -> None:
        """Appends EPOCH_START. `skip` leaves a hole of so many journal offsets before it."""
        start = self._journal.log_end
        self.followers.begin(start + skip, inherited=self._hw)
        self._look_at_the_clock()
        may_lack_front = self._looked_at_front()
        self.trimming.begun()
        self.settling.begun()
        failpoints.reach("driver.epoch_start.before")
        at = self._journal.append(
            Frame(FrameKind.EPOCH_START),
            epoch=self.epoch,
            time_ms=self._around.clock.now().wall_ms,
            skip_to=start + skip if skip else None,
        )
        self.machine.apply(EpochStart(), at)
        self._begun_end = self._journal.log_end
        if may_lack_front:
            self._journal.allow_start()
        self._hand_to_disk(0)
        failpoints.reach("driver.epoch_start.after")

    def _looked_at_front(self) -> bool:
        """Only an unclean election lets a copy lead that is not as far as what its log start rests
        on. From then on its log is the truth, with what it lacks, and those who follow it begin
        where it does. True: it is such a one."""
        journal = self._journal
        if not journal.may_lack_front:
            return False
        needed_from = needs_of(self.machine).needed_from
        if needed_from < journal.log_start:
            self._around.reporter.event(
                "log lacks frames that can be asked for",
                level="error",
                partition=str(self._partition),
                epoch=self.epoch,
                needed_from=needed_from,
                log_start=journal.log_start,
                allowed_at=journal.allowed.at,
            )
        return True

    def _look_at_the_clock(self) -> None:
        """Frame times never go back: a clock that was wrong once stops them until it is later."""
        ahead_ms = self._journal.last_time_ms - self._around.clock.now().wall_ms
        if ahead_ms > CLOCK_BEHIND_MS:
            self._around.reporter.event(
                "clock is behind the journal",
                level="warning",
                partition=str(self._partition),
                behind_ms=ahead_ms,
            )

    # ----------------------------------------------------------------------------------- its end

    def end(self, why: str) -> None:
        """In one turn: everything parked fails, and nothing is answered, projected or put into a
        snapshot any more."""
        self._is_over = True
        self._around.reporter.count("step_downs", reason=why)
        self._around.reporter.gauge("leading", 0, partition=str(self._partition))
        self._replies.lose(why)
        self.followers.end(why)
        self._snapshots.drop()
        self._notify_advanced()

    async def closed(self) -> None:
        """After `end`: returns when nothing of it runs any more."""
        await self.followers.closed()
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            await outbox.stop()
        self._forget_gauges()
        await self._snapshots.ended()
        self.machine = None

    def _forget_gauges(self) -> None:
        """What they said last is true no more: alarms on them would never end."""
        reporter, name = self._around.reporter, str(self._partition)
        reporter.forget("partition", name)
        reporter.gauge("leading", 0, partition=name)

    # ------------------------------------------------------------------------------ the main verb

    def submit(self, command: object) -> asyncio.Future[Any]:
        """See the Replica port."""
        decision = self.machine.decide(command, self._around.clock.now())
        if decision.records:
            self.followers.require_enough()
            if not self._journal.takes_frames:
                # The disk's thread found out, and the step down is due: nothing was appended.
                raise NotLeader(f"a write failed at the leader of partition {self._partition}")
            self._append_all(decision.records)
        end = self._journal.log_end
        return self._replies.park(decision, end=end, high_watermark=self._hw)

    def signal(self, signal: object) -> None:
        if self.machine is None:
            return
        self.machine.seen(signal, self._around.clock.now())
        if not self.machine.rests_ms:
            self._stir()

    def tick(self) -> None:
        """Turns the timers, then decides what is due."""
        now = self._around.clock.now()
        self.machine.seen(Tick(), now)
        if not self.followers.are_enough():
            # What is due is decided when it could be appended.
            return
        decision = self.machine.decide(Tick(), now)
        if decision.records:
            self._append_all(decision.records)
        self._idle_since_ms = _since(self._idle_since_ms, now.monotonic_ms, holds=self._is_idle)
        is_done = self._idle_since_ms is not None and not self._owes_work
        self._done_since_ms = _since(self._done_since_ms, now.monotonic_ms, holds=is_done)
        self._is_shown = self._is_shown and is_done
        self.wake()

    def lose_replies(self, why: str) -> None:
        """Of all who wait for the high watermark: they may ask elsewhere."""
        self._replies.lose(why)

    def lease_lapsed(self) -> None:
        """Readers that wait for the high watermark look again: they may have to ask elsewhere."""
        self._notify_advanced()

    @property
    def rests_ms(self) -> int:
        """For how long there is nothing to do for it, nor to show of it that is not shown; 0: there
        is."""
        if self._idle_since_ms is None:
            return 0
        now_ms = self._around.clock.now().monotonic_ms
        is_untouched = self._journal.log_end == self._begun_end
        if not is_untouched and now_ms - self._idle_since_ms < REST_AFTER_MS:
            return 0
        machine_ms: int = self.machine.rests_ms
        # Once more after a look that found all of it done.
        sure_after_ms = LOOK_AT_WORK_MS if is_untouched else REST_AFTER_MS
        done_ms = self._done_since_ms
        if self._is_shown and done_ms is not None and now_ms - done_ms >= sure_after_ms:
            return min(machine_ms, self.healing.rests_ms)
        return min(machine_ms, LOOK_AT_WORK_MS)

    @property
    def is_looked_at(self) -> bool:
        """It is not ticked, and owes something, or has not shown all."""
        return 0 < self.rests_ms <= LOOK_AT_WORK_MS

    def _stir(self) -> None:
        self._idle_since_ms = self._done_since_ms = None
        self._is_shown = False
        self._stirred()

    @property
    def _is_idle(self) -> bool:
        """Nothing is asked of it, and none of its timers will run out soon."""
        return bool(
            self.machine.rests_ms
            and self.followers.is_at_rest
            and self._hw == self._journal.log_end
        )

    @property
    def _owes_work(self) -> bool:
        """A report brings it along, or a place that becomes free."""
        return bool(
            not self._journal.is_noted
            or self._snapshots.are_waiting
            or self.trimming.is_waiting
            or self.settling.is_waiting
            or self.compacting.is_waiting
            or self.healing.is_waiting
            or self.settling.is_uncounted(self.machine.settled())
            or self.compacting.lacks_snapshot(self.machine.settled())
        )

    def wake(self) -> None:
        """Something outside changed: a peer, a leader, a topic."""
        if self._outbox is not None and not self._is_over:
            self._outbox.wake()

    def _wake_after(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._wake_after, turns - 1)
            return
        self._wake_is_due = False
        self.wake()

    def _append_all(self, records: Sequence[Any]) -> None:
        failpoints.reach("driver.append.before")
        self._stir()
        start = self._journal.log_end
        try:
            appended_bytes = self._apply_all(records)
        except Exception as error:
            if self._journal.log_end != start:
                self._broken(error)
            raise
        self._hand_to_disk(appended_bytes)
        failpoints.reach("driver.append.after")
        if self._snapshots.is_due:
            self.capture_snapshot()

    def _apply_all(self, records: Sequence[Any]) -> int:
        """How many bytes of frames they are."""
        wall_ms = self._around.clock.now().wall_ms
        codec, journal, machine = self._role.codec, self._journal, self.machine
        appended_bytes = 0
        frames: Iterable[Frame] = map(codec.encode, records)
        if len(records) > 1:
            # The journal looks at each as it takes it: too late, where others are applied by then.
            frames = list(frames)
            for frame in frames:
                require_size(frame)
        for record, frame in zip(records, frames, strict=True):
            appended_bytes += encoded_bytes(frame)
            at = journal.append(frame, epoch=self.epoch, time_ms=wall_ms)
            machine.apply(record, at)
            self._snapshots.appended(len(frame.payload))
            self._projecting.saw(record, at)
        return appended_bytes

    def _hand_to_disk(self, appended_bytes: int) -> None:
        self.followers.appended()
        if not self._oldest_append_ms:
            self._oldest_append_ms = self._around.clock.now().monotonic_ms
        self._around.commit.wrote(
            self._journal, self.followers.synced, self._write_failed, appended_bytes=appended_bytes
        )

    # ---------------------------------------------------------------------------- what is durable

    def _advance(self) -> None:
        """The high watermark moved."""
        self._hw = self.followers.high_watermark
        failpoints.reach("driver.release.before")
        self._measure_append()
        self._projecting.advance(self._hw)
        if not self._is_ready:
            self._become_ready()
        self._replies.release(self._hw)
        failpoints.reach("driver.release.after")
        self._notify_advanced()
        if not self._wake_is_due:
            self._wake_is_due = True
            self._wake_after(TURNS_TO_ANSWER)
        self._snapshots.save(self._hw, moved=True)
        if self._snapshots.holds_too_much:
            self._journal.mark_failed()
            self._write_failed(too_many_slots())

    def _become_ready(self) -> None:
        self._is_ready = True
        self._passed_epoch_start()
        self._outbox = self._make_outbox()
        reporter, name = self._around.reporter, str(self._partition)
        reporter.event("leading", partition=name, epoch=self.epoch, high_watermark=self._hw)
        reporter.count("elections_won")
        reporter.gauge("leading", 1, partition=name)
        reporter.gauge("epoch", self.epoch, partition=name)

    def _measure_append(self) -> None:
        now_ms = self._around.clock.now().monotonic_ms
        self._around.reporter.observe("append", now_ms - self._oldest_append_ms)
        self._oldest_append_ms = now_ms if self._hw < self._journal.log_end else 0

    def report(self) -> None:
        """Gauges, about once a second."""
        name, hw = str(self._partition), self._hw
        self._around.reporter.gauge("high_watermark", hw, partition=name)
        lag = self._journal.log_end - hw
        self._around.reporter.gauge("high_watermark_lag", lag, partition=name)
        self._around.reporter.gauge("log_start", self._journal.log_start, partition=name)
        self._around.reporter.gauge("needed_from", self.trimming.needs.needed_from, partition=name)
        self.followers.show()
        self._settling_lag.report(
            self.settled,
            reached_at=self.settling.reached_at,
            now_ms=self._around.clock.now().monotonic_ms,
        )
        self._is_shown = self._done_since_ms is not None
        # A quiet partition, too, writes another one for the snapshot that failed, or was due while
        # something else was under way, for one at which its log could begin, or so that what is
        # readable is settled.
        if self._snapshots.is_due or self._could_begin_later() or self._lacks_snapshot():
            self.capture_snapshot()
        self._snapshots.save(hw)

    def _save(self) -> None:
        if not self._is_over:
            self._snapshots.save(self._hw)

    @property
    def settled(self) -> Settled | None:
        """What the machine says of its committed log, and this replica makes of it."""
        says = self.machine.settled()
        return None if says is None else self.settling.decided(says)

    def scrub(self) -> None:
        """At rest, too, its data log is read through."""
        self._snapshots.scrub()

    def unreadable(self, error: CorruptLog) -> Unavailable | None:
        """What readers wait for, where it will be healed. Else who leads next may have it."""
        if self.healing.takes(error):
            self._stir()
            return Unavailable(
                f"{error.message}. They are being healed from another replica of partition "
                f"{self._partition} ({self.healing.says or 'its turn comes'}); try again"
            )
        self.followers.unreadable(error)
        return None

    def _could_begin_later(self) -> bool:
        """What the machine needs no more is worth a snapshot behind it."""
        trimming, journal = self.trimming, self._journal
        trimming.covered(self._hw)
        if trimming.wants_sample:
            trimming.sampled(journal.log_end, needs_of(self.machine))
            trimming.covered(self._hw)
        return trimming.makes_room()

    def _lacks_snapshot(self) -> bool:
        known = self.machine.settled()
        if self.compacting.lacks_snapshot(known):
            return True
        return self.settling.lacks_snapshot(has_uncounted=self.settling.is_uncounted(known))

    def watch(self, moved: Callable[[], None]) -> Callable[[], object]:
        """See the Replica port."""
        self.is_watched = True
        self._watchers[moved] = None
        return partial(self._watchers.pop, moved, None)

    def _notify_advanced(self) -> None:
        self.is_watched = False
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for moved in watchers:
                moved()

    # ---------------------------------------------------------------------------------- snapshots

    def capture_snapshot(self) -> None:
        self._snapshots.capture(self.machine)

    async def checkpoint(self, *, worth_bytes: int) -> None:
        """At a clean stop: a snapshot of all that is durable, so that the next start replays
        little. None where that is less than `worth_bytes`."""
        await self._snapshots.checkpoint(self.machine, self._hw, worth_bytes=worth_bytes)


def _since(since_ms: int | None, now_ms: int, *, holds: bool) -> int | None:
    """When what holds now began to; None: it does not."""
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms
