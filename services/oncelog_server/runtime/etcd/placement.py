"""Which nodes hold the replicas of new partitions. PURE.

Replicas of one partition stand on different nodes, and in as many racks as there are. Those of one
topic are spread as evenly as that allows, so that its traffic is; where it leaves a choice, the
node that holds less of the whole cluster gets more. Racks go before evenness: with one node alone
in its rack, that node holds a replica of every partition. The first replica of a partition is the
one that should lead it, and those are spread evenly, too.

The same nodes and load give the same answer, whatever the order in which they are told.

Left out: moving what stands already. Nodes that come later get partitions that come later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Holder(NamedTuple):
    """A living node that may hold replicas. `rack`: "" where nobody said; such nodes are in one."""

    node_id: str
    rack: str = ""


class TooFewNodes(Exception):
    """Fewer nodes live than copies are wanted."""

    def __init__(self, alive: int, wanted: int) -> None:
        super().__init__(
            f"a replication factor of {wanted} needs as many living nodes, and {alive} are alive"
        )
        self.alive, self.wanted = alive, wanted


def spread(
    partitions: int,
    replication_factor: int,
    holders: Collection[Holder],
    load: Mapping[str, int],
) -> list[tuple[str, ...]]:
    """The node ids of each partition's replicas, the one that should lead first. `load`: replicas
    that a node holds already. Raises TooFewNodes."""
    assert replication_factor >= 1, "asked for before"
    # One entry by node: a process that restarts may be there twice for a moment.
    known = sorted({holder.node_id: holder for holder in sorted(holders)}.values())
    if len(known) < replication_factor:
        raise TooFewNodes(len(known), replication_factor)
    held: Counter[str] = Counter()
    leads: Counter[str] = Counter()
    placed: list[tuple[str, ...]] = []
    for _ in range(partitions):
        chosen = _choose(known, replication_factor, held, load)
        first = min(chosen, key=lambda node_id: (leads[node_id], chosen.index(node_id)))
        leads[first] += 1
        held.update(chosen)
        placed.append((first, *(node_id for node_id in chosen if node_id != first)))
    return placed


def _choose(
    holders: Sequence[Holder], count: int, held: Mapping[str, int], load: Mapping[str, int]
) -> list[str]:
    """The nodes of one partition: each in the rack that has least of it, there the node that holds
    least of the topic, then of the cluster."""
    in_rack: Counter[str] = Counter()
    left = list(holders)
    chosen = []
    for _ in range(count):
        best = min(
            left,
            key=lambda holder: (
                in_rack[holder.rack],
                held[holder.node_id],
                load.get(holder.node_id, 0),
                holder.node_id,
            ),
        )
        left.remove(best)
        in_rack[best.rack] += 1
        chosen.append(best.node_id)
    return chosen
