"""Elections: this process stands for, wins and loses partitions
(docs/leadership.md).

The rules are in `standing`; this file carries them out, `openings` opens replicas beside it:

    view changes ──► what we lead is judged at once ──► on_deposed, on_deleted
                 └─► the round (a task): prepare replicas that may stand, vote, adopt, resign
    lease regained ─► `recheck`: what we lead is read from etcd before the lease counts as valid

Invariants:
  * An epoch begins with a successful compare-and-set, or with a linearizable read that names this
    boot; both are void if a lease was lost between asking and hearing the answer.
  * Who left an epoch never leads it again, even while etcd names it: it resigns until etcd shows
    somebody else, or nobody.

Left out: hints about the longest log, and the ISR's changes: both come with followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, assert_never

import msgspec

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.core.roles import role_of
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd.directory import ClusterView, Entry
from oncelog_server.runtime.etcd.keys import (
    PARTITIONS,
    TOPICS,
    LeaderValue,
    PartitionState,
    decode_partition,
    encode,
    partition_key,
    partition_of_key,
)
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.etcd.refusal import epoch_went_back
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.openings import Openings
from oncelog_server.runtime.leadership.rules import (
    Bid,
    Fitness,
    Prepared,
    Seat,
    Verdict,
    ballots,
    election,
    fitness,
    judge,
    make_bid,
)
from oncelog_server.runtime.leadership.unclean import unclean_bid
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import InvalidArgument, Unavailable, UnknownOutcome

# The round looks again after so long while something is unfinished.
ROUND_RETRY_MS: Final = 200
# Who resigned, or could not open a replica, lets others go first for so long.
STAND_PAUSE_MS: Final = 1_000


class ReplicaHost(Protocol):
    """The process that holds the replicas (runtime/node). The `on_` calls come on the loop; they
    must not block, and an exception out of one ends the process."""

    async def prepare(self, partition: PartitionId) -> Prepared:
        """Opens (or creates) the replica; may be called again. Whatever it raises is reported, and
        asked again later."""
        ...

    def on_elected(self, partition: PartitionId, epoch: int) -> None:
        """Leads from now. `Elections.granted(partition)` is the state that etcd granted; where
        its unclean_epoch is above the journal's last epoch, a control journal skips offsets."""
        ...

    def on_deposed(self, partition: PartitionId) -> None:
        """Leads no more: etcd says so."""
        ...

    def on_deleted(self, partition: PartitionId) -> None:
        """The topic was deleted. Called whether or not it led; not followed by on_deposed."""
        ...


