"""Where the replicas of a partition shall be: an operator says so once, the partition's leader does
it (docs/leadership.md, "Moving replicas").

    begin_move    replicas = those of now and the wanted ones, adding, target     by any process
    ...           the new ones open empty logs, follow, and join those in sync
    change_isr    replicas = target, the others leave the ISR, nothing is moved   by the leader

Invariants:
  * both steps are compare-and-sets of the partition's key, so an election, a change of who is in
    sync, and another move either come before, or make it look again;
  * a replica leaves in the second step alone, so each state between the two is one in which
    everybody who has the records is still a replica;
  * a move is called back by another one, to where the replicas were: its second step drops those
    that were added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd.keys import (
    PartitionState,
    decode_partition,
    encode,
    partition_key,
)
from oncelog_server.runtime.etcd.port import Compare, Etcd, Put
from oncelogpb.errors import InvalidArgument, Unavailable, UnknownPartition

# Changes of others that come between reading and writing.
CONFLICTS_MAX: Final = 20


def begin_move(state: PartitionState, target: Sequence[str]) -> PartitionState:
    """PURE. The first step; the state itself where there is nothing to do."""
    wanted = tuple(target)
    kept = tuple(node for node in state.replicas if node not in state.adding)
    is_first = state.epoch == 0
    is_order_only = not state.adding and set(kept) == set(wanted)
    if is_first or is_order_only:
        # Nothing was ever acknowledged, or nobody comes and nobody goes.
        return msgspec.structs.replace(state, replicas=wanted, adding=(), target=())
    new = tuple(node for node in wanted if node not in state.replicas)
    adding = tuple(node for node in state.replicas if node in state.adding) + new
    return msgspec.structs.replace(state, replicas=kept + adding, adding=adding, target=wanted)


async def move(etcd: Etcd, partition: PartitionId, target: Sequence[str]) -> PartitionState:
    """The first step, in etcd; what stands there after it. Raises UnknownPartition, Unavailable,
    InvalidArgument, EtcdUnavailable (the same move may be asked for again)."""
    require_target(partition, target)
    key = partition_key(partition)
    for _ in range(CONFLICTS_MAX):
        found, _ = await etcd.get(key)
        if found is None:
            raise UnknownPartition(f"etcd knows no partition {partition}")
        state = decode_partition(found.value)
        new = begin_move(state, target)
        if new == state:
            return state
        result = await etcd.txn([Compare(key, found.mod_revision)], [Put(key, encode(new))])
        if result.succeeded:
            return new
    raise Unavailable(f"partition {partition} is being changed by others; try again")


def require_target(partition: PartitionId, target: Sequence[str]) -> None:
    """Raises InvalidArgument."""
    if not target:
        raise InvalidArgument(f"name the nodes of partition {partition}: one at least")
    if len(set(target)) < len(target):
        raise InvalidArgument(f"partition {partition}: a node has one replica, not two: {target}")
