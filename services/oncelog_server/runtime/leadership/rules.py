"""PURE. Who may lead a partition: the rules of an election, without I/O (docs/leadership.md).

What etcd shows, against what this process has done, gives one verdict:

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


class Verdict(Enum):
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


class Prepared(NamedTuple):
    """A replica, opened: what an election asks of it."""

    incarnation: bytes
    # Largest epoch in its journal; 0 for an empty one.
    last_epoch: int


@dataclass(slots=True)
class Seat:
    """What this process knows of a partition that it has a replica of.

    Invariant: led_epoch is 0 or above left_epoch; left_epoch and seen_epoch only grow.
    """

    # 0: it does not lead.
    led_epoch: int = 0
    # The highest epoch that it led and left.
    left_epoch: int = 0
    # The highest epoch, and the revision of the newest state, that it has seen.
    seen_epoch: int = 0
    seen_revision: int = 0
    # As granted by the last election won; None before.
    granted: PartitionState | None = None
    # Set by `prepare`, used up by an election.
    prepared: Prepared | None = None
    preparing: bool = False
    # Not before this moment of the loop's clock.
    stand_after_s: float = 0.0
    # The revision for which "offline" was reported.
    reported_revision: int = 0

    def see(self, state: PartitionState, mod_revision: int) -> None:
        self.seen_epoch = max(self.seen_epoch, state.epoch)
        self.seen_revision = max(self.seen_revision, mod_revision)

    def win(self, state: PartitionState, mod_revision: int) -> None:
        assert self.led_epoch == 0, "a process leads a partition once at a time"
        assert state.epoch > self.left_epoch, "who left an epoch never leads it again"
        self.see(state, mod_revision)
        self.led_epoch = state.epoch
        self.granted = state
        self.prepared = None

    def leave(self) -> int:
        """The epoch that it led, 0 for none."""
        led, self.led_epoch = self.led_epoch, 0
        self.left_epoch = max(self.left_epoch, led)
        self.prepared = None
        return led


class Bid(NamedTuple):
    """One partition in an election: from which state, to which."""

    partition: PartitionId
    mod_revision: int
    old: PartitionState
    new: PartitionState


def judge(
    state: PartitionState, mod_revision: int, seat: Seat, *, own_boot: str, leader_lives: bool
) -> Verdict:
    """See the module's table. `leader_lives`: the key of the leader that `state` names stands."""
    if mod_revision < seat.seen_revision:
        return Verdict.WAIT
    if state.epoch < seat.seen_epoch:
        return Verdict.REFUSE
    ours = state.leader is not None and state.leader.boot_id == own_boot
    if seat.led_epoch:
        return Verdict.LEAD if ours and state.epoch == seat.led_epoch else Verdict.STEP_DOWN
    if ours:
        return Verdict.RESIGN if state.epoch <= seat.left_epoch else Verdict.ADOPT
    return Verdict.FOLLOW if leader_lives else Verdict.STAND


def fitness(state: PartitionState, prepared: Prepared) -> Fitness:
    """May this replica win the epoch after `state`?"""
    if prepared.last_epoch > state.epoch:
        return Fitness.AHEAD_OF_ETCD
    if state.epoch == 0 and not state.isr:
        # Nothing was ever acknowledged: any assigned replica may win epoch 1.
        return Fitness.FIT
    return Fitness.FIT if prepared.incarnation.hex() in state.isr else Fitness.UNFIT


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
        state, isr=(incarnation.hex(),), leader=leader, epoch=epoch, unclean_epoch=epoch
    )
    return Bid(partition, mod_revision, state, new)


def election(bids: Sequence[Bid], *, own_boot: str) -> tuple[list[Compare | Exists], list[Put]]:
    """One etcd transaction for these bids: nothing changed, the old leaders are gone, we live."""
    gone = sorted(_old_leaders(bids) - {own_boot})
    compares: list[Compare | Exists] = [Exists(boot_key(own_boot))]
    compares += [Compare(boot_key(boot_id), 0) for boot_id in gone]
    compares += [Compare(partition_key(bid.partition), bid.mod_revision) for bid in bids]
    return compares, [Put(partition_key(bid.partition), encode(bid.new)) for bid in bids]


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
