"""Runs one replica of one partition: journal, machine and leadership together.

States:

    STANDBY ──reach──► LOADING ──HW passes EPOCH_START──► READY
       ▲                  │                                 │
       └─── step_down ◄───┴─────────────────────────────────┘
       └─── a failed write: FAILED, resigned; `recover_from_failure` makes it STANDBY again

What it aims at is said by `grant` and `step_down`, which take effect in the turn in which they are
called; `reach` goes there, when nothing of an earlier leadership runs any more, and asks after each
wait whether that is still the aim. So a grant and the loss of it cannot overtake each other.

Invariants:
  * decide and apply run in one loop turn, with no await between them;
  * a reply, also a refusal, is released only when the HW covers the log end it was decided on, and
    only within this node's own lease deadline (docs/leadership.md, "Leases lie");
  * projections and snapshots see only what is below the HW;
  * a machine lives for one epoch: who steps down drops it, and everything parked fails with
    UNKNOWN_OUTCOME.

Left out: followers. `replication/` will feed the HW from their acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from errno import EIO
from typing import Any, Final

from oncelog_server.core import failpoints
from oncelog_server.core.frame import Frame, Kind, StoredFrame
from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.core.machine import EpochStart, Tick
from oncelog_server.core.ports import Clock, Outbox, Reporter
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.high_watermark import HighWatermark
from oncelog_server.runtime.replica.projecting import Projecting
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.replica.replies import Replies
from oncelog_server.runtime.replica.snapshots import Snapshots, too_many_slots
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.frames import encoded_bytes
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import DiskFull, Loading, NotLeader

# Frames that are replayed before the loop gets a turn.
REPLAY_SLICE: Final = 2_000
# A control journal skips so many offsets after an unclean election, so that no TxId repeats.
UNCLEAN_SKIP: Final = 1 << 32
# A clock that is so much behind what a journal has seen is told to operators.
CLOCK_BEHIND_MS: Final = 60_000
# A replica rests when it had nothing to do for so many ticks: long enough for its outbox to look
# once more, and for its synced end to be noted.
REST_AFTER_TICKS: Final = 20
# Turns of the loop from a reply that is released to its message in the transport: the handler, the
# stream's writer. What is owed goes out behind it, for only the answer is waited for.
TURNS_TO_ANSWER: Final = 2


class Standing(Enum):
    """Where a replica stands. The arrows are drawn in the module."""

    STANDBY = "standby"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """An epoch that etcd gave to this process. No two are the same, whatever they say."""

    epoch: int
    # A hole of so many journal offsets before EPOCH_START (after an unclean election).
    skip: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a driver needs of its node."""

    clock: Clock
    commit: GroupCommit
    reporter: Reporter
    # Own lease deadline not reached yet.
    lease_valid: Callable[[], bool]
    # Free disk is above `disk_free_floor`, also once all that was appended is written.
    has_room: Callable[[], bool]
    # Runs a blocking function off the loop (in the simulator: at once).
    offload: Callable[[Callable[[], None]], Awaitable[None]]
    # Journaled payload bytes between two snapshots.
    snapshot_every_bytes: int
    # A replica could not write, or is damaged: resign it.
    failed: Callable[[PartitionId, Exception], None]
    # What happened must end the process: a bug that leaves a state which nobody knows.
    fatal: Fatal


