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
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from oncelog_server.core import failpoints
from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.core.machine import EpochStart, Tick
from oncelog_server.core.ports import Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica import replaying
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replica.gauges import show_replicas
from oncelog_server.runtime.replica.in_sync import InSync, IsrChange
from oncelog_server.runtime.replica.projecting import Projecting
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.replica.replaying import Slice, record_of
from oncelog_server.runtime.replica.replies import Replies
from oncelog_server.runtime.replica.snapshots import Snapshots, too_many_slots
from oncelog_server.runtime.replica.supply import Supply, Tell
from oncelog_server.runtime.storage.frames import encoded_bytes
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.target import Isr, Lead
from oncelogpb.errors import CorruptLog, Loading, NotEnoughReplicas, NotLeader

# A change of the ISR whose answer was lost is looked at again after so long.
ISR_RETRY_MS: Final = 200
# A clock that is so much behind what a journal has seen is told to operators.
CLOCK_BEHIND_MS: Final = 60_000
# A replica rests when it had nothing to do for so many ticks: long enough for its outbox to look
# once more, and for its synced end to be noted.
REST_AFTER_TICKS: Final = 20
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
    ) -> None:
        """`known_high_watermark`: a lower bound, of earlier epochs. `passed_epoch_start` is called
        once, before the first answer. `write_failed`: bytes are in doubt. `found_damage`: what is
        synced cannot be read, and others have it. `broken`: a decision was carried out in part."""
        self.epoch = granted.epoch
        self._granted = granted
        self._readers = readers
        # Of the followers that have a dialog with this leader.
        self._supplies: dict[Supply, None] = {}
        self.machine: Any = None
        self._partition = partition
        self._role = role
        self._journal = journal
        self._around = around
        self._make_outbox = make_outbox
        self._passed_epoch_start = passed_epoch_start
        self._write_failed = write_failed
        self._found_damage = found_damage
        self._broken = broken
        self._is_over = False
        self._is_ready = False
        self._outbox: Outbox | None = None
        self._wake_is_due = False
        self._hw = inherited = self._inherited(known_high_watermark)
        # Who is in sync, from EPOCH_START on.
        self._in_sync: InSync | None = None
        # A compare-and-set of the ISR that waits for its answer.
        self._changing: asyncio.Task[None] | None = None
        # Its replicas were moved, and this one is not wanted any more.
        self._is_handed_over = False
        self._replies = Replies(partition, around.lease_valid)
        projection = role.projection(partition, journal.slots)
        self._projecting = Projecting(projection, inherited)
        self._advanced: asyncio.Future[None] | None = None
        self._snapshots = Snapshots(
            partition,
            journal,
            clock=around.clock,
            reporter=around.reporter,
            offload=around.offload,
            every_bytes=around.snapshot_every_bytes,
        )
        # When the oldest append that is not durable yet was made; 0 while all is durable.
        self._oldest_append_ms = 0
        # Ticks in a row at which there was nothing to do.
        self._quiet_ticks = 0

    @property
    def high_watermark(self) -> int:
        """Exclusive: everything below is durable and may be seen."""
        return self._hw

    @property
    def book(self) -> InSync | None:
        """Who is in sync; None before EPOCH_START."""
        return self._in_sync

    @property
    def waits_for(self) -> str:
        """What keeps it from answering, until it is ready."""
        if self._in_sync is None:
            return "is loading its journal"
        return (
            f"waits until {self._in_sync.min_insync_replicas} replicas (min_insync_replicas), and "
            "all that are in sync, have what its leader has"
        )

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
        self._in_sync = self._count_from(start + skip)
        self._look_at_the_clock()
        failpoints.reach("driver.epoch_start.before")
        at = self._journal.append(
            Frame(FrameKind.EPOCH_START),
            epoch=self.epoch,
            time_ms=self._around.clock.now().wall_ms,
            skip_to=start + skip if skip else None,
        )
        self.machine.apply(EpochStart(), at)
        self._hand_to_disk(0)
        failpoints.reach("driver.epoch_start.after")

    def _count_from(self, epoch_start: int) -> InSync:
        own = Incarnation(self._journal.incarnation)
        replication, assignment = self._around.replication, self._granted.isr.assignment
        wanted = replication.min_insync_replicas
        return InSync(
            own=own,
            node=replication.node_id,
            epoch=self.epoch,
            epoch_start=epoch_start,
            isr=self._granted.isr.members or (own,),
            revision=self._granted.isr.revision,
            min_insync_replicas=wanted
            if assignment is not None
            else min(wanted, self._granted.replication_factor),
            replica_lag_ms=replication.replica_lag_ms,
            now_ms=self._now_ms(),
            inherited=self._hw,
            assignment=assignment,
        )

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms

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
        for supply in tuple(self._supplies):
            supply.end(NotLeader(f"partition {self._partition}: {why}; ask for the new leader"))
        self._snapshots.drop()
        self._notify_advanced()

    async def closed(self) -> None:
        """After `end`: returns when nothing of it runs any more."""
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)
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
            self._require_enough_replicas()
            self._append_all(decision.records)
        end = self._journal.log_end
        return self._replies.park(decision, end=end, high_watermark=self._hw)

    def signal(self, signal: object) -> None:
        if self.machine is None:
            return
        self.machine.seen(signal, self._around.clock.now())
        if not self.machine.is_at_rest:
            self._quiet_ticks = 0

    def tick(self) -> None:
        """Turns the timers, then decides what is due."""
        now = self._around.clock.now()
        self.machine.seen(Tick(), now)
        if not self._has_enough_replicas():
            # What is due is decided when it could be appended.
            return
        decision = self.machine.decide(Tick(), now)
        if decision.records:
            self._append_all(decision.records)
        self._quiet_ticks = self._quiet_ticks + 1 if self._is_quiet() else 0
        self.wake()

    def lose_replies(self, why: str) -> None:
        """Of all who wait for the high watermark: they may ask elsewhere."""
        self._replies.lose(why)

    @property
    def is_at_rest(self) -> bool:
        """There is nothing to do for it or to show of it that is not shown."""
        return self._quiet_ticks > REST_AFTER_TICKS

    def _is_quiet(self) -> bool:
        return bool(
            self.machine.is_at_rest
            and self._hw == self._journal.log_end
            and self._journal.is_noted
            and not self._snapshots.are_waiting
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

    def _has_enough_replicas(self) -> bool:
        assert self._in_sync is not None, "it has begun"
        return self._in_sync.min_insync_replicas == 1 or self._in_sync.has_enough(self._now_ms())

    def _require_enough_replicas(self) -> None:
        if not self._has_enough_replicas():
            assert self._in_sync is not None, "it has begun"
            raise NotEnoughReplicas(
                f"partition {self._partition} has fewer than {self._in_sync.min_insync_replicas} "
                "replicas in sync (min_insync_replicas); nothing was written, try again"
            )

    def _append_all(self, records: Sequence[Any]) -> None:
        failpoints.reach("driver.append.before")
        self._quiet_ticks = 0
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
        for record in records:
            frame = codec.encode(record)
            appended_bytes += encoded_bytes(frame)
            at = journal.append(frame, epoch=self.epoch, time_ms=wall_ms)
            machine.apply(record, at)
            self._snapshots.appended(len(frame.payload))
            self._projecting.saw(record, at)
        return appended_bytes

    def _hand_to_disk(self, appended_bytes: int) -> None:
        for supply in self._supplies:
            supply.wake()
        if not self._oldest_append_ms:
            self._oldest_append_ms = self._around.clock.now().monotonic_ms
        self._around.commit.wrote(
            self._journal, self.synced, self._write_failed, appended_bytes=appended_bytes
        )

    # ---------------------------------------------------------------------------- what is durable

    def synced(self, end: int) -> None:
        """By the disk here."""
        # While it loads, too, a commit may end: of what was written before, or a note.
        if self._in_sync is None or self._is_over:
            return
        if self._in_sync.synced(end):
            self._advance()

    def _advance(self) -> None:
        """The high watermark moved."""
        assert self._in_sync is not None, "it has begun"
        self._hw = self._in_sync.high_watermark
        for supply in self._supplies:
            supply.high_watermark_moved()
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
        self._snapshots.save(self._hw)
        if self._snapshots.holds_too_much:
            self._journal.mark_failed()
            self._write_failed(too_many_slots())

    # ------------------------------------------------------------------------------ who is in sync

    def isr_seen(self, isr: Isr) -> None:
        """What etcd shows, in this epoch."""
        if self._in_sync is None or self._is_over:
            return
        if self._in_sync.state_seen(isr.revision, isr.members, isr.assignment):
            self._advance()
        for supply in tuple(self._supplies):
            if not self._in_sync.hears(supply.incarnation, node=supply.node):
                supply.end(self._not_assigned(supply.node))
        self._show_replicas(self._in_sync)
        self.review()

    def _show_replicas(self, book: InSync) -> None:
        show_replicas(
            self._around.reporter,
            self._partition,
            book,
            replication_factor=book.replication_factor or self._granted.replication_factor,
            has_enough=self._has_enough_replicas(),
            now_ms=self._now_ms(),
        )

    def supply(self, incarnation: Incarnation, *, node: str, stream: Room, tell: Tell) -> Supply:
        """The leader's side of a follower's dialog. Raises Loading, NotLeader."""
        if self._in_sync is None or self._is_over:
            raise Loading(f"partition {self._partition} is loading its journal; try again")
        if not self._in_sync.is_assigned(node):
            raise self._not_assigned(node)
        supply = Supply(
            self._partition,
            self,
            self._journal,
            self._readers,
            stream=stream,
            catch_up=self._around.replication.catch_up,
            epoch=self.epoch,
            incarnation=incarnation,
            node=node,
            tell=tell,
            fatal=self._around.fatal,
        )
        self._supplies[supply] = None
        return supply

    def unreadable(self, error: CorruptLog | OSError) -> None:
        """What is synced here cannot be read. Where another replica has it, and keeps up, that one
        leads on. Who is alone stays: no other log has more, and what it can read it serves."""
        book = self._in_sync
        if not self._is_over and book is not None and book.has_others(self._now_ms()):
            self._found_damage(error)

    def _not_assigned(self, node: str) -> NotLeader:
        return NotLeader(
            f"node {node} has no replica of partition {self._partition}, as etcd was last seen here"
        )

    def forget(self, supply: Supply) -> None:
        """It has ended. Its follower may have another one: of a newer stream."""
        self._supplies.pop(supply, None)
        gone = supply.incarnation
        if self._in_sync is not None and all(it.incarnation != gone for it in self._supplies):
            self._in_sync.closed(gone, now_ms=self._now_ms())

    def opened(self, incarnation: Incarnation, *, node: str) -> None:
        """A follower began its dialog."""
        if self._in_sync is not None:
            self._in_sync.opened(incarnation, node=node)

    def acknowledged(
        self, incarnation: Incarnation, *, node: str, epoch: int, synced_end: int
    ) -> None:
        """A follower has synced everything below `synced_end`."""
        if self._in_sync is None or self._is_over:
            return
        now_ms = self._now_ms()
        if self._in_sync.acknowledged(
            incarnation, node=node, epoch=epoch, synced_end=synced_end, now_ms=now_ms
        ):
            self._advance()
        self.review()

    def review(self) -> None:
        """Asks etcd for the change of the ISR that is due, where there is one. Called at every
        tick, and when a follower or etcd said something."""
        book = self._in_sync
        if book is None or self._is_over or self._changing is not None:
            return
        if self._is_handed_over or not self._around.lease_valid():
            return
        change, compared = (
            book.next_change(self._now_ms(), self._around.replication.leaving()),
            book.revision,
        )
        if change is None:
            return
        replication = self._around.replication
        after = change.assignment
        if after is not None and replication.node_id not in after.replicas:
            self._is_handed_over = True
            replication.end_move(self._partition, self.epoch, change, compared)
            return
        book.change_sent(change, compared_revision=compared)
        self._changing = vital.spawn(self._ask_etcd(change, compared), self._around.fatal)

    async def _ask_etcd(self, change: IsrChange, compared_revision: int) -> None:
        replication, name = self._around.replication, str(self._partition)
        seen = await replication.change_isr(self._partition, self.epoch, change, compared_revision)
        if seen is None:
            await asyncio.sleep(ISR_RETRY_MS / 1000)
        self._changing = None
        if seen is not None:
            self._around.reporter.count("isr_changes", why=change.why.value)
            self._around.reporter.event(
                "replicas in sync",
                partition=name,
                epoch=self.epoch,
                why=change.why.value,
                who=change.who.hex(),
                members=len(seen.members),
            )
            self.isr_seen(seen)

    def keeping_up(self) -> frozenset[str]:
        """Nodes that could take over."""
        return frozenset() if self._in_sync is None else self._in_sync.keeping_up(self._now_ms())

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
        if self._in_sync is not None:
            self._show_replicas(self._in_sync)
        # A quiet partition, too, writes another one for the snapshot that failed.
        if self._snapshots.is_owed:
            self.capture_snapshot()
        self._snapshots.save(hw)

    def advanced(self) -> asyncio.Future[None]:
        """See the Replica port. One future serves all who wait, so each gets it shielded."""
        if self._advanced is None:
            self._advanced = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._advanced)

    def _notify_advanced(self) -> None:
        waiting, self._advanced = self._advanced, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # ---------------------------------------------------------------------------------- snapshots

    def capture_snapshot(self) -> None:
        self._snapshots.capture(self.machine)

    async def checkpoint(self, *, worth_bytes: int) -> None:
        """At a clean stop: a snapshot of all that is durable, so that the next start replays
        little. None where that is less than `worth_bytes`."""
        await self._snapshots.checkpoint(self.machine, self._hw, worth_bytes=worth_bytes)
