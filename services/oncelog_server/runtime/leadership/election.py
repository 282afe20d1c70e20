"""Elections: this process stands for, wins and loses partitions
(docs/leadership.md).

The rules are in `rules`; this file carries them out. What comes of it for a replica is its *target*
(`runtime/target`), said in the very turn in which etcd's word is heard:

    view changes ──► what we lead is judged at once ──► aim(stand by), aim(leave)
                 └─► the round (a task): vote, adopt, resign ──► aim(lead), aim(follow)
    lease regained ─► `recheck`: what we lead is read from etcd before the lease counts as valid

Invariants:
  * An epoch begins with a successful compare-and-set, or with a linearizable read that names this
    boot; both are void if a lease was lost between asking and hearing the answer.
  * Who left an epoch never leads it again, even while etcd names it: it resigns until etcd shows
    somebody else, or nobody;
  * nobody is followed before the partition's key was read, linearizably, under the lease that this
    process has: its own log is no witness, an EPOCH_START that it followed may be lost;
  * a replica that was moved elsewhere is put aside after it stopped acknowledging, and a
    linearizable read after that has confirmed it: else it might be wanted again, and counted.

Left out: hints about the longest log; changes of the ISR are asked for by its leader (`isr`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.core.roles import role_of
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd.cluster_view import ClusterView, Entry
from oncelog_server.runtime.etcd.keys import (
    PARTITIONS,
    TOPICS,
    TXN_KEYS_MAX,
    LeaderValue,
    PartitionState,
    address_of,
    decode_partition,
    encode,
    partition_key,
    partition_of_key,
)
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.etcd.refusal import epoch_went_back
from oncelog_server.runtime.leadership.host import ReplicaHost
from oncelog_server.runtime.leadership.isr import change_isr, isr_of
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.preference import pause_ms, staying
from oncelog_server.runtime.leadership.rounds import Rounds
from oncelog_server.runtime.leadership.rules import (
    Bid,
    Fitness,
    History,
    Ruling,
    ballots,
    election,
    fitness,
    judge,
    make_bid,
    resignation,
)
from oncelog_server.runtime.leadership.unclean import UncleanElection, unclean_bid
from oncelog_server.runtime.target import (
    Assignment,
    Candidate,
    Follow,
    Lead,
    Leave,
    StandBy,
)
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import InvalidArgument, Unavailable, UnknownOutcome

# The round looks again after so long while something is unfinished.
ROUND_RETRY_MS: Final = 200
# Who resigned, or may not win, lets others go first for so long.
STAND_PAUSE_MS: Final = 1_000


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
        self._histories: dict[PartitionId, History] = {}
        # False from `withdraw` on.
        self._stands = True
        # Of which the view says that they were moved elsewhere; nothing is acknowledged for them.
        self._moved_away: set[PartitionId] = set()
        self._rounds = Rounds()
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------ what it says

    def led_epoch(self, partition: PartitionId) -> int:
        """The epoch that this process leads; 0 where it does not."""
        history = self._histories.get(partition)
        return 0 if history is None else history.led_epoch

    def led(self) -> Sequence[PartitionId]:
        return sorted(p for p, history in self._histories.items() if history.led_epoch)

    # ----------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        self._view.on_change(self._view_changed)
        self._membership.on_regained(self.recheck)
        self._task = vital.spawn(self._run(), self._on_fatal)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_again(self) -> None:
        """A replica may stand now."""
        self._rounds.call()

    # ------------------------------------------------------------------------------ giving it up

    async def resign(self, partition: PartitionId) -> None:
        """Never leads this epoch again; returns when etcd shows it. The caller has stopped
        acknowledging. After STAND_PAUSE_MS this process may stand for a later epoch."""
        history = self._histories.get(partition)
        if history is None or not history.led_epoch:
            return
        epoch = history.leave()
        self._host.aim(partition, StandBy())
        # Should this call be cancelled, the round finishes it: etcd names us in an epoch we left.
        self._rounds.call()
        while True:
            try:
                await self._try_resign(partition, epoch)
                return
            except EtcdUnavailable:
                await asyncio.sleep(ROUND_RETRY_MS / 1000)

    def withdraw(self) -> None:
        """Stands in no election any more; what it leads, it leads, and it follows others."""
        self._stands = False

    def hand_over(self, partitions: Sequence[PartitionId]) -> None:
        """Leads these no more, from this very turn; the round says so to etcd, many at once. Their
        replicas follow whoever is elected. This process stands again after STAND_PAUSE_MS."""
        for partition in partitions:
            history = self._histories.get(partition)
            if history is not None and history.led_epoch:
                history.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
                history.leave()
                self._host.aim(partition, StandBy())
        self._rounds.call()

    async def _resign_all(self, resigned: Sequence[tuple[PartitionId, Entry]]) -> None:
        """Of epochs that this process left. What changed meanwhile is resigned one by one."""
        for start in range(0, len(resigned), TXN_KEYS_MAX):
            batch = resigned[start : start + TXN_KEYS_MAX]
            compares, puts = resignation([(p, *entry) for p, entry in batch])
            try:
                if (await self._etcd.txn(compares, puts)).succeeded:
                    for partition, entry in batch:
                        self._resigned(partition, entry.state.epoch)
                    continue
                for partition, entry in batch:
                    await self._try_resign(partition, entry.state.epoch)
            except EtcdUnavailable:
                # The round looks again.
                return

    def _resigned(self, partition: PartitionId, epoch: int) -> None:
        if (history := self._histories.get(partition)) is not None:
            history.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
        self._reporter.event("resigned", partition=str(partition), epoch=epoch)

    async def _try_resign(self, partition: PartitionId, epoch: int) -> None:
        """Empties `leader` where etcd names this boot in `epoch`. Raises EtcdUnavailable."""
        key = partition_key(partition)
        if (history := self._histories.get(partition)) is not None:
            history.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
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
        self._resigned(partition, epoch)

    async def end_move(
        self,
        partition: PartitionId,
        epoch: int,
        *,
        members: Sequence[Incarnation],
        assignment: Assignment,
        compared_revision: int,
    ) -> None:
        """The end of a move after which this process has no replica. In the turn in which this is
        run it stops answering; then etcd is asked. Where that does not work, it resigns, and the
        next leader ends the move."""
        history = self._histories.get(partition)
        if history is None or history.led_epoch != epoch:
            return
        history.leave()
        history.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
        self._host.aim(partition, StandBy())
        seen = await change_isr(
            self._etcd,
            partition,
            own_boot=self._boot,
            epoch=epoch,
            members=members,
            compared_revision=compared_revision,
            assignment=assignment,
        )
        if seen is not None and seen.assignment == assignment:
            self._reporter.event("handed over", partition=str(partition), epoch=epoch)
        self._rounds.call()

    def _step_down(self, partition: PartitionId, history: History) -> None:
        epoch = history.leave()
        self._reporter.event("deposed", partition=str(partition), epoch=epoch)
        self._host.aim(partition, StandBy())

    # ----------------------------------------------------------------------------- what etcd says

    def _view_changed(self, changed: frozenset[str]) -> None:
        """What we lead is judged in the turn that shows a change; standing waits for the round."""
        if any(key.startswith(TOPICS) for key in changed):
            touched = set(self._histories)
        else:
            touched = {partition_of_key(key) for key in changed if key.startswith(PARTITIONS)}
        for partition in sorted(touched & self._histories.keys()):
            history = self._histories[partition]
            entry = self._view.entry(partition)
            if entry is None or self._node_id not in entry.state.replicas:
                self._vanish(partition, history, entry)
            elif history.led_epoch:
                self._look_at_led(partition, history, entry)
            elif history.follows is not None and history.follows != self._leader(history, entry):
                self._stop_following(partition, history)
        self._rounds.call()

    def _look_at_led(self, partition: PartitionId, history: History, entry: Entry) -> None:
        match self._judge(history, entry):
            case Ruling.STEP_DOWN:
                self._step_down(partition, history)
            case Ruling.LEAD:
                isr = isr_of(entry.state, entry.mod_revision)
                self._host.isr_seen(partition, history.led_epoch, isr)

    def _vanish(self, partition: PartitionId, history: History, entry: Entry | None) -> None:
        if entry is not None:
            # Its replicas were moved to other nodes. They may be moved back: the epochs that were
            # seen and left here are remembered.
            if history.led_epoch:
                self._step_down(partition, history)
            elif history.follows is not None:
                self._stop_following(partition, history)
            if not history.is_put_aside:
                self._moved_away.add(partition)
            return
        history.leave()
        del self._histories[partition]
        self._reporter.event("topic deleted", partition=str(partition))
        self._host.aim(partition, Leave())

    # ------------------------------------------------------------------------------ whom we follow

    def _leader(self, history: History, entry: Entry) -> Follow | None:
        """Whom the replica here should follow, as the view tells."""
        address = address_of(entry.state)
        if address is None or self._judge(history, entry) is not Ruling.FOLLOW:
            return None
        return Follow(address)

    def _follow(self, partition: PartitionId, history: History, entry: Entry) -> None:
        leader = self._leader(history, entry)
        if leader is not None and leader != history.follows:
            history.follows = leader
            self._host.aim(partition, leader)

    def _stop_following(self, partition: PartitionId, history: History) -> None:
        history.follows = None
        self._host.aim(partition, StandBy())

    async def _read_keys(self) -> None:
        """Of all partitions with a replica here: what the view shows may be older than what a log
        here has seen, and lost. Who leads now is judged by the next round."""
        lost = self._membership.lost
        try:
            listed, _ = await self._etcd.range(PARTITIONS)
        except EtcdUnavailable:
            return
        if lost == self._membership.lost:
            for kv in listed:
                history = self._histories.get(partition_of_key(kv.key))
                if history is not None and not history.led_epoch:
                    history.see(decode_partition(kv.value), kv.mod_revision)
                    history.was_read = True

    async def recheck(self) -> None:
        """After a new lease: what we lead is read from etcd; where it does not name this boot in
        our epoch, we step down. Nobody is followed before his key is read again. Raises
        EtcdUnavailable."""
        for partition, history in sorted(self._histories.items()):
            history.was_read = False
            if history.follows is not None:
                self._stop_following(partition, history)
        self._rounds.call()
        if not self.led():
            return
        listed, _ = await self._etcd.range(PARTITIONS)
        states = {partition_of_key(kv.key): kv for kv in listed}
        for partition in self.led():
            history = self._histories[partition]
            kv = states.get(partition)
            state = None if kv is None else decode_partition(kv.value)
            if state is None or not self._names_us(state) or state.epoch != history.led_epoch:
                self._step_down(partition, history)
        self._rounds.call()

    def _judge(self, history: History, entry: Entry) -> Ruling:
        return judge(
            entry.state,
            entry.mod_revision,
            history,
            own_boot=self._boot,
            leader_lives=self._view.leader_lives(entry.state),
        )

    def _names_us(self, state: PartitionState) -> bool:
        return state.leader is not None and state.leader.boot_id == self._boot

    # --------------------------------------------------------------------------------- the round

    async def _run(self) -> None:
        while True:
            self._rounds.begin()
            unfinished = await self._round()
            await self._rounds.next(within_ms=ROUND_RETRY_MS if unfinished else None)

    async def _round(self) -> bool:
        """Looks at every partition that this process may lead. True: look again soon."""
        standing: list[tuple[PartitionId, Entry]] = []
        left: list[tuple[PartitionId, Entry]] = []
        unfinished, is_unread = False, False
        for partition in self._view.replicas_on(self._node_id):
            entry = self._view.entry(partition)
            if entry is None or role_of(partition.topic_id) not in self._roles:
                continue
            history = self._history(partition)
            ruling = self._judge(history, entry)
            if ruling is not Ruling.STAND:
                history.vacant_since_s = None
            match ruling:
                case Ruling.LEAD:
                    history.see(entry.state, entry.mod_revision)
                case Ruling.FOLLOW:
                    history.see(entry.state, entry.mod_revision)
                    if history.was_read:
                        self._follow(partition, history, entry)
                    is_unread |= not history.was_read
                case Ruling.STAND:
                    history.see(entry.state, entry.mod_revision)
                    if history.vacant_since_s is None:
                        history.vacant_since_s = self._now()
                    if self._stands:
                        standing.append((partition, entry))
                        unfinished = True
                case Ruling.WAIT:
                    # The view's next change decides, and wakes us.
                    pass
                case Ruling.STEP_DOWN:
                    # Won and lost before the answer to the election was heard.
                    self._step_down(partition, history)
                    unfinished = True
                case Ruling.REFUSE:
                    self._refuse(partition, entry.state.epoch, history.seen_epoch)
                case Ruling.RESIGN:
                    left.append((partition, entry))
                    unfinished = True
                case Ruling.ADOPT:
                    unfinished = True
                    await self._adopt(partition, history)
                case _:
                    assert_never(ruling)
        self._rounds.looked()
        if is_unread:
            await self._read_keys()
        await self._resign_all(left)
        await self._stand(standing)
        for partition in sorted(self._moved_away):
            unfinished |= not await self._put_aside(partition)
        return unfinished or is_unread

    async def _put_aside(self, partition: PartitionId) -> bool:
        """A replica that is not wanted here any more. False: look again."""
        history, entry = self._histories.get(partition), self._view.entry(partition)
        if entry is not None and self._node_id in entry.state.replicas:
            # Wanted again, and perhaps followed: it goes on with the log that it has.
            self._moved_away.discard(partition)
            return True
        try:
            found, _ = await self._etcd.get(partition_key(partition))
        except EtcdUnavailable:
            return False
        self._moved_away.discard(partition)
        # A topic that was deleted meanwhile will show in the view.
        if history is None or found is None:
            return True
        if self._node_id in decode_partition(found.value).replicas:
            # The same, as the view will show.
            return True
        history.is_put_aside = True
        self._reporter.event("replica put aside, it was moved", partition=str(partition))
        self._host.aim(partition, Leave())
        return True

    async def _adopt(self, partition: PartitionId, history: History) -> None:
        """etcd names us in an epoch whose election was never answered: ours after all."""
        lost = self._membership.lost
        try:
            found, _ = await self._etcd.get(partition_key(partition))
        except EtcdUnavailable:
            return
        candidate = self._host.candidate(partition)
        if candidate is None or found is None or lost != self._membership.lost or history.led_epoch:
            return
        state = decode_partition(found.value)
        fit = candidate.incarnation.hex() in state.isr
        if self._names_us(state) and state.epoch > history.left_epoch:
            if fit and candidate.last_epoch < state.epoch:
                self._win(partition, history, state, found.mod_revision)
            else:
                # The replica was replaced meanwhile: this epoch is not for it.
                history.left_epoch = state.epoch

    async def _stand(self, standing: Sequence[tuple[PartitionId, Entry]]) -> None:
        """Votes for every replica that may stand."""
        bids = []
        others = {role: staying(self._view.nodes(), role) for role in self._roles}
        for partition, entry in standing:
            history = self._histories[partition]
            if self._now() < history.stand_after_s or not self._membership.valid():
                continue
            pause = pause_ms(entry.state, self._node_id, others[role_of(partition.topic_id)])
            if self._now() < (history.vacant_since_s or 0.0) + pause / 1000:
                # Those before it in the list of replicas go first.
                continue
            candidate = self._host.candidate(partition)
            if candidate is not None and self._may_win(partition, history, entry, candidate):
                bids.append(
                    make_bid(
                        partition,
                        entry.state,
                        entry.mod_revision,
                        leader=self._self,
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
            self._refuse(partition, entry.state.epoch, candidate.last_epoch)
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
        history.stand_after_s = self._now() + STAND_PAUSE_MS / 1000
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
            history = self._histories.get(bid.partition)
            if history is None:
                # Deleted meanwhile.
                continue
            if bid.new.epoch > max(history.led_epoch, history.left_epoch):
                self._win(bid.partition, history, bid.new, result.revision)
        return True

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
        self._rounds.call()

    # ------------------------------------------------------------------------------- by operators

    async def unclean_elect(self, asked: UncleanElection) -> tuple[int, int]:
        """Leads although acknowledged records may be lost, alone in sync; the new epoch, and the
        synced end that is kept. Raises InvalidArgument, UnknownPartition, Unavailable,
        UnknownOutcome."""
        partition = asked.partition
        if asked.node_id != self._node_id:
            raise InvalidArgument(f"this is node {self._node_id}: ask node {asked.node_id} itself")
        try:
            bid, kept_end = await unclean_bid(
                asked, self._etcd, leader=self._self, opened=self._host.opened
            )
        except EtcdUnavailable as error:
            raise Unavailable(f"nothing was changed: {error}") from error
        history = self._history(partition)
        asked.report_asked(self._reporter, epoch=bid.new.epoch, kept_end=kept_end)
        try:
            won = await self._vote([bid])
        except EtcdUnavailable as error:
            raise UnknownOutcome(f"etcd did not answer the election: {error}") from error
        if not won:
            raise Unavailable("the partition changed meanwhile, or its leader lives; look again")
        if history.led_epoch != bid.new.epoch:
            raise UnknownOutcome("this process lost its lease meanwhile; describe the partition")
        asked.report(self._reporter, epoch=bid.new.epoch, kept_end=kept_end)
        return bid.new.epoch, kept_end

    def _refuse(self, partition: PartitionId, epoch: int, known: int) -> None:
        error = epoch_went_back(partition, epoch, known=known)
        self._reporter.event(
            "etcd refused", level="error", partition=str(partition), error=str(error)
        )
        self._on_fatal(error)

    def _history(self, partition: PartitionId) -> History:
        """Of a partition with a replica here: its log is opened at the first look."""
        history = self._histories.get(partition)
        if history is None:
            history = self._histories[partition] = History()
            self._host.aim(partition, StandBy())
        elif history.is_put_aside:
            # Wanted again. The log is another one: what it follows is read anew.
            history.is_put_aside = history.was_read = False
            self._host.aim(partition, StandBy())
        return history

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
