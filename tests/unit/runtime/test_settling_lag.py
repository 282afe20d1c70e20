"""For how long what is readable has not been settled."""

from __future__ import annotations

import random

import pytest

from oncelog_server.runtime.replica.settling_lag import MARKS_MAX, Readable


def test_the_oldest_record_that_is_not_settled_says_how_long() -> None:
    readable = Readable()
    assert readable.seen(0, settled_end=0, now_ms=5) == 0, "there is nothing"
    assert readable.seen(10, settled_end=0, now_ms=100) == 0, "it was not there before"
    assert readable.seen(10, settled_end=0, now_ms=400) == 300
    assert readable.seen(30, settled_end=9, now_ms=500) == 400, "record 9 is as old as before"
    assert readable.seen(30, settled_end=10, now_ms=600) == 100, "what is left came at 500"
    assert readable.seen(30, settled_end=30, now_ms=700) == 0
    assert readable.seen(31, settled_end=30, now_ms=900) == 0
    assert readable.seen(31, settled_end=30, now_ms=950) == 50


@pytest.mark.parametrize("seed", range(5))
def test_few_moments_are_remembered_and_a_lag_is_never_said_too_short(seed: int) -> None:
    chance = random.Random(seed)
    readable = Readable()
    came_ms: list[int] = []
    settled_end = 0
    for now_ms in range(0, 50_000, 100):
        came_ms += [now_ms] * chance.randrange(3)
        if chance.random() < 0.02:
            settled_end = chance.randrange(settled_end, len(came_ms) + 1)
        lag_ms = readable.seen(len(came_ms), settled_end=settled_end, now_ms=now_ms)
        if settled_end == len(came_ms):
            assert lag_ms == 0
        else:
            assert lag_ms >= now_ms - came_ms[settled_end]
        assert len(readable._marks) <= MARKS_MAX
