"""PURE. Which replica should lead a partition, and when a process that stops, or that only stands
in, gives a partition to another one (docs/leadership.md, "Who should lead").

The first node in a partition's `replicas` is *preferred*: placement spreads these evenly, so where
each partition is led by it, the work is spread. *Staying* are the nodes whose process lives and
is not about to stop.

Invariant: all of it is about who goes first and how long somebody waits. Whoever is elected in
spite of it leads rightly: who may win is decided in `rules` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import NodeInfo
from oncelog_server.runtime.etcd.keys import PartitionState

# How long a replica lets each one go first that stands before it in the list: the time of an
# election, with some room.
PREFERENCE_PAUSE_MS: Final = 500
# Partitions that a process hands over to their preferred nodes in one look.
BALANCED_MAX: Final = 10
# A partition that did not get to its preferred node waits twice as long before the next attempt,
# so many times over at most.
BACK_OFF_MAX: Final = 64


class Parting(Enum):
    """What a leader that is about to stop does with a partition."""

    # It resigns: another replica takes over, and may write.
    HAND_OVER = "hand over"
    # Who could take over is not in sync yet.
    WAIT = "wait"
    # Nobody could take over.
    KEEP = "keep"


def staying(nodes: Iterable[NodeInfo], role: str) -> frozenset[str]:
    """Of the living nodes with that role, those that do not stop."""
    return frozenset(node.node_id for node in nodes if role in node.roles and not node.leaving)


def pause_ms(state: PartitionState, own: str, others: Collection[str]) -> int:
    """How long node `own` waits, from the moment at which nobody leads, before it stands.
    `others` are the nodes that stay.

    Only while every replica is in sync, or none ever was: etcd does not say which ones are, and
    nobody should wait for one that cannot win.
    """
    if state.epoch > 0 and len(state.isr) < len(state.replicas):
        return 0
    before = state.replicas[: state.replicas.index(own)]
    return PREFERENCE_PAUSE_MS * sum(node in others for node in before)


def parting(
    replicas: Sequence[str],
    *,
    own: str,
    others: Collection[str],
    in_sync: Collection[str],
    min_insync_replicas: int,
) -> Parting:
    """Of a partition that `own` leads. `others` are the nodes that stay, `in_sync` those that are
    in its ISR and keep up."""
    candidates = {node for node in replicas if node != own and node in others}
    if not candidates:
        return Parting.KEEP
    # Where fewer are left than are needed, there is nobody to wait for.
    needed = min(min_insync_replicas, len(candidates))
    return Parting.HAND_OVER if len(candidates.intersection(in_sync)) >= needed else Parting.WAIT


def is_missed(
    state: PartitionState,
    *,
    own: str,
    incarnation: str,
    others: Collection[str],
    min_insync_replicas: int,
) -> bool:
    """Whether the replica of node `own` is in sync still, and will be dropped soon: its leader
    needs it no more, or not as soon as another replica has caught up. Until then each write waits
    for it."""
    if incarnation not in state.isr:
        return False
    candidates = sum(node != own and node in others for node in state.replicas)
    return candidates >= min_insync_replicas


class Balancing:
    """Which partitions a process that only stands in hands over to their preferred nodes, and when.
    Times are of the monotonic clock, milliseconds."""

    def __init__(self, *, after_ms: int) -> None:
        """A preferred node must have been in sync for `after_ms`, in the epoch that is led; 0:
        nothing is handed over."""
        self._after_ms = after_ms
        # Since when the preferred node could lead a partition that we lead, and in which epoch.
        self._since: dict[PartitionId, tuple[int, int]] = {}
        # How often it was tried in vain.
        self._attempts: dict[PartitionId, int] = {}

    def attempted(self) -> list[PartitionId]:
        """Those that were handed over, and are not known to have arrived."""
        return sorted(self._attempts)

    def due(self, could_lead: Iterable[tuple[PartitionId, int]], now_ms: int) -> list[PartitionId]:
        """`could_lead`: the partitions led here, with their epochs, whose preferred node is another
        one, stays, and is in sync. To be asked again and again, with all of them."""
        could = dict(could_lead)
        self._since = {
            partition: known
            for partition, known in self._since.items()
            if could.get(partition) == known[1]
        }
        due = []
        for partition, epoch in sorted(could.items()):
            since_ms, _ = self._since.setdefault(partition, (now_ms, epoch))
            if self._after_ms and now_ms - since_ms >= self._patience_ms(partition):
                due.append(partition)
        for partition in due[:BALANCED_MAX]:
            self._attempts[partition] = self._attempts.get(partition, 0) + 1
        return due[:BALANCED_MAX]

    def arrived(self, partition: PartitionId) -> None:
        """Its preferred node leads it."""
        self._attempts.pop(partition, None)

    def _patience_ms(self, partition: PartitionId) -> int:
        times = 1 << self._attempts.get(partition, 0)
        return self._after_ms * min(times, BACK_OFF_MAX)
