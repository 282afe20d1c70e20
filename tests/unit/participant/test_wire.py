"""What is judged of markers before any machine is asked, and how results are said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog_server.core.ids import compose_tx_id
from oncelog_server.participant import wire
from oncelog_server.participant.commands import MarkerResult, MarkerStatus, MarkersWritten, Outcome
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import participant_pb2, types_pb2

P0 = types_pb2.Partition(topic_id=b"0123456789abcdef", number=0)
TX = compose_tx_id(3, 5)
APPLIED = MarkerResult(TX, MarkerStatus.APPLIED)


def _group(**marker: object) -> participant_pb2.MarkerGroup:
    fields = {"tx_id": TX, "prepare_offset": 9, "kind": participant_pb2.MARKER_KIND_COMMITTED}
    return participant_pb2.MarkerGroup(
        journal_partition=3,
        coordinator_epoch=2,
        markers=[participant_pb2.Marker(**fields | marker)],  # type: ignore[arg-type]
    )


def test_a_marker_is_read() -> None:
    command = wire.write_markers(_group())
    assert command.coordinator_epoch == 2
    assert [(m.tx_id, m.prepare_offset, m.outcome) for m in command.markers] == [
        (TX, 9, Outcome.COMMITTED)
    ]


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (lambda: _group(kind=0), "markers.kind"),
        (lambda: _group(tx_id=0), "markers.tx_id"),
        (lambda: _group(tx_id=16 << 48 | 5), "markers.tx_id"),
        (lambda: participant_pb2.MarkerGroup(journal_partition=16), "journal_partition"),
    ],
)
def test_a_marker_that_says_nothing_is_refused(
    broken: Callable[[], participant_pb2.MarkerGroup], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        wire.write_markers(broken())
    assert refusal.value.metadata["field"] == field


def test_a_refused_marker_stands_behind_the_applied_ones() -> None:
    result = wire.marker_group_result(
        P0, MarkersWritten((APPLIED,), InvalidArgument("no", field="tx_id")), is_watched=False
    )
    assert [r.tx_id for r in result.results] == [TX]
    assert result.results[0].status == participant_pb2.MarkerResult.STATUS_APPLIED
    assert result.HasField("error")
    applied = wire.marker_group_result(P0, MarkersWritten((APPLIED,)), is_watched=False)
    assert not applied.HasField("error")
