"""The rules of an election as tables."""

from __future__ import annotations

import msgspec
import pytest

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState, boot_key, partition_key
from oncelog_server.runtime.etcd.port import Compare, Exists
from oncelog_server.runtime.leadership.rules import (
    Bid,
    Fitness,
    History,
    Ruling,
    ballots,
    election,
    fitness,
    judge,
    make_bid,
    make_unclean_bid,
)
from oncelog_server.runtime.target import Candidate

US = LeaderValue("n1", "aa" * 16, "localhost", 1)
THEM = LeaderValue("n2", "bb" * 16, "localhost", 2)
OURS = b"i" * 16


def state(epoch: int, leader: LeaderValue | None) -> PartitionState:
    return PartitionState(("n1",), isr=(OURS.hex(),), leader=leader, epoch=epoch)


def history(*, led: int = 0, left: int = 0, seen: int = 0, revision: int = 0) -> History:
    return History(led_epoch=led, left_epoch=left, seen_epoch=seen, seen_revision=revision)


@pytest.mark.parametrize(
    ("what", "shown", "revision", "own", "lives", "ruling"),
    [
        ("our view lags behind our own win", state(3, THEM), 9, history(led=4, seen=4, revision=10),
         True, Ruling.WAIT),
        ("an older state, not leading", state(3, THEM), 9, history(seen=3, revision=10),
         True, Ruling.WAIT),
        ("a newer state with a lower epoch", state(3, THEM), 11, history(seen=4, revision=10),
         False, Ruling.REFUSE),
        ("a lower epoch while leading", state(3, US), 11, history(led=4, seen=4, revision=10),
         True, Ruling.REFUSE),
        ("us, in our epoch", state(4, US), 10, history(led=4, seen=4, revision=10),
         True, Ruling.LEAD),
        ("us, in our epoch, own key not shown yet", state(4, US), 10, history(led=4), False,
         Ruling.LEAD),
        ("somebody else, later", state(5, THEM), 11, history(led=4, seen=4, revision=10),
         True, Ruling.STEP_DOWN),
        ("somebody else, later, who died", state(5, THEM), 11, history(led=4), False,
         Ruling.STEP_DOWN),
        ("nobody, in our epoch", state(4, None), 11, history(led=4), False, Ruling.STEP_DOWN),
        ("us, in an epoch that we do not lead", state(5, US), 11, history(led=4), True,
         Ruling.STEP_DOWN),
        ("us, in an epoch that we left", state(4, US), 10, history(left=4, seen=4, revision=10),
         True, Ruling.RESIGN),
        ("us, in an epoch before one that we left", state(4, US), 10, history(left=5), True,
         Ruling.RESIGN),
        ("us, in an epoch that we never led", state(5, US), 11, history(left=4, seen=4), True,
         Ruling.ADOPT),
        ("somebody who lives", state(4, THEM), 10, history(), True, Ruling.FOLLOW),
        ("somebody who is gone", state(4, THEM), 10, history(), False, Ruling.STAND),
        ("nobody", state(4, None), 10, history(left=4), False, Ruling.STAND),
        ("nobody ever", state(0, None), 2, history(), False, Ruling.STAND),
    ],
)  # fmt: skip
def test_i18_each_state_of_etcd_gives_one_ruling(
    what: str, shown: PartitionState, revision: int, own: History, lives: bool, ruling: Ruling
) -> None:
    assert judge(shown, revision, own, own_boot=US.boot_id, leader_lives=lives) is ruling, what


@pytest.mark.parametrize(
    ("what", "epoch", "isr", "candidate", "fit"),
    [
        ("never elected", 0, (), Candidate(OURS, 0), Fitness.FIT),
        ("in the ISR", 3, (OURS.hex(),), Candidate(OURS, 3), Fitness.FIT),
        ("in the ISR, behind", 3, (OURS.hex(),), Candidate(OURS, 1), Fitness.FIT),
        ("emptied or damaged", 3, ("ff" * 16,), Candidate(OURS, 0), Fitness.UNFIT),
        ("elected once, ISR lost", 3, (), Candidate(OURS, 0), Fitness.UNFIT),
        ("a log of a later epoch", 3, (OURS.hex(),), Candidate(OURS, 4), Fitness.AHEAD_OF_ETCD),
        ("a log, but etcd forgot", 0, (), Candidate(OURS, 1), Fitness.AHEAD_OF_ETCD),
    ],
)
def test_who_may_win(
    what: str, epoch: int, isr: tuple[str, ...], candidate: Candidate, fit: Fitness
) -> None:
    assert fitness(PartitionState(("n1",), isr=isr, epoch=epoch), candidate) is fit, what


def partition(number: int) -> PartitionId:
    return PartitionId(TopicId(b"t" * 16), number)


def bid(number: int, old: PartitionState) -> Bid:
    return make_bid(partition(number), old, 100 + number, leader=US, incarnation=OURS)


def test_an_election_compares_revision_absence_and_own_presence() -> None:
    compares, puts = election([bid(0, state(3, THEM)), bid(1, state(0, None))], own_boot=US.boot_id)
    assert compares == [
        Exists(boot_key(US.boot_id)),
        Compare(boot_key(THEM.boot_id), 0),
        Compare(partition_key(partition(0)), 100),
        Compare(partition_key(partition(1)), 101),
    ]
    written = [msgspec.json.decode(put.value, type=PartitionState) for put in puts]
    assert [(new.epoch, new.leader) for new in written] == [(4, US), (1, US)]


def test_the_first_leader_is_alone_in_the_isr_and_later_ones_inherit_it() -> None:
    assert bid(0, PartitionState(("n1",))).new.isr == (OURS.hex(),)
    inherited = PartitionState(("n1",), isr=("11" * 16, OURS.hex()), epoch=2)
    assert bid(0, inherited).new.isr == inherited.isr


def test_an_unclean_election_names_only_us_and_is_remembered() -> None:
    old = PartitionState(("n1",), isr=("ff" * 16,), leader=THEM, epoch=6)
    new = make_unclean_bid(partition(0), old, 5, leader=US, incarnation=OURS).new
    assert (new.isr, new.epoch, new.unclean_epoch, new.leader) == ((OURS.hex(),), 7, 7, US)
    later = bid(0, new).new
    assert (later.epoch, later.unclean_epoch) == (8, 7)


def test_ballots_hold_at_most_100_partitions_and_128_compares() -> None:
    one_leader = [bid(number, state(1, THEM)) for number in range(250)]
    assert [len(ballot) for ballot in ballots(one_leader)] == [100, 100, 50]
    many_leaders = [
        bid(number, state(1, LeaderValue("n", f"{number:032x}", "h", 1))) for number in range(200)
    ]
    cut = list(ballots(many_leaders))
    assert [b for ballot in cut for b in ballot] == many_leaders
    assert all(len(election(ballot, own_boot=US.boot_id)[0]) <= 128 for ballot in cut)
    assert list(ballots([])) == []


def test_i18_a_history_never_wins_an_epoch_that_it_left() -> None:
    own = history()
    own.win(state(4, US), 10)
    assert own.leave() == 4
    with pytest.raises(AssertionError, match="never leads it again"):
        own.win(state(4, US), 11)
    own.win(state(5, US), 12)
    with pytest.raises(AssertionError, match="once at a time"):
        own.win(state(6, US), 13)
