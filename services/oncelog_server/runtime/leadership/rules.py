"""PURE. Who may lead a partition: the rules of an election, without I/O (docs/leadership.md).

What etcd shows, against what this process has done, gives one ruling:

    etcd shows                                  | this process leads | it does not
    --------------------------------------------+--------------------+---------------------------
    a state older than one that we have seen    | WAIT               | WAIT     our view lags
    an epoch lower than one that we have seen   | REFUSE             | REFUSE   etcd went back
    us, in the epoch that we lead               | LEAD               | –
    us, in an epoch that we left                | STEP_DOWN          | RESIGN
    us, in an epoch that we never led           | STEP_DOWN          | ADOPT    a lost answer
    somebody who lives                          | STEP_DOWN          | FOLLOW
    somebody who is gone, or nobody             | STEP_DOWN          | STAND

Invariants: an epoch is led by one process at most (etcd's compare-and-set), and by that process
once at most (`left_epoch` only grows); I18.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd.keys import (
    TXN_KEYS_MAX,
    TXN_OPS_MAX,
    LeaderValue,
    PartitionState,
    boot_key,
    encode,
    partition_key,
)
from oncelog_server.runtime.etcd.port import Compare, Exists, Put
from oncelog_server.runtime.target import Candidate, Follow


class Ruling(Enum):
    """What to do about one partition; see the module's table."""

    WAIT = "wait"
    REFUSE = "refuse"
    LEAD = "lead"
    STEP_DOWN = "step down"
    RESIGN = "resign"
    ADOPT = "adopt"
    FOLLOW = "follow"
    STAND = "stand"


class Fitness(Enum):
    """Whether a replica may win."""

    FIT = "fit"
    # The ISR names other incarnations only.
    UNFIT = "unfit"
    # Its log holds an epoch that etcd has not granted yet: etcd went back.
    AHEAD_OF_ETCD = "ahead of etcd"


@dataclass(slots=True)
class History:
    """What this process saw, and did, of a partition that it has a replica of.

    Invariant: led_epoch is 0 or above left_epoch; left_epoch and seen_epoch only grow.
    """

    # 0: it does not lead.
    led_epoch: int = 0
    # The highest epoch that it led and left.
    left_epoch: int = 0
    # The highest epoch, and the revision of the newest state, that it has seen.
    seen_epoch: int = 0
    seen_revision: int = 0
    # Not before this moment of the loop's clock.
    stand_after_s: float = 0.0
    # Since when nobody leads it, as far as this process sees; None: somebody does.
    vacant_since_s: float | None = None
    # The revision for which "offline" was reported.
    reported_revision: int = 0
    # Its key was read, linearizably, since this process took its lease.
    was_read: bool = False
    # Whom its replica was told to follow.
    follows: Follow | None = None
    # Its replicas were moved elsewhere, and the one here was put aside.
    is_put_aside: bool = False

    def see(self, state: PartitionState, mod_revision: int) -> None:
        self.seen_epoch = max(self.seen_epoch, state.epoch)
        self.seen_revision = max(self.seen_revision, mod_revision)

    def win(self, state: PartitionState, mod_revision: int) -> None:
        assert self.led_epoch == 0, "a process leads a partition once at a time"
        assert state.epoch > self.left_epoch, "who left an epoch never leads it again"
        self.see(state, mod_revision)
        self.led_epoch = state.epoch
        self.follows = None

    def leave(self) -> int:
        """The epoch that it led, 0 for none."""
        led, self.led_epoch = self.led_epoch, 0
        self.left_epoch = max(self.left_epoch, led)
        return led


class Bid(NamedTuple):
    """One partition in an election: from which state, to which."""

    partition: PartitionId
    mod_revision: int
    old: PartitionState
    new: PartitionState


