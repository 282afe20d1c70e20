"""The index of the committed log: huge transactions, runs, tables beside snapshots."""

from __future__ import annotations

import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import JournalOffset
from oncelog_server.core.settling import RUN, Stretch
from oncelog_server.partition_leader.committed_log import (
    ROW_BYTES,
    RUN_BYTES,
    CommittedLog,
)
from oncelog_server.partition_leader.pending import WriterColumns


def part(batches: int, *, journal: int = 1, records: int = 2, times: int = 0) -> WriterColumns:
    columns = WriterColumns()
    for number in range(batches):
        frame = Frame(
            FrameKind.DATA,
            b"x" * 100,
            record_count=records,
            base_sequence=number * records,
            max_timestamp_us=times + (number * 7) % 13,
        )
        columns.append(frame, JournalOffset(journal + number * records))
    return columns


def plain(log: CommittedLog, journal: int, records: int = 1, size: int = 100, time: int = 0) -> int:
    return log.append_frame(
        JournalOffset(journal),
        record_count=records,
        payload_bytes=size,
        max_timestamp_us=time,
        time_ms=journal,
    )


class _Steps:
    """Counts Python lines that run."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: object, event: str, argument: object) -> _Steps:
        self.lines += event == "line"
        return self


def test_exposing_a_huge_transaction_runs_no_python_per_batch() -> None:
    """Else the marker of a million batches would hold up every partition of the process."""

    def lines_of(batches: int) -> int:
        log, columns, steps = CommittedLog(), part(batches), _Steps()
        sys.settrace(steps)
        try:
            log.expose(columns, exposed_at=JournalOffset(10 * batches), time_ms=5)
        finally:
            sys.settrace(None)
        log.check(10 * batches + 1)
        return steps.lines

    assert lines_of(10) == lines_of(20_000)


def test_a_run_says_how_many_frames_it_has_and_begins_where_it_did() -> None:
    log = CommittedLog()
    for journal in range(1, 11, 2):
        plain(log, journal, records=2)
    log.check(11)
    assert (len(log), log.first_offset(0), log.relative[0]) == (1, 0, 4)
    (stretch,) = log.stretches(3, below=10, max_bytes=1, max_entries=1)
    assert (stretch.first_offset, stretch.journal_offset, stretch.record_count) == (3, 4, 7)


def test_a_run_joins_neighbours_up_to_its_bytes() -> None:
    log = CommittedLog()
    for journal in range(1, 11):
        plain(log, journal, size=RUN_BYTES // 4)
    assert len(log) == 3
    assert log.end_offset == 10
    # A hole in the journal (a marker, the start of an epoch) ends a run.
    plain(log, 12)
    assert len(log) == 4
    log.check(13)


def test_neighbouring_runs_are_read_in_one_go() -> None:
    log = CommittedLog()
    for journal in range(1, 9):
        plain(log, journal, size=RUN_BYTES)
    plain(log, 20)
    found = log.stretches(3, below=9, max_bytes=1 << 30, max_entries=100)
    assert found == [Stretch(3, 4, 5, RUN, RUN), Stretch(8, 20, 1, RUN, RUN)]


def test_i27_a_high_watermark_inside_a_run_cuts_it() -> None:
    log = CommittedLog()
    for journal in range(1, 6):
        plain(log, journal)
    assert [log.readable_end(hw) for hw in range(8)] == [0, 0, 1, 2, 3, 4, 5, 5]
    (stretch,) = log.stretches(0, below=3, max_bytes=1 << 30, max_entries=9)
    assert stretch.record_count == 3


def test_i03_a_transaction_is_readable_when_its_marker_is() -> None:
    log = CommittedLog()
    plain(log, 1)
    log.expose(part(3, journal=2), exposed_at=JournalOffset(9), time_ms=77)
    plain(log, 10)
    assert [log.readable_end(hw) for hw in (1, 2, 9, 10, 11)] == [0, 1, 1, 7, 8]
    found = log.stretches(1, below=7, max_bytes=1 << 30, max_entries=9)
    assert found == [Stretch(1 + 2 * n, 2 + 2 * n, 2, 77, 9) for n in range(3)]


def test_reads_outside_find_nothing() -> None:
    log = CommittedLog()
    plain(log, 1)
    assert log.stretches(1, below=1, max_bytes=100, max_entries=9) == []
    assert log.stretches(0, below=0, max_bytes=100, max_entries=9) == []
    assert log.stretches(0, below=1, max_bytes=0, max_entries=9) == []
    assert CommittedLog().readable_end(1 << 40) == 0
    assert CommittedLog().since(0, below=0) is None


def test_times_before_1970_are_times() -> None:
    log = CommittedLog()
    plain(log, 1, time=-500)
    plain(log, 3, time=-400)
    assert log.since(-1000, below=2) == 0
    assert log.since(-450, below=2) == 1
    assert log.since(-100, below=2) is None


entries = st.lists(
    st.one_of(
        st.tuples(
            st.just("plain"), st.integers(1, 3), st.integers(1, RUN_BYTES), st.integers(-9, 99)
        ),
        st.tuples(st.just("part"), st.integers(1, 5), st.integers(1, 3), st.integers(-9, 99)),
    ),
    max_size=30,
)


@given(entries, st.integers(0, 30))
def test_rows_and_the_dump_give_the_same_log(
    steps: list[tuple[str, int, int, int]], cut: int
) -> None:
    """The table is handed over in two pieces, as snapshots do."""
    log, journal, early = CommittedLog(), 1, b""
    for number, (kind, count, size, time) in enumerate(steps):
        if number == cut:
            early = log.rows(0)
        if kind == "plain":
            plain(log, journal, records=count, size=size, time=time)
            journal += count + size % 2
        else:
            columns = part(count, journal=journal, records=size, times=time)
            log.expose(
                columns, exposed_at=JournalOffset(journal + columns.records), time_ms=journal
            )
            journal += columns.records + 1
        log.check(journal)
    rows = early + log.rows(len(early) // ROW_BYTES)
    other = CommittedLog()
    other.load(log.dump(), rows)
    other.check(journal)
    assert other.rows(0) == log.rows(0)
    assert other.dump() == log.dump()
    ends = [log.readable_end(hw) for hw in range(journal + 1)]
    assert all(one <= other_end for one, other_end in pairwise(ends))
    assert ends == [other.readable_end(hw) for hw in range(journal + 1)]
