"""Random histories of groups, against the promises.

Several producers step through one partition of a topic, in transactions that chain, repeat, commit,
abort and are dropped, and plainly. Whatever happens, the committed steps of a group must form one
line from NONE: no input twice, none left out (I21).
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    compose_tx_id,
)
from oncelog_server.offset_manager.commands import (
    FROM_NONE,
    CommitOffsets,
    CommitTransactionOffsets,
    FetchOffsets,
    OffsetCommit,
    Read,
    View,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import (
    CODEC,
    OffsetsCommitted,
    OffsetsPending,
    TransactionMarked,
)
from oncelog_server.participant.commands import (
    Heard,
    HearVerdicts,
    Marker,
    Outcome,
    Verdict,
    WriteMarkers,
)
from tests.golden.host import MachineHost

PARTITION = PartitionId(TopicId(b"0123456789abcdef"), 0)
STARTS = [FROM_NONE, *range(6)]
GENERATION = Generation(1)


class Producer:
    """Begins transactions in order and decides them in order, as one coordinator would."""

    def __init__(self, number: int) -> None:
        self.producer_id = ProducerId(100 + number)
        self.journal_partition = number
        self.next_offset = 1
        self.open: TxId | None = None
        # Decided COMMIT, marker not delivered yet, in PREPARE order.
        self.prepared: list[tuple[TxId, int]] = []

    def begin(self) -> TxId:
        self.open = compose_tx_id(self.journal_partition, self._offset())
        return self.open

    def prepare(self) -> None:
        if self.open is not None:
            self.prepared.append((self.open, self._offset()))
            self.open = None

    def marker(self, tx_id: TxId, prepare_offset: int, outcome: Outcome) -> WriteMarkers:
        marker = Marker(tx_id, JournalOffset(prepare_offset), outcome, self.producer_id, GENERATION)
        return WriteMarkers(self.journal_partition, LeaderEpoch(1), (marker,))

    def abort_marker(self) -> WriteMarkers | None:
        if self.open is None:
            return None
        aborted, self.open = self.open, None
        return self.marker(aborted, self._offset(), Outcome.ABORTED)

    def _offset(self) -> int:
        self.next_offset += 1
        return self.next_offset - 1


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["send", "prepare", "deliver", "redeliver", "abort", "drop", "plain"]),
        st.integers(0, 1),
        st.sampled_from(STARTS),
        st.integers(0, 6),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_i21_committed_steps_form_one_line(actions: list[tuple[str, int, int, int]]) -> None:
    host = MachineHost(lambda: OffsetManagerMachine(OffsetManagerConfig()), CODEC)
    producers = [Producer(0), Producer(1)]
    delivered: list[WriteMarkers] = []
    for action, number, start, to in actions:
        command = _command(action, producers[number], start, to, delivered)
        if command is not None:
            host.submit(command)
            host.sync()
    _assert_one_line(host)
    host.check_replay()


def _command(
    action: str, producer: Producer, start: int, to: int, delivered: list[WriteMarkers]
) -> object | None:
    match action:
        case "send":
            tx_id = producer.open or producer.begin()
            after = producer.prepared[-1][0] if producer.prepared else TxId(0)
            step = OffsetCommit(PARTITION, start, to, after=after)
            return CommitTransactionOffsets(tx_id, producer.producer_id, GENERATION, "g", (step,))
        case "prepare":
            producer.prepare()
        case "deliver" if producer.prepared:
            delivered.append(producer.marker(*producer.prepared.pop(0), Outcome.COMMITTED))
            return delivered[-1]
        case "redeliver" if delivered:
            return delivered[to % len(delivered)]
        case "abort":
            return producer.abort_marker()
        case "drop" if producer.open is not None:
            dropped, producer.open = producer.open, None
            heard = Heard(dropped, producer.producer_id, GENERATION, Verdict.ABORTED)
            return HearVerdicts((heard,))
        case "plain":
            return CommitOffsets("g", (OffsetCommit(PARTITION, start, to),))
    return None


def _assert_one_line(host: MachineHost) -> None:
    """Replays the journal by itself: what each record must have meant for the position."""
    codec, position = CODEC, FROM_NONE
    pending: dict[TxId, list[OffsetCommit]] = {}
    for stored in host.frames:
        if not stored.frame.payload:
            continue
        record = codec.decode(stored.frame)
        steps: list[OffsetCommit] = []
        match record:
            case OffsetsCommitted():
                steps = list(record.offsets)
            case OffsetsPending():
                pending.setdefault(record.tx_id, []).extend(record.offsets)
            case TransactionMarked() if record.outcome is Outcome.COMMITTED:
                steps = pending.pop(record.tx_id, [])
        for step in steps:
            assert step.from_ == position, f"a step from {step.from_} at {position}"
            position = step.to
    fetch = FetchOffsets("g", (PARTITION,), Read.LAST_COMMITTED, View.COMMITTED)
    host.submit(fetch)
    (parked,) = host.sync()
    (fetched,) = parked.reply.offsets  # type: ignore[attr-defined]
    assert fetched.offset == (None if position == FROM_NONE else position)
