"""PURE. The in-sync replicas (ISR) of one leader epoch: what each replica has synced, the high
watermark (HW) that follows from it, and the changes of the ISR that the leader asks etcd for.

    ISR in etcd (a, b), revision 7
       next_change ─► join c: (a, b, c) ─► change_sent(change, 7) ─► compare-and-set on its way
                                              c counts from here on
       state_seen(8, (a, b, c)) or state_seen(9, ...): nothing that compared 7 can happen any more

What is counted: the ISR that etcd showed last, united with what every change in flight would make
of it. So a joiner counts from the moment its compare-and-set is sent, and who leaves counts until
that is confirmed.

Invariants (each with what breaks without it: docs/leadership.md, "Replicas in sync"):
  * acknowledgements of another epoch count for nothing;
  * a change is in flight until a revision above the one that it compared was seen: a timeout, an
    error, or the same revision read again ends nothing. Revisions are compared, never values;
  * who joins has synced EPOCH_START and all below the leader's HW, by acknowledgements of this
    epoch. It need not wait until the HW covers EPOCH_START: a member that is dead would hold up
    those who could replace it;
  * who is about to stop is dropped while it still acknowledges, so that no write waits for it;
  * who has no dialog with this leader is given up after REPLICA_SILENT_MS, for he will acknowledge
    nothing; at once where none of the nodes that he can be on has a process, as etcd shows; who
    has one and lags, after `replica_lag_ms`. Who has one and everything does not lag, however long
    he says nothing: it counts from the moment in which there is more (docs/adr/0082);
  * the ISR never shrinks below `min_insync_replicas`, and the HW does not move while it has fewer.
    Nodes are counted, not incarnations; one that has not said in this epoch which node it is on is
    counted for none. A partition needs no more of them than it has replicas, and those that a move
    adds do not count for that;
  * a move ends in one change: when every wanted node has a member, the others leave, and are no
    replicas any more. What they acknowledged counts for nothing from then on: a node that is wanted
    again begins a new dialog.

Left out: who sends the compare-and-set, and when it gives up waiting (the owner); whether this
process still leads (`leadership`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.replica.high_watermark import HighWatermark
from oncelog_server.runtime.target import Assignment

# A member whose stream ended, or that never opened one in this epoch, has so long to do so: a dead
# one holds up every write until it is dropped.
REPLICA_SILENT_MS: Final = 1_000


class Why(Enum):
    """What a change of the ISR is for."""

    JOIN = "join"
    # Its node has come back under another incarnation, which is in the ISR.
    REPLACED = "replaced"
    # It did not catch up for `replica_lag_ms`, or is silent.
    LAGS = "lags"
    # It has no dialog, and no process that could begin one.
    GONE = "gone"
    # Its process is about to stop, and said so.
    LEAVES = "leaves"
    # Its partition's replicas were moved, and all are where they shall be.
    MOVED = "moved"
    # The same ISR once more. It moves the key's revision, so that what became of a change whose
    # answer was lost is known: it happened, or it never can.
    SETTLE = "settle"


class IsrChange(NamedTuple):
    """What a compare-and-set shall make of the ISR."""

    # Sorted.
    isr: tuple[Incarnation, ...]
    why: Why
    who: Incarnation
    # What becomes of it; None: it stays as it is.
    assignment: Assignment | None = None


class InFlight(NamedTuple):
    """A compare-and-set that may have happened, or may happen yet."""

    isr: frozenset[Incarnation]
    compared_revision: int
    why: Why = Why.SETTLE


class Progress(NamedTuple):
    """What a replica has acknowledged in this epoch."""

    node: str
    # Exclusive.
    synced_end: int
    # When it last had everything that the leader had synced at its acknowledgement before.
    caught_up_ms: int
    # Of its last acknowledgement; and what the leader had synced then.
    heard_ms: int
    leader_end: int


class Lag(NamedTuple):
    """How far behind."""

    offsets: int
    time_ms: int


class InSync:
    """See the module. Times are of the leader's monotonic clock, milliseconds."""

    def __init__(
        self,
        *,
        own: Incarnation,
        node: str,
        epoch: int,
        epoch_start: int,
        isr: Iterable[Incarnation],
        revision: int,
        min_insync_replicas: int,
        replica_lag_ms: int,
        now_ms: int,
        inherited: int = 0,
        assignment: Assignment | None = None,
    ) -> None:
        """`isr` as granted with `epoch`, at that `revision` of the partition's key; `epoch_start`
        is the journal offset of EPOCH_START, `inherited` a lower bound of the HW. `assignment`:
        None where every node may have a replica."""
        assert min_insync_replicas > 0, "a record is on one node at least"
        self.epoch = epoch
        self.isr = frozenset(isr)
        self.revision = revision
        assert own in self.isr, "only members of the ISR are elected"
        self._own = own
        self._own_node = node
        self._own_end = 0
        self._epoch_start = epoch_start
        self._wanted_insync_replicas = min_insync_replicas
        self._assignment = assignment
        # Members that a move dropped, until they begin a new dialog.
        self._dismissed: frozenset[Incarnation] = frozenset()
        self._replica_lag_ms = replica_lag_ms
        # A member that has said nothing yet has this long to do so.
        self._began_ms = now_ms
        self._progress: dict[Incarnation, Progress] = {}
        # The incarnation under which each node opened its latest dialog.
        self._newest: dict[str, Incarnation] = {}
        # Since when those have no dialog that had one; of the rest, since the epoch began.
        self._silent_since_ms: dict[Incarnation, int] = {}
        # Those that have a dialog.
        self._speaking: set[Incarnation] = set()
        # Of these, those that acknowledged in it all that the leader has synced.
        self._level: dict[Incarnation, None] = {}
        self._in_flight: tuple[InFlight, ...] = ()
        self._hw = HighWatermark(
            own=own, counted=self.isr, epoch_start=epoch_start, inherited=inherited
        )
        # Too few nodes are in the ISR, as far as is known: the HW stands.
        self._is_held = True
        self._count_anew()

    # ------------------------------------------------------------------------------ what it shows

    @property
    def high_watermark(self) -> int:
        """Exclusive: everything below is durable and may be seen."""
        return self._hw.value

    @property
    def passed_epoch_start(self) -> bool:
        """True once the leader may answer, owe and serve."""
        return self._hw.passed_epoch_start

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        return self._in_flight

    @property
    def min_insync_replicas(self) -> int:
        """What is wanted, as far as the partition has replicas."""
        if self._assignment is None:
            return self._wanted_insync_replicas
        return min(self._wanted_insync_replicas, self._assignment.replication_factor)

    def is_assigned(self, node: str) -> bool:
        """Whether it has a replica of this partition."""
        return self._assignment is None or node in self._assignment.replicas

    def hears(self, incarnation: Incarnation, *, node: str) -> bool:
        """Whether what it acknowledges counts."""
        return self.is_assigned(node) and incarnation not in self._dismissed

    @property
    def counted(self) -> frozenset[Incarnation]:
        """Those whose acknowledgements the HW waits for."""
        return self.isr.union({self._own}, *(change.isr for change in self._in_flight))

    def progress(self, incarnation: Incarnation) -> Progress | None:
        """None: it has acknowledged nothing in this epoch."""
        return self._progress.get(incarnation)

    def followers(self) -> Mapping[Incarnation, Progress]:
        """Those that acknowledged something in this epoch."""
        return self._progress

    def has_dialog(self, incarnation: Incarnation) -> bool:
        """Without one it acknowledges nothing."""
        return incarnation in self._speaking

    def keeps_up(self, incarnation: Incarnation, now_ms: int) -> bool:
        """Whether it is in sync or not."""
        return not self._lags(incarnation, now_ms)

    def has_enough(self, now_ms: int) -> bool:
        """Whether `min_insync_replicas` nodes of the ISR keep up. Where they do not, writes are
        refused before anything is appended (NOT_ENOUGH_REPLICAS)."""
        keeping_up = [member for member in self.isr if not self._lags(member, now_ms)]
        return self._nodes(keeping_up) >= self.min_insync_replicas

    @property
    def replication_factor(self) -> int | None:
        """As etcd showed it last; None where it did not say."""
        return None if self._assignment is None else self._assignment.replication_factor

    @property
    def nodes_in_sync(self) -> int:
        """Of those that have said where they are."""
        return self._nodes(self.isr)

    def lag(self, now_ms: int) -> Lag:
        """Of the follower that is farthest behind."""
        following = [
            one for who, one in self._progress.items() if self._newest.get(one.node) == who
        ]
        return Lag(
            max((max(0, self._own_end - one.synced_end) for one in following), default=0),
            max((self._late_ms(one, now_ms) for one in following), default=0),
        )

    def _late_ms(self, one: Progress, now_ms: int) -> int:
        return 0 if one.synced_end >= self._own_end else now_ms - one.caught_up_ms

    def has_others(self, now_ms: int) -> bool:
        """Whether somebody else in sync keeps up: he has all that was acknowledged."""
        return any(member != self._own and not self._lags(member, now_ms) for member in self.isr)

    # ---------------------------------------------------------------------------- what it is told

    def synced(self, end: int, *, now_ms: int) -> bool:
        """The leader has synced everything below `end` itself. True where the HW moved."""
        if end > self._own_end:
            self._own_end = end
            if self._level:
                self._was_level(tuple(self._level), now_ms)
        return not self._is_held and self._hw.synced(self._own, end)

    def _was_level(self, incarnations: Iterable[Incarnation], now_ms: int) -> None:
        """Until now."""
        for incarnation in incarnations:
            if incarnation in self._level:
                del self._level[incarnation]
                before = self._progress[incarnation]
                caught_up_ms = max(before.caught_up_ms, now_ms)
                self._progress[incarnation] = before._replace(caught_up_ms=caught_up_ms)

    def opened(self, incarnation: Incarnation, *, node: str, now_ms: int) -> None:
        """A follower began its dialog: what that node was before, it is no more."""
        self._was_level([incarnation], now_ms)
        self._dismissed -= {incarnation}
        self._newest[node] = incarnation
        self._speaking.add(incarnation)

    def closed(self, incarnation: Incarnation, *, now_ms: int) -> None:
        """Its dialog is over, and it has no other one."""
        self._was_level([incarnation], now_ms)
        self._speaking.discard(incarnation)
        self._silent_since_ms[incarnation] = now_ms

    def acknowledged(
        self, incarnation: Incarnation, *, node: str, epoch: int, synced_end: int, now_ms: int
    ) -> bool:
        """A follower has synced everything below `synced_end`, as it said in `epoch`. True where
        the HW moved."""
        if epoch != self.epoch or node == self._own_node:
            return False
        if not self.hears(incarnation, node=node):
            return False
        before = self._progress.get(incarnation)
        if before is None:
            self._newest.setdefault(node, incarnation)
            self._speaking.add(incarnation)
            before = Progress(node, 0, self._began_ms, self._began_ms, self._own_end)
        end = max(before.synced_end, synced_end)
        caught_up_ms = before.caught_up_ms
        if end >= self._own_end:
            caught_up_ms = now_ms
        elif end >= before.leader_end:
            # It has what there was when it spoke last: under steady load nobody ever has more.
            caught_up_ms = before.heard_ms
        self._progress[incarnation] = Progress(node, end, caught_up_ms, now_ms, self._own_end)
        if end >= self._own_end and incarnation in self._speaking:
            self._level[incarnation] = None
        if self._is_held:
            return self._count_anew()
        return self._hw.synced(incarnation, end)

    def change_sent(self, change: IsrChange, *, compared_revision: int) -> None:
        """A compare-and-set leaves for etcd in this very turn."""
        assert compared_revision == self.revision, "a change is made of what was seen last"
        self._in_flight += (InFlight(frozenset(change.isr), compared_revision, change.why),)
        self._count_anew()

    def state_seen(
        self, revision: int, isr: Iterable[Incarnation], assignment: Assignment | None = None
    ) -> bool:
        """What etcd showed of the partition, in this epoch: a view, a read, or the answer to a
        compare-and-set. `assignment`: None where it is as it was. True where the HW moved."""
        if revision <= self.revision:
            return False
        self.revision = revision
        before, self.isr = self.isr, frozenset(isr)
        self._assignment = assignment or self._assignment
        if any(change.why is Why.MOVED for change in self._in_flight):
            # Also where they are replicas again by now: their nodes may have put them aside.
            known = before.union(self._speaking, self._progress, self._newest.values())
            self._dismiss(known - self.isr)
        self._in_flight = tuple(
            change for change in self._in_flight if change.compared_revision >= revision
        )
        return self._count_anew()

    @property
    def is_at_rest(self) -> bool:
        """No change of the ISR can become due before somebody says something: etcd, or a follower
        that begins or ends a dialog, or acknowledges. All that are in sync have everything, and
        all that have a dialog are in sync."""
        if self._in_flight or self._is_held:
            return False
        if self._assignment is not None and self._assignment.target:
            return False
        return self._level.keys() == self._speaking == self.isr - {self._own}

    # -------------------------------------------------------------------------- what it asks for

    def next_change(
        self,
        now_ms: int,
        leaving: Collection[str] = (),
        living: Collection[str] | None = None,
    ) -> IsrChange | None:
        """The change of the ISR to ask etcd for, comparing `revision`; None: nothing is to be done.
        `leaving`: nodes that are about to stop; `living`: nodes that have a process, None where
        nobody says so. To be asked again whenever no compare-and-set waits for its answer. A change
        after which this node has no replica is not to be sent while it leads."""
        if (moved := self._end_of_move(now_ms)) is not None:
            return moved
        for incarnation in sorted(self._progress.keys() - self.isr):
            is_leaving = self._progress[incarnation].node in leaving
            if not is_leaving and self._may_join(incarnation, now_ms):
                return self._change(self.isr | {incarnation}, Why.JOIN, incarnation)
        for incarnation, why in self._departures(now_ms, leaving, living):
            rest = self.isr - {incarnation}
            if self._nodes(rest) >= self.min_insync_replicas:
                return self._change(rest, why, incarnation)
        if self._in_flight:
            return self._change(self.isr, Why.SETTLE, self._own)
        return None

    def keeping_up(self, now_ms: int) -> frozenset[str]:
        """Nodes of other members of the ISR that could take over: nothing acknowledged is missing
        there, and they were heard of."""
        return frozenset(
            self._progress[member].node
            for member in self.isr - {self._own}
            if member in self._progress and not self._lags(member, now_ms)
        )

    def _departures(
        self, now_ms: int, leaving: Collection[str], living: Collection[str] | None
    ) -> Iterable[tuple[Incarnation, Why]]:
        """Those who acknowledge nothing come first: who leaves still does."""
        others = sorted(self.isr - {self._own})
        are_silent_gone = self._are_silent_gone(living)
        for incarnation in others:
            if are_silent_gone and incarnation not in self._speaking:
                yield incarnation, Why.GONE
            elif (why := self._why_leave(incarnation, now_ms)) is not None:
                yield incarnation, why
        for incarnation in others:
            progress = self._progress.get(incarnation)
            if progress is not None and progress.node in leaving:
                yield incarnation, Why.LEAVES

    def _are_silent_gone(self, living: Collection[str] | None) -> bool:
        """Whether no member without a dialog can begin one now. On which node a member is it says
        itself: one that has not said so is on a node that has no dialog."""
        if living is None or self._assignment is None:
            return False
        speaking = {node for node, newest in self._newest.items() if newest in self._speaking}
        silent = set(self._assignment.replicas) - speaking - {self._own_node}
        return silent.isdisjoint(living)

    def _may_join(self, incarnation: Incarnation, now_ms: int) -> bool:
        progress = self._progress[incarnation]
        return (
            # Who has no dialog will acknowledge nothing more.
            incarnation in self._speaking
            and self._newest[progress.node] == incarnation
            and self.is_assigned(progress.node)
            and progress.synced_end > self._epoch_start
            and progress.synced_end >= self._hw.value
            and not self._lags(incarnation, now_ms)
        )

    def _end_of_move(self, now_ms: int) -> IsrChange | None:
        """None: nothing is moved, or not all are there."""
        if self._assignment is None or not self._assignment.target:
            return None
        target = self._assignment.target
        there = {self._newest.get(node) for node in target if node != self._own_node}
        if self._own_node in target:
            there.add(self._own)
        isr = {member for member in there if member in self.isr and not self._lags(member, now_ms)}
        if len(isr) < len(target):
            return None
        return IsrChange(tuple(sorted(isr)), Why.MOVED, self._own, Assignment(target))

    def _dismiss(self, incarnations: frozenset[Incarnation]) -> None:
        """They are out, and what they acknowledged is forgotten."""
        self._dismissed |= incarnations
        for incarnation in incarnations:
            self._level.pop(incarnation, None)
            progress = self._progress.pop(incarnation, None)
            if progress is not None and self._newest[progress.node] == incarnation:
                del self._newest[progress.node]

    def _why_leave(self, incarnation: Incarnation, now_ms: int) -> Why | None:
        progress = self._progress.get(incarnation)
        if progress is not None:
            newest = self._newest[progress.node]
            if newest != incarnation and newest in self.isr:
                return Why.REPLACED
        return Why.LAGS if self._lags(incarnation, now_ms) else None

    def _lags(self, incarnation: Incarnation, now_ms: int) -> bool:
        if incarnation == self._own or incarnation in self._level:
            return False
        if incarnation not in self._speaking:
            since_ms = self._silent_since_ms.get(incarnation, self._began_ms)
            if now_ms - since_ms > min(REPLICA_SILENT_MS, self._replica_lag_ms):
                return True
        progress = self._progress.get(incarnation)
        caught_up_ms = self._began_ms if progress is None else progress.caught_up_ms
        return now_ms - caught_up_ms > self._replica_lag_ms

    def _change(self, isr: Iterable[Incarnation], why: Why, who: Incarnation) -> IsrChange:
        return IsrChange(tuple(sorted(isr)), why, who)

    # ----------------------------------------------------------------------------- what is counted

    def _count_anew(self) -> bool:
        self._is_held = self._nodes(self.isr) < self.min_insync_replicas
        if self._is_held:
            return False
        return self._hw.recount({member: self._end_of(member) for member in self.counted})

    def _end_of(self, incarnation: Incarnation) -> int:
        if incarnation == self._own:
            return self._own_end
        progress = self._progress.get(incarnation)
        return 0 if progress is None else progress.synced_end

    def _nodes(self, incarnations: Iterable[Incarnation]) -> int:
        """On how many nodes they are known to be."""
        nodes = {
            self._own_node if member == self._own else self._progress[member].node
            for member in incarnations
            if member == self._own or member in self._progress
        }
        return len(nodes)
