"""Random interleavings of batches, markers, repeats, failovers: whatever arrives in whatever order,
the committed log is dense, each transaction whole or absent and contiguous, and replay gives the
same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import (
    PLAIN_PRODUCER_BIT,
    JournalOffset,
    LeaderEpoch,
    ProducerId,
    TxId,
    Writer,
    compose_generation,
)
from oncelog_server.participant.commands import (
    Heard,
    HearVerdicts,
    Marker,
    MarkerResult,
    MarkerStatus,
    MarkersWritten,
    Outcome,
    Verdict,
    WriteMarkers,
    WriterPart,
)
from oncelog_server.partition_leader.commands import Placed, Produce
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import PartitionCodec
from tests.golden.host import MachineHost

GENERATION = compose_generation(1, 1)
PRODUCERS = 3


@dataclass
class Tx:
    """A transaction as its producer knows it."""

    tx_id: TxId
    producer: int
    # Writer -> records acknowledged.
    written: dict[int, int] = field(default_factory=dict)


@dataclass
class Oracle:
    """A coordinator and its producers, who do everything right but for what they repeat."""

    host: MachineHost
    next_offset: int = 1
    open: dict[int, Tx] = field(default_factory=dict)
    # Decided, in PREPARE order; delivered from the front.
    markers: list[Marker] = field(default_factory=list)
    delivered: int = 0
    sent: list[Frame] = field(default_factory=list)
    plain_next: int = 0
    # What the committed log must be: (tx id or 0, writer, sequence, count).
    expected: list[tuple[int, int, int, int]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    # Decided, as their producers knew them; those that are not ended still take batches.
    decided: list[Tx] = field(default_factory=list)
    frames: dict[int, list[Frame]] = field(default_factory=dict)

    def take_offset(self) -> int:
        self.next_offset += 1
        return self.next_offset - 1

    def submit(self, command: Any) -> Any:
        self.host.submit(command)
        (parked,) = self.host.sync()
        return parked.reply

    def plain(self, count: int) -> None:
        frame = _frame(PLAIN_PRODUCER_BIT | 1, 0, 0, self.plain_next, count)
        (placed,) = self.submit(Produce((frame,)))
        assert isinstance(placed, Placed)
        assert not placed.duplicate
        self.plain_next += count
        self.sent.append(frame)
        self.expected.append((0, 0, frame.base_sequence, count))

    def send(self, producer: int, writer: int, count: int) -> None:
        tx = self.open.get(producer)
        if tx is None:
            tx = self.open[producer] = Tx(TxId(self.take_offset()), producer)
        frame = _frame(producer + 1, tx.tx_id, writer, tx.written.get(writer, 0), count)
        (placed,) = self.submit(Produce((frame,)))
        assert isinstance(placed, Placed), f"{placed} for {frame}"
        tx.written[writer] = frame.base_sequence + count
        self.sent.append(frame)
        self.frames.setdefault(tx.tx_id, []).append(frame)

    def repeat(self, which: int) -> None:
        """An old batch arrives again: acknowledged as a repeat, or refused; never appended."""
        if not self.sent:
            return
        frame = self.sent[which % len(self.sent)]
        before = self.host.log_end
        (placed,) = self.submit(Produce((frame,)))
        assert self.host.log_end == before, "a repeat was appended (I6, I20)"
        if isinstance(placed, Placed):
            assert placed.duplicate
            stored = next(s for s in self.host.frames if s.at.offset == placed.journal_offset)
            assert stored.frame == frame
        if frame.tx_id in self.ended:
            assert not isinstance(placed, Placed), "accepted after its marker (I20)"

    def decide(self, producer: int, outcome: Outcome, keep: int) -> None:
        """COMMIT names a subset of the writers, in any order; what the others left is dropped."""
        tx = self.open.pop(producer, None)
        if tx is None:
            return
        writers = sorted(tx.written, key=lambda writer: (writer * keep) % 5)
        named = writers[: max(1, keep % (len(writers) + 1))]
        parts = tuple(WriterPart(Writer(writer), tx.written[writer]) for writer in named)
        self.decided.append(tx)
        self.markers.append(
            Marker(
                tx.tx_id,
                JournalOffset(self.take_offset()),
                outcome,
                ProducerId(producer + 1),
                GENERATION,
                parts if outcome is Outcome.COMMITTED else (),
            )
        )

    def late(self, which: int, count: int) -> None:
        """A batch behind the commit's answer, before its marker: acknowledged, and of nothing."""
        waiting = [tx for tx in self.decided if tx.tx_id not in self.ended]
        if not waiting:
            return
        tx = waiting[which % len(waiting)]
        writer = sorted(tx.written)[which % len(tx.written)]
        frame = _frame(tx.producer + 1, tx.tx_id, writer, tx.written[writer], count)
        (placed,) = self.submit(Produce((frame,)))
        assert isinstance(placed, Placed), f"{placed} for {frame}"
        tx.written[writer] += count
        self.sent.append(frame)

    def one_shot(self, producer: int, count: int) -> None:
        if producer in self.open:
            return
        offset = self.take_offset()
        batch = _frame(producer + 1, offset, 0, 0, count)._replace(kind=FrameKind.ONE_SHOT)
        self.markers.append(
            Marker(
                TxId(offset),
                JournalOffset(offset),
                Outcome.COMMITTED,
                ProducerId(producer + 1),
                GENERATION,
                (),
                batch,
            )
        )

    def deliver(self, again: int, more: int) -> None:
        """Markers go out from one that was delivered before, in order."""
        start = max(0, self.delivered - again)
        end = min(len(self.markers), self.delivered + more)
        if start == end:
            return
        reply = self.submit(WriteMarkers(0, LeaderEpoch(1), tuple(self.markers[start:end])))
        assert isinstance(reply, MarkersWritten)
        assert reply.refusal is None
        assert len(reply.results) == end - start
        assert {result.status for result in reply.results} <= {MarkerStatus.APPLIED}
        self._assert_surplus(reply.results[self.delivered - start :])
        for marker in self.markers[self.delivered : end]:
            self.ended.add(marker.tx_id)
            if marker.outcome is Outcome.ABORTED:
                continue
            if marker.batch is not None:
                self.expected.append((marker.tx_id, 0, 0, marker.batch.record_count))
            for part in marker.parts:
                self.expected.extend(
                    (marker.tx_id, frame.writer, frame.base_sequence, frame.record_count)
                    for frame in self.frames[marker.tx_id]
                    if frame.writer == part.writer
                )
        self.delivered = max(self.delivered, end)

    def _assert_surplus(self, results: Sequence[MarkerResult]) -> None:
        """Of markers that were new: what came late, and nothing else."""
        written = {tx.tx_id: tx.written for tx in self.decided}
        for result in results:
            for part in result.exposed:
                if result.tx_id in written:
                    came = written[result.tx_id][part.writer]
                    assert part.record_count + part.surplus_records == came

    def answer(self, producer: int) -> None:
        """Silence and ONGOING end nothing."""
        tx = self.open.get(producer)
        if tx is not None:
            heard = Heard(tx.tx_id, ProducerId(producer + 1), GENERATION, Verdict.ONGOING)
            assert self.submit(HearVerdicts((heard,))) == 0

    def failover(self) -> None:
        self.host.failover(lose_tail=False)
        self.host.sync()