def judge(
    state: PartitionState, mod_revision: int, history: History, *, own_boot: str, leader_lives: bool
) -> Ruling:
    """See the module's table. `leader_lives`: the key of the leader that `state` names stands."""
    if mod_revision < history.seen_revision:
        return Ruling.WAIT
    if state.epoch < history.seen_epoch:
        return Ruling.REFUSE
    ours = state.leader is not None and state.leader.boot_id == own_boot
    if history.led_epoch:
        return Ruling.LEAD if ours and state.epoch == history.led_epoch else Ruling.STEP_DOWN
    if ours:
        return Ruling.RESIGN if state.epoch <= history.left_epoch else Ruling.ADOPT
    return Ruling.FOLLOW if leader_lives else Ruling.STAND


def fitness(state: PartitionState, candidate: Candidate) -> Fitness:
    """May this replica win the epoch after `state`?"""
    if candidate.last_epoch > state.epoch:
        return Fitness.AHEAD_OF_ETCD
    if state.epoch == 0 and not state.isr:
        # Nothing was ever acknowledged: any assigned replica may win epoch 1.
        return Fitness.FIT
    return Fitness.FIT if candidate.incarnation.hex() in state.isr else Fitness.UNFIT


def make_bid(
    partition: PartitionId,
    state: PartitionState,
    mod_revision: int,
    *,
    leader: LeaderValue,
    incarnation: bytes,
) -> Bid:
    """The next epoch, for us. The first leader is alone in the ISR; later ones inherit it."""
    isr = state.isr or (incarnation.hex(),)
    new = msgspec.structs.replace(state, isr=isr, leader=leader, epoch=state.epoch + 1)
    return Bid(partition, mod_revision, state, new)


def make_unclean_bid(
    partition: PartitionId,
    state: PartitionState,
    mod_revision: int,
    *,
    leader: LeaderValue,
    incarnation: bytes,
) -> Bid:
    """The next epoch, for us, whatever the ISR says. The state remembers that it was unclean."""
    epoch = state.epoch + 1
    new = msgspec.structs.replace(
        state, isr=(incarnation.hex(),), leader=leader, epoch=epoch, unclean_epoch=epoch, found=()
    )
    return Bid(partition, mod_revision, state, new)


def election(bids: Sequence[Bid], *, own_boot: str) -> tuple[list[Compare | Exists], list[Put]]:
    """One etcd transaction for these bids: nothing changed, the old leaders are gone, we live."""
    gone = sorted(_old_leaders(bids) - {own_boot})
    compares: list[Compare | Exists] = [Exists(boot_key(own_boot))]
    compares += [Compare(boot_key(boot_id), 0) for boot_id in gone]
    compares += [Compare(partition_key(bid.partition), bid.mod_revision) for bid in bids]
    return compares, [Put(partition_key(bid.partition), encode(bid.new)) for bid in bids]


def resignation(
    resigned: Sequence[tuple[PartitionId, PartitionState, int]],
) -> tuple[list[Compare | Exists], list[Put]]:
    """One etcd transaction that empties `leader` of these (each with its state, and the revision of
    that): nothing changed."""
    compares: list[Compare | Exists] = [
        Compare(partition_key(partition), revision) for partition, _, revision in resigned
    ]
    return compares, [
        Put(partition_key(partition), encode(msgspec.structs.replace(state, leader=None)))
        for partition, state, _ in resigned
    ]


def ballots(bids: Sequence[Bid]) -> Iterator[list[Bid]]:
    """Cuts bids into transactions that etcd takes."""
    ballot: list[Bid] = []
    for bid in bids:
        grown = [*ballot, bid]
        compares = len(grown) + len(_old_leaders(grown)) + 1
        if len(grown) > TXN_KEYS_MAX or compares > TXN_OPS_MAX:
            yield ballot
            grown = [bid]
        ballot = grown
    if ballot:
        yield ballot


def _old_leaders(bids: Sequence[Bid]) -> set[str]:
    return {bid.old.leader.boot_id for bid in bids if bid.old.leader is not None}
