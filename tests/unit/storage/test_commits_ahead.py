"""A commit that is written while the one before is still being synced: nobody is told out of turn,
and where a disk says of an error once, nobody is told wrongly (I5, I25)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from oncelog_server.runtime.storage import disk as disk_module
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import Write
from oncelog_server.runtime.storage.syscalls import datasync
from tests.simulation.disk import FakeDisk, FakeFile, Tear
from tests.unit.storage.journals import replayed
from tests.unit.storage.test_commit import Scene, play

PATIENCE_S = 20.0
# `Scene.write` says that each text is of so many bytes.
ENOUGH_BYTES = 300


class Counted(FakeDisk):
    """How many commits it had at once."""

    at_once = most_at_once = 0

    async def commit(self, writes: Sequence[Write]) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await super().commit(writes)
        finally:
            self.at_once -= 1


def test_with_enough_waiting_a_commit_begins_ahead_and_all_are_told_in_order() -> None:
    async def story() -> None:
        scene = Scene(disk := Counted(delay_ms=(10, 10)), count=2, ahead_bytes=ENOUGH_BYTES)
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        scene.write(0, "b", "c")
        await asyncio.sleep(0.002)
        assert disk.at_once == 1, "it is not enough to begin ahead"
        scene.write(1, "d")
        await asyncio.sleep(0.002)
        assert disk.at_once == 2
        scene.write(0, "e", "f", "g", "h")
        await asyncio.sleep(0.002)
        assert (disk.at_once, scene.told) == (2, []), "two at most"
        await scene.commit.flush()
        assert scene.told == [(0, 2), (0, 4), (1, 2), (0, 8)]
        assert disk.commits == 3
        assert scene.commit.unwritten_bytes == 0

    play(story())


def test_i25_whatever_is_told_survives_the_power_with_commits_ahead() -> None:
    async def story(seed: int) -> None:
        scene = Scene(disk := Counted(seed=seed, delay_ms=(1, 3)), ahead_bytes=1)
        for number in range(100):
            scene.write(0, str(number))
            await asyncio.sleep(0.0007)
        told = [end for _, end in scene.told if isinstance(end, int)]
        assert told == sorted(told)
        disk.crash((Tear.SCATTER, Tear.PREFIX)[seed % 2])
        again = Journal.open(disk.reopen(), "p0")
        kept = replayed(again)
        # Offset 0 is the beginning of the epoch.
        assert len(kept) >= max(told) - 1 > 0
        assert kept == [str(number) for number in range(len(kept))]
        assert disk.most_at_once == 2

    for seed in range(20):
        play(story(seed))


def test_i5_what_was_written_beside_a_sync_that_failed_fails_with_it() -> None:
    """Linux tells of an error once, and what it could not write counts as clean: the next sync of
    the same file, or of the same file system, says nothing."""

    async def story() -> None:
        scene = Scene(disk := Counted(delay_ms=(10, 10)), count=3, ahead_bytes=1)
        scene.write(0, "a")
        scene.disk.fail_next(EIO)
        await asyncio.sleep(0.002)
        scene.write(0, "b")
        scene.write(1, "b")
        await asyncio.sleep(0.002)
        assert disk.at_once == 2
        await scene.commit.flush()
        assert [number for number, _ in scene.told] == [0, 0, 1]
        assert all(isinstance(told, OSError) for _, told in scene.told)
        assert [journal.synced_end for journal in scene.journals] == [0, 0, 0]
        scene.journals[0].abandon_unsynced()
        scene.journals[1].abandon_unsynced()
        for number in range(3):
            scene.write(number, "c", epoch=2)
        await scene.commit.flush()
        assert scene.told[3:] == [(0, 2), (1, 2), (2, 2)], "what came later goes on"
        disk.crash()
        again = disk.reopen()
        assert [replayed(Journal.open(again, f"p{number}")) for number in range(3)] == [["c"]] * 3

    play(story())


def test_i5_a_disk_that_answers_out_of_turn_has_nobody_told_out_of_turn() -> None:
    """And nobody before it is known that the one before did not fail."""

    class Hasty(FakeDisk):
        given = 0

        async def commit(self, writes: Sequence[Write]) -> None:
            self.given += 1
            if self.given == 1:
                await asyncio.sleep(0.01)
                raise OSError(EIO, "the first one has failed")

    async def story() -> None:
        scene = Scene(disk := Hasty(), count=2, ahead_bytes=1)
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        scene.write(1, "a")
        await asyncio.sleep(0.002)
        assert (disk.given, scene.told) == (2, [])
        await scene.commit.flush()
        assert [number for number, _ in scene.told] == [0, 1]
        assert all(isinstance(told, OSError) for _, told in scene.told)

    play(story())


def test_a_failure_is_not_passed_on_to_who_comes_after_it() -> None:
    """However much there is to write: only what began before it was known fails with it."""

    async def story() -> None:
        scene = Scene(disk := Counted(delay_ms=(10, 10)), count=6, ahead_bytes=1)
        scene.write(0, "a")
        scene.disk.fail_next(EIO)
        for number in range(1, 6):
            await asyncio.sleep(0.008)
            scene.write(number, "b")
        await scene.commit.flush()
        assert disk.most_at_once == 2
        said = dict(scene.told)
        assert all(isinstance(said[number], OSError) for number in (0, 1))
        assert [said[number] for number in range(2, 6)] == [2] * 4, "it was passed on"

    play(story())


@pytest.mark.parametrize("ahead_bytes", [1, 1 << 20])
def test_a_failed_log_is_cut_to_what_is_synced_and_to_nothing_else(ahead_bytes: int) -> None:
    """A follower that waits for a commit before it cuts does not know yet that it failed."""

    async def story() -> None:
        scene = Scene(Counted(delay_ms=(10, 10)), ahead_bytes=ahead_bytes)
        (journal,) = scene.journals
        scene.write(0, "a", "b")
        await scene.commit.flush()
        scene.disk.fail_next(EIO)
        scene.write(0, "c")
        await asyncio.sleep(0.002)
        scene.write(0, "d")
        await asyncio.sleep(0.002)
        await scene.commit.leave(journal)
        with pytest.raises(OSError, match="in doubt"):
            journal.cut(4)
        journal.cut(2)
        assert replayed(journal) == ["a"]
        scene.write(0, "e", epoch=2)
        await scene.commit.flush()
        assert replayed(journal) == ["a", "e"]

    play(story())


def test_one_that_fails_ahead_fails_nobody_before_it() -> None:
    async def story() -> None:
        scene = Scene(Counted(delay_ms=(10, 10)), count=2, ahead_bytes=1)
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        scene.disk.fail_next(EIO, after=1)
        scene.write(1, "a")
        await scene.commit.flush()
        (first, second) = scene.told
        assert first == (0, 2)
        assert second[0] == 1
        assert isinstance(second[1], OSError)

    play(story())


def test_a_file_that_cannot_be_made_beside_a_commit_leaves_that_commit_what_it_is() -> None:
    """What the disk says of bytes that it has holds, whatever became of their journal since."""

    class Picky(FakeDisk):
        refuses = False

        def open(self, path: str, *, create: bool = False, grows_to: int = 0) -> FakeFile:
            if self.refuses:
                raise OSError(ENOSPC, "no inode left", path)
            return super().open(path, create=create, grows_to=grows_to)

    async def story() -> None:
        scene = Scene(disk := Picky(delay_ms=(10, 10)), ahead_bytes=1)
        (journal,) = scene.journals
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        # The beginning of an epoch needs its file.
        journal._unwritten.close()
        disk.refuses = True
        scene.write(0, "b", epoch=2)
        await asyncio.sleep(0.002)
        ((_, failed),) = scene.told
        assert isinstance(failed, OSError)
        await scene.commit.flush()
        assert scene.told[1:] == [(0, 2)]
        disk.refuses = False
        # From the files, which memory need not have any more.
        stored = await journal._segments.read(0, 1 << 20, below=2)
        assert [one.end for one in stored] == [1, 2], "it is not in the files"
        journal.abandon_unsynced()
        assert (journal.log_end, replayed(journal)) == (2, ["a"])

    play(story())


def test_who_leaves_waits_for_both() -> None:
    async def story() -> None:
        scene = Scene(Counted(delay_ms=(10, 10)), count=2, ahead_bytes=1)
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        scene.write(0, "b")
        scene.write(1, "b")
        await asyncio.sleep(0.002)
        await scene.commit.leave(scene.journals[0])
        assert scene.told == [(0, 2), (0, 3), (1, 2)]
        await scene.commit.leave(scene.journals[0])

    play(story())


def test_who_asks_when_all_is_under_way_is_told_when_that_has_ended() -> None:
    async def story() -> None:
        scene = Scene(Counted(delay_ms=(10, 10)), count=2, ahead_bytes=1)
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        asked: list[int] = []
        scene.commit.wrote(scene.journals[0], asked.append, asked.append)  # type: ignore[arg-type]
        scene.write(1, "b")
        await asyncio.sleep(0.002)
        assert asked == []
        await scene.commit.flush()
        assert asked == [2]
        assert scene.told == [(0, 2), (1, 2)]

    play(story())


def test_one_that_is_cancelled_takes_what_began_ahead_with_it() -> None:
    async def story() -> None:
        scene = Scene(Counted(delay_ms=(10, 10)), count=2, ahead_bytes=1)
        scene.write(0, "a")
        await asyncio.sleep(0.002)
        (running,) = scene.commit._running
        scene.write(1, "a")
        await asyncio.sleep(0.002)
        running.cancel()
        await scene.commit.flush()
        ((number, told),) = scene.told
        assert number == 1
        assert isinstance(told, OSError), "nobody knows what became of what it followed"

    play(story())


# ----------------------------------------------------------------------------------- the real disk


class HeldSyncs:
    """Each sync waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.may_go = threading.Semaphore(0)

        def held(fd: int) -> None:
            self.begun.append(fd)
            assert self.may_go.acquire(timeout=PATIENCE_S)
            datasync(fd)

        monkeypatch.setattr(disk_module, "datasync", held)


