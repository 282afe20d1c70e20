"""This process stands for partitions that nobody leads, and wins them (docs/leadership.md). The
rules are in `rules`.

Invariants:
  * an epoch begins with a successful compare-and-set, or with a linearizable read that names this
    boot; both are void if a lease was lost between asking and hearing the answer;
  * of what was won with a replica that may stand no more when the answer is heard, nothing is led:
    it is resigned (I29).
"""

from __future__ import annotations

from collections.abc import Sequence

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.core.roles import role_of
from oncelog_server.runtime.etcd.cluster_view import ClusterView, Entry
from oncelog_server.runtime.etcd.keys import PartitionState, decode_partition, partition_key
from oncelog_server.runtime.etcd.port import Etcd, EtcdUnavailable
from oncelog_server.runtime.leadership.held import Held
from oncelog_server.runtime.leadership.host import ReplicaHost
from oncelog_server.runtime.leadership.isr import isr_of
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.preference import pause_ms, staying
from oncelog_server.runtime.leadership.rounds import Rounds
from oncelog_server.runtime.leadership.rules import (
    Bid,
    Fitness,
    History,
    ballots,
    election,
    fitness,
    make_bid,
)
from oncelog_server.runtime.leadership.unclean import UncleanElection, unclean_bid
from oncelog_server.runtime.target import Candidate, Lead
from oncelogpb.errors import InvalidArgument, Unavailable, UnknownOutcome


class Standing:
    """Of one process."""

    def __init__(
        self,
        etcd: Etcd,
        view: ClusterView,
        membership: Membership,
        held: Held,
        rounds: Rounds,
        *,
        host: ReplicaHost,
        reporter: Reporter,
    ) -> None:
        self._etcd = etcd
        self._view = view
        self._membership = membership
        self._held = held
        self._rounds = rounds
        self._host = host
        self._reporter = reporter
        self._roles = frozenset(membership.node.roles)

    async def adopt(self, partition: PartitionId, history: History) -> None:
        """etcd names us in an epoch whose election was never answered: ours after all."""
        lost = self._membership.lost
        try:
            found, _ = await self._etcd.get(partition_key(partition))
        except EtcdUnavailable:
            return
        if found is None or lost != self._membership.lost or history.led_epoch:
            return
        state = decode_partition(found.value)
        if self._held.names_us(state) and state.epoch > history.left_epoch:
            self._granted(partition, history, state, found.mod_revision)

    async def stand(self, standing: Sequence[tuple[PartitionId, Entry]]) -> None:
        """Votes for every replica that may stand."""
        bids = []
        others = {role: staying(self._view.nodes(), role) for role in self._roles}
        now_s = self._held.now_s()
        for partition, entry in standing if self._membership.valid() else ():
            history = self._held.histories[partition]
            if now_s < history.stand_after_s:
                continue
            pause = pause_ms(entry.state, self._held.node_id, others[role_of(partition.topic_id)])
            if now_s < (history.vacant_since_s or 0.0) + pause / 1000:
                # Those before it in the list of replicas go first.
                continue
            candidate = self._host.candidate(partition)
            if candidate is not None and self._may_win(partition, history, entry, candidate):
                bids.append(
                    make_bid(
                        partition,
                        entry.state,
                        entry.mod_revision,
                        leader=self._held.as_leader,
                        incarnation=candidate.incarnation,
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

    def _may_win(
        self, partition: PartitionId, history: History, entry: Entry, candidate: Candidate
    ) -> bool:
        fit = fitness(entry.state, candidate)
        if fit is Fitness.FIT:
            return True
        if fit is Fitness.AHEAD_OF_ETCD:
            self._held.refuse(partition, entry.state.epoch, candidate.last_epoch)
        elif history.reported_revision != entry.mod_revision:
            self._reporter.event(
                "partition offline",
                level="error",
                partition=str(partition),
                why="its in-sync replica is lost or was damaged; the replica here lacks records",
                do="bring the old data directory back; where it is gone for good, `oncelog cluster "
                "unclean-elect` says what each replica has, and lets one lead",
            )
            history.reported_revision = entry.mod_revision
        self._held.pause(history)
        return False

    async def _vote(self, bids: Sequence[Bid]) -> bool:
        """One election. Raises EtcdUnavailable where its result is unknown."""
        lost = self._membership.lost
        compares, puts = election(bids, own_boot=self._held.boot_id)
        result = await self._etcd.txn(compares, puts)
        if not result.succeeded:
            return False
        if lost != self._membership.lost:
            # Our key went and came between; others may have won since. The view tells.
            return True
        for bid in bids:
            history = self._held.histories.get(bid.partition)
            if history is None:
                # Deleted meanwhile.
                continue
            if bid.new.epoch > max(history.led_epoch, history.left_epoch):
                self._granted(bid.partition, history, bid.new, result.revision)
        return True

    def _granted(
        self, partition: PartitionId, history: History, state: PartitionState, revision: int
    ) -> None:
        """While etcd was asked, a write of the replica may have failed, or damage was found, or it
        was replaced: then it cannot lead, and those who can may not stand while etcd names us."""
        candidate = self._host.candidate(partition)
        can_lead = (
            candidate is not None
            and candidate.incarnation.hex() in state.isr
            and candidate.last_epoch < state.epoch
        )
        if can_lead:
            self._win(partition, history, state, revision)
            return
        history.left_epoch = state.epoch
        self._reporter.event(
            "elected, and cannot lead any more",
            level="warning",
            partition=str(partition),
            epoch=state.epoch,
        )
        # It resigns.
        self._rounds.call([partition])

    def _win(
        self, partition: PartitionId, history: History, state: PartitionState, revision: int
    ) -> None:
        history.win(state, revision)
        self._reporter.event("elected", partition=str(partition), epoch=state.epoch)
        isr = isr_of(state, revision)
        assert isr.assignment is not None, "etcd says it"
        granted = Lead(state.epoch, state.unclean_epoch, isr, isr.assignment.replication_factor)
        self._host.aim(partition, granted)
        # The view may have gone past this state already.
        self._rounds.call([partition])

    # ------------------------------------------------------------------------------- by operators

    async def unclean_elect(self, asked: UncleanElection) -> tuple[int, int]:
        """Leads although acknowledged records may be lost, alone in sync; the new epoch, and the
        synced end that is kept. Raises InvalidArgument, UnknownPartition, Unavailable,
        UnknownOutcome."""
        partition = asked.partition
        if asked.node_id != self._held.node_id:
            raise InvalidArgument(
                f"this is node {self._held.node_id}: ask node {asked.node_id} itself"
            )
        try:
            bid, kept_end = await unclean_bid(
                asked, self._etcd, leader=self._held.as_leader, opened=self._host.opened
            )
        except EtcdUnavailable as error:
            raise Unavailable(f"nothing was changed: {error}") from error
        history = self._held.history(partition)
        # An older read, which says that it was moved elsewhere, counts no more.
        history.see(bid.old, bid.mod_revision)
        asked.report_asked(self._reporter, epoch=bid.new.epoch, kept_end=kept_end)
        try:
            won = await self._vote([bid])
        except EtcdUnavailable as error:
            raise UnknownOutcome(f"etcd did not answer the election: {error}") from error
        if not won:
            raise Unavailable("the partition changed meanwhile, or its leader lives; look again")
        if history.led_epoch != bid.new.epoch:
            raise UnknownOutcome(
                "this process lost its lease meanwhile, or its replica cannot lead any more; "
                "describe the partition"
            )
        asked.report(self._reporter, epoch=bid.new.epoch, kept_end=kept_end)
        return bid.new.epoch, kept_end
