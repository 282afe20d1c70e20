"""The high watermark of one leader epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.replica.high_watermark import HighWatermark

OWN = Incarnation(b"a" * 16)
OTHER = Incarnation(b"b" * 16)
STRANGER = Incarnation(b"c" * 16)


def test_it_does_not_move_before_it_can_pass_epoch_start() -> None:
    hw = HighWatermark(own=OWN, counted=(), epoch_start=7, inherited=5)
    assert not hw.synced(OWN, 7), "everything before EPOCH_START is synced, but not EPOCH_START"
    assert (hw.value, hw.passed_epoch_start) == (5, False)
    assert hw.synced(OWN, 8)
    assert (hw.value, hw.passed_epoch_start) == (8, True)


def test_i25_it_is_the_minimum_over_those_that_count() -> None:
    hw = HighWatermark(own=OWN, counted=(OTHER,), epoch_start=0)
    assert not hw.synced(OWN, 10)
    assert hw.synced(OTHER, 4)
    assert hw.value == 4


def test_who_does_not_count_counts_for_nothing() -> None:
    hw = HighWatermark(own=OWN, counted=(OTHER,), epoch_start=0)
    hw.synced(OWN, 10)
    assert not hw.synced(STRANGER, 10)
    assert hw.value == 0


def test_what_was_inherited_never_covers_the_new_epoch() -> None:
    assert HighWatermark(own=OWN, counted=(), epoch_start=3, inherited=9).value == 3


@given(st.lists(st.tuples(st.sampled_from([OWN, OTHER, STRANGER]), st.integers(0, 50))))
def test_i27_it_never_moves_back_and_never_passes_a_member(
    acknowledgements: list[tuple[Incarnation, int]],
) -> None:
    hw = HighWatermark(own=OWN, counted=(OTHER,), epoch_start=5, inherited=2)
    best = {OWN: 0, OTHER: 0, STRANGER: 0}
    for who, end in acknowledgements:
        before = hw.value
        moved = hw.synced(who, end)
        best[who] = max(best[who], end)
        assert hw.value >= before
        assert moved == (hw.value > before)
        assert hw.value == 2 or hw.value <= min(best[OWN], best[OTHER])
