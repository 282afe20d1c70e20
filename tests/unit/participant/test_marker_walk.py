"""The walk through a call's markers, over a participant that only says what it was asked."""

from __future__ import annotations

from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    ProducerId,
    TxId,
    compose_tx_id,
)
from oncelog_server.core.machine import Decision
from oncelog_server.participant.commands import (
    Marker,
    MarkerResult,
    MarkerStatus,
    MarkersWritten,
    Outcome,
    WriteMarkers,
)
from oncelog_server.participant.fences import Fences
from oncelog_server.participant.marker_order import MarkerOrder
from oncelog_server.participant.marker_walk import walk

JOURNAL = 3
PRODUCER = ProducerId(100)
T5, T8, T9 = (compose_tx_id(JOURNAL, offset) for offset in (5, 8, 9))
ELSEWHERE = compose_tx_id(JOURNAL + 1, 5)


class Talkative:
    """Its records are (TxId, what was held)."""

    def __init__(self, *held: TxId) -> None:
        self._held = held

    def held(self, tx_id: TxId) -> str | None:
        return "batches" if tx_id in self._held else None

    def write(
        self, marker: Marker, held: str | None
    ) -> tuple[tuple[TxId, str | None], MarkerResult]:
        return (marker.tx_id, held), MarkerResult(marker.tx_id, MarkerStatus.APPLIED)

    def repeat(self, marker: Marker) -> MarkerResult:
        return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, repeated=True)


class Scene:
    """A participant of which the coordinator of epoch 4 has written COMMITTED @20."""

    def __init__(self, *held: TxId) -> None:
        self.order, self.fences = MarkerOrder(), Fences()
        self.order.committed(JOURNAL, LeaderEpoch(4), prepare_offset=JournalOffset(20))
        self.marked = Talkative(*held)

    def walk(
        self, *markers: tuple[TxId, int, Outcome], epoch: int = 4
    ) -> Decision[tuple[TxId, str | None]]:
        command = WriteMarkers(
            JOURNAL,
            LeaderEpoch(epoch),
            tuple(
                Marker(tx_id, JournalOffset(prepare), outcome, PRODUCER, Generation(1))
                for tx_id, prepare, outcome in markers
            ),
        )
        return walk(command, order=self.order, fences=self.fences, marked=self.marked)


def said(decision: Decision[tuple[TxId, str | None]]) -> tuple[list[str], str]:
    written = decision.reply
    assert isinstance(written, MarkersWritten)
    results = ["repeated" if result.repeated else "written" for result in written.results]
    return results, written.refusal.reason if written.refusal is not None else ""


COMMITTED, ABORTED = Outcome.COMMITTED, Outcome.ABORTED


def test_committed_goes_by_prepare_order_alone() -> None:
    scene = Scene(T8)
    scene.fences.ended(PRODUCER, 1, T9, 0)
    decision = scene.walk((T5, 20, COMMITTED), (T8, 21, COMMITTED), (T5, 22, COMMITTED))
    assert said(decision) == (["repeated", "written", "written"], "")
    assert decision.records == [(T8, "batches"), (T5, None)]


def test_aborted_applies_to_what_is_held_and_to_what_is_news() -> None:
    scene = Scene(T5)
    scene.fences.ended(PRODUCER, 1, T8, 0)
    decision = scene.walk((T5, 6, ABORTED), (T8, 7, ABORTED), (T9, 19, ABORTED))
    assert said(decision) == (["written", "repeated", "written"], "")


def test_what_a_marker_has_ended_the_next_one_finds_ended() -> None:
    decision = Scene(T5).walk((T5, 21, ABORTED), (T5, 22, ABORTED), (T5, 23, COMMITTED))
    assert said(decision) == (["written", "repeated", "written"], "")
    assert decision.records == [(T5, "batches"), (T5, None)]


def test_i11_the_walk_stops_at_the_first_refusal() -> None:
    before = (T5, 21, COMMITTED)
    for wrong in [(T8, 21, COMMITTED), (T8, 7, ABORTED), (ELSEWHERE, 22, COMMITTED)]:
        decision = Scene().walk(before, wrong, (T9, 30, COMMITTED))
        assert said(decision) == (["written"], "INVALID_ARGUMENT")
        assert decision.records == [(T5, None)]


def test_no_marker_has_a_prepare_at_offset_zero() -> None:
    assert said(Scene().walk((T5, 0, ABORTED))) == ([], "INVALID_ARGUMENT")


def test_i19_of_an_older_coordinator_nothing_is_looked_at() -> None:
    assert said(Scene(T5).walk((T5, 21, COMMITTED), epoch=3)) == ([], "NOT_LEADER")
    assert said(Scene(T5).walk((T5, 21, COMMITTED), epoch=5)) == (["written"], "")
