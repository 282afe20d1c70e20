"""A wall clock that jumps takes the journals' time along no further than it must."""

from __future__ import annotations

import pytest

from oncelog_server.runtime.clock import NS_PER_MS, SLEW, STEP_MS, RealClock

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
START_MS = 1_700_000_000_000


class Times:
    """What the system's clocks say."""

    def __init__(self) -> None:
        self.monotonic_ms, self.wall_ms, self.lease_clock_ms = 5_000, START_MS, 9_000
        self.clock = RealClock(
            monotonic_ns=lambda: self.monotonic_ms * NS_PER_MS,
            wall_ns=lambda: self.wall_ms * NS_PER_MS,
            lease_clock_ms=lambda: self.lease_clock_ms,
        )

    def passes(self, ms: int, *, looks: int = 1) -> int:
        """Time goes on, and is looked at so often; how far the wall has come since the start."""
        for _ in range(looks):
            self.monotonic_ms += ms // looks
            self.lease_clock_ms += ms // looks
            self.wall_ms += ms // looks
            now = self.clock.now()
            assert now.monotonic_ms == self.monotonic_ms
        return now.wall_ms - START_MS


def test_it_is_the_wall_clock_where_that_does_not_jump() -> None:
    times = Times()
    assert times.passes(WEEK_MS, looks=10) == WEEK_MS
    times.wall_ms += STEP_MS
    assert times.passes(10) == WEEK_MS + STEP_MS + 10


@pytest.mark.parametrize("looks", [1, 60, 3_600])
def test_a_jump_ahead_counts_for_no_more_than_the_time_that_it_lasted(looks: int) -> None:
    times = Times()
    times.wall_ms += WEEK_MS
    assert times.passes(HOUR_MS, looks=looks) == SLEW * HOUR_MS
    times.wall_ms -= WEEK_MS
    assert times.passes(1_000) == HOUR_MS + 1_000, "backwards it is followed at once"
    assert times.passes(HOUR_MS) == 2 * HOUR_MS + 1_000


def test_a_clock_that_is_set_right_is_followed() -> None:
    times = Times()
    times.wall_ms += HOUR_MS
    assert times.passes(HOUR_MS, looks=100) == 2 * HOUR_MS
    assert times.passes(1_000) == 2 * HOUR_MS + 1_000


def test_a_machine_that_slept_has_not_jumped() -> None:
    times = Times()
    # The loop's clock does not count it.
    times.lease_clock_ms += WEEK_MS
    times.wall_ms += WEEK_MS
    assert times.passes(1_000) == WEEK_MS + 1_000
    times.wall_ms += WEEK_MS
    assert times.passes(1_000) == WEEK_MS + 3_000, "this one did"