async def until_holds(disk: RealDisk, name: str, content: bytes) -> None:
    path = os.path.join(disk._root, name)
    async with asyncio.timeout(PATIENCE_S):
        while Path(path).read_bytes() != content:
            await asyncio.sleep(0.01)


def test_i5_the_next_is_written_beside_a_sync_and_synced_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = HeldSyncs(monkeypatch)
    disk = RealDisk(tmp_path)
    file = disk.open("f", create=True)

    async def story() -> None:
        first = asyncio.ensure_future(disk.commit([Write(file, 0, [b"first "])]))
        second = asyncio.ensure_future(disk.commit([Write(file, 6, [b"second"])]))
        await until_holds(disk, "f", b"first second")
        assert len(syncs.begun) == 1
        syncs.may_go.release()
        await first
        assert not second.done()
        async with asyncio.timeout(PATIENCE_S):
            while len(syncs.begun) < 2:
                await asyncio.sleep(0.01)
        syncs.may_go.release()
        await second

    asyncio.run(story())
    disk.close()


def test_i5_a_sync_waits_for_one_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third may not pass the first because the second, between them, had no sync."""
    syncs = HeldSyncs(monkeypatch)
    disk = RealDisk(tmp_path)
    file, broken = disk.open("f", create=True), disk.open("b", create=True)
    pwritev = os.pwritev

    def failing(fd: int, chunks: Sequence[bytes], position: int) -> int:
        if chunks == [b"broken"]:
            raise OSError(EIO, "it is broken")
        return pwritev(fd, chunks, position)

    monkeypatch.setattr(os, "pwritev", failing)

    async def story() -> None:
        first = asyncio.ensure_future(disk.commit([Write(file, 0, [b"first"])]))
        await until_holds(disk, "f", b"first")
        second = asyncio.ensure_future(disk.commit([Write(broken, 0, [b"broken"])]))
        third = asyncio.ensure_future(disk.commit([Write(file, 5, [b"third"])]))
        await asyncio.sleep(0.1)
        assert len(syncs.begun) == 1
        assert not second.done()
        syncs.may_go.release(2)
        await asyncio.gather(first, third)
        with pytest.raises(OSError, match="it is broken"):
            await second

    asyncio.run(story())
    disk.close()
