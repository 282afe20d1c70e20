"""Where replicas that stand already shall be: away from a node, more or fewer of them, spread anew.
PURE; only what has to move does.

The rules of new partitions (`placement`) hold as far as they leave a choice: different nodes, in as
many racks as there are, then whoever holds least. The place of a replica in the list is kept, for
the first one should lead, and those were spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from oncelog_server.runtime.etcd.placement import Holder, TooFewNodes

# Whatever names a partition.
P = TypeVar("P")
Replicas = tuple[str, ...]


def drained(
    standing: Mapping[P, Sequence[str]], node_id: str, holders: Collection[Holder]
) -> dict[P, Replicas]:
    """Those with a replica on that node, without it. Raises TooFewNodes."""
    left = sorted({holder for holder in holders if holder.node_id != node_id})
    load = _load(standing)
    targets = {}
    for partition, replicas in standing.items():
        if node_id in replicas:
            others = [node for node in replicas if node != node_id]
            chosen = _choose(left, others, load)
            targets[partition] = tuple(chosen if node == node_id else node for node in replicas)
            load[chosen] += 1
    return targets


def resized(
    standing: Mapping[P, Sequence[str]], replication_factor: int, holders: Collection[Holder]
) -> dict[P, Replicas]:
    """Each with so many. Who goes is away, else shares its rack, else holds most; the first one
    stays where it lives. Raises TooFewNodes."""
    known, load = sorted(set(holders)), _load(standing)
    targets = {}
    for partition, before in standing.items():
        replicas = list(before)
        while len(replicas) < replication_factor:
            chosen = _choose(known, replicas, load)
            replicas.append(chosen)
            load[chosen] += 1
        while len(replicas) > replication_factor:
            dropped = _drop(known, replicas, load)
            replicas.remove(dropped)
            load[dropped] -= 1
        if tuple(replicas) != tuple(before):
            targets[partition] = tuple(replicas)
    return targets


def balanced(standing: Mapping[P, Sequence[str]], holders: Collection[Holder]) -> dict[P, Replicas]:
    """As few moves as make no living node hold two replicas more than another one, where racks
    allow it."""
    known, load = sorted(set(holders)), _load(standing)
    now = {partition: tuple(replicas) for partition, replicas in standing.items()}
    for _ in range(sum(load.values())):
        moved = _ease(now, known, load)
        if moved is None:
            break
        partition, replicas = moved
        load.subtract(now[partition])
        load.update(replicas)
        now[partition] = replicas
    return {
        partition: now[partition]
        for partition in now
        if now[partition] != tuple(standing[partition])
    }


def _ease(
    now: Mapping[P, Replicas], holders: Sequence[Holder], load: Mapping[str, int]
) -> tuple[P, Replicas] | None:
    """One replica from a node that holds two more than another one to that one."""
    racks = _racks(holders)
    by_load = sorted(holders, key=lambda holder: (load.get(holder.node_id, 0), holder.node_id))
    for giver in reversed(by_load):
        for taker in by_load:
            if load.get(giver.node_id, 0) - load.get(taker.node_id, 0) < 2:
                break
            for partition, replicas in now.items():
                if giver.node_id not in replicas or taker.node_id in replicas:
                    continue
                swapped = tuple(
                    taker.node_id if node == giver.node_id else node for node in replicas
                )
                if _spread_over(swapped, racks) >= _spread_over(replicas, racks):
                    return partition, swapped
    return None


def _choose(holders: Sequence[Holder], others: Sequence[str], load: Mapping[str, int]) -> str:
    """Another node for a partition that has these."""
    racks = _racks(holders)
    used = Counter(racks.get(node) for node in others)
    free = [holder for holder in holders if holder.node_id not in others]
    if not free:
        raise TooFewNodes(len(holders), len(others) + 1)
    best = min(
        free,
        key=lambda holder: (used[holder.rack], load.get(holder.node_id, 0), holder.node_id),
    )
    return best.node_id


def _drop(holders: Sequence[Holder], replicas: Sequence[str], load: Mapping[str, int]) -> str:
    racks = _racks(holders)
    shared = Counter(racks.get(node) for node in replicas)
    first = replicas[0] if replicas[0] in racks else ""
    return max(
        (node for node in replicas if node != first),
        key=lambda node: (node not in racks, shared[racks.get(node)], load.get(node, 0), node),
    )


def _load(standing: Mapping[P, Sequence[str]]) -> Counter[str]:
    return Counter(node for replicas in standing.values() for node in replicas)


def _racks(holders: Sequence[Holder]) -> dict[str, str]:
    return {holder.node_id: holder.rack for holder in holders}


def _spread_over(replicas: Sequence[str], racks: Mapping[str, str]) -> int:
    return len({racks.get(node) for node in replicas})
