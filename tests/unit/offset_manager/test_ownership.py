"""Any order of heartbeats that are lost, late or repeated, of failovers and pauses: at most one
member holds a partition at any moment, whoever held it before commits nothing of it, who holds it
commits, and in the end each partition has one (I23)."""

from __future__ import annotations

import random

import pytest

from tests.unit.offset_manager.group_walk import Walk, partitions_of

WALKS = 40
STEPS = 250
WHAT = (
    *["send", "deliver", "durable", "hear", "let go", "round", "commit", "copy", "subscribe"],
    *["pass", "lose", "leave", "stall", "failover", "crash"],
)
# Seldom, else nothing else happens.
SELDOM = frozenset({"leave", "stall", "failover", "crash"})


@pytest.mark.parametrize("seed", range(WALKS))
def test_i23_at_most_one_owner_at_any_moment(seed: int) -> None:
    chance = random.Random(seed)
    walk = Walk(chance.randint(2, 4))
    # Each walk has its own mix: some never fail over, some hardly ever hear.
    weights = [chance.random() ** 2 * (0.1 if what in SELDOM else 1) for what in WHAT]
    for what in chance.choices(WHAT, weights, k=STEPS):
        walk.step(what, chance.randrange(1 << 16))
    walk.heal()
    held = [partition for member in walk.members for partition in member.holds(walk.now_ms)]
    wanted = partitions_of([member.subscribed for member in walk.members])
    assert sorted(held) == sorted(wanted), "each partition has one owner in the end"
    walk.host.check_replay()
