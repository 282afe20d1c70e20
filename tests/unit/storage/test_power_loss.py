"""The property that all of this is for: append, lose power, recover, again and again. Everything
synced is there, and of the rest a prefix (I7, I25, I26)."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import Frame, StoredFrame
from oncelog_server.core.machine import Snapshot, Table
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.journal import Journal, JournalDamaged
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.storage.journals import EPOCH_START, data, drawn_uuids, record


def drawn_frame(chance: random.Random) -> Frame:
    size = chance.choice([0, 1, 50, 500, 700, 5000])
    if chance.random() < 0.5:
        return record("r" * size)
    return data(chance.randbytes(size), chance.randint(1, 9))


class Life:
    """One replica through many lives of its process."""

    def __init__(self, seed: int, segment_bytes: int) -> None:
        self.chance = random.Random(seed)
        self.segment_bytes = segment_bytes
        self.disk = FakeDisk(seed=seed, delay_ms=(1, 5))
        self.epoch = 0
        # Every frame that the journal may hold; those below `durable` it must hold.
        self.appended: list[StoredFrame] = []
        self.durable = 0
        self.snapshot: tuple[int, bytes] | None = None

    def open(self) -> Journal:
        return Journal.open(
            self.disk, "p", segment_bytes=self.segment_bytes, random_bytes=drawn_uuids(self.epoch)
        )

    def check(self, journal: Journal) -> None:
        held = list(journal.replay(0))
        assert held == self.appended[: len(held)], "a prefix, nothing else"
        assert journal.log_end >= self.durable, "everything synced"
        assert journal.log_end == (held[-1].end if held else 0)
        loaded = journal.load_snapshot()
        if self.snapshot is not None:
            assert loaded is not None
            assert loaded[:2] == self.snapshot
        self.appended = held

    async def live(self, tear: Tear, crash_after_ms: int) -> None:
        journal = self.open()
        self.check(journal)
        self.epoch += 1
        commit = GroupCommit(self.disk, ahead_bytes=1)
        self._append(journal, EPOCH_START)
        commit.wrote(journal, self._synced, _must_not_fail)
        deadline = asyncio.get_running_loop().time() + crash_after_ms / 1000
        while asyncio.get_running_loop().time() < deadline:
            for _ in range(self.chance.randint(0, 4)):
                self._append(journal, drawn_frame(self.chance))
            commit.wrote(journal, self._synced, _must_not_fail)
            if self.chance.random() < 0.2:
                journal.note_synced_end()
            if self.chance.random() < 0.1:
                self._save_snapshot(journal)
            await asyncio.sleep(self.chance.uniform(0, 0.004))
        self.disk.crash(tear)
        self.disk = self.disk.reopen()

    def _append(self, journal: Journal, frame: Frame) -> None:
        skip_to = None
        if frame is EPOCH_START and self.chance.random() < 0.2:
            skip_to = journal.log_end + 1000
        at = journal.append(frame, epoch=self.epoch, time_ms=self.epoch, skip_to=skip_to)
        self.appended.append(StoredFrame(frame, at))

    def _synced(self, end: int) -> None:
        self.durable = max(self.durable, end)

    def _save_snapshot(self, journal: Journal) -> None:
        rows = journal.synced_end.to_bytes(8, "big")
        state = b"state at " + rows
        journal.save_snapshot(journal.synced_end, Snapshot(state, {"t": Table(8, 0, rows)}))
        self.snapshot = (journal.synced_end, state)


def _must_not_fail(error: OSError) -> None:
    assert "gone" in str(error), "only the crash ends a commit"


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    tears=st.lists(st.sampled_from(Tear), min_size=1, max_size=6),
    segment_bytes=st.sampled_from([700, 6000, 1 << 20]),
)
def test_i25_what_was_synced_survives_every_loss_of_power(
    seed: int, tears: list[Tear], segment_bytes: int
) -> None:
    life = Life(seed, segment_bytes)

    async def story() -> None:
        for tear in tears:
            await life.live(tear, crash_after_ms=life.chance.randint(1, 60))
        life.check(life.open())

    run(story(), VirtualTimeLoop())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), position=st.integers(0, 2**30), bit=st.integers(0, 7))
def test_i26_after_rot_a_journal_is_refused_or_shorter_under_another_name_or_right(
    seed: int, position: int, bit: int
) -> None:
    life = Life(seed, 6000)
    run(life.live(Tear.NOTHING, crash_after_ms=40), VirtualTimeLoop())
    journal = life.open()
    incarnation = journal.incarnation
    promised = list(journal.replay(0))
    journal.close()
    names = [name for name in life.disk.list("p") if life.disk.exists(f"p/{name}")]
    files = [name for name in names if name.endswith((".log", ".index", "epochs", "synced_end"))]
    path = f"p/{files[seed % len(files)]}"
    size = len(life.disk.bytes_of(path))

    def flip(content: bytearray) -> None:
        content[position % size] ^= 1 << bit

    if size:
        life.disk.damage(path, flip)
    life.disk.kill()
    life.disk = life.disk.reopen()
    refused = ""
    try:
        again = life.open()
        held = list(again.replay(0))
    except JournalDamaged as damaged:
        refused = damaged.file
    if refused:
        assert refused == path, "the file that is named is the one with the flipped bit"
        return
    assert held == promised[: len(held)], "nothing wrong is ever served"
    if again.incarnation == incarnation:
        assert held == promised, "who keeps the name holds all that was promised"


@pytest.mark.parametrize("tear", Tear)
def test_one_seed_gives_one_run(tear: Tear) -> None:
    def bytes_after(seed: int) -> list[bytes]:
        life = Life(seed, 6000)
        run(life.live(tear, crash_after_ms=30), VirtualTimeLoop())
        return [life.disk.bytes_of(f"p/{name}") for name in life.disk.list("p") if "." in name]

    assert bytes_after(3) == bytes_after(3)
    assert bytes_after(3) != bytes_after(4)
