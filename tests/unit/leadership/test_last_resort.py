"""Which replica is proposed for an unclean election, and what is said to be lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oncelog_server.runtime.leadership.last_resort import (
    Proposal,
    Reported,
    Unheard,
    Vacant,
    propose,
)

GONE = Unheard("n1", runs=False, why="it does not run")


def replica(node: str, last_epoch: int, synced_end: int, *, durable: int = 0) -> Reported:
    return Reported(node, f"directory of {node}", last_epoch, synced_end, durable)


def proposed(
    *reported: Reported,
    unheard: Sequence[Unheard] = (GONE,),
    epoch: int = 7,
    isr: Sequence[str] = ("directory of n1",),
    leader: str = "",
) -> Proposal:
    names = [*(one.node_id for one in reported), *(one.node_id for one in unheard)]
    return propose(Vacant("payments/0", epoch, names, isr, leader), reported, unheard)


@pytest.mark.parametrize(
    ("reported", "best"),
    [
        ((replica("n2", 7, 10), replica("n3", 7, 12)), "n3"),
        # A longer log of an earlier epoch: what it has more was cut, or never acknowledged.
        ((replica("n2", 7, 10), replica("n3", 6, 12)), "n2"),
        ((replica("n2", 0, 0), replica("n3", 1, 1)), "n3"),
    ],
)
def test_i5_the_largest_last_epoch_then_synced_end_is_proposed(
    reported: Sequence[Reported], best: str
) -> None:
    for order in (reported, tuple(reversed(reported))):
        proposal = proposed(*order)
        assert proposal.best is not None
        assert proposal.best.node_id == best, "acknowledged records are lost that somebody has"
        assert proposal.doubts(proposal.best) == []


@pytest.mark.parametrize(
    ("proposal", "why"),
    [
        (proposed(replica("n2", 7, 10), leader="n2"), "has a living leader: n2"),
        (proposed(replica("n2", 0, 0), epoch=0, isr=()), "was never led"),
        (
            proposed(replica("n2", 6, 9), replica("n3", 7, 10), isr=["directory of n2"]),
            "node n2 is in sync",
        ),
        (proposed(replica("n2", 8, 10)), "etcd was restored"),
        (proposed(), "nothing is known of payments/0"),
        (proposed(), "node n1: it does not run"),
    ],
)
def test_i5_where_nothing_has_to_be_lost_or_nothing_is_known_nobody_is_proposed(
    proposal: Proposal, why: str
) -> None:
    assert proposal.best is None, "a replica that is in sync could still be elected"
    assert why in proposal.refusal


def test_what_may_be_lost_is_said_in_numbers() -> None:
    proposal = proposed(replica("n2", 6, 90, durable=120), replica("n3", 5, 80, durable=70))
    best, worse = ("\n".join(proposal.may_be_lost(one)) for one in proposal.reported)
    assert "journal offset 90 and above" in best
    assert "for certain 30 journal offsets, 90 to 119" in best
    assert "all that was acknowledged in epoch 7" in best
    assert "all that was acknowledged in epochs 6 to 7" in worse
    assert "none of the 1 replicas in sync was found; of these nothing is known: n1" in best
    assert "synced to 90 in epoch 6, later than epoch 5" in worse
    assert "for certain 40 journal offsets, 80 to 119" in worse
    even = proposed(replica("n2", 7, 90), replica("n3", 7, 80))
    assert "journal offsets 80 to 89" in "\n".join(even.losses["n3"])
    assert "for certain" not in "\n".join(even.losses["n2"])


def test_a_recovery_that_waits_comes_first() -> None:
    proposal = proposed(replica("n2", 7, 90), isr=())
    assert "run `oncelog cluster recover` there before" in proposal.not_known


def test_i5_who_has_less_and_who_did_not_answer_are_doubts() -> None:
    silent = Unheard("n1", runs=True, why="it did not answer")
    proposal = proposed(replica("n2", 7, 10), replica("n3", 7, 12), unheard=[silent])
    best, worse = proposal.reported
    assert [doubt.split(",")[0] for doubt in proposal.doubts(best)] == ["node n1 runs"]
    first, _ = proposal.doubts(worse)
    assert first.startswith("node n3 has more than node n2"), "which one is better is not said"
    # As much is not less.
    as_much = proposed(replica("n2", 7, 10), replica("n3", 7, 10))
    assert all(as_much.doubts(one) == [] for one in as_much.reported)
