"""Random transactions, retention, truncations, clocks that jump, changes of leader: what is left of
the committed log is what it was, only from its start on; nothing goes before its time; what anybody
can still be given is needed; and every replay, from any snapshot, gives the same.

A model in a few lines: all records in commit order, each with the moment of its commit; what is
deleted is a prefix of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import ControlCode, FrameKind
from oncelog_server.core.ids import LeaderEpoch, Offset
from oncelog_server.participant.commands import Outcome, WriteMarkers
from oncelog_server.partition_leader.commands import (
    Configure,
    Durable,
    Settings,
    Truncate,
    Truncated,
)
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import (
    LogStart,
    PartitionCodec,
    parts_of,
)
from oncelog_server.partition_leader.retention import LOOK_MS_MOST, SHARE
from tests.golden.host import MachineHost
from tests.unit.partition_leader.test_properties import Oracle, count, producer

# TxId, writer, and number of the record in its part.
Name = tuple[int, int, int]
RETENTION_MS = 160_000
# Between two ticks.
STEP_MS = 5_000
RETENTION_BYTES = 40_000
# As `Oracle` sends them.
BYTES_A_RECORD = 3_000


@dataclass
class Deleter(Oracle):
    """Who also deletes, and knows what may be."""

    # Moment of each committed record's commit, and how often the clock had jumped by then.
    born: list[tuple[int, int]] = field(default_factory=list)
    jumps: int = 0
    # Up to here somebody has truncated.
    truncated: int = 0
    needed: int = 0
    version: int = 0

    @property
    def machine(self) -> PartitionMachine:
        machine = self.host.machine
        assert isinstance(machine, PartitionMachine)
        return machine

    def names(self) -> list[Name]:
        return [
            (tx_id, writer, sequence + number)
            for tx_id, writer, sequence, records in self.expected
            for number in range(records)
        ]

    # ------------------------------------------------------------------------------------- steps

    def truncate(self, share: int) -> None:
        log = self.machine.committed
        before = Offset(log.end_offset * share // 4)
        start = log.start_offset
        self.host.submit(Truncate(before))
        assert log.readable_start(self.host.high_watermark) == start, "not before it is durable"
        (parked,) = self.host.sync()
        assert isinstance(parked.reply, Truncated)
        assert parked.reply.start_after == max(start, before)
        self.truncated = max(self.truncated, before)

    def configure(self, retention_ms: int, retention_bytes: int) -> None:
        self.version += 1
        self.submit(Configure(Settings(self.version, retention_ms, retention_bytes)))

    def wait(self, ms: int, step_ms: int = STEP_MS) -> None:
        while ms > 0:
            self.host.pass_time(min(ms, step_ms))
            ms -= step_ms
            before = self.machine.committed.start_offset
            recorded = self.host.tick()
            self.host.sync()
            for _, record in recorded:
                if isinstance(record, LogStart):
                    self._require_due(before, record.offset)

    def commit(self, producer: int, keep: int) -> None:
        self.decide(producer, Outcome.COMMITTED, keep)
        self.deliver(0, len(self.markers))

    def jump(self, ms: int) -> None:
        self.jumps += 1
        self.host.jump(ms)

    def drop(self) -> None:
        self.host.signal(Durable(self.host.high_watermark))

    # ------------------------------------------------------------------------------------- checks

    def _require_due(self, before: int, start: int) -> None:
        """What retention deletes is old enough, or more than there may be; and whole."""
        known = self.machine.settings
        now_ms = self.host.now.monotonic_ms
        assert start > before
        names = self.names()
        assert start == len(names) or not names[start][0] or names[start][0] != names[start - 1][0]
        size = BYTES_A_RECORD * (len(names) - start)
        if known.retention_bytes >= 0 and size >= known.retention_bytes:
            return
        assert known.retention_ms >= 0
        for born_ms, jumps in self.born[before:start]:
            believed_ms = (self.jumps - jumps) * (known.retention_ms // SHARE)
            assert now_ms - born_ms + believed_ms >= known.retention_ms, "before its time"

    def look(self) -> None:
        """After every step."""
        now = self.host.now.monotonic_ms
        names = self.names()
        self.born += [(now, self.jumps)] * (len(names) - len(self.born))
        log = self.machine.committed
        start = log.readable_start(self.host.high_watermark)
        end = log.readable_end(self.host.high_watermark)
        assert end == len(names)
        assert start >= self.truncated
        needed = self.machine.needed_from()
        assert needed >= self.needed, "what is needed never goes back"
        self.needed = needed
        given = list(self._read(start, end, not_before=needed))
        assert given == names[start:end]
        for offset in {start, (start + end) // 2, end}:
            point = self.machine.find_point(offset, self.host.high_watermark)
            assert needed <= point.earliest <= point.iterator
            assert self._read_raw(*point) == names[offset:end], f"{point} of {offset}"

    def _read(self, start: int, end: int, *, not_before: int) -> Iterator[Name]:
        position = start
        while position < end:
            (stretch, *_) = self.machine.committed.stretches(
                position, below=end, max_bytes=1, max_entries=1
            )
            stop = stretch.journal_offset + stretch.record_count
            for stored in self.host.frames:
                frame, at = stored.frame, stored.at.offset
                if stored.end <= stretch.journal_offset or at >= stop:
                    continue
                assert at >= not_before, "it is needed"
                first = stretch.first_offset + at - stretch.journal_offset
                one_shot = frame.kind is FrameKind.ONE_SHOT
                for number in range(max(position - first, 0), frame.record_count):
                    base = 0 if one_shot else frame.base_sequence
                    yield frame.tx_id, 0 if one_shot else frame.writer, base + number
                position = max(position, first + frame.record_count)

    def _read_raw(self, earliest: int, iterator: int, given: int) -> list[Name]:
        """As a reader of RAW does, who holds back what belongs to transactions."""
        held: dict[int, dict[int, list[Name]]] = defaultdict(lambda: defaultdict(list))
        found: list[Name] = []
        for stored in self.host.frames:
            frame, at = stored.frame, stored.at.offset
            if stored.end <= earliest or stored.at.offset >= self.host.high_watermark:
                continue
            one_shot = frame.kind is FrameKind.ONE_SHOT
            base, writer = (0, 0) if one_shot else (frame.base_sequence, frame.writer)
            records = [(frame.tx_id, writer, base + n) for n in range(frame.record_count)]
            if frame.kind is FrameKind.DATA and frame.tx_id:
                held[frame.tx_id][writer] += records
            elif frame.kind in (FrameKind.DATA, FrameKind.ONE_SHOT):
                found += records if at >= iterator else []
            elif frame.kind is FrameKind.MARKER and frame.control is ControlCode.COMMITTED:
                parts = held.pop(frame.tx_id, {})
                for part in parts_of(frame) if at >= iterator else ():
                    assert len(parts[part.writer]) >= part.record_count, "its batches were missed"
                    found += parts[part.writer][: part.record_count]
        return found[given:]


deletions = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), count),
        st.tuples(st.just("plain"), count),
        st.tuples(st.just("send"), producer, st.integers(0, 2), count),
        st.tuples(st.just("send"), producer, st.integers(0, 2), count),
        st.tuples(st.just("decide"), producer, st.sampled_from(Outcome), st.integers(1, 4)),
        st.tuples(st.just("commit"), producer, st.integers(1, 4)),
        st.tuples(st.just("commit"), producer, st.integers(1, 4)),
        st.tuples(st.just("late"), st.integers(0, 5), count),
        st.tuples(st.just("one_shot"), producer, count),
        st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("failover")),
        st.tuples(st.just("truncate"), st.integers(0, 4)),
        st.tuples(
            st.just("configure"),
            st.sampled_from([-1, RETENTION_MS]),
            st.sampled_from([-1, RETENTION_BYTES]),
        ),
        st.tuples(st.just("wait"), st.sampled_from([1_000, 20_000, 90_000])),
        st.tuples(st.just("wait"), st.sampled_from([1_000, 20_000, 90_000])),
        st.tuples(st.just("jump"), st.sampled_from([-(10**9), 30_000, 10**9])),
        st.tuples(st.just("drop")),
    ),
    min_size=5,
    max_size=45,
)


def deleter() -> Deleter:
    host = MachineHost(PartitionMachine, PartitionCodec())
    host.settle = lambda machine, end: machine.committed.drop(end)
    return Deleter(host)


@given(deletions)
@settings(max_examples=40, deadline=None)
def test_i14_i32_i35_whatever_is_deleted_the_rest_is_where_it_was(
    steps: list[tuple[Any, ...]],
) -> None:
    model = deleter()
    model.configure(RETENTION_MS, -1)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.look()
    # Nothing that is old enough stays for ever, whatever clocks did.
    model.configure(RETENTION_MS, -1)
    model.wait(2 * RETENTION_MS + 2 * LOOK_MS_MOST)
    model.look()
    assert model.machine.committed.start_offset == len(model.names())
    model.host.check_replay()


def test_i03_a_point_inside_of_a_transaction_leads_to_its_beginning() -> None:
    """Its batches lie on both sides of others; the offset is one of the last."""
    model = deleter()
    for writer in (0, 1, 0, 1):
        model.send(0, writer, 2)
        model.plain(1)
    model.decide(0, Outcome.COMMITTED, 2)
    model.deliver(0, 1)
    model.look()
    last = len(model.names()) - 1
    point = model.machine.find_point(last, model.host.high_watermark)
    assert model._read_raw(*point) == model.names()[last:]


def test_i27_a_point_of_the_end_names_nothing_that_is_not_durable() -> None:
    model = deleter()
    model.plain(1)
    model.send(0, 0, 2)
    durable = model.host.high_watermark
    model.decide(0, Outcome.COMMITTED, 1)
    # Neither this record, so another may stand in its place, nor the marker behind it.
    model.host.submit(Configure(Settings(1, RETENTION_MS, -1)))
    model.host.submit(WriteMarkers(0, LeaderEpoch(1), tuple(model.markers)))
    point = model.machine.find_point(1, durable)
    assert (point.iterator, point.given) == (durable, 0)
    assert point.earliest < durable, "what becomes readable there is pending here"


def test_what_is_committed_after_a_pause_is_as_young_as_it_is() -> None:
    """Found by the property: time that went by before a commit was journaled behind it."""
    model = deleter()
    model.configure(16_000, -1)
    model.plain(1)
    model.look()
    model.wait(9_000, step_ms=1_000)
    model.plain(1)
    model.look()
    model.wait(1_000, step_ms=1_000)
    model.plain(1)
    model.look()
    model.wait(120_000, step_ms=1_000)
    assert model.machine.committed.start_offset == 3
