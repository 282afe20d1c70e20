"""Changes of who is in sync (the ISR) of a partition that this process leads: compare-and-sets of
the partition's key. Which changes, and what counts meanwhile, is decided in `replica/in_sync`.

Invariant: what is written was made of the very revision that the leader compared; leader and epoch
stay as they are, but where a move ends after which the leader has no replica: that one has stopped
answering before it asks, and then nobody leads.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.runtime.etcd.keys import (
    PartitionState,
    decode_partition,
    encode,
    partition_key,
)
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.target import Assignment, Isr


def isr_of(state: PartitionState, revision: int) -> Isr:
    """As it stands in etcd at that revision of the key."""
    return Isr(
        revision,
        tuple(Incarnation(bytes.fromhex(member)) for member in state.isr),
        Assignment(state.replicas, state.adding, state.target),
    )


async def change_isr(
    etcd: Etcd,
    partition: PartitionId,
    *,
    own_boot: str,
    epoch: int,
    members: Sequence[Incarnation],
    compared_revision: int,
    assignment: Assignment | None = None,
) -> Isr | None:
    """What etcd shows after it: done, or changed by somebody else. None: nobody knows, or etcd
    names another leader, which the view will say. `assignment`: None where it stays."""
    key = partition_key(partition)
    try:
        found, _ = await etcd.get(key)
        if found is None:
            return None
        state = decode_partition(found.value)
        if state.leader is None or state.leader.boot_id != own_boot or state.epoch != epoch:
            return None
        if found.mod_revision != compared_revision:
            return isr_of(state, found.mod_revision)
        new = changed(state, members, assignment)
        result = await etcd.txn([Compare(key, compared_revision)], [Put(key, encode(new))])
    except EtcdUnavailable:
        return None
    # Refused: the view, or the next attempt, says what stands there.
    return isr_of(new, result.revision) if result.succeeded else None


def changed(
    state: PartitionState, members: Sequence[Incarnation], assignment: Assignment | None
) -> PartitionState:
    """What its leader makes of it."""
    new = msgspec.structs.replace(state, isr=tuple(member.hex() for member in members))
    if assignment is None:
        return new
    assert state.leader is not None, "its leader asks"
    return msgspec.structs.replace(
        new,
        replicas=assignment.replicas,
        adding=assignment.adding,
        target=assignment.target,
        leader=state.leader if state.leader.node_id in assignment.replicas else None,
    )
