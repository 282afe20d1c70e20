"""The followers of one epoch that is led here: their dialogs, who of them is in sync, and what etcd
is asked to make of that.

    a follower acknowledges, the disk here syncs, etcd shows an ISR ─► book ─► the HW moved ─► moved
    review: a change is due ─► compare-and-set ─► its answer, or what etcd shows, goes to the book

Who counts, and which change is due, is decided in `in_sync`; what one follower is sent, in
`supply`.

Invariants: one change of the ISR is under way at a time; nothing is asked of etcd, or heard of
followers, once the epoch has ended here, or without a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replica.gauges import show_replicas
from oncelog_server.runtime.replica.in_sync import InSync, IsrChange
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.replica.supply import Supply, Tell
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.target import Isr, Lead
from oncelogpb.errors import CorruptLog, Loading, NotEnoughReplicas, NotLeader

# A follower that reads what could go, or what was before the log, holds the log start where it is
# for so long at most. One that takes longer begins anew, behind the snapshot of the new one, and
# has its time again once the log start moved: so each snapshot is there to fetch for so long, and
# the disk has what comes in meanwhile.
HOLDS_MS_MAX: Final = 600_000

# A change of the ISR whose answer was lost is looked at again after so long.
ISR_RETRY_MS: Final = 200


class Hold(NamedTuple):
    """Of one follower: of a log start."""

    since_ms: int
    log_start: int

    def lasts(self, now_ms: int) -> bool:
        return now_ms - self.since_ms < HOLDS_MS_MAX


class Followers:
    """Of one epoch. `begin` with its EPOCH_START, and at last `end` and `closed`."""

    def __init__(
        self,
        partition: PartitionId,
        journal: Journal,
        around: ReplicaEnv,
        *,
        granted: Lead,
        readers: Readers,
        moved: Callable[[], None],
        found_damage: Callable[[Exception], None],
        stirred: Callable[[], None],
    ) -> None:
        """`moved`: the high watermark did. `found_damage`: what is synced cannot be read, and
        others have it. `stirred`: a change of who is in sync may become due."""
        self._partition = partition
        self._journal = journal
        self._around = around
        self._granted = granted
        self._readers = readers
        self._moved = moved
        self._found_damage = found_damage
        self._stirred = stirred
        # Who is in sync; None before EPOCH_START.
        self.book: InSync | None = None
        # Exclusive: everything below is durable, as far as this epoch has shown it.
        self.high_watermark = 0
        # Of the followers that have a dialog with this leader.
        self._supplies: dict[Supply, None] = {}
        # A compare-and-set of the ISR that waits for its answer.
        self._changing: asyncio.Task[None] | None = None
        # Its replicas were moved, and this one is not wanted any more.
        self._is_handed_over = False
        # By node: since when a follower holds the log start, and where that is.
        self._holds: dict[str, Hold] = {}
        self._is_over = False

    def begin(self, epoch_start: int, *, inherited: int) -> None:
        """EPOCH_START is about to be appended there; `inherited` is a lower bound of the high
        watermark."""
        own = Incarnation(self._journal.incarnation)
        replication, assignment = self._around.replication, self._granted.isr.assignment
        wanted = replication.min_insync_replicas
        self.high_watermark = inherited
        self.book = InSync(
            own=own,
            node=replication.node_id,
            epoch=self._granted.epoch,
            epoch_start=epoch_start,
            isr=self._granted.isr.members or (own,),
            revision=self._granted.isr.revision,
            min_insync_replicas=wanted
            if assignment is not None
            else min(wanted, self._granted.replication_factor),
            replica_lag_ms=replication.replica_lag_ms,
            now_ms=self._now_ms(),
            inherited=inherited,
            assignment=assignment,
        )

    def end(self, why: str) -> None:
        """In one turn: every dialog is over, and nothing is heard any more."""
        self._is_over = True
        for supply in tuple(self._supplies):
            supply.end(NotLeader(f"partition {self._partition}: {why}; ask for the new leader"))

    async def closed(self) -> None:
        """After `end`: returns when nothing of it runs any more."""
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)

    # ------------------------------------------------------------------------- what may be written

    @property
    def waits_for(self) -> str:
        """What keeps the leader from answering, until it is ready."""
        if self.book is None:
            return "is loading its journal"
        return (
            f"waits until {self.book.min_insync_replicas} replicas (min_insync_replicas), and "
            "all that are in sync, have what its leader has"
        )

    def are_enough(self) -> bool:
        """For a write."""
        assert self.book is not None, "it has begun"
        return self.book.min_insync_replicas == 1 or self.book.has_enough(self._now_ms())

    def require_enough(self) -> None:
        """Raises NotEnoughReplicas."""
        if not self.are_enough():
            assert self.book is not None, "it has begun"
            raise NotEnoughReplicas(
                f"partition {self._partition} has fewer than {self.book.min_insync_replicas} "
                "replicas in sync (min_insync_replicas); nothing was written, try again"
            )

    @property
    def is_at_rest(self) -> bool:
        """`review` has nothing to do until somebody says something."""
        return self._changing is None and self.book is not None and self.book.is_at_rest

    def appended(self) -> None:
        """There is more to send."""
        for supply in self._supplies:
            supply.wake()

    # ---------------------------------------------------------------------------- what is durable

    def synced(self, end: int) -> None:
        """By the disk here."""
        # While it loads, too, a commit may end: of what was written before, or a note.
        if self.book is None or self._is_over:
            return
        if self.book.synced(end, now_ms=self._now_ms()):
            self._advance()

    def acknowledged(
        self, incarnation: Incarnation, *, node: str, epoch: int, synced_end: int
    ) -> None:
        """A follower has synced everything below `synced_end`."""
        if self.book is None or self._is_over:
            return
        now_ms = self._now_ms()
        if self.book.acknowledged(
            incarnation, node=node, epoch=epoch, synced_end=synced_end, now_ms=now_ms
        ):
            self._advance()
        self.review()

    def _advance(self) -> None:
        """The high watermark moved."""
        assert self.book is not None, "it has begun"
        self.high_watermark = self.book.high_watermark
        for supply in self._supplies:
            supply.high_watermark_moved()
        self._moved()

    # --------------------------------------------------------------------------------- dialogs

    def supply(self, incarnation: Incarnation, *, node: str, stream: Room, tell: Tell) -> Supply:
        """The leader's side of a follower's dialog. Raises Loading, NotLeader."""
        if self.book is None or self._is_over:
            raise Loading(f"partition {self._partition} is loading its journal; try again")
        if not self.book.is_assigned(node):
            raise self._not_assigned(node)
        supply = Supply(
            self._partition,
            self,
            self._journal,
            self._readers,
            stream=stream,
            catch_up=self._around.replication.catch_up,
            epoch=self._granted.epoch,
            incarnation=incarnation,
            node=node,
            tell=tell,
            fatal=self._around.fatal,
        )
        self._supplies[supply] = None
        return supply

    def _not_assigned(self, node: str) -> NotLeader:
        return NotLeader(
            f"node {node} has no replica of partition {self._partition}, as etcd was last seen here"
        )

    def opened(self, incarnation: Incarnation, *, node: str) -> None:
        """A follower began its dialog."""
        if self.book is not None:
            self.book.opened(incarnation, node=node, now_ms=self._now_ms())
            self._stirred()

    def forget(self, supply: Supply) -> None:
        """It has ended. Its follower may have another one: of a newer stream."""
        self._supplies.pop(supply, None)
        gone = supply.incarnation
        if self.book is not None and all(it.incarnation != gone for it in self._supplies):
            self.book.closed(gone, now_ms=self._now_ms())
            self._stirred()

    def held_by(self, start: int) -> str:
        """Node of a follower that has a dialog and still reads frames before `start`, or fetches
        what was before the log; "": there is none, or each had its time."""
        now_ms = self._now_ms()
        below = {
            supply.node
            for supply in self._supplies
            if supply.reads_from is not None and supply.reads_from < start
        }
        log_start = self._journal.log_start
        going_on = {
            node: hold
            for node, hold in self._holds.items()
            # Who had its time has it again where the start moved, and not before: else two who are
            # slow would take turns for ever.
            if hold.lasts(now_ms) or hold.log_start == log_start
        }
        anew = Hold(now_ms, log_start)
        self._holds = {node: going_on.get(node, anew) for node in sorted(below)}
        return next((node for node, hold in self._holds.items() if hold.lasts(now_ms)), "")

    def unreadable(self, error: CorruptLog | OSError) -> None:
        """What is synced here cannot be read. Where another replica has it, and keeps up, that one
        leads on. Who is alone stays: no other log has more, and what it can read it serves."""
        book = self.book
        if not self._is_over and book is not None and book.has_others(self._now_ms()):
            self._found_damage(error)

    # ------------------------------------------------------------------------------ who is in sync

    def isr_seen(self, isr: Isr) -> None:
        """What etcd shows, in this epoch."""
        if self.book is None or self._is_over:
            return
        self._stirred()
        if self.book.state_seen(isr.revision, isr.members, isr.assignment):
            self._advance()
        for supply in tuple(self._supplies):
            if not self.book.hears(supply.incarnation, node=supply.node):
                supply.end(self._not_assigned(supply.node))
        self.show()
        self.review()

    def review(self) -> None:
        """Asks etcd for the change of the ISR that is due, where there is one. Called at every
        tick, and when a follower or etcd said something."""
        book = self.book
        if book is None or self._is_over or self._changing is not None:
            return
        if self._is_handed_over:
            return
        if not self._around.lease_valid():
            # What is due is asked for when the lease is back, also of who rested.
            self._stirred()
            return
        replication, compared = self._around.replication, book.revision
        change = book.next_change(self._now_ms(), replication.leaving(), replication.living())
        if change is None:
            return
        after = change.assignment
        if after is not None and replication.node_id not in after.replicas:
            self._is_handed_over = True
            replication.end_move(self._partition, self._granted.epoch, change, compared)
            return
        book.change_sent(change, compared_revision=compared)
        self._changing = vital.spawn(self._ask_etcd(change, compared), self._around.fatal)

    async def _ask_etcd(self, change: IsrChange, compared_revision: int) -> None:
        replication, epoch = self._around.replication, self._granted.epoch
        seen = await replication.change_isr(self._partition, epoch, change, compared_revision)
        if seen is None:
            await asyncio.sleep(ISR_RETRY_MS / 1000)
        self._changing = None
        if seen is not None:
            self._around.reporter.count("isr_changes", why=change.why.value)
            self._around.reporter.event(
                "replicas in sync",
                partition=str(self._partition),
                epoch=epoch,
                why=change.why.value,
                who=change.who.hex(),
                members=len(seen.members),
            )
            self.isr_seen(seen)

    def keeping_up(self) -> frozenset[str]:
        """Nodes that could take over."""
        return frozenset() if self.book is None else self.book.keeping_up(self._now_ms())

    def show(self) -> None:
        """Gauges."""
        if self.book is not None:
            show_replicas(
                self._around.reporter,
                self._partition,
                self.book,
                replication_factor=self.book.replication_factor or self._granted.replication_factor,
                has_enough=self.are_enough(),
                now_ms=self._now_ms(),
            )

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms
