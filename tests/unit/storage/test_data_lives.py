"""The property that the data log is for: append, note, cut, delete, replace, with failures and
losses of power in the middle of each, again and again. Everything noted is there, and nothing that
was cut or deleted comes back (I7, I25, I26)."""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import EIO, ENOSPC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.block import Block
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.data_logs import DIRECTORY, block, open_data, read_all

SEGMENT_BYTES = 3_000


class Life:
    """One data log through many lives of its process."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = FakeDisk(seed=seed)
        # Of the committed log: an unclean election begins another.
        self.history = 0
        # Every block of this history that was ever appended.
        self.appended: dict[tuple[int, int], list[Block]] = {}
        # It has at least up to `promised`, at most up to `end`, and begins at one of `begins`.
        self.promised = self.end = 0
        self.begins = {0}
        self.log = open_data(self.disk, segment_bytes=SEGMENT_BYTES)

    # ------------------------------------------------------------------------------ what is done

    def append(self) -> None:
        first = self.log._end if not self.log._in_doubt else self.log.settled_end
        new: list[Block] = []
        for _ in range(self.chance.randint(1, 5)):
            counts = [self.chance.randint(1, 4) for _ in range(self.chance.randint(1, 3))]
            size = self.chance.choice([1, 50, 600, 1_500, 4_000])
            new.append(block(first, *counts, payload=bytes([self.history]) * size))
            first = new[-1].end_offset
        for it in new:
            self.appended.setdefault((it.first_offset, it.end_offset), []).append(it)
        self.end = max(self.end, first)
        self.log.append(new)

    def note(self) -> None:
        if self.log._in_doubt:
            return
        end = self.log._end
        self.log.sync_and_note(2 * end)
        self.promised = self.log.settled_end
        assert self.promised == end

    def cut(self) -> None:
        at = self.chance.randint(2 * self.log.begin, 2 * self.end + 1)
        below = [it.end_offset for it in read_all(self.log) if it.exposed_below <= at]
        self.promised = min(self.promised, max(below, default=0))
        self.cut_at(at)

    def cut_at(self, journal_end: int) -> None:
        """And again until it is done, as a follower does."""
        below = [
            it for of in self.appended.values() for it in of if it.exposed_below <= journal_end
        ]
        self.undone = lambda: self.cut_at(journal_end)
        self.log.cut(journal_end, journal_start=0)
        self.undone = None
        assert self.log.settled_end <= max([self.log.begin, *map(_end_of, below)])
        self.promised = self.end = self.log.settled_end
        self.begin_history()

    def begin_history(self) -> None:
        """What comes from here on is other than what was."""
        self.history += 1
        kept = (of for (_, end), of in self.appended.items() if end <= self.end)
        self.appended = {(of[0].first_offset, of[0].end_offset): of for of in kept}

    def delete(self) -> None:
        offset = self.chance.randint(self.log.begin, self.log.settled_end + 2)
        if not self.log.goes_before(offset) and offset < self.log.settled_end:
            return
        self.begins.add(offset)
        if offset >= self.log.settled_end:
            self.end = max(self.end, offset)
            if not self.log.goes_before(offset):
                return
        self.undone = lambda: self.delete_before(offset)
        self.delete_before(offset)

    def delete_before(self, offset: int) -> None:
        goes = self.log.goes_before(offset)
        self.log.remove_before(offset, begun_at=0)
        self.undone = None
        assert self.log.begin == offset or not goes, "what a crash has left of it may go no more"
        offset = self.log.begin
        self.begins = {offset}
        self.end = max(self.log._end, offset)
        if self.log._in_doubt:
            self.end = self.log.settled_end
        self.promised = self.log.settled_end

    def begin_anew(self) -> None:
        offset = self.chance.choice([0, self.log.settled_end, self.end + 10])
        self.begin_anew_at(offset)

    def begin_anew_at(self, offset: int) -> None:
        self.undone = lambda: self.begin_anew_at(offset)
        self.begins.add(offset)
        self.promised = 0
        self.log.begin_at(offset, begun_at=0)
        self.undone = None
        self.begins, self.promised, self.end = {offset}, offset, offset
        self.history, self.appended = self.history + 1, {}

    def replace(self) -> None:
        """Some blocks by one of the same offsets, as compaction does; or by themselves."""
        held = read_all(self.log)
        if not held:
            return
        at = self.chance.randrange(len(held))
        some = held[at : at + self.chance.randint(1, 3)]
        first, end = some[0].first_offset, some[-1].end_offset
        one = block(first, end - first, payload=bytes([self.history, 77]) * 300)
        new = [one] if self.chance.random() < 0.5 else some
        new = [it._replace(exposed_below=some[-1].exposed_below) for it in new]
        for it in new:
            self.appended.setdefault((it.first_offset, it.end_offset), []).append(it)
        try:
            self.log.replace(new)
        except ValueError:
            files = {file.base for file in self.log._files}
            assert any(first < base < end for base in files), "they stand in one file"

    undone: Callable[[], None] | None = None

    # ---------------------------------------------------------------------------------- its fates

    def live(self, tear: Tear | None, steps: int) -> None:
        """Some steps; the last one fails in its middle, and so does the process, or the disk."""
        for _ in range(steps):
            self.step()
            self.check()
        failing = self.chance.random() < 0.8
        if failing:
            errno = self.chance.choice([EIO, ENOSPC])
            self.disk.fail_next(errno, after=self.chance.randrange(6))
        try:
            for _ in range(2):
                self.step()
        except OSError:
            if tear is None:
                # The process goes on: reads do, and the next step works.
                self.check()
                self.do_what_is_undone()
                return
        self.disk.fail_next(0)
        if tear is None:
            self.disk.kill()
        else:
            self.disk.crash(tear)
        self.disk = self.disk.reopen()
        self.log = open_data(self.disk, segment_bytes=SEGMENT_BYTES)
        self.check()
        self.do_what_is_undone()
        self.promised = self.end = self.log.settled_end
        self.begins = {self.log.begin}
        self.check()

    def held(self) -> list[Block]:
        try:
            return read_all(self.log)
        except CorruptLog as error:
            raise AssertionError(f"what the log says it has is there: {error}") from error

    def do_what_is_undone(self) -> None:
        self.disk.fail_next(0)
        if self.undone is not None:
            self.undone()

    def step(self) -> None:
        weights = {
            self.append: 10,
            self.note: 6,
            self.cut: 1,
            self.delete: 2,
            self.begin_anew: 0.3,
            self.replace: 1.5,
        }
        (chosen,) = self.chance.choices(list(weights), list(weights.values()))
        chosen()

    def check(self) -> None:
        log = self.log
        assert log.begin in self.begins
        assert self.promised <= log.settled_end <= max(self.end, *self.begins)
        following = None
        for it in self.held():
            assert it in self.appended.get((it.first_offset, it.end_offset), []), "none of ours"
            assert following in (None, it.first_offset), "they follow each other"
            following = it.end_offset
        if log.begin < log.settled_end:
            assert following == log.settled_end, "all of it is there"


def _end_of(it: Block) -> int:
    return it.end_offset


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    tears=st.lists(st.sampled_from([None, *Tear]), min_size=1, max_size=6),
)
def test_i25_what_was_noted_survives_and_what_was_cut_stays_away(
    seed: int, tears: list[Tear | None]
) -> None:
    life = Life(seed)
    for tear in tears:
        life.live(tear, life.chance.randint(0, 12))


@pytest.mark.parametrize("tear", Tear)
def test_one_seed_gives_one_data_log(tear: Tear) -> None:
    def bytes_after(seed: int) -> list[tuple[str, bytes]]:
        life = Life(seed)
        life.live(tear, 8)
        paths = [f"{DIRECTORY}/{name}" for name in life.disk.list(DIRECTORY)]
        return [(path, life.disk.bytes_of(path)) for path in paths]

    assert bytes_after(3) == bytes_after(3)
    assert bytes_after(3) != bytes_after(5)
