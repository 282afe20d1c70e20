"""What an operator may force: a replica that is not in the ISR leads, although acknowledged records
may be lost (`oncelog cluster unclean-elect`). This judges the demand and makes the bid; the vote is
an election like any other. Which replica it should be is said by `last_resort`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.etcd.keys import (
    LeaderValue,
    PartitionState,
    boot_key,
    decode_partition,
    partition_key,
)
from oncelog_server.runtime.etcd.port import Etcd
from oncelog_server.runtime.etcd.refusal import epoch_went_back
from oncelog_server.runtime.leadership.rules import Bid, Fitness, fitness, make_unclean_bid
from oncelog_server.runtime.target import Candidate
from oncelogpb.errors import InvalidArgument, UnknownPartition


class Seen(NamedTuple):
    """What an operator saw of a partition, and of the replica that shall lead, when he decided."""

    # Of the partition, in etcd; whom he asked may have been behind. Hex.
    epoch: int
    isr: frozenset[str]
    # Hex.
    incarnation: str
    last_epoch: int
    synced_end: int


class UncleanElection(NamedTuple):
    """What an operator asks for, checked."""

    partition: PartitionId
    # The node that shall lead.
    node_id: str
    # None: whatever stands there now.
    seen: Seen | None = None
    # Identity of who asks; "" without TLS.
    by: str = ""
    # What he was told may be lost.
    told: str = ""

    def report_asked(self, reporter: Reporter, *, epoch: int, kept_end: int) -> None:
        """Before etcd is asked: it may take place, and its answer never come. Then this is what
        tells who asked for the election of that epoch, and what he was told."""
        self._report(reporter, "unclean election asked for", epoch, kept_end)

    def report(self, reporter: Reporter, *, epoch: int, kept_end: int) -> None:
        """It was granted."""
        self._report(reporter, "elected uncleanly", epoch, kept_end)

    def _report(self, reporter: Reporter, what: str, epoch: int, kept_end: int) -> None:
        """In the process's log, whether or not calls are audited."""
        reporter.event(
            f"{what}, by an operator",
            level="warning",
            partition=str(self.partition),
            epoch=epoch,
            kept_end=kept_end,
            by=self.by,
            told=self.told,
        )


async def unclean_bid(
    asked: UncleanElection,
    etcd: Etcd,
    *,
    leader: LeaderValue,
    opened: Callable[[PartitionId], Awaitable[Candidate]],
) -> tuple[Bid, int]:
    """And the synced end that is kept. `leader` is this process. Raises InvalidArgument (no replica
    here, one that needs no such election, a leader that lives, or another state than was seen),
    UnknownPartition, EtcdUnavailable, EtcdRefused."""
    partition = asked.partition
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
    if fitness(state, candidate) is Fitness.FIT:
        raise InvalidArgument(
            f"the replica of {partition} on node {leader.node_id} lacks nothing that was "
            "acknowledged: it is elected by itself, within seconds; if not, the log of its process "
            "says why"
        )
    _require_as_seen(asked, state, candidate)
    bid = make_unclean_bid(
        partition,
        state,
        found.mod_revision,
        leader=leader,
        incarnation=candidate.incarnation,
    )
    return bid, candidate.synced_end


def _require_as_seen(asked: UncleanElection, state: PartitionState, candidate: Candidate) -> None:
    """Whoever decided on something else decides again."""
    seen = asked.seen
    if seen is None:
        return
    incarnation = candidate.incarnation.hex()
    has_less = (candidate.last_epoch, candidate.synced_end) < (seen.last_epoch, seen.synced_end)
    now = (state.epoch, frozenset(state.isr), incarnation)
    if has_less or (seen.epoch, seen.isr, seen.incarnation) != now:
        raise InvalidArgument(
            f"partition {asked.partition} is not as it was seen, look again: in epoch "
            f"{state.epoch}, {len(state.isr)} replicas are in sync, and node {asked.node_id} has "
            f"replica {incarnation}, synced to {candidate.synced_end} in epoch "
            f"{candidate.last_epoch}",
            field="seen",
        )
