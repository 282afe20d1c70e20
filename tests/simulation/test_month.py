"""A month of traffic on a small disk, with days of two hours: see `month`."""

from __future__ import annotations

from typing import Final

from tests.simulation import month

DAY_S: Final = 2 * month.HOUR_S
DAYS: Final = 3


def test_i32_what_is_kept_of_a_topic_is_bounded_and_nothing_acknowledged_is_lost() -> None:
    """Each row is of a day, after which all of that was looked at."""
    rows: list[tuple[str, ...]] = []
    lived = month.live(DAYS, 1, rows.append, day_s=DAY_S)
    assert len(rows) == DAYS
    assert lived.acknowledged.end > 2 * lived.kept, "most of it is gone"