def _frame(producer_id: int, tx_id: int, writer: int, sequence: int, count: int) -> Frame:
    return Frame(
        FrameKind.DATA,
        b"." * (count * 3000),
        record_count=count,
        producer_id=producer_id,
        generation=GENERATION if tx_id else 0,
        writer=writer,
        base_sequence=sequence,
        tx_id=tx_id,
        max_timestamp_us=(sequence * 37) % 101,
    )


def _committed(host: MachineHost) -> list[tuple[int, int, int, int]]:
    """The committed log as a reader sees it; asserts that offsets are dense."""
    machine = host.machine
    assert isinstance(machine, PartitionMachine)
    log = machine.committed
    end = log.readable_end(host.high_watermark)
    seen: list[tuple[int, int, int, int]] = []
    position = 0
    while position < end:
        for stretch in log.stretches(position, below=end, max_bytes=5000, max_entries=3):
            stop = stretch.journal_offset + stretch.record_count
            for stored in host.frames:
                if not (stretch.journal_offset <= stored.at.offset < stop):
                    continue
                first = stretch.first_offset + stored.at.offset - stretch.journal_offset
                assert first == position, "the committed log is dense (I14)"
                frame = stored.frame
                sequence = 0 if frame.kind is FrameKind.ONE_SHOT else frame.base_sequence
                writer = 0 if frame.kind is FrameKind.ONE_SHOT else frame.writer
                seen.append((frame.tx_id, writer, sequence, frame.record_count))
                position = first + frame.record_count
    return seen


producer = st.integers(0, PRODUCERS - 1)
count = st.integers(1, 4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), count),
        st.tuples(st.just("send"), producer, st.integers(0, 2), count),
        st.tuples(st.just("send"), producer, st.integers(0, 2), count),
        st.tuples(st.just("repeat"), st.integers(0, 50)),
        st.tuples(st.just("decide"), producer, st.sampled_from(Outcome), st.integers(1, 4)),
        st.tuples(st.just("late"), st.integers(0, 5), count),
        st.tuples(st.just("one_shot"), producer, count),
        st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("answer"), producer),
        st.tuples(st.just("failover")),
    ),
    max_size=50,
)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_i01_i03_i06_i08_i09_i14_i20_i35_whatever_the_interleaving(
    steps: list[tuple[Any, ...]],
) -> None:
    oracle = Oracle(MachineHost(PartitionMachine, PartitionCodec()))
    for name, *arguments in steps:
        getattr(oracle, name)(*arguments)
        assert _committed(oracle.host) == oracle.expected
    oracle.host.check_replay()
