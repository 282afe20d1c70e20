"""Which snapshots are kept, and where a log begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.machine import Needs
from oncelog_server.runtime.storage.keeping import (
    CANDIDATES_MAX,
    SNAPSHOTS_KEPT,
    kept_snapshots,
    next_log_start,
)

BASES = [0, 100, 200, 300]


@pytest.mark.parametrize(
    ("offsets", "log_start", "kept"),
    [
        ([], 0, set()),
        ([10], 0, {10}),
        # The two newest; those in the first segment would let nothing go.
        ([10, 20, 30], 0, {20, 30}),
        # The first one of each other segment, and that of the log start.
        ([10, 110, 120, 210, 220, 310, 320, 330], 10, {10, 110, 210, 310, 320, 330}),
        ([10, 110, 120, 210, 220, 310, 320, 330], 110, {110, 210, 310, 320, 330}),
        # What stands before it is no state of this log any more.
        ([10, 20, 110], 110, {110}),
        # Where a segment begins counts as in it.
        ([100, 200, 300, 301, 302], 100, {100, 200, 300, 301, 302}),
    ],
)
def test_which_snapshots_are_kept(offsets: list[int], log_start: int, kept: set[int]) -> None:
    assert kept_snapshots(offsets, log_start=log_start, bases=BASES) == kept


@given(st.sets(st.integers(1, 10_000), max_size=200), st.integers(0, 5_000))
def test_few_are_kept_and_they_stand_far_from_each_other(offsets: set[int], log_start: int) -> None:
    bases = list(range(0, 10_000, 50))
    live = sorted(offset for offset in offsets if offset >= log_start)
    kept = kept_snapshots(sorted(offsets), log_start=log_start, bases=bases)
    assert len(kept) <= CANDIDATES_MAX + SNAPSHOTS_KEPT + 1
    assert kept <= set(live)
    assert set(live[-2:]) <= kept
    if len(live) == 200:
        assert max(kept) - min(kept) > 5_000


ALL = 1 << 40


@pytest.mark.parametrize(
    ("needed", "wanted", "limit", "start"),
    [
        (0, 0, ALL, None),
        # A later start in the same segment frees nothing.
        (90, 90, ALL, None),
        (109, 109, ALL, None),
        (110, 110, ALL, 110),
        (250, 250, ALL, 210),
        (400, 400, ALL, 310),
        # What is wanted is kept.
        (400, 110, ALL, 110),
        (400, 0, ALL, None),
        # While it is not too much; and then no more goes than has to.
        (400, 0, 300, 110),
        (400, 0, 190, 210),
        (400, 110, 190, 210),
        # What is needed stays, however much it is.
        (250, 0, 0, 210),
        (90, 0, 0, None),
    ],
)
def test_where_a_log_begins(needed: int, wanted: int, limit: int, start: int | None) -> None:
    found = next_log_start(
        [10, 110, 210, 310],
        Needs(needed, wanted, 0),
        log_start=0,
        bases=BASES,
        bytes_between=lambda first, end: end - first,
        wanted_bytes_max=limit,
    )
    assert found == start
