"""What is worth a copy where the topic leaves it to its replicas: the rule, and how it turns."""

from __future__ import annotations

import pytest

from oncelog_server.core.machine import Settled
from oncelog_server.core.settling import Weight
from oncelog_server.runtime.replica.settling_worth import (
    LARGE_BYTES,
    LEAST_BATCHES,
    LEAST_BYTES,
    SMALL_BYTES,
    Worth,
)

AUTO = Settled(auto=True)


def weighed(batches: int, mean_bytes: int, *, settles: bool) -> Worth:
    worth = Worth(settles=settles)
    worth.add([Weight(0, batches, batches * mean_bytes)], end_row=batches)
    return worth


@pytest.mark.parametrize(
    ("mean_bytes", "was", "settles"),
    [
        (100, False, True),
        (SMALL_BYTES - 1, False, True),
        (SMALL_BYTES, False, False),
        (SMALL_BYTES, True, True),
        (LARGE_BYTES - 1, False, False),
        (LARGE_BYTES - 1, True, True),
        (LARGE_BYTES, True, False),
        (LARGE_BYTES, False, False),
    ],
)
def test_small_batches_are_worth_it_large_ones_are_not_and_in_between_it_stays(
    mean_bytes: int, was: bool, settles: bool
) -> None:
    worth = weighed(LEAST_BATCHES, mean_bytes, settles=was)
    assert worth.decide() == (was != settles)
    assert worth.settles == settles == worth.wants(AUTO)
    assert worth.mean_bytes == mean_bytes


def test_little_turns_nothing() -> None:
    few = weighed(LEAST_BATCHES - 1, 100, settles=False)
    assert (few.decide(), few.settles) == (False, False)
    little = weighed(LEAST_BYTES // LARGE_BYTES - 1, LARGE_BYTES, settles=True)
    assert (little.decide(), little.settles) == (False, True)
    nothing = Worth(settles=True)
    assert (nothing.decide(), nothing.settles, nothing.mean_bytes) == (False, True, 0)


def test_what_is_settled_or_deleted_counts_no_more() -> None:
    worth = weighed(2_000, 100, settles=False)
    worth.add([Weight(2_000, 100, 100 * LARGE_BYTES)], end_row=2_100)
    worth.drop_below(1_999)
    assert worth.batches == 2_100, "of what is not all below nothing is taken"
    worth.drop_below(2_000)
    assert (worth.batches, worth.mean_bytes, worth.counted_row) == (100, LARGE_BYTES, 2_100)
    worth.drop_below(9_000)
    assert worth.batches == 100, "where the last part ends is not known"


@pytest.mark.parametrize("settles", [True, False])
def test_settings_that_say_what_is_settled_are_followed(settles: bool) -> None:
    worth = Worth(settles=settles)
    assert worth.wants(Settled(wanted=True, auto=True, short_lived=True))
    assert not worth.wants(Settled())
    assert not worth.wants(Settled(auto=True, short_lived=True)), "it is deleted soon"


def test_it_says_why() -> None:
    worth = Worth(settles=False)
    assert worth.why(Settled(wanted=True)) == worth.why(Settled()) == ""
    assert "an hour" in worth.why(Settled(auto=True, short_lived=True))
    assert worth.why(AUTO) == "nothing was counted yet"
    assert "5 batches of 100 bytes" in weighed(5, 100, settles=False).why(AUTO)
    assert f"below {SMALL_BYTES}" in weighed(5_000, 9_000, settles=False).why(AUTO)
    assert f"from {LARGE_BYTES}" in weighed(5_000, 100, settles=True).why(AUTO)
