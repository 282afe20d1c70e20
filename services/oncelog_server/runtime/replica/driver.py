"""One replica of one partition: carries it to where elections want it, and answers for it while it
leads. What it does when is in `state`, with its files in `log`, with what it leads or follows in
`epochs`.

    elections ── aim(target), in the turn in which they know ──► ReplicaState ──► the next work
                                                                     ▲                 │
                      the disk, the end of an epoch, ... ── events ──┘   one task ◄────┘

Left out: how what is copied travels (`replication`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from oncelog_server.core.block import Block
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import Incarnation, JournalOffset, LeaderEpoch, PartitionId
from oncelog_server.core.machine import Settled
from oncelog_server.core.ports import Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.compacting import Compacting
from oncelog_server.runtime.replica.dialog import SnapshotPart
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.epochs import Epochs
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replica.followers import Followers
from oncelog_server.runtime.replica.healing import Healing
from oncelog_server.runtime.replica.in_sync import InSync
from oncelog_server.runtime.replica.log import ReplicaLog
from oncelog_server.runtime.replica.opening import Opening
from oncelog_server.runtime.replica.settling import Settling
from oncelog_server.runtime.replica.state import Event, ReplicaState, Stage, Work
from oncelog_server.runtime.replica.supply import Supply, Tell
from oncelog_server.runtime.replica.trimming import Trimming
from oncelog_server.runtime.storage.damage import JournalDamaged, UnknownFrame
from oncelog_server.runtime.storage.disk_use import DiskUse
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
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
        stirred: Callable[[Driver], None],
        make_outbox: Callable[[Driver], Outbox],
    ) -> None:
        """`open_log` raises JournalDamaged, OSError; `put_aside` moves the directory away for good;
        `begin_anew` too, so that `open_log` begins another one, and raises OSError; `led` is called
        when an epoch has begun, which the directory is to say of itself; `stirred`, when something
        is to be done for it, also where it said that it rests."""
        self.partition = partition
        self._role = role
        self._around = around
        self._put_aside = put_aside
        # A write of a follower failed: the next attempt waits a moment.
        self._pauses = False
        self._make_outbox = make_outbox
        self._stirred = stirred
        self._state = ReplicaState()
        # The one that goes where the target is; None: it is there.
        self._working: asyncio.Task[None] | None = None
        self._opening = Opening(partition, around, self._state, candidate=lambda: self.candidate)
        self._log = ReplicaLog(partition, around, open_log=open_log, begin_anew=begin_anew)
        self._epochs = Epochs(
            partition,
            role,
            around,
            state=self._state,
            log=self._log,
            opening=self._opening,
            began_to_lead=led,
            make_outbox=lambda: self._make_outbox(self),
            write_failed=self._write_failed,
            found_damage=self._found_damage,
            broken=self._broken,
            stirred=self._stir,
        )

    # ------------------------------------------------------------------------------ what it shows

    @property
    def stage(self) -> Stage:
        return self._state.stage

    @property
    def machine(self) -> Any:
        """None where it leads nothing."""
        leadership = self._epochs.leadership
        return None if leadership is None else leadership.machine

    @property
    def journal(self) -> Journal:
        return self._log.journal

    @property
    def unfit(self) -> str:
        """Why it can neither lead nor follow, in words; "": it can."""
        if self._state.is_damaged:
            return "its log is damaged, and is copied anew"
        followership = self._epochs.followership
        refused = "" if followership is None else followership.cannot_follow
        return refused or self._opening.unfit

    @property
    def epoch(self) -> LeaderEpoch:
        return LeaderEpoch(self._state.epoch)

    @property
    def high_watermark(self) -> JournalOffset:
        leadership = self._epochs.leadership
        return JournalOffset(0 if leadership is None else leadership.high_watermark)

    @property
    def current_epoch(self) -> int:
        """That it leads or follows; 0: neither."""
        return self._epochs.current

    @property
    def known_high_watermark(self) -> int:
        """What it knows to be durable, by itself or by whom it follows."""
        return self._epochs.high_watermark

    @property
    def trimming(self) -> Trimming | None:
        """What is said of the front of its log, while it leads or follows."""
        here = self._epochs.led or self._epochs.followership
        return None if here is None else here.trimming

    @property
    def settling(self) -> Settling | None:
        """How far its committed log is settled, while it leads or follows."""
        here = self._epochs.led or self._epochs.followership
        return None if here is None else here.settling

    @property
    def healing(self) -> Healing | None:
        """What of its data log is damaged, and what is done about it."""
        here = self._epochs.led or self._epochs.followed
        return None if here is None else here.healing

    @property
    def readable(self) -> Settled | None:
        """What its machine says of its committed log, while it leads and has loaded it."""
        led = self._epochs.led
        return None if led is None or led.machine is None else led.machine.settled()

    async def disk_use(self) -> DiskUse:
        """Of its log, which is open. Raises OSError."""
        return await self._log.disk_use()

    @property
    def book(self) -> InSync | None:
        """Who is in sync, while it leads."""
        led = self._epochs.led
        return None if led is None else led.followers.book

    @property
    def log_start(self) -> JournalOffset:
        return JournalOffset(self.journal.log_start)

    @property
    def log_end(self) -> JournalOffset:
        return JournalOffset(self.journal.log_end)

    @property
    def is_open(self) -> bool:
        """Its log was found sound, or recovered."""
        return self._log.is_open

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
        if not self._log.is_open or not self._state.may_stand:
            return None
        journal = self.journal
        return Candidate(journal.incarnation, journal.last_epoch, journal.synced_end)

    def require_ready(self) -> None:
        """Raises NotLeader or Loading unless this replica may answer."""
        if self._state.stage is Stage.READY:
            return
        if self._state.stage is Stage.LOADING:
            assert self._epochs.led is not None, "it leads"
            why = self._epochs.led.followers.waits_for
            raise Loading(f"partition {self.partition} {why}; try again")
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
        if self._epochs.led is not None and epoch == self._state.epoch:
            self._epochs.led.followers.isr_seen(isr)

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

    def _stir(self) -> None:
        self._stirred(self)

    def _go_on(self) -> None:
        self._stir()
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
                assert isinstance(self._state.target, Lead)
                self._pauses = False
                await self._epochs.load(self._state.target)
            case Work.FOLLOW if self._pauses:
                self._pauses = False
                await self._opening.pause()
            case Work.FOLLOW:
                assert isinstance(self._state.target, Follow)
                await self._epochs.follow(self._state.target)
            case Work.CLOSE_EPOCH:
                await self._epochs.closed()
                self._state.happened(Event.CLOSED_EPOCH)
            case Work.CLOSE_LOG:
                await self._log.close()
                self._state.happened(Event.CLOSED_LOG)
            case Work.PUT_ASIDE:
                await self._put_aside()
                self._state.happened(Event.PUT_ASIDE)
            case Work.BEGIN_ANEW:
                await self._opening.attempt(self._begin_log_anew)

    # ---------------------------------------------------------------------------------- its pieces

    async def _open(self) -> None:
        try:
            await self._log.open()
        except UnknownFrame:
            # Nothing is lost: a later version reads it.
            raise
        except (JournalDamaged, CorruptLog) as error:
            if isinstance(self._state.target, Follow):
                # There is one that is whole: who leads holds all that was acknowledged.
                self._found_damage(error)
            raise
        self._state.happened(Event.OPENED)

    async def _begin_log_anew(self) -> None:
        await self._log.begin_anew()
        self._state.began_anew()

    async def _abandon(self) -> None:
        await self._log.abandon()
        self._state.abandoned()

    def _end(self, why: str) -> None:
        """The epoch that it leads or follows, from this very turn."""
        self._epochs.end(why)
        self._go_on()

    # ---------------------------------------------------------------------------- who follows it

    def supply(
        self, incarnation: Incarnation, *, node: str, epoch: int, stream: Room, tell: Tell
    ) -> Supply:
        """The leader's side of a follower's dialog. Raises NotLeader, Loading."""
        return self._led_in(epoch).supply(incarnation, node=node, stream=stream, tell=tell)

    async def snapshot_part(self, wanted: PartOf, *, epoch: int) -> SnapshotPart:
        """Of what was before its log, to whoever follows it; and blocks, to any replica that is in
        the same epoch. Raises NotLeader, InvalidArgument, CorruptLog, Unavailable."""
        if wanted.content is Content.BLOCKS:
            return await self._blocks(wanted, epoch=epoch)
        self._led_in(epoch)
        try:
            return await self._read_part(wanted)
        except CorruptLog as error:
            raise self.unreadable(error) from error

    async def _blocks(self, wanted: PartOf, *, epoch: int) -> SnapshotPart:
        """A log that is cut meanwhile may have had others. Where they are damaged here, too, that
        is no reason to hand over: who asks has no better ones."""
        self._require_agrees_in(epoch)
        try:
            return await self._read_part(wanted)
        finally:
            self._require_agrees_in(epoch)

    async def _read_part(self, wanted: PartOf) -> SnapshotPart:
        says = self.readable
        tombstones_below = None if says is None else says.compaction.tombstones_below
        return await self._log.read_part(wanted, tombstones_below=tombstones_below)

    def _require_agrees_in(self, epoch: int) -> None:
        led, followed = self._epochs.led, self._epochs.followed
        agrees_in = led.agrees_in if led is not None else followed.agrees_in if followed else 0
        if not agrees_in or agrees_in != epoch:
            raise NotLeader(f"partition {self.partition} is not led or followed here in {epoch=}")

    def _led_in(self, epoch: int) -> Followers:
        led = self._epochs.led
        if led is None or self._state.epoch != epoch:
            raise NotLeader(f"this process does not lead partition {self.partition} in {epoch=}")
        return led.followers

    # ----------------------------------------------------------------------------------- failures

    def _write_failed(self, error: OSError) -> None:
        """Bytes are in doubt: this epoch is never continued. Whichever epoch wrote them, what this
        one appends would stand behind them, and is never written."""
        if not self._state.write_failed():
            return
        # A full disk is full again at once: who copies anew without a pause does nothing else.
        self._pauses = self._state.follows
        self._say("write failed, " + ("resigning" if self._state.leads else "trying again"), error)
        if self._state.leads or self._state.follows:
            self._end("a write failed")
        self._around.failed(self.partition, error)
        self._go_on()

    def _found_damage(self, error: Exception) -> None:
        """What was synced here cannot be read any more, and another replica has it: this log is
        given up, and copied anew. Nothing is deleted."""
        if not self._state.found_damage():
            return
        self._say("log is damaged, it is copied anew", error)
        if self._state.leads or self._state.follows:
            self._end("its log is damaged")
        self._around.failed(self.partition, error)
        self._go_on()

    def _broken(self, error: Exception) -> None:
        """A decision was carried out in part. What the machine is now nobody knows, so none of it
        may reach the disk, and the process ends (STYLE, rule 17)."""
        self.journal.mark_failed()
        self._state.write_failed()
        self._say("a record could not be applied, the process ends", repr(error))
        self._end("a record could not be applied")
        self._around.fatal(error)

    def _say(self, what: str, error: object) -> None:
        self._around.reporter.event(
            what,
            level="error",
            partition=str(self.partition),
            epoch=self._state.epoch,
            error=str(error),
        )

    # ------------------------------------------------------------------------------ the main verb

    def submit(self, command: object) -> asyncio.Future[Any]:
        """See the Replica port."""
        self.require_ready()
        # Nothing is appended for an answer that could not be given.
        self.require_lease()
        assert self._epochs.leadership is not None
        return self._epochs.leadership.submit(command)

    def signal(self, signal: object) -> None:
        if self._epochs.leadership is not None:
            self._epochs.leadership.signal(signal)

    @property
    def rests_ms(self) -> int:
        """For how long nothing is to be done for it, nor to be shown of it that is not shown,
        unless it is stirred; 0: something is."""
        led, followed = self._epochs.led, self._epochs.followed
        if led is not None:
            return led.rests_ms if self.is_ready else 0
        return 0 if followed is None or self._working is not None else followed.rests_ms

    def look(self) -> None:
        """Now and then, at rest."""
        led = self._epochs.led
        self.tick()
        if led is None or led.is_looked_at:
            self.report()
        else:
            # After a report that comes last, for it takes the place of all else.
            led.scrub()

    def tick(self) -> None:
        """Called every `tick_ms` while something is to be done."""
        led = self._epochs.led
        if led is None:
            return
        # Also while it loads: a member that is dead would hold it up for ever.
        led.followers.review()
        if not self._around.lease_valid():
            # The high watermark may never move again: others lead, and nobody here hears of it.
            led.lose_replies("the lease ran out")
        elif self.is_ready:
            led.tick()

    def keeping_up(self) -> frozenset[str]:
        """Nodes that could take over what is led here."""
        led = self._epochs.led
        return frozenset() if led is None else led.followers.keeping_up()

    def review(self) -> None:
        """Nodes came or are about to go: who is in sync may have to change."""
        if self._epochs.led is not None:
            self._epochs.led.followers.review()

    def wake(self) -> None:
        """Something outside changed: a peer, a leader, a topic. Whose machine rests owes nothing,
        and hears of it at the next tick."""
        led = self._epochs.led
        if self.is_ready and led is not None and not led.machine.rests_ms:
            led.wake()

    def report(self) -> None:
        """About every second: what others may count on (docs/leadership.md, "Disks"), gauges."""
        if self.is_open and not self._is_in_a_thread():
            self._log.note_synced_end(synced=self._epochs.synced, write_failed=self._write_failed)
            if self._epochs.followed is not None:
                self._epochs.followed.report()
        if self.is_ready and self._epochs.led is not None:
            self._epochs.led.report()

    def _is_in_a_thread(self) -> bool:
        """Who leaves, or gives its log up for damage, notes what is synced when that is closed, in
        a thread, and then its directory may move; one that is cut is what the thread makes of it,
        and a commit beside that would say what it was."""
        followership = self._epochs.followership
        is_cut = followership is not None and followership.is_cutting
        return self._state.is_leaving or self._state.is_damaged or is_cut

    def lease_lapsed(self) -> None:
        """Also at rest, where nobody ticks it."""
        if self._epochs.led is not None:
            self._epochs.led.lease_lapsed()

    def watch(self, moved: Callable[[], None]) -> Callable[[], object]:
        """See the Replica port."""
        if self._epochs.led is not None:
            return self._epochs.led.watch(moved)
        return asyncio.get_running_loop().call_soon(moved).cancel

    @property
    def is_watched(self) -> bool:
        """See the Replica port."""
        led = self._epochs.led
        return led is not None and led.is_watched

    async def checkpoint(self, *, worth_bytes: int = 0) -> None:
        """At a clean stop: see Leadership."""
        if self.is_ready and self._epochs.led is not None:
            await self._epochs.led.checkpoint(worth_bytes=worth_bytes)

    # -------------------------------------------------------------------------------------- reads

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        below = min(below, self.high_watermark)
        try:
            return await self._log.read(from_offset, max_bytes, below=below)
        except CorruptLog as error:
            raise self.unreadable(error) from error

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        assert not offsets or max(offsets) < self.high_watermark, "nothing above the HW (I27)"
        try:
            return await self._log.read_frames(offsets)
        except CorruptLog as error:
            raise self.unreadable(error) from error

    @property
    def settled_end(self) -> int:
        return self.journal.data.settled_end if self._log.is_open else 0

    @property
    def compacted_to(self) -> int:
        """See DataLog."""
        return self.journal.data.compacted_to if self._log.is_open else 0

    @property
    def compacting(self) -> Compacting | None:
        """While it leads or follows."""
        here = self._epochs.led or self._epochs.followership
        return None if here is None else here.compacting

    async def read_settled(self, from_offset: int, max_bytes: int, *, below: int) -> list[Block]:
        return await self._log.read_settled(from_offset, max_bytes, below=below)

    def unreadable(self, error: CorruptLog) -> OncelogError:
        """What a reader is told: it is healed, or who leads next has what this one lacks."""
        led = self._epochs.led
        if led is not None and (waits := led.unreadable(error)) is not None:
            return waits
        if self._state.is_damaged:
            return NotLeader(f"partition {self.partition} is copied anew here; ask who leads it")
        return error