class Driver:
    """The Replica port, for one partition. Made by the node; used by services and outboxes."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        journal: Journal,
        around: Surroundings,
        make_outbox: Callable[[Driver], Outbox],
    ) -> None:
        self.partition = partition
        self.machine: Any = None
        self.standing = Standing.STANDBY
        self.journal = journal
        self._role = role
        self._around = around
        self._make_outbox = make_outbox
        self._outbox: Outbox | None = None
        self._wake_is_due = False
        # None: it leads nothing, and shall not.
        self._aim: Grant | None = None
        self._epoch = 0
        self._hw = HighWatermark(own=Incarnation(journal.incarnation), counted=(), epoch_start=0)
        self._replies = Replies(partition, around.lease_valid)
        self._projecting = Projecting()
        self._readers = Readers(partition)
        self._advanced: asyncio.Future[None] | None = None
        self._snapshots = Snapshots(
            partition,
            journal,
            clock=around.clock,
            reporter=around.reporter,
            offload=around.offload,
            every_bytes=around.snapshot_every_bytes,
        )
        self._closing: asyncio.Task[None] | None = None
        # When the oldest append that is not durable yet was made; 0 while all is durable.
        self._oldest_append_ms = 0
        # Ticks in a row at which there was nothing to do.
        self._quiet_ticks = 0

    # ------------------------------------------------------------------------------ what it shows

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def high_watermark(self) -> int:
        return self._hw.value

    @property
    def log_start(self) -> int:
        return self.journal.log_start

    @property
    def log_end(self) -> int:
        return self.journal.log_end

    def require_ready(self) -> None:
        """Raises NotLeader or Loading unless this replica may answer."""
        if self.standing is Standing.READY:
            return
        if self.standing is Standing.LOADING:
            raise Loading(f"partition {self.partition} is loading its journal; try again")
        raise NotLeader(f"this process does not lead partition {self.partition}")

    def require_room(self) -> None:
        if not self._around.has_room():
            raise DiskFull("free disk space is below disk_free_floor; reads go on, free some space")

    def require_lease(self) -> None:
        if not self._around.lease_valid():
            raise NotLeader("this node's lease ran out; ask for the new leader")

    # -------------------------------------------------------------------------------- leadership

    def grant(self, epoch: int, *, skip: int = 0) -> None:
        """etcd gave `epoch` to this process: nothing earlier is led from this very turn. Then call
        `reach`. `skip` leaves a hole of journal offsets before EPOCH_START."""
        self.step_down("a later epoch was granted")
        self._aim = Grant(epoch, skip)

    async def lead(self, epoch: int, *, skip: int = 0) -> None:
        """Both, where nothing can come between."""
        self.grant(epoch, skip=skip)
        await self.reach()

    async def reach(self) -> None:
        """Leads the epoch that was granted last: loads the machine, writes EPOCH_START. Ready when
        the HW covers it. Returns early where it was stepped down, or another epoch was granted.

        Raises JournalDamaged, OSError: then it must be resigned.
        """
        aim = self._aim
        await self.closed()
        if aim is None or self._aim is not aim or self.standing is Standing.LOADING:
            return
        if self.standing is Standing.FAILED:
            raise OSError(EIO, "a write failed since this replica stood in the election")
        assert self.standing is Standing.STANDBY, f"reach() of a replica that is {self.standing}"
        assert aim.epoch > self.journal.last_epoch, "an epoch is never continued"
        await self._load(aim)

    async def _load(self, aim: Grant) -> None:
        epoch, skip = aim.epoch, aim.skip
        self.standing = Standing.LOADING
        self._epoch = epoch
        self._snapshots.begin()
        machine = self._role.machine(self.partition)
        projection = self._role.projection(self.partition, self.journal.slots)
        self._projecting.begin(projection, self.journal.synced_end)
        failpoints.reach("driver.replay.before")
        if not await self._replay(machine, aim):
            return
        failpoints.reach("driver.replay.after")
        self.machine = machine
        start = self.journal.log_end
        self._hw = HighWatermark(
            own=Incarnation(self.journal.incarnation),
            counted=(),
            epoch_start=start + skip,
            inherited=self.journal.synced_end,
        )
        self._look_at_the_clock()
        failpoints.reach("driver.epoch_start.before")
        at = self.journal.append(
            Frame(Kind.EPOCH_START),
            epoch=epoch,
            time_ms=self._around.clock.now().wall_ms,
            skip_to=start + skip if skip else None,
        )
        machine.apply(EpochStart(), at)
        self._hand_to_disk(0)
        failpoints.reach("driver.epoch_start.after")

    def _look_at_the_clock(self) -> None:
        """Frame times never go back: a clock that was wrong once stops them until it is later."""
        ahead_ms = self.journal.last_time_ms - self._around.clock.now().wall_ms
        if ahead_ms > CLOCK_BEHIND_MS:
            self._around.reporter.event(
                "clock is behind the journal",
                level="warning",
                partition=str(self.partition),
                behind_ms=ahead_ms,
            )

    async def _replay(self, machine: Any, aim: Grant) -> bool:
        """Brings a fresh machine to the log end. False where the replica stepped down meanwhile."""
        position = self.journal.log_start
        saved = self.journal.load_snapshot()
        if saved is not None:
            position, state, tables = saved
            machine.restore(state, tables)
        for frames, stored in enumerate(self.journal.replay(position), start=1):
            record = self._decode(stored)
            machine.apply(record, stored.at)
            self._snapshots.appended(len(stored.frame.payload))
            self._projecting.saw(record, stored.at)
            if frames % REPLAY_SLICE == 0:
                await asyncio.sleep(0)
                await self._snapshots.make_room_for_slots()
                if self._aim is not aim:
                    return False
                if self._snapshots.holds_too_much:
                    raise too_many_slots()
        return True

    def _decode(self, stored: StoredFrame) -> Any:
        if stored.frame.kind is Kind.EPOCH_START:
            return EpochStart()
        return self._role.codec.decode(stored.frame)

    def step_down(self, why: str) -> None:
        """Leads no more, from this very turn: fails everything parked, ends the outbox, drops the
        machine. `closed` waits for what still runs."""
        self._aim = None
        if self.standing in (Standing.LOADING, Standing.READY):
            self.standing = Standing.STANDBY
            self._drop_leadership(why)

    def _drop_leadership(self, why: str) -> None:
        self._around.reporter.count("step_downs", reason=why)
        self._around.reporter.gauge("leading", 0, partition=str(self.partition))
        self._aim = None
        outbox, self._outbox = self._outbox, None
        self._replies.lose(why)
        self._projecting.drop()
        self._snapshots.drop()
        self._notify_advanced()
        self._closing = vital.spawn(self._close(outbox), self._around.fatal)

    async def _close(self, outbox: Outbox | None) -> None:
        if outbox is not None:
            await outbox.stop()
        self._forget_gauges()
        await self._snapshots.ended()
        self.machine = None

    def _forget_gauges(self) -> None:
        """What they said last is true no more: alarms on them would never end."""
        reporter, name = self._around.reporter, str(self.partition)
        reporter.forget("partition", name)
        reporter.gauge("leading", 0, partition=name)

    async def closed(self) -> None:
        """Returns when nothing of the last leadership runs any more. Who gives up waiting leaves it
        to end by itself."""
        if self._closing is not None:
            await asyncio.wait([self._closing])
            self._closing.result()

    # ------------------------------------------------------------------------------ the main verb

    def submit(self, command: object) -> asyncio.Future[Any]:
        """See the Replica port."""
        self.require_ready()
        # Nothing is appended for an answer that could not be given.
        self.require_lease()
        decision = self.machine.decide(command, self._around.clock.now())
        if decision.records:
            self._append_all(decision.records)
        return self._replies.park(decision, end=self.journal.log_end, high_watermark=self._hw.value)

    def signal(self, signal: object) -> None:
        machine = self.machine
        if machine is not None:
            machine.seen(signal, self._around.clock.now())
            if not machine.is_at_rest:
                self._quiet_ticks = 0

    @property
    def is_at_rest(self) -> bool:
        """It leads, and there is nothing to do for it or to show of it that is not shown."""
        return self._quiet_ticks > REST_AFTER_TICKS

    def _is_quiet(self) -> bool:
        return bool(
            self.machine.is_at_rest
            and self._hw.value == self.journal.log_end
            and self.journal.is_noted
            and not self._snapshots.are_waiting
        )

    def tick(self) -> None:
        """Turns the timers, then decides what is due. Called every `tick_ms`, at rest seldom."""
        if self.standing is not Standing.READY or not self._around.lease_valid():
            return
        now = self._around.clock.now()
        self.machine.seen(Tick(), now)
        decision = self.machine.decide(Tick(), now)
        if decision.records:
            self._append_all(decision.records)
        self._quiet_ticks = self._quiet_ticks + 1 if self._is_quiet() else 0
        if self._outbox is not None:
            self._outbox.wake()

    def _wake_after(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._wake_after, turns - 1)
            return
        self._wake_is_due = False
        self.wake()

    def wake(self) -> None:
        """Something outside changed: a peer, a leader, a topic."""
        if self._outbox is not None:
            self._outbox.wake()

    def _append_all(self, records: Sequence[Any]) -> None:
        failpoints.reach("driver.append.before")
        self._quiet_ticks = 0
        start = self.journal.log_end
        try:
            appended_bytes = self._apply_all(records)
        except Exception as error:
            if self.journal.log_end != start:
                self._break(error)
            raise
        self._hand_to_disk(appended_bytes)
        failpoints.reach("driver.append.after")
        if self._snapshots.is_due:
            self._capture_snapshot()

    def _apply_all(self, records: Sequence[Any]) -> int:
        """How many bytes of frames they are."""
        wall_ms = self._around.clock.now().wall_ms
        codec, journal, machine = self._role.codec, self.journal, self.machine
        appended_bytes = 0
        for record in records:
            frame = codec.encode(record)
            appended_bytes += encoded_bytes(frame)
            at = journal.append(frame, epoch=self._epoch, time_ms=wall_ms)
            machine.apply(record, at)
            self._snapshots.appended(len(frame.payload))
            self._projecting.saw(record, at)
        return appended_bytes

    def _break(self, error: Exception) -> None:
        """A decision was carried out in part. What the machine is now nobody knows, so none of it
        may reach the disk, and the process ends (STYLE, rule 17)."""
        self.journal.mark_failed()
        self.standing = Standing.FAILED
        self._around.reporter.event(
            "a record could not be applied, the process ends",
            level="error",
            partition=str(self.partition),
            epoch=self._epoch,
            error=repr(error),
        )
        self._drop_leadership("a record could not be applied")
        self._around.fatal(error)

    def _hand_to_disk(self, appended_bytes: int) -> None:
        epoch = self._epoch
        if not self._oldest_append_ms:
            self._oldest_append_ms = self._around.clock.now().monotonic_ms
        self._around.commit.wrote(
            self.journal,
            lambda end: self._synced(epoch, end),
            self._write_failed,
            appended_bytes=appended_bytes,
        )

    # ---------------------------------------------------------------------------- what is durable

    def _synced(self, epoch: int, end: int) -> None:
        if epoch != self._epoch or self.standing not in (Standing.LOADING, Standing.READY):
            return
        if not self._hw.synced(Incarnation(self.journal.incarnation), end):
            return
        failpoints.reach("driver.release.before")
        self._measure_append()
        self._projecting.advance(self._hw.value)
        if self.standing is Standing.LOADING:
            self._become_ready()
        self._replies.release(self._hw.value)
        failpoints.reach("driver.release.after")
        self._notify_advanced()
        if not self._wake_is_due:
            self._wake_is_due = True
            self._wake_after(TURNS_TO_ANSWER)
        self._snapshots.save(self._hw.value)
        if self._snapshots.holds_too_much:
            self.journal.mark_failed()
            self._write_failed(too_many_slots())

    def _become_ready(self) -> None:
        self.standing = Standing.READY
        self._quiet_ticks = 0
        self._outbox = self._make_outbox(self)
        reporter, name = self._around.reporter, str(self.partition)
        reporter.event("leading", partition=name, epoch=self._epoch, high_watermark=self._hw.value)
        reporter.count("elections_won")
        reporter.gauge("leading", 1, partition=name)
        reporter.gauge("epoch", self._epoch, partition=name)

    def _measure_append(self) -> None:
        now_ms = self._around.clock.now().monotonic_ms
        self._around.reporter.observe("append", now_ms - self._oldest_append_ms)
        self._oldest_append_ms = now_ms if self._hw.value < self.journal.log_end else 0

    def report(self) -> None:
        """Gauges, about once a second."""
        if self.standing is Standing.READY:
            name, hw = str(self.partition), self._hw.value
            self._around.reporter.gauge("high_watermark", hw, partition=name)
            lag = self.journal.log_end - hw
            self._around.reporter.gauge("high_watermark_lag", lag, partition=name)
            # A quiet partition, too, writes the snapshot that failed.
            if self._snapshots.is_owed:
                self._capture_snapshot()
            self._snapshots.save(hw)

    def advanced(self) -> Awaitable[None]:
        """See the Replica port. One future serves all who wait, so each gets it shielded."""
        if self._advanced is None:
            self._advanced = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._advanced)

    def _notify_advanced(self) -> None:
        waiting, self._advanced = self._advanced, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # ---------------------------------------------------------------------------------- snapshots

    def _capture_snapshot(self) -> None:
        self._snapshots.capture(self.machine)

    async def checkpoint(self, *, worth_bytes: int = 0) -> None:
        """At a clean stop: a snapshot of all that is durable, so the next start replays little.
        None where that is less than `worth_bytes`."""
        machine = self.machine if self.standing is Standing.READY else None
        await self._snapshots.checkpoint(machine, self._hw.value, worth_bytes=worth_bytes)

    # ----------------------------------------------------------------------------------- failures

    def _write_failed(self, error: OSError) -> None:
        """Bytes are in doubt: this epoch is never continued. Whichever epoch wrote
        them, what this one appends would stand behind them, and is never written."""
        if self.standing is Standing.FAILED:
            return
        led = self.standing in (Standing.LOADING, Standing.READY)
        self.standing = Standing.FAILED
        self._around.reporter.event(
            "write failed, resigning",
            level="error",
            partition=str(self.partition),
            epoch=self._epoch,
            error=str(error),
        )
        if led:
            self._drop_leadership("a write failed")
        self._around.failed(self.partition, error)

    async def recover_from_failure(self) -> None:
        """Goes back to the last good sync, in a new file. Raises OSError where that cannot be
        written and synced either. Afterwards it may be elected into a later epoch."""
        assert self.standing is Standing.FAILED
        await self.closed()
        await self._around.offload(self.journal.abandon_unsynced)
        self.standing = Standing.STANDBY

    async def put_away(self) -> None:
        """Its partition is deleted: answers nobody any more, and closes the journal when all who
        use its files are done."""
        self.step_down("topic deleted")
        await self.closed()
        await self._around.commit.leave(self.journal)
        await self._readers.leave()
        self.journal.close()
        self.journal.forget_tail()

    # -------------------------------------------------------------------------------------- reads

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        with self._readers:
            return await self.journal.read(from_offset, max_bytes, below=min(below, self._hw.value))

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        assert not offsets or max(offsets) < self._hw.value, "nothing above the HW is served (I27)"
        with self._readers:
            return await self.journal.read_frames(offsets)
