"""What an operator may force: a replica that is not in the ISR leads, although acknowledged records
may be lost (`oncelog cluster unclean-elect`). This judges the demand and makes the bid; the vote is
an election like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd.keys import LeaderValue, boot_key, decode_partition, partition_key
from oncelog_server.runtime.etcd.port import Etcd
from oncelog_server.runtime.etcd.refusal import epoch_went_back
from oncelog_server.runtime.leadership.rules import Bid, make_unclean_bid
from oncelog_server.runtime.target import Candidate
from oncelogpb.errors import InvalidArgument, UnknownPartition


async def unclean_bid(
    partition: PartitionId,
    etcd: Etcd,
    *,
    leader: LeaderValue,
    opened: Callable[[PartitionId], Awaitable[Candidate]],
) -> Bid:
    """`leader` is this process. Raises InvalidArgument (no replica here, or a leader that lives),
    UnknownPartition, EtcdUnavailable, EtcdRefused."""
    found, _ = await etcd.get(partition_key(partition))
    if found is None:
        raise UnknownPartition(f"etcd knows no partition {partition}")
    state = decode_partition(found.value)
    if leader.node_id not in state.replicas:
        raise InvalidArgument(
            f"node {leader.node_id} holds no replica of {partition}: {list(state.replicas)} do"
        )
    if state.leader is not None:
        alive, _ = await etcd.get(boot_key(state.leader.boot_id))
        if alive is not None:
            raise InvalidArgument(
                f"partition {partition} has a living leader: {state.leader.node_id}"
            )
    candidate = await opened(partition)
    if candidate.last_epoch > state.epoch:
        raise epoch_went_back(partition, state.epoch, known=candidate.last_epoch)
    return make_unclean_bid(
        partition,
        state,
        found.mod_revision,
        leader=leader,
        incarnation=candidate.incarnation,
    )
