"""One replica of one partition: carries it to where elections want it, and answers for it while it
leads. What it does when is in `state`; what one epoch is, in `leading`.

    elections ── aim(target), in the turn in which they know ──► ReplicaState ──► the next work
                                                                     ▲                 │
                      the disk, the end of an epoch, ... ── events ──┘   one task ◄────┘

Left out: how what is copied travels (`replication`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from errno import EIO
from typing import Any, Final

from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import Incarnation, JournalOffset, LeaderEpoch, PartitionId
from oncelog_server.core.ports import Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.dialog import SnapshotPart
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replica.followership import Followership
from oncelog_server.runtime.replica.following import WentBack
from oncelog_server.runtime.replica.in_sync import InSync
from oncelog_server.runtime.replica.leading import Leadership
from oncelog_server.runtime.replica.opening import Opening
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.replica.sending import read_part
from oncelog_server.runtime.replica.state import Event, ReplicaState, Stage, Work
from oncelog_server.runtime.replica.supply import Supply, Tell
from oncelog_server.runtime.storage.damage import JournalDamaged, UnknownFrame
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import PartOf
from oncelog_server.runtime.target import (
    Candidate,
    Close,
    Follow,
    Isr,
    Lead,
    Leave,
    StandBy,
    Target,
)
from oncelogpb.errors import (
    CorruptLog,
    DiskFull,
    Loading,
    NotLeader,
    OncelogError,
    Unavailable,
    UnknownPartition,
)

# A TxId contains a journal offset. After an unclean election, offsets that were lost would be given
# out again, so a control journal leaves out so many of them.
UNCLEAN_SKIP: Final = 1 << 32
# Damaged logs copied anew in one run: a disk that damages more of them is better replaced.
ANEW_MAX: Final = 3


class Driver:
    """The Replica port, for one partition. Made by `runtime/replicas`; used by services and
    outboxes."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        around: ReplicaEnv,
        *,
        open_log: Callable[[], Awaitable[Journal]],
        put_aside: Callable[[], Awaitable[None]],
        begin_anew: Callable[[], Awaitable[None]],
        led: Callable[[], None],
        make_outbox: Callable[[Driver], Outbox],
    ) -> None:
        """`open_log` raises JournalDamaged, OSError; `put_aside` moves the directory away for good;
        `begin_anew` too, so that `open_log` begins another one, and raises OSError; `led` is called
        when an epoch has begun, which the directory is to say of itself."""
        self.partition = partition
        self._role = role
        self._around = around
        self._open_log = open_log
        self._put_aside = put_aside
        self._begin_anew = begin_anew
        self._anew_count = 0
        self._led = led
        self._make_outbox = make_outbox
        self._state = ReplicaState()
        self._journal: Journal | None = None
        # The epoch that it leads, or led last.
        self._leadership: Leadership | None = None
        # The epoch that it follows, or followed last.
        self._followership: Followership | None = None
        # Of the epochs that ended: everything below is durable, and here.
        self._known_high_watermark = 0
        self._readers = Readers(partition)
        # The one that goes where the target is; None: it is there.
        self._working: asyncio.Task[None] | None = None
        self._opening = Opening(partition, around, candidate=lambda: self.candidate)

    # ------------------------------------------------------------------------------ what it shows

    @property
    def stage(self) -> Stage:
        return self._state.stage

    @property
    def machine(self) -> Any:
        """None where it leads nothing."""
        return None if self._leadership is None else self._leadership.machine

    @property
    def journal(self) -> Journal:
        assert self._journal is not None, "its log is open"
        return self._journal

    @property
    def unfit(self) -> str:
        """Why it can neither lead nor follow, in words; "": it can."""
        if self._state.is_damaged:
            return "its log is damaged, and is copied anew"
        refused = "" if self._followership is None else self._followership.cannot_follow
        return refused or self._opening.unfit

    @property
    def epoch(self) -> LeaderEpoch:
        return LeaderEpoch(self._state.epoch)

    @property
    def high_watermark(self) -> JournalOffset:
        return JournalOffset(0 if self._leadership is None else self._leadership.high_watermark)

    @property
    def current_epoch(self) -> int:
        """That it leads or follows; 0: neither."""
        if self._state.follows and self._state.followed is not None:
            return self._state.followed.epoch
        return self._state.epoch if self._state.leads else 0

    @property
    def known_high_watermark(self) -> int:
        """What it knows to be durable, by itself or by whom it follows."""
        if self._state.leads:
            return self.high_watermark
        if self._state.follows and self._followership is not None:
            return self._followership.high_watermark
        return self._known_high_watermark

    @property
    def book(self) -> InSync | None:
        """Who is in sync, while it leads."""
        if not self._state.leads or self._leadership is None:
            return None
        return self._leadership.book

    @property
    def log_start(self) -> JournalOffset:
        return JournalOffset(self.journal.log_start)

    @property
    def log_end(self) -> JournalOffset:
        return JournalOffset(self.journal.log_end)

    @property
    def is_open(self) -> bool:
        """Its log was found sound, or recovered."""
        return self._journal is not None

    @property
    def is_ready(self) -> bool:
        return self._state.stage is Stage.READY

    @property
    def leads(self) -> bool:
        """It answers, or will once the HW has passed EPOCH_START."""
        return self._state.leads

    @property
    def follows(self) -> bool:
        return self._state.follows

    @property
    def leaves(self) -> bool:
        """Its directory is being put aside, and never opened again."""
        return isinstance(self._state.target, Leave)

    @property
    def candidate(self) -> Candidate | None:
        """What an election asks of it; None while it may not stand in one."""
        if self._journal is None or not self._state.may_stand:
            return None
        journal = self._journal
        return Candidate(journal.incarnation, journal.last_epoch, journal.synced_end)

    def require_ready(self) -> None:
        """Raises NotLeader or Loading unless this replica may answer."""
        if self._state.stage is Stage.READY:
            return
        if self._state.stage is Stage.LOADING:
            assert self._leadership is not None, "it leads"
            raise Loading(f"partition {self.partition} {self._leadership.waits_for}; try again")
        raise NotLeader(f"this process does not lead partition {self.partition}")

    def require_room(self) -> None:
        if not self._around.has_room():
            raise DiskFull("free disk space is below disk_free_floor; reads go on, free some space")

    def require_lease(self) -> None:
        if not self._around.lease_valid():
            raise NotLeader("this node's lease ran out; ask for the new leader")

    # ------------------------------------------------------------------------- where it should be

    def aim(self, target: Target, *, why: str = "") -> None:
        """Where etcd's word, or the process, wants it. What it leads and should not ends in this
        very turn, for the reason `why`; the rest is done by a task."""
        why = why or ("topic deleted" if isinstance(target, Leave) else "deposed")
        if target != self._state.target:
            self._opening.aimed()
        if self._state.aim(target):
            self._end(why)
        if (over := self._over()) is not None:
            self._opening.failed(over)
        self._go_on()

    def isr_seen(self, epoch: int, isr: Isr) -> None:
        """What etcd shows of the epoch that this process leads."""
        if self._state.leads and self._leadership is not None and epoch == self._state.epoch:
            self._leadership.isr_seen(isr)

    async def opened(self) -> Candidate:
        """Waits for the next attempt to open the log, where none has succeeded. Raises what that
        met: JournalDamaged, OSError; UnknownPartition, Unavailable where there is none."""
        if self.candidate is not None:
            return self.candidate
        if (over := self._over()) is not None:
            raise over
        candidate = self._opening.wait()
        self._go_on()
        return await candidate

    def _over(self) -> OncelogError | None:
        """Why its log is not opened any more."""
        match self._state.target:
            case Leave():
                return UnknownPartition(f"partition {self.partition} was deleted")
            case Close():
                return Unavailable("this process is stopping; ask another one")
            case StandBy() | Lead() | Follow():
                return None

    async def settled(self) -> None:
        """Returns when it is where it should be, or waits for the disk only."""
        while self._working is not None:
            await asyncio.wait([self._working])

    def _go_on(self) -> None:
        if self._working is None and self._state.work() is not None:
            self._working = vital.spawn(self._work(), self._around.fatal)

    async def _work(self) -> None:
        try:
            while (work := self._state.work()) is not None:
                self._opening.looks_at_target()
                await self._do(work)
        finally:
            self._working = None

    async def _do(self, work: Work) -> None:
        match work:
            case Work.OPEN:
                await self._opening.attempt(self._open)
            case Work.ABANDON:
                await self._opening.attempt(self._abandon)
            case Work.LOAD:
                await self._load()
            case Work.FOLLOW:
                await self._follow()
            case Work.CLOSE_EPOCH:
                if self._leadership is not None:
                    await self._leadership.closed()
                if self._followership is not None:
                    await self._followership.closed()
                    self._followership = None
                self._state.happened(Event.CLOSED_EPOCH)
            case Work.CLOSE_LOG:
                await self._close_log()
            case Work.PUT_ASIDE:
                await self._put_aside()
                self._state.happened(Event.PUT_ASIDE)
            case Work.BEGIN_ANEW:
                await self._opening.attempt(self._give_up_log)

    # ---------------------------------------------------------------------------------- its pieces

    async def _open(self) -> None:
        try:
            self._journal = await self._open_log()
        except UnknownFrame:
            # Nothing is lost: a later version reads it.
            raise
        except JournalDamaged as error:
            if isinstance(self._state.target, Follow):
                # There is one that is whole: who leads holds all that was acknowledged.
                self._found_damage(error)
            raise
        self._readers = Readers(self.partition)
        self._around.reporter.gauge("replica_unusable", 0, partition=str(self.partition))
        self._state.happened(Event.OPENED)

    async def _give_up_log(self) -> None:
        if self._anew_count == ANEW_MAX:
            raise OSError(
                EIO,
                f"its log was damaged more than {ANEW_MAX} times (ANEW_MAX) since this process "
                "started: replace the disk, then start it again",
            )
        await self._begin_anew()
        self._anew_count += 1
        self._state.began_anew()

    async def _abandon(self) -> None:
        # Of a decision that failed, not a write, what was appended before is on its way still: what
        # the disk answers must not be taken for the log as it is cut.
        await self._around.commit.leave(self.journal)
        await self._around.offload(self.journal.abandon_unsynced)
        self._state.abandoned()

    async def _load(self) -> None:
        target = self._state.target
        assert isinstance(target, Lead)
        assert target.epoch > self.journal.last_epoch, "an epoch is never continued"
        behind = self.journal.last_epoch < target.unclean_epoch
        is_control = self._role.control_topic is not None
        self._state.loading(target.epoch)
        leadership = self._leadership = Leadership(
            self.partition,
            self._role,
            self.journal,
            self._around,
            granted=target,
            known_high_watermark=self._known_high_watermark,
            readers=self._readers,
            make_outbox=lambda: self._make_outbox(self),
            passed_epoch_start=lambda: self._state.happened(Event.PASSED_EPOCH_START),
            write_failed=self._write_failed,
            found_damage=self._found_damage,
            broken=self._broken,
        )
        try:
            await leadership.load()
            if not self._state.leads:
                return
            leadership.begin(skip=UNCLEAN_SKIP if is_control and behind else 0)
        except (JournalDamaged, OSError) as error:
            # Rot that opening did not see, for it looks at the tail only.
            self._opening.unusable(error)
            others = set(target.isr.members) - {self.journal.incarnation}
            if isinstance(error, JournalDamaged) and others:
                self._found_damage(error)
                return
            if self._state.leads:
                self._end("its journal cannot be replayed")
            self._around.failed(self.partition, error)
        else:
            self._opening.unfit = ""
            self._led()

    async def _follow(self) -> None:
        target = self._state.target
        assert isinstance(target, Follow)
        try:
            followership = Followership(
                self.partition,
                self._role,
                self.journal,
                self._around,
                target=target,
                high_watermark=min(self._known_high_watermark, self.journal.log_end),
                installs=self._opening.installs,
                write_failed=self._write_failed,
                found_damage=self._found_damage,
            )
        except WentBack as error:
            # etcd will show the epoch that this log knows of, or elections refuse that etcd.
            self._opening.unusable(error)
            await self._opening.pause()
            return
        self._opening.unfit = ""
        self._followership = followership
        self._state.following(target)
        followership.begin()

    def supply(
        self, incarnation: Incarnation, *, node: str, epoch: int, stream: Room, tell: Tell
    ) -> Supply:
        """The leader's side of a follower's dialog. Raises NotLeader, Loading."""
        return self._led_in(epoch).supply(incarnation, node=node, stream=stream, tell=tell)

    async def snapshot_part(self, wanted: PartOf, *, epoch: int) -> SnapshotPart:
        """Of what was before its log, to whoever follows it. Raises NotLeader, InvalidArgument,
        CorruptLog, Unavailable."""
        self._led_in(epoch)
        with self._readers:
            return await read_part(self.journal, self._around.offload, wanted)

    def _led_in(self, epoch: int) -> Leadership:
        if not self._state.leads or self._leadership is None or self._state.epoch != epoch:
            raise NotLeader(f"this process does not lead partition {self.partition} in {epoch=}")
        return self._leadership

    async def _close_log(self) -> None:
        """Nobody is answered any more: when all who use its files are done, they are closed."""
        await self._around.commit.leave(self.journal)
        await self._readers.leave()
        async with self._around.places:
            await self._around.offload(self.journal.close)
        self.journal.forget_tail()
        self._journal = None
        self._state.happened(Event.CLOSED_LOG)

    def _end(self, why: str) -> None:
        """The epoch that it leads or follows, from this very turn."""
        leads = self._state.leads
        self._state.happened(Event.ENDED)
        if leads:
            assert self._leadership is not None
            self._known_high_watermark = self._leadership.high_watermark
            self._leadership.end(why)
        elif self._followership is not None:
            self._known_high_watermark = self._followership.high_watermark
            self._followership.end()
        self._go_on()

    # ----------------------------------------------------------------------------------- failures

    def _write_failed(self, error: OSError) -> None:
        """Bytes are in doubt: this epoch is never continued. Whichever epoch wrote them, what this
        one appends would stand behind them, and is never written."""
        if not self._state.write_failed():
            return
        self._around.reporter.event(
            "write failed, resigning",
            level="error",
            partition=str(self.partition),
            epoch=self._state.epoch,
            error=str(error),
        )
        if self._state.leads or self._state.follows:
            self._end("a write failed")
        self._around.failed(self.partition, error)
        self._go_on()

    def _found_damage(self, error: Exception) -> None:
        """What was synced here cannot be read any more, and another replica has it: this log is
        given up, and copied anew. Nothing is deleted."""
        if not self._state.found_damage():
            return
        self._around.reporter.event(
            "log is damaged, it is copied anew",
            level="error",
            partition=str(self.partition),
            epoch=self._state.epoch,
            error=str(error),
        )
        if self._state.leads or self._state.follows:
            self._end("its log is damaged")
        self._around.failed(self.partition, error)
        self._go_on()

    def _broken(self, error: Exception) -> None:
        """A decision was carried out in part. What the machine is now nobody knows, so none of it
        may reach the disk, and the process ends (STYLE, rule 17)."""
        self.journal.mark_failed()
        self._state.write_failed()
        self._around.reporter.event(
            "a record could not be applied, the process ends",
            level="error",
            partition=str(self.partition),
            epoch=self._state.epoch,
            error=repr(error),
        )
        self._end("a record could not be applied")
        self._around.fatal(error)

    # ------------------------------------------------------------------------------ the main verb

    def submit(self, command: object) -> asyncio.Future[Any]:
        """See the Replica port."""
        self.require_ready()
        # Nothing is appended for an answer that could not be given.
        self.require_lease()
        assert self._leadership is not None
        return self._leadership.submit(command)

    def signal(self, signal: object) -> None:
        if self._leadership is not None:
            self._leadership.signal(signal)

    @property
    def is_at_rest(self) -> bool:
        """It leads, and there is nothing to do for it or to show of it that is not shown."""
        return self.is_ready and self._leadership is not None and self._leadership.is_at_rest

    def tick(self) -> None:
        """Called every `tick_ms`, at rest seldom."""
        if self._leadership is None or not self._state.leads:
            return
        # Also while it loads: a member that is dead would hold it up for ever.
        self._leadership.review()
        if not self._around.lease_valid():
            # The high watermark may never move again: others lead, and nobody here hears of it.
            self._leadership.lose_replies("the lease ran out")
        elif self.is_ready:
            self._leadership.tick()

    def keeping_up(self) -> frozenset[str]:
        """Nodes that could take over what is led here."""
        if self._leadership is None or not self._state.leads:
            return frozenset()
        return self._leadership.keeping_up()

    def review(self) -> None:
        """Nodes came or are about to go: who is in sync may have to change."""
        if self._leadership is not None and self._state.leads:
            self._leadership.review()

    def wake(self) -> None:
        """Something outside changed: a peer, a leader, a topic."""
        if self._leadership is not None:
            self._leadership.wake()

    def report(self) -> None:
        """About every second: what others may count on (docs/leadership.md, "Disks"), gauges."""
        if self._journal is not None and not self._is_in_a_thread():
            self._note_synced_end(self._journal)
            if self._state.follows and self._followership is not None:
                self._followership.report()
        if self.is_ready and self._leadership is not None:
            self._leadership.report()

    def _is_in_a_thread(self) -> bool:
        """Who leaves notes what is synced when its log is closed, in a thread; one that is cut is
        what the thread makes of it, and a commit beside that would say what it was."""
        is_cut = self._followership is not None and self._followership.is_cutting
        return self._state.is_leaving or is_cut

    def _note_synced_end(self, journal: Journal) -> None:
        """In a commit of its own where nothing else is on its way: a log that is quiet from now on
        would have no durable note of its last frames, and take a bad one for a torn tail."""
        if journal.note_synced_end():
            self._around.commit.wrote(journal, self._synced, self._write_failed)

    def _synced(self, end: int) -> None:
        if self._state.leads and self._leadership is not None:
            self._leadership.synced(end)
        elif self._followership is not None:
            self._followership.synced(end)

    def advanced(self) -> Awaitable[None]:
        """See the Replica port."""
        if self._leadership is not None and self._state.leads:
            return self._leadership.advanced()
        return asyncio.sleep(0)

    async def checkpoint(self, *, worth_bytes: int = 0) -> None:
        """At a clean stop: see Leadership."""
        if self.is_ready and self._leadership is not None:
            await self._leadership.checkpoint(worth_bytes=worth_bytes)

    # -------------------------------------------------------------------------------------- reads

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        below = min(below, self.high_watermark)
        try:
            with self._readers:
                return await self.journal.read(from_offset, max_bytes, below=below)
        except CorruptLog as error:
            raise self._unreadable(error) from error

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        assert not offsets or max(offsets) < self.high_watermark, "nothing above the HW (I27)"
        try:
            with self._readers:
                return await self.journal.read_frames(offsets)
        except CorruptLog as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: CorruptLog) -> OncelogError:
        """What a reader is told: who leads next has what this one lacks."""
        if self._state.leads and self._leadership is not None:
            self._leadership.unreadable(error)
        if self._state.is_damaged:
            return NotLeader(f"partition {self.partition} is copied anew here; ask who leads it")
        return error
