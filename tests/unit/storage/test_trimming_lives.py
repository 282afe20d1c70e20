"""Appends, snapshots, trims, cuts, kills and losses of power, in any order: the log is what a list
says, from where it begins (I7, I25, I26)."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import Frame, StoredFrame
from oncelog_server.core.machine import Needs, Snapshot, Table
from oncelog_server.runtime.storage import tables
from oncelog_server.runtime.storage.journal import Journal
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    data,
    drawn_uuids,
    record,
    sync,
)

ROW_BYTES = 4


class Lives:
    """One replica, and the list that it must equal."""

    def __init__(self, seed: int, segment_bytes: int) -> None:
        self.chance = random.Random(seed)
        self.segment_bytes = segment_bytes
        self.disk = FakeDisk(seed=seed)
        self.epoch = 0
        # Every frame that the log has, or has let go of.
        self.frames: list[StoredFrame] = []
        self.durable = 0
        # Where it may begin, once a crash has passed.
        self.starts = {0}
        self.trims = 0
        self.journal = self.open()

    def open(self) -> Journal:
        return Journal.open(
            self.disk,
            DIRECTORY,
            segment_bytes=self.segment_bytes,
            random_bytes=drawn_uuids(self.chance.randrange(1 << 30)),
        )

    # ------------------------------------------------------------------------------- what happens

    def step(self) -> None:
        self.chance.choices(
            [self.append, self.sync, self.snapshot, self.trim, self.cut, self.roll, self.note],
            [8, 6, 3, 3, 1, 1, 2],
        )[0]()

    def append(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            frame: Frame = record("r" * self.chance.choice([0, 20, 200]))
            if self.chance.random() < 0.4:
                frame = data(b"d" * self.chance.choice([1, 90]), self.chance.randint(1, 5))
            if not self.epoch or self.chance.random() < 0.15:
                frame, self.epoch = EPOCH_START, self.epoch + 1
            at = self.journal.append(frame, epoch=self.epoch, time_ms=self.epoch)
            self.frames.append(StoredFrame(frame, at))

    def sync(self) -> None:
        self.durable = sync(self.journal, self.disk)

    def note(self) -> None:
        self.journal.note_synced_end()

    def roll(self) -> None:
        self.journal.roll()

    def snapshot(self) -> None:
        end = self.journal.synced_end
        if not end or end == self.journal.snapshot_offset:
            return
        begin, first = end // 3, self.journal.rows_saved.get("t", end // 3)
        first = max(first, min(begin, end))
        table = Table(ROW_BYTES, first, rows(first, end), begin)
        needed = self.chance.randint(self.journal.log_start, end)
        self.journal.save_snapshot(
            end, Snapshot(state(self.frames, end), {"t": table}, Needs(needed, needed, 0))
        )

    def trim(self) -> None:
        """Whatever of it comes about before the next crash."""
        journal = self.journal
        if journal.has_old_front:
            if journal.start_is_durable:
                journal.retire_front()
                journal.remove_front()
            return
        said_at, needs = journal.snapshots.needs()
        start = journal.next_log_start(needs, wanted_bytes_max=1 << 40)
        if start is not None:
            assert start <= needs.needed_from
            journal.prepare_start(start, journal.index_before_start(start))
            assert journal.move_start(start, allowed_at=said_at)
            self.starts.add(start)
            self.trims += 1

    def cut(self) -> None:
        """As a follower whose log parts from its leader's."""
        self.sync()
        ends = [journal_end for journal_end in self._ends() if journal_end < self.journal.log_end]
        if ends:
            end = self.chance.choice(ends[-4:])
            self.journal.cut(end)
            self.frames = [it for it in self.frames if it.end <= end]
            self.durable = min(self.durable, end)
            self.check()

    def _ends(self) -> list[int]:
        start = self.journal.log_start
        return [start, *(it.end for it in self.frames if it.at.offset >= start)]

    def crash(self, tear: Tear | None) -> None:
        """None: the process is killed, and the page cache stays."""
        if self.chance.random() < 0.5:
            # Into the page cache only.
            for write in self.journal.take_writes()[0]:
                self.disk.write_unsynced(write.file, write.position, b"".join(write.chunks))
        elif self.chance.random() < 0.5:
            # In the middle of what blocks.
            self.disk.fail_next(after=self.chance.randrange(12))
            with contextlib.suppress(OSError):
                self.snapshot()
                self.trim()
        if tear is None:
            self.disk.kill()
        else:
            self.disk.crash(tear)
        self.disk = self.disk.reopen()
        name, self.journal = self.journal.incarnation, self.open()
        assert self.journal.incarnation == name, "nothing that was promised is lost"
        self.check()
        self.starts = {self.journal.log_start}

    # -------------------------------------------------------------------------------- what holds

    def check(self) -> None:
        journal = self.journal
        start = journal.log_start
        assert start in self.starts
        held = list(journal.replay(start))
        wanted = [it for it in self.frames if it.at.offset >= start]
        assert held == wanted[: len(held)], "what was written, from where it begins, and no more"
        assert journal.log_end >= self.durable, "everything synced"
        assert journal.log_end == (held[-1].end if held else start)
        self.frames = self.frames[: len(self.frames) - len(wanted) + len(held)]
        self.epoch = max((it.at.epoch for it in self.frames), default=0)
        assert journal.last_epoch == self.epoch, "also of frames that are gone"
        for epoch in range(1, self.epoch + 1):
            assert journal.end_of_epoch(epoch) == (epoch, self._end_of(epoch))
        loaded = journal.load_snapshot()
        assert loaded is not None or start == 0
        if loaded is not None:
            offset, found, tables_ = loaded
            assert start <= offset <= journal.log_end
            assert found == state(self.frames, offset)
            assert tables_["t"] == rows(offset // 3, offset)
            assert all(journal._snapshots.is_whole(it) for it in journal._snapshots.offsets)

    def _end_of(self, epoch: int) -> int:
        return max(it.end for it in self.frames if it.at.epoch == epoch)


def state(frames: list[StoredFrame], end: int) -> bytes:
    """What all frames below made."""
    below = [it for it in frames if it.at.offset < end]
    return b"%d frames, the last of epoch %d" % (len(below), below[-1].at.epoch if below else 0)


def rows(first: int, end: int) -> bytes:
    return b"".join(number.to_bytes(ROW_BYTES, "big") for number in range(first, end))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    segment_bytes=st.sampled_from([400, 2_000, 40_000]),
    ends=st.lists(st.sampled_from([None, *Tear]), min_size=1, max_size=8),
)
def test_i25_whatever_happens_a_log_is_what_was_written_from_where_it_begins(
    seed: int, segment_bytes: int, ends: list[Tear | None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "CHUNK_BYTES", 24)
        lives = Lives(seed, segment_bytes)
        for tear in ends:
            for _ in range(lives.chance.randint(1, 40)):
                lives.step()
            lives.crash(tear)


def test_the_lives_trim_and_cut() -> None:
    """Else they would show nothing."""
    trims = 0
    for seed in range(8):
        lives = Lives(seed, 400)
        for _ in range(150):
            lives.step()
        lives.crash(Tear.NOTHING)
        trims += lives.trims
    assert trims > 8