class Elections:
    """One per process. `start` once the view and the membership stand."""

    def __init__(
        self,
        etcd: Etcd,
        view: ClusterView,
        membership: Membership,
        *,
        host: ReplicaHost,
        reporter: Reporter,
        on_fatal: Fatal,
    ) -> None:
        node, boot_id = membership.node, membership.boot_id.hex()
        self._etcd = etcd
        self._view = view
        self._membership = membership
        self._host = host
        self._reporter = reporter
        self._on_fatal = on_fatal
        self._node_id = node.node_id
        self._roles = frozenset(node.roles)
        self._boot = boot_id
        self._self = LeaderValue(node.node_id, boot_id, node.host, node.port)
        self._seats: dict[PartitionId, Seat] = {}
        self._wake = asyncio.Event()
        self._openings = Openings(
            host.prepare, reporter, ended=self._wake.set, pause_s=STAND_PAUSE_MS / 1000
        )
        self._task: asyncio.Task[None] | None = None
        self._withdrawn = False

    # ------------------------------------------------------------------------------ what it says

    def granted(self, partition: PartitionId) -> PartitionState | None:
        """The state of the epoch that this process leads; None where it does not lead."""
        seat = self._seats.get(partition)
        return seat.granted if seat is not None and seat.led_epoch else None

    def led(self) -> Sequence[PartitionId]:
        return sorted(p for p, seat in self._seats.items() if seat.led_epoch)

    # ----------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        self._view.on_change(self._view_changed)
        self._membership.on_regained(self.recheck)
        self._task = vital.spawn(self._run(), self._on_fatal)

    def withdraw(self) -> None:
        """Before a clean stop: stands no more, leads nothing. The caller has stopped
        acknowledging. Others see it when Membership.stop gives the lease back."""
        self._withdrawn = True
        for partition in self.led():
            self._seats[partition].leave()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._openings.stop()

    # ------------------------------------------------------------------------------ giving it up

    async def resign(self, partition: PartitionId) -> None:
        """Never leads this epoch again; returns when etcd shows it. The caller has stopped
        acknowledging. After STAND_PAUSE_MS this process may stand for a later epoch."""
        seat = self._seats.get(partition)
        if seat is None or not seat.led_epoch:
            return
        epoch = seat.leave()
        # Should this call be cancelled, the round finishes it: etcd names us in an epoch we left.
        self._wake.set()
        while True:
            try:
                await self._try_resign(partition, epoch)
                return
            except EtcdUnavailable:
                await asyncio.sleep(ROUND_RETRY_MS / 1000)

    async def _try_resign(self, partition: PartitionId, epoch: int) -> None:
        """Empties `leader` where etcd names this boot in `epoch`. Raises EtcdUnavailable."""
        key = partition_key(partition)
        if (seat := self._seats.get(partition)) is not None:
            seat.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
        found, _ = await self._etcd.get(key)
        if found is None:
            return
        state = decode_partition(found.value)
        if state.leader is None or state.leader.boot_id != self._boot or state.epoch != epoch:
            return
        empty = msgspec.structs.replace(state, leader=None)
        result = await self._etcd.txn([Compare(key, found.mod_revision)], [Put(key, encode(empty))])
        if not result.succeeded:
            raise EtcdUnavailable(f"{key} changed under a resignation; it is read again")
        self._reporter.event("resigned", partition=str(partition), epoch=epoch)

    def _step_down(self, partition: PartitionId, seat: Seat) -> None:
        epoch = seat.leave()
        self._reporter.event("deposed", partition=str(partition), epoch=epoch)
        self._host.on_deposed(partition)

    # ----------------------------------------------------------------------------- what etcd says

    def _view_changed(self, changed: frozenset[str]) -> None:
        """What we lead is judged in the turn that shows a change; standing waits for the round."""
        if any(key.startswith(TOPICS) for key in changed):
            touched = set(self._seats)
        else:
            touched = {partition_of_key(key) for key in changed if key.startswith(PARTITIONS)}
        for partition in sorted(touched & self._seats.keys()):
            seat = self._seats[partition]
            entry = self._view.entry(partition)
            if entry is None or self._node_id not in entry.state.replicas:
                self._vanish(partition, seat, entry)
            elif seat.led_epoch and self._judge(seat, entry) is Verdict.STEP_DOWN:
                self._step_down(partition, seat)
        self._wake.set()

    def _vanish(self, partition: PartitionId, seat: Seat, entry: Entry | None) -> None:
        if entry is not None:
            # Assigned to others: it is nobody's loss that we keep the seat.
            if seat.led_epoch:
                self._step_down(partition, seat)
            return
        seat.leave()
        del self._seats[partition]
        self._reporter.event("topic deleted", partition=str(partition))
        self._host.on_deleted(partition)

    async def recheck(self) -> None:
        """After a new lease: what we lead is read from etcd; where it does not name this boot in
        our epoch, we step down. Raises EtcdUnavailable."""
        if not self.led():
            return
        listed, _ = await self._etcd.range(PARTITIONS)
        states = {partition_of_key(kv.key): kv for kv in listed}
        for partition in self.led():
            seat = self._seats[partition]
            kv = states.get(partition)
            state = None if kv is None else decode_partition(kv.value)
            if state is None or not self._names_us(state) or state.epoch != seat.led_epoch:
                self._step_down(partition, seat)
        self._wake.set()

    def _judge(self, seat: Seat, entry: Entry) -> Verdict:
        return judge(
            entry.state,
            entry.mod_revision,
            seat,
            own_boot=self._boot,
            leader_lives=self._view.leader_lives(entry.state),
        )

    def _names_us(self, state: PartitionState) -> bool:
        return state.leader is not None and state.leader.boot_id == self._boot

    # --------------------------------------------------------------------------------- the round

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            unfinished = await self._round()
            try:
                async with asyncio.timeout(ROUND_RETRY_MS / 1000 if unfinished else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _round(self) -> bool:
        """Looks at every partition that this process may lead. True: look again soon."""
        if self._withdrawn:
            return False
        standing: list[tuple[PartitionId, Entry]] = []
        unfinished = False
        for partition in self._view.replicas_on(self._node_id):
            entry = self._view.entry(partition)
            if entry is None or role_of(partition.topic_id) not in self._roles:
                continue
            seat = self._seats.setdefault(partition, Seat())
            verdict = self._judge(seat, entry)
            match verdict:
                case Verdict.LEAD | Verdict.FOLLOW:
                    seat.see(entry.state, entry.mod_revision)
                case Verdict.STAND:
                    seat.see(entry.state, entry.mod_revision)
                    standing.append((partition, entry))
                    unfinished = True
                case Verdict.WAIT:
                    # The view's next change decides, and wakes us.
                    pass
                case Verdict.STEP_DOWN:
                    # Won and lost before the answer to the election was heard.
                    self._step_down(partition, seat)
                    unfinished = True
                case Verdict.REFUSE:
                    self._refuse(partition, entry.state.epoch, seat.seen_epoch)
                case Verdict.RESIGN | Verdict.ADOPT:
                    unfinished = True
                    await self._settle(partition, seat, verdict)
                case _:
                    assert_never(verdict)
        await self._stand(standing)
        return unfinished

    async def _settle(self, partition: PartitionId, seat: Seat, verdict: Verdict) -> None:
        try:
            if verdict is Verdict.RESIGN:
                await self._try_resign(partition, seat.left_epoch)
            else:
                await self._adopt(partition, seat)
        except EtcdUnavailable:
            return

    async def _adopt(self, partition: PartitionId, seat: Seat) -> None:
        """etcd names us in an epoch whose election was never answered: ours after all."""
        if seat.prepared is None:
            self._openings.begin(partition, seat)
            return
        lost = self._membership.lost
        found, _ = await self._etcd.get(partition_key(partition))
        if found is None or lost != self._membership.lost or seat.led_epoch:
            return
        state = decode_partition(found.value)
        fit = seat.prepared.incarnation.hex() in state.isr
        if self._names_us(state) and state.epoch > seat.left_epoch:
            if fit and seat.prepared.last_epoch < state.epoch:
                self._win(partition, seat, state, found.mod_revision)
            else:
                # The replica was replaced meanwhile: this epoch is not for it.
                seat.left_epoch = state.epoch

    async def _stand(self, standing: Sequence[tuple[PartitionId, Entry]]) -> None:
        """Votes for every replica that is ready; starts opening the others."""
        bids = []
        for partition, entry in standing:
            seat = self._seats[partition]
            if self._now() < seat.stand_after_s or not self._membership.valid():
                continue
            if seat.prepared is None:
                self._openings.begin(partition, seat)
            elif self._may_win(partition, seat, entry):
                bids.append(
                    make_bid(
                        partition,
                        entry.state,
                        entry.mod_revision,
                        leader=self._self,
                        incarnation=seat.prepared.incarnation,
                    )
                )
        try:
            for ballot in ballots(bids):
                if not await self._vote(ballot) and len(ballot) > 1:
                    for bid in ballot:
                        await self._vote([bid])
        except EtcdUnavailable as error:
            # Perhaps won: the view will show it (ADOPT).
            self._reporter.event("election not answered", error=str(error))

    def _may_win(self, partition: PartitionId, seat: Seat, entry: Entry) -> bool:
        assert seat.prepared is not None
        fit = fitness(entry.state, seat.prepared)
        if fit is Fitness.FIT:
            return True
        if fit is Fitness.AHEAD_OF_ETCD:
            self._refuse(partition, entry.state.epoch, seat.prepared.last_epoch)
        elif seat.reported_revision != entry.mod_revision:
            self._reporter.event(
                "partition offline",
                level="error",
                partition=str(partition),
                why="its in-sync replica is lost or was damaged; the replica here lacks records",
                do=f"bring the old data directory back, or accept the loss: oncelog cluster "
                f"unclean-elect (partition {partition.number}, node {self._node_id})",
            )
            seat.reported_revision = entry.mod_revision
        # Opened again at the next look: somebody may bring the replica back.
        seat.prepared = None
        seat.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
        return False

    async def _vote(self, bids: Sequence[Bid]) -> bool:
        """One election. Raises EtcdUnavailable where its result is unknown."""
        lost = self._membership.lost
        compares, puts = election(bids, own_boot=self._boot)
        result = await self._etcd.txn(compares, puts)
        if not result.succeeded:
            return False
        if lost != self._membership.lost:
            # Our key went and came between; others may have won since. The view tells.
            return True
        for bid in bids:
            seat = self._seats.get(bid.partition)
            if seat is None or self._withdrawn:
                # The lease's end gives it to somebody else.
                continue
            if bid.new.epoch > max(seat.led_epoch, seat.left_epoch):
                self._win(bid.partition, seat, bid.new, result.revision)
        return True

    def _win(
        self, partition: PartitionId, seat: Seat, state: PartitionState, revision: int
    ) -> None:
        seat.win(state, revision)
        self._reporter.event("elected", partition=str(partition), epoch=state.epoch)
        self._host.on_elected(partition, state.epoch)
        # The view may have gone past this state already.
        self._wake.set()

    # ------------------------------------------------------------------------------- by operators

    async def unclean_elect(self, partition: PartitionId, node_id: str) -> int:
        """Leads although acknowledged records may be lost (one replica); the new epoch. Raises
        InvalidArgument, UnknownPartition, Unavailable, UnknownOutcome."""
        if node_id != self._node_id:
            raise InvalidArgument(f"this is node {self._node_id}: ask node {node_id} itself")
        try:
            bid = await unclean_bid(
                partition, self._etcd, leader=self._self, prepare=self._host.prepare
            )
        except EtcdUnavailable as error:
            raise Unavailable(f"nothing was changed: {error}") from error
        seat = self._seats.setdefault(partition, Seat())
        try:
            won = await self._vote([bid])
        except EtcdUnavailable as error:
            raise UnknownOutcome(f"etcd did not answer the election: {error}") from error
        if not won:
            raise Unavailable("the partition changed meanwhile, or its leader lives; look again")
        if seat.led_epoch != bid.new.epoch:
            raise UnknownOutcome("this process lost its lease meanwhile; describe the partition")
        return bid.new.epoch

    def _refuse(self, partition: PartitionId, epoch: int, known: int) -> None:
        error = epoch_went_back(partition, epoch, known=known)
        self._reporter.event(
            "etcd refused", level="error", partition=str(partition), error=str(error)
        )
        self._on_fatal(error)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
