"""PURE. A partition that nobody leads, and none of whose replicas in sync is left: which of the
others should lead by an unclean election, and what may be lost (docs/operating.md, "A partition
that stays offline").

    etcd shows, and the processes that answered report      | what may be done
    --------------------------------------------------------+-----------------------------------
    somebody leads it; or nobody ever did                   | nothing: it needs no such election
    a replica that is in sync, open                         | nothing: it is elected by itself
    a log with a later epoch than etcd's                    | nothing: etcd went back
    no replica at all                                       | nothing: nothing is known
    else                                                    | the largest (last epoch, synced end)

Every replica in sync has all that was acknowledged, so which of the *others* has most says only how
little more is lost. Nobody can say that nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Held(Protocol):
    """A log, as its process reports it."""

    @property
    def node_id(self) -> str: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def synced_end(self) -> int: ...


def rank(log: Held) -> tuple[int, int, str]:
    """Of logs of one partition, the largest has most. Never the length alone: a longer log of an
    earlier epoch has less of what was acknowledged."""
    return (log.last_epoch, log.synced_end, log.node_id)


class Reported(NamedTuple):
    """An open replica."""

    node_id: str
    # Hex.
    incarnation: str
    last_epoch: int
    synced_end: int
    # What it knows to be durable: perhaps above the end of its own log.
    high_watermark: int


class Unheard(NamedTuple):
    """A replica of which nothing was reported."""

    node_id: str
    # Etcd shows its process alive.
    runs: bool
    why: str


class Vacant(NamedTuple):
    """A partition as etcd shows it."""

    name: str
    epoch: int
    replicas: Sequence[str]
    # Hex.
    isr: Sequence[str]
    # Node that leads it; "": none.
    leader: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What can be said of one partition."""

    partition: Vacant
    # Best first.
    reported: Sequence[Reported]
    unheard: Sequence[Unheard]
    # Why there is nothing to propose; "": `best` is.
    refusal: str = ""
    best: Reported | None = None
    # What may be lost, by the node that would lead, as far as it is known.
    losses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    not_known: str = ""

    def doubts(self, chosen: Reported) -> list[str]:
        """Why somebody else should perhaps lead; none: it is the best one of all that live."""
        doubts = []
        if self.best is not None and rank(self.best)[:2] > rank(chosen)[:2]:
            doubts.append(
                f"node {self.best.node_id} has more than node {chosen.node_id}: choose that one"
            )
        doubts += [
            f"node {one.node_id} runs, and it is not known what it has ({one.why})"
            for one in self.unheard
            if one.runs
        ]
        return doubts

    def may_be_lost(self, chosen: Reported) -> list[str]:
        """All of it, in words."""
        return [*self.losses[chosen.node_id], self.not_known]


def propose(
    partition: Vacant, reported: Sequence[Reported], unheard: Sequence[Unheard]
) -> Proposal:
    """`reported` and `unheard` are of its replicas."""
    ordered = sorted(reported, key=rank, reverse=True)
    refusal = _refusal(partition, ordered, unheard)
    if refusal:
        return Proposal(partition, ordered, unheard, refusal)
    losses = {one.node_id: _losses(partition, ordered, one) for one in ordered}
    return Proposal(
        partition, ordered, unheard, "", ordered[0], losses, not_known(partition, unheard)
    )


def _refusal(partition: Vacant, reported: Sequence[Reported], unheard: Sequence[Unheard]) -> str:
    if partition.leader:
        return f"partition {partition.name} has a living leader: {partition.leader}"
    if partition.epoch == 0 and not partition.isr:
        return (
            f"partition {partition.name} was never led: nothing can be lost, and any of its "
            "replicas is elected once its process runs"
        )
    in_sync = [one for one in reported if one.incarnation in partition.isr]
    if in_sync:
        return (
            f"the replica of {partition.name} on node {in_sync[0].node_id} is in sync and has all "
            "that was acknowledged: it is elected by itself, within seconds; if not, the log of "
            "its process says why"
        )
    ahead = [one for one in reported if one.last_epoch > partition.epoch]
    if ahead:
        return (
            f"node {ahead[0].node_id} has frames of epoch {ahead[0].last_epoch} of "
            f"{partition.name}, and etcd shows epoch {partition.epoch}: etcd was restored; "
            "`oncelog cluster recover` is for that"
        )
    if not reported:
        named = "; ".join(f"node {one.node_id}: {one.why}" for one in unheard)
        return (
            f"nothing is known of {partition.name}, for none of its replicas could be asked: "
            f"{named or 'it has none'}. Start one of these processes, with its data"
        )
    return ""


def _losses(
    partition: Vacant,
    reported: Sequence[Reported],
    chosen: Reported,
) -> list[str]:
    end = chosen.synced_end
    losses = [
        f"acknowledged records at journal offset {end} and above are lost, as far as there are any"
    ]
    durable = max(one.high_watermark for one in reported)
    if durable > end:
        losses.append(
            f"for certain {durable - end} journal offsets, {end} to {durable - 1}: they are known "
            "to have been durable"
        )
    if chosen.last_epoch < partition.epoch:
        first, last = chosen.last_epoch + 1, partition.epoch
        epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        losses.append(
            f"all that was acknowledged in {epochs}: its last frame is of epoch {chosen.last_epoch}"
        )
    for other in reported:
        if rank(other)[:2] > rank(chosen)[:2]:
            losses.append(_cut(other, chosen))
    return losses


def not_known(partition: Vacant, unheard: Sequence[Unheard]) -> str:
    """What nobody can say, whoever leads."""
    gone = ", ".join(f"{one.node_id} ({one.why})" for one in sorted(unheard))
    return (
        (
            f"none of the {len(partition.isr)} replicas in sync was found"
            if partition.isr
            else "etcd names none in sync: a recovery waits for the replicas of other machines, so "
            "run `oncelog cluster recover` there before you force anything"
        )
        + (f"; of these nothing is known: {gone}" if gone else "")
        + ". How much they had above what is kept, nobody here knows; where one comes back later, "
        "it is cut to that"
    )


def _cut(other: Reported, chosen: Reported) -> str:
    if other.last_epoch == chosen.last_epoch:
        return (
            f"what node {other.node_id} has and node {chosen.node_id} has not: journal offsets "
            f"{chosen.synced_end} to {other.synced_end - 1}"
        )
    return (
        f"what node {other.node_id} has and node {chosen.node_id} has not: it was synced to "
        f"{other.synced_end} in epoch {other.last_epoch}, later than epoch {chosen.last_epoch}"
    )
