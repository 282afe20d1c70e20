"""How a process gives leadership away while it lives: all of it before it stops, and what it only
stands in for, now and then, to the nodes that should lead (the rules: `leadership/preference`).

    leave ─► withdraw from elections ─► say so in the boot key ─► resign what others can lead
          ─► follow them ─► they drop this node from those in sync ─► done, or out of time

Who stops without it costs every partition that it led a moment without a leader, and every one that
it followed a moment in which writes wait for it.

Invariants:
  * the process keeps its lease, answers for what it still leads, and acknowledges what it follows,
    until `leave` returns;
  * nobody is waited for who cannot come: where nothing can be handed over, `leave` returns at once.

Left out: a process that fails. It gives nothing away; its lease does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.core.roles import role_of
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from oncelog_server.runtime.leadership.election import Elections
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.leadership.preference import (
    Balancing,
    Parting,
    is_missed,
    parting,
    staying,
)

# How often it looks.
LOOK_EVERY_MS: Final = 50
# While etcd shows nothing new, what it stands in for is looked for once in so many looks.
LOOKS_BETWEEN: Final = 10


class Replicas(Protocol):
    """Those of one role (runtime/replicas)."""

    def keeping_up(self, partition: PartitionId) -> Collection[str]:
        """Nodes that could take over what is led here."""
        ...

    def incarnation(self, partition: PartitionId) -> str:
        """Hex; "" while its log is not open."""
        ...


class Balanced(NamedTuple):
    """What an operator is told."""

    handed_over: Sequence[PartitionId]
    # Led here although another node should, which cannot now.
    kept: Sequence[PartitionId]


class HandingOver:
    """One per process, made when it stands in elections."""

    def __init__(
        self,
        view: ClusterView,
        elections: Elections,
        membership: Membership,
        *,
        node_id: str,
        replicas_of: Callable[[PartitionId], Replicas],
        min_insync_replicas: int,
        balance_after_ms: int,
        hand_over_max_ms: int,
        now_ms: Callable[[], int],
        reporter: Reporter,
    ) -> None:
        """`balance_after_ms`: see Balancing."""
        self._view = view
        self._elections = elections
        self._membership = membership
        self._node_id = node_id
        self._replicas_of = replicas_of
        self._min_insync_replicas = min_insync_replicas
        self._balancing = Balancing(after_ms=balance_after_ms)
        self._hand_over_max_ms = hand_over_max_ms
        self._now_ms = now_ms
        self._reporter = reporter
        # What was handed over by `leave`, until somebody else leads it.
        self._orphans: set[PartitionId] = set()
        # Those who stay, by role, as the view showed them at a revision.
        self._stay: dict[str, frozenset[str]] = {}
        self._stay_revision = 0
        # What it stands in for, as it was when the view was at a revision; looks since then.
        self._standing_in: list[PartitionId] = []
        self._standing_in_revision = self._looks_since = 0

    # ------------------------------------------------------------------- before the process stops

    async def leave(self) -> None:
        """Returns when nobody needs this process any more, as far as others can do without it."""
        if not self._membership.valid() or not self._has_others():
            return
        begun_ms, led = self._now_ms(), len(self._elections.led())
        self._elections.withdraw()
        try:
            async with asyncio.timeout(self._hand_over_max_ms / 1000):
                await self._membership.announce_leaving()
                while self._membership.valid() and self._step():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_EVERY_MS / 1000)
        except (EtcdUnavailable, TimeoutError) as error:
            self._reporter.event(
                "left before others took over", level="warning", why=str(error) or "time is over"
            )
        kept = len(self._elections.led())
        took_ms = self._now_ms() - begun_ms
        self._reporter.event("handed over", partitions=led - kept, kept=kept, took_ms=took_ms)

    def _has_others(self) -> bool:
        """Somebody stays that holds a replica of what is here."""
        return any(
            not self._others(partition).isdisjoint(entry.state.replicas)
            for partition in self._view.replicas_on(self._node_id)
            if (entry := self._view.entry(partition)) is not None
        )

    def _step(self) -> bool:
        """True: something is to be waited for."""
        waits = False
        due = []
        for partition in self._elections.led():
            match self._parting(partition):
                case Parting.HAND_OVER:
                    due.append(partition)
                case Parting.WAIT:
                    waits = True
                case Parting.KEEP:
                    pass
        self._elections.hand_over(due)
        self._orphans.update(due)
        self._orphans = {partition for partition in self._orphans if self._is_orphan(partition)}
        return waits or bool(self._orphans) or self._is_missed()

    def _parting(self, partition: PartitionId) -> Parting:
        entry = self._view.entry(partition)
        if entry is None:
            return Parting.KEEP
        return parting(
            entry.state.replicas,
            own=self._node_id,
            others=self._others(partition),
            in_sync=self._replicas_of(partition).keeping_up(partition),
            min_insync_replicas=self._min_insync_replicas,
        )

    def _is_orphan(self, partition: PartitionId) -> bool:
        """Nobody leads it yet who was not told to, and somebody could."""
        entry, leader = self._view.entry(partition), self._view.leader_of(partition)
        if entry is None or self._others(partition).isdisjoint(entry.state.replicas):
            return False
        return leader is None or leader.node_id == self._node_id

    def _is_missed(self) -> bool:
        """By a leader, which is about to drop the replica here from those in sync."""
        led = set(self._elections.led())
        return any(
            is_missed(
                entry.state,
                own=self._node_id,
                incarnation=self._replicas_of(partition).incarnation(partition),
                others=self._others(partition),
                min_insync_replicas=self._min_insync_replicas,
            )
            for partition in self._view.replicas_on(self._node_id)
            if partition not in led and (entry := self._view.entry(partition)) is not None
        )

    def _others(self, partition: PartitionId) -> frozenset[str]:
        """Those who stay, of the role that leads it."""
        if self._stay_revision != self._view.revision:
            self._stay, self._stay_revision = {}, self._view.revision
        role = role_of(partition.topic_id)
        if role not in self._stay:
            self._stay[role] = staying(self._view.nodes(), role) - {self._node_id}
        return self._stay[role]

    # --------------------------------------------------------------- to the nodes that should lead

    def look(self) -> None:
        """About once a second: hands over what is due, a few partitions at a time."""
        if not self._membership.valid():
            return
        for partition in self._balancing.attempted():
            entry, leader = self._view.entry(partition), self._view.leader_of(partition)
            if entry is None or (leader and leader.node_id == entry.state.replicas[0]):
                self._balancing.arrived(partition)
        self._looks_since += 1
        is_new = self._standing_in_revision != self._view.revision
        if is_new or self._looks_since >= LOOKS_BETWEEN:
            self._standing_in, self._looks_since = self._stood_in(), 0
            self._standing_in_revision = self._view.revision
        could = [
            (partition, epoch)
            for partition in self._standing_in
            if (epoch := self._elections.led_epoch(partition)) and self._is_fit(partition)
        ]
        due = self._balancing.due(could, self._now_ms())
        if due:
            self._reporter.event("leaders balanced", partitions=len(due))
            self._elections.hand_over(due)

    def balance_now(self) -> Balanced:
        """All that can be, at once."""
        due: list[PartitionId] = []
        kept: list[PartitionId] = []
        for partition in self._stood_in():
            (due if self._is_fit(partition) else kept).append(partition)
        self._reporter.event("leaders balanced", partitions=len(due))
        self._elections.hand_over(due)
        return Balanced(due, kept)

    def _stood_in(self) -> list[PartitionId]:
        """Led here although another node should."""
        return [
            partition
            for partition in self._elections.led()
            if (entry := self._view.entry(partition)) is not None
            and entry.state.replicas[0] != self._node_id
        ]

    def _is_fit(self, partition: PartitionId) -> bool:
        """Whether the node that should lead it can."""
        entry = self._view.entry(partition)
        assert entry is not None, "asked of what was just looked up"
        should = entry.state.replicas[0]
        in_sync = self._replicas_of(partition).keeping_up(partition)
        return should in self._others(partition) and should in in_sync
