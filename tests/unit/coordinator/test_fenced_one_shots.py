"""A one-shot whose instance was replaced while it waited: what became of it is a fact, and whoever
asked is told that, not that nothing happened."""

from __future__ import annotations

import pytest

from oncelog_server.coordinator.commands import (
    AnswerOffsets,
    InitProducer,
    Transact,
    TransactAnswer,
)
from oncelog_server.coordinator.producers import REQUESTS_KEPT
from oncelog_server.coordinator.values import OneShotOffsets, Refusal
from tests.unit.coordinator.world import BATCHES, World, said

WITH_OFFSETS = OneShotOffsets("group", b"")
NO = Refusal("STALE_POSITION", "no", {})


def test_i4_a_staged_one_shot_keeps_its_answer_over_a_take_over() -> None:
    world = World()
    shot = Transact(world.who, 1, BATCHES, WITH_OFFSETS)
    tx_id = world.transact(shot)
    assert said(world.ask(InitProducer("g", "p", b"a later instance"))) == "CONCURRENT_TRANSACTION"
    assert world.ask(shot) == TransactAnswer(tx_id, staged=True, duplicate=True)
    world.ask(AnswerOffsets(tx_id, None))
    assert world.ask(shot) == TransactAnswer(tx_id, duplicate=True)


def test_i4_the_offset_managers_no_is_told_over_a_take_over() -> None:
    world = World()
    shot = Transact(world.who, 1, BATCHES, WITH_OFFSETS)
    tx_id = world.transact(shot)
    world.ask(InitProducer("g", "p", b"a later instance"))
    world.ask(AnswerOffsets(tx_id, NO))
    assert said(world.ask(shot)) == "STALE_POSITION"


@pytest.mark.parametrize("restored", [False, True])
def test_i4_a_lost_answer_is_given_again_over_a_take_over(restored: bool) -> None:
    world = World()
    shot = Transact(world.who, 1, BATCHES)
    tx_id = world.transact(shot)
    world.init(b"a later instance")
    if restored:
        world.host.failover(lose_tail=False)
        world.host.sync()
    assert world.ask(shot) == TransactAnswer(tx_id, duplicate=True)


def test_i16_what_is_new_is_refused_after_a_take_over() -> None:
    world = World()
    world.transact(Transact(world.who, 1, BATCHES))
    world.init(b"a later instance")
    assert said(world.ask(Transact(world.who, 2, BATCHES))) == "PRODUCER_FENCED"


def test_the_last_answers_of_earlier_instances_are_kept() -> None:
    world = World()
    shots: list[Transact] = []
    tx_ids = []
    for number in range(REQUESTS_KEPT + 4):
        shots.append(Transact(world.init(b"%16d" % number), 1, BATCHES))
        tx_ids.append(world.transact(shots[-1]))
    answers = [world.ask(shot) for shot in shots]
    # The newest is the living instance's own.
    # Those that are forgotten were accepted once: nobody may say that nothing happened.
    assert [said(answer) for answer in answers[:3]] == ["UNKNOWN_OUTCOME"] * 3
    assert answers[3:] == [TransactAnswer(tx_id, duplicate=True) for tx_id in tx_ids[3:]]
