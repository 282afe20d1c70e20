"""What a projection is shown, and when: in replay as in life."""

from __future__ import annotations

from oncelog_server.core.frame import At
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.machine import EpochStart
from oncelog_server.runtime.replica.projecting import Projecting


class Shown:
    """The Projection port."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def project(self, record: object, at: At) -> None:
        assert not isinstance(record, EpochStart), "nothing of the role's"
        self.offsets.append(at.offset)


def see(projecting: Projecting, *offsets: int) -> None:
    for offset in offsets:
        projecting.saw("record", At(JournalOffset(offset), LeaderEpoch(1), 0))


def test_i4_replay_shows_what_the_high_watermark_covers_and_no_more() -> None:
    shown = Shown()
    projecting = Projecting(shown, 3)
    projecting.saw(EpochStart(), At(JournalOffset(0), LeaderEpoch(1), 0))
    see(projecting, 1, 2, 3, 4)
    assert shown.offsets == [1, 2]
    projecting.advance(4)
    see(projecting, 5)
    assert shown.offsets == [1, 2, 3]
    projecting.advance(6)
    assert shown.offsets == [1, 2, 3, 4, 5]


def test_i4_a_watermark_that_moves_during_a_replay_lets_nothing_overtake() -> None:
    shown = Shown()
    projecting = Projecting(shown, 0)
    see(projecting, 1, 2)
    projecting.advance(2)
    see(projecting, 3)
    assert shown.offsets == [1]
    projecting.advance(9)
    see(projecting, 4)
    assert shown.offsets == [1, 2, 3, 4]
