"""Elections: what etcd says of the partitions that this process has a replica of, and what it does
about each (docs/leadership.md).

The rules are in `rules`; this file carries them out, with `standing`, `resigning` and what is
`held`. What comes of it for a replica is its *target* (`runtime/target`), said in the very turn in
which etcd's word is heard:

    view changes ──► what we lead is judged at once ──► aim(stand by), aim(leave)
                 └─► the round (a task): vote, adopt, resign ──► aim(lead), aim(follow)
    lease regained ─► `recheck`: what we lead is read from etcd before the lease counts as valid

Invariants:
  * who left an epoch never leads it again, even while etcd names it: it resigns until etcd shows
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
from typing import assert_never

from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.core.roles import role_of
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd.cluster_view import ClusterView, Entry
from oncelog_server.runtime.etcd.keys import (
    BOOTS,
    PARTITIONS,
    TOPICS,
    decode_partition,
    partition_key,
    partition_of_key,
)
from oncelog_server.runtime.etcd.port import Etcd, EtcdUnavailable, KeyValue
from oncelog_server.runtime.leadership.held import Held
from oncelog_server.runtime.leadership.host import ReplicaHost
from oncelog_server.runtime.leadership.isr import isr_of
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.resigning import Resigning
from oncelog_server.runtime.leadership.rounds import Rounds
from oncelog_server.runtime.leadership.rules import History, Ruling
from oncelog_server.runtime.leadership.standing import Standing
from oncelog_server.runtime.leadership.unclean import UncleanElection
from oncelog_server.runtime.target import Assignment, Leave
from oncelog_server.runtime.vital import Fatal


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
        self._etcd = etcd
        self._view = view
        self._membership = membership
        self._host = host
        self._reporter = reporter
        self._on_fatal = on_fatal
        self._roles = frozenset(membership.node.roles)
        self._rounds = Rounds()
        held = self._held = Held(view, membership, host=host, reporter=reporter)
        self._resigning = Resigning(etcd, held, self._rounds, host=host, reporter=reporter)
        self._standing = Standing(
            etcd, view, membership, held, self._rounds, host=host, reporter=reporter
        )
        # False from `withdraw` on.
        self._stands = True
        # Of which the view says that they were moved elsewhere; nothing is acknowledged for them.
        self._moved_away: set[PartitionId] = set()
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------ what it says

    def led_epoch(self, partition: PartitionId) -> int:
        """The epoch that this process leads; 0 where it does not."""
        return self._held.led_epoch(partition)

    def led(self) -> Sequence[PartitionId]:
        return self._held.led()

    # ----------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        self._view.on_change(self._view_changed)
        self._membership.on_regained(self.recheck)
        self._task = vital.spawn(self._run(), self._on_fatal)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_again(self, partition: PartitionId) -> None:
        """Its replica may stand now."""
        self._rounds.call([partition])

    # ------------------------------------------------------------------------------ giving it up

    async def resign(self, partition: PartitionId) -> None:
        """See Resigning."""
        await self._resigning.resign(partition)

    def withdraw(self) -> None:
        """Stands in no election any more; what it leads, it leads, and it follows others."""
        self._stands = False

    def hand_over(self, partitions: Sequence[PartitionId]) -> None:
        """See Resigning."""
        self._resigning.hand_over(partitions)

    async def end_move(
        self,
        partition: PartitionId,
        epoch: int,
        *,
        members: Sequence[Incarnation],
        assignment: Assignment,
        compared_revision: int,
    ) -> None:
        """See Resigning."""
        await self._resigning.end_move(
            partition,
            epoch,
            members=members,
            assignment=assignment,
            compared_revision=compared_revision,
        )

    async def unclean_elect(self, asked: UncleanElection) -> tuple[int, int]:
        """See Standing."""
        return await self._standing.unclean_elect(asked)

    # ----------------------------------------------------------------------------- what etcd says

    def _view_changed(self, changed: frozenset[str]) -> None:
        """What we lead is judged in the turn that shows a change; standing waits for the round."""
        touched = {partition_of_key(key) for key in changed if key.startswith(PARTITIONS)}
        if any(key.startswith(TOPICS) for key in changed):
            touched |= self._of_topics(changed)
        self._rounds.call(touched)
        if any(key.startswith(BOOTS) for key in changed):
            self._rounds.call_all()
        for partition in sorted(touched & self._held.histories.keys()):
            history = self._held.histories[partition]
            entry = self._view.entry(partition)
            if entry is None or self._held.node_id not in entry.state.replicas:
                self._vanish(partition, history, entry)
            elif history.led_epoch:
                self._look_at_led(partition, history, entry)
            elif history.follows is not None and history.follows != self._held.leader(
                history, entry
            ):
                self._held.stop_following(partition, history)

    def _of_topics(self, changed: frozenset[str]) -> set[PartitionId]:
        """Partitions of the topics that changed, and those here whose topics stand no more: which
        ids they had the view does not tell. A change of one topic is about its own: whoever is told
        of something is ticked for a while, and there may be thousands at rest."""
        stand = {
            PartitionId(topic.topic_id, number)
            for topic in self._view.topics_of(changed)
            for number in range(topic.partitions)
        }
        return stand.union(
            partition
            for partition in self._held.histories
            if self._view.topic_by_id(partition.topic_id) is None
        )

    def _look_at_led(self, partition: PartitionId, history: History, entry: Entry) -> None:
        match self._held.judge(history, entry):
            case Ruling.STEP_DOWN:
                self._held.step_down(partition, history)
            case Ruling.LEAD:
                isr = isr_of(entry.state, entry.mod_revision)
                self._host.isr_seen(partition, history.led_epoch, isr)

    def _vanish(self, partition: PartitionId, history: History, entry: Entry | None) -> None:
        if entry is not None:
            # Its replicas were moved to other nodes. They may be moved back: the epochs that were
            # seen and left here are remembered.
            if history.led_epoch:
                self._held.step_down(partition, history)
            elif history.follows is not None:
                self._held.stop_following(partition, history)
            if not history.is_put_aside:
                self._moved_away.add(partition)
            return
        history.leave()
        del self._held.histories[partition]
        self._reporter.event("topic deleted", partition=str(partition))
        self._host.aim(partition, Leave())

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
                history = self._held.histories.get(partition_of_key(kv.key))
                if history is not None and not history.led_epoch:
                    history.see(decode_partition(kv.value), kv.mod_revision)
                    history.was_read = True

    async def recheck(self) -> None:
        """After a new lease: what we lead is read from etcd; where it does not name this boot in
        our epoch, we step down. Nobody is followed before his key is read again. Raises
        EtcdUnavailable."""
        for partition, history in sorted(self._held.histories.items()):
            history.was_read = False
            if history.follows is not None:
                self._held.stop_following(partition, history)
        self._rounds.call_all()
        if not self.led():
            return
        listed, _ = await self._etcd.range(PARTITIONS)
        states = {partition_of_key(kv.key): kv for kv in listed}
        for partition in self.led():
            history = self._held.histories[partition]
            kv = states.get(partition)
            state = None if kv is None else decode_partition(kv.value)
            if state is None or not self._held.names_us(state) or state.epoch != history.led_epoch:
                self._held.step_down(partition, history)
        self._rounds.call_all()

    # --------------------------------------------------------------------------------- the round

    async def _run(self) -> None:
        while True:
            await self._round(self._rounds.begin())
            await self._rounds.next()

    async def _round(self, due: frozenset[PartitionId] | None) -> None:
        """Looks at what is due of the partitions that this process may lead. None: all of them."""
        standing: list[tuple[PartitionId, Entry]] = []
        left: list[tuple[PartitionId, Entry]] = []
        unread: list[PartitionId] = []
        for partition in self._view.replicas_on(self._held.node_id, among=due):
            entry = self._view.entry(partition)
            if entry is None or role_of(partition.topic_id) not in self._roles:
                continue
            history = self._held.history(partition)
            ruling = self._held.judge(history, entry)
            if ruling is not Ruling.STAND:
                history.vacant_since_s = None
            match ruling:
                case Ruling.LEAD:
                    history.see(entry.state, entry.mod_revision)
                case Ruling.FOLLOW:
                    history.see(entry.state, entry.mod_revision)
                    if history.was_read:
                        self._held.follow(partition, history, entry)
                    else:
                        unread.append(partition)
                case Ruling.STAND:
                    history.see(entry.state, entry.mod_revision)
                    if history.vacant_since_s is None:
                        history.vacant_since_s = self._held.now_s()
                    if self._stands:
                        standing.append((partition, entry))
                        self._rounds.again([partition])
                case Ruling.WAIT:
                    # The view's next change decides, and wakes us.
                    pass
                case Ruling.STEP_DOWN:
                    # Won and lost before the answer to the election was heard.
                    self._held.step_down(partition, history)
                    self._rounds.again([partition])
                case Ruling.REFUSE:
                    self._held.refuse(partition, entry.state.epoch, history.seen_epoch)
                case Ruling.RESIGN:
                    left.append((partition, entry))
                    self._rounds.again([partition])
                case Ruling.ADOPT:
                    self._rounds.again([partition])
                    await self._standing.adopt(partition, history)
                case _:
                    assert_never(ruling)
        self._rounds.looked()
        if unread:
            self._rounds.again(unread)
            await self._read_keys()
        await self._resigning.resign_all(left)
        await self._standing.stand(standing)
        for partition in sorted(self._moved_away):
            await self._put_aside(partition)

    def _is_wanted(self, partition: PartitionId) -> bool:
        """The view gives this node a replica of it."""
        entry = self._view.entry(partition)
        return entry is not None and self._held.node_id in entry.state.replicas

    def _has_overtaken(
        self, partition: PartitionId, history: History, found: KeyValue | None
    ) -> bool:
        """While `found` was read, the partition was moved back here, or is led here: an operator
        elects beside the round. What comes next decides."""
        entry = self._view.entry(partition)
        seen = max(history.seen_revision, 0 if entry is None else entry.mod_revision)
        is_older = found is not None and found.mod_revision < seen
        return is_older or bool(history.led_epoch) or self._is_wanted(partition)

    async def _put_aside(self, partition: PartitionId) -> None:
        """A replica that is not wanted here any more."""
        if self._is_wanted(partition):
            # Wanted again, and perhaps followed: it goes on with the log that it has.
            self._moved_away.discard(partition)
            return
        try:
            found, _ = await self._etcd.get(partition_key(partition))
        except EtcdUnavailable:
            self._rounds.again([partition])
            return
        history = self._held.histories.get(partition)
        if history is not None and self._has_overtaken(partition, history, found):
            self._rounds.again([partition])
            return
        self._moved_away.discard(partition)
        # A topic that was deleted meanwhile will show in the view.
        if history is None or found is None:
            return
        if self._held.node_id in decode_partition(found.value).replicas:
            # The same, as the view will show.
            return
        history.is_put_aside = True
        self._reporter.event("replica put aside, it was moved", partition=str(partition))
        self._host.aim(partition, Leave())
