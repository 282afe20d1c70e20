"""Markers on their way: order, one group at a time, limits."""

from __future__ import annotations

from oncelog_server.coordinator import deliveries as module
from oncelog_server.coordinator.commands import (
    Exposure,
    MarkerAnswer,
    MarkersAnswered,
    MarkerStatus,
    OwedMarker,
)
from oncelog_server.coordinator.deliveries import GROUP_BYTES_MAX, MARKERS_PER_GROUP_MAX, Deliveries
from oncelog_server.coordinator.transactions import State, Transaction
from oncelog_server.coordinator.values import Manifest, OneShotBatch, TopicParts
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    PartitionId,
    ProducerId,
    TxId,
)
from tests.unit.coordinator.world import A0, A1


def committed(number: int, *partitions: PartitionId, payload: bytes = b"") -> Transaction:
    """PREPARE at its own number + 1,000,000."""
    transaction = Transaction(
        TxId(number), ProducerId(1), Generation(1), State.PREPARE_COMMIT, 0, 0, number
    )
    transaction.prepare_offset = JournalOffset(1_000_000 + number)
    if payload:
        transaction.batches = tuple(OneShotBatch(p, 1, 1, 0, 0, payload) for p in partitions)
    else:
        columns = (
            tuple(p.number for p in partitions),
            (0,) * len(partitions),
            (1,) * len(partitions),
        )
        transaction.manifest = Manifest((TopicParts(A0.topic_id, *columns),))
    return transaction


def due(deliveries: Deliveries, below: int = 2_000_000) -> dict[PartitionId, list[OwedMarker]]:
    return {owed.participant: list(owed.markers) for owed in deliveries.due(JournalOffset(below))}


def applied(*numbers: int) -> list[MarkerAnswer]:
    return [MarkerAnswer(TxId(number), MarkerStatus.APPLIED) for number in numbers]


def test_i11_a_group_is_ascending_and_at_most_so_many() -> None:
    deliveries = Deliveries()
    for number in range(1, MARKERS_PER_GROUP_MAX + 3):
        deliveries.add(committed(number, A0))
    markers = due(deliveries)[A0]
    assert [m.tx_id for m in markers] == list(range(1, MARKERS_PER_GROUP_MAX + 1))
    deliveries.sent(A0)
    assert not due(deliveries)
    deliveries.answered(MarkersAnswered(A0, applied(*range(1, MARKERS_PER_GROUP_MAX + 1))))
    deliveries.check()
    assert [m.tx_id for m in due(deliveries)[A0]] == [
        MARKERS_PER_GROUP_MAX + 1,
        MARKERS_PER_GROUP_MAX + 2,
    ]


def test_a_group_is_limited_in_bytes_but_never_empty() -> None:
    deliveries = Deliveries()
    big = b"x" * (GROUP_BYTES_MAX // 2)
    for number in (1, 2, 3):
        deliveries.add(committed(number, A0, payload=big))
    deliveries.add(committed(4, A1, payload=b"x" * (GROUP_BYTES_MAX * 2)))
    found = due(deliveries)
    assert [m.tx_id for m in found[A0]] == [1]
    assert [m.tx_id for m in found[A1]] == [4]


def test_owed_is_below_the_high_watermark_only() -> None:
    deliveries = Deliveries()
    deliveries.add(committed(1, A0))
    deliveries.add(committed(2, A0))
    assert not due(deliveries, below=1_000_001)
    assert [m.tx_id for m in due(deliveries, below=1_000_002)[A0]] == [1]


def test_what_comes_while_a_group_is_out_waits() -> None:
    deliveries = Deliveries()
    deliveries.add(committed(1, A0))
    deliveries.sent(A0)
    deliveries.add(committed(2, A0, A1))
    deliveries.check()
    assert list(due(deliveries)) == [A1]
    deliveries.answered(MarkersAnswered(A0))
    assert [m.tx_id for m in due(deliveries)[A0]] == [1, 2]


def test_payload_and_backlog_are_counted_until_acknowledged() -> None:
    deliveries = Deliveries()
    deliveries.add(committed(1, A0, A1, payload=b"12345"))
    assert deliveries.payload_bytes == 10
    assert deliveries.backlog(A0)[0] == 1
    deliveries.sent(A0)
    deliveries.answered(MarkersAnswered(A0, applied(1)))
    assert deliveries.payload_bytes == 5
    assert deliveries.backlog(A0) == (0, 0)
    deliveries.check()


def test_an_acknowledgement_counts_once() -> None:
    deliveries = Deliveries()
    deliveries.add(committed(1, A0, A1))
    for _ in range(2):
        deliveries.sent(A0)
        deliveries.answered(MarkersAnswered(A0, applied(1, 99)))
        deliveries.check()
    assert deliveries.unacknowledged(TxId(1)) == [A1]


def test_exposures_are_remembered_for_a_while() -> None:
    deliveries = Deliveries()
    transaction = committed(1, A0)
    deliveries.add(transaction)
    exposed = Exposure(A0, 0, 17, 1)
    deliveries.sent(A0)
    deliveries.answered(
        MarkersAnswered(A0, [MarkerAnswer(TxId(1), MarkerStatus.APPLIED, (exposed,))])
    )
    assert deliveries.finishable(JournalOffset(2_000_000)) == [TxId(1)]
    deliveries.remove(transaction)
    told = deliveries.delivered(TxId(1))
    assert told is not None
    assert list(told.exposed) == [exposed]
    assert not deliveries.finishable(JournalOffset(2_000_000))


def test_no_more_exposures_are_kept_than_the_limit_says() -> None:
    deliveries = Deliveries()
    kept = module.EXPOSURES_KEPT
    for number in range(1, kept + 2):
        transaction = committed(number, A0)
        deliveries.add(transaction)
        deliveries.sent(A0)
        result = MarkerAnswer(TxId(number), MarkerStatus.APPLIED, (Exposure(A0, 0, 1, 1),))
        deliveries.answered(MarkersAnswered(A0, [result]))
        deliveries.remove(transaction)
    assert deliveries.delivered(TxId(1)) is None
    assert deliveries.delivered(TxId(kept + 1)) is not None


def test_i35_a_transaction_that_is_over_leaves_nothing_behind() -> None:
    deliveries = Deliveries()
    first, second = committed(1, A0, A1), committed(2, A1)
    deliveries.add(first)
    deliveries.add(second)
    # At recovery nobody knows the acknowledgements: the records alone end them, in any order.
    deliveries.remove(second)
    deliveries.check()
    deliveries.remove(first)
    deliveries.check()
    assert not due(deliveries)
    assert deliveries.waiting_markers == 0


def test_what_is_remembered_of_wide_commits_is_bounded() -> None:
    """By parts, not by transactions: a batch job's commit has thousands."""
    deliveries = Deliveries()
    wide = 1_500
    for number in range(1, 41):
        transaction = committed(number, A0)
        deliveries.add(transaction)
        deliveries.sent(A0)
        exposed = tuple(Exposure(A0, writer, writer, 1) for writer in range(wide))
        result = MarkerAnswer(TxId(number), MarkerStatus.APPLIED, exposed)
        deliveries.answered(MarkersAnswered(A0, [result]))
        deliveries.remove(transaction)
        deliveries.check()
    kept = [number for number in range(1, 41) if deliveries.delivered(TxId(number)) is not None]
    assert len(kept) * wide <= module.EXPOSED_PARTS_KEPT
    assert kept == list(range(41 - len(kept), 41)), "the latest"
    assert kept
