"""Group commit: one write and one sync for a turn, and nobody told too early (I5, I25)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from errno import EIO, ENOSPC

import pytest

from oncelog_server.runtime.storage.commit import CommitStats, GroupCommit
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import Write
from tests.simulation.disk import FakeDisk
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.storage.journals import EPOCH_START, append, record, replayed


class Scene:
    """Journals of one disk under one group commit, and what they were told."""

    def __init__(self, disk: FakeDisk, count: int = 1, *, ahead_bytes: int = 1 << 20) -> None:
        self.disk = disk
        self.stats: list[CommitStats] = []
        self.fatal: list[BaseException] = []
        self.commit = GroupCommit(
            disk,
            ahead_bytes=ahead_bytes,
            on_commit=self.stats.append,
            on_fatal=self.fatal.append,
        )
        self.journals = [Journal.open(disk, f"p{number}") for number in range(count)]
        self.told: list[tuple[int, int | OSError]] = []

    def write(self, number: int, *texts: str, epoch: int = 1) -> None:
        journal = self.journals[number]
        if journal.last_epoch < epoch:
            append(journal, EPOCH_START, epoch=epoch)
        append(journal, *map(record, texts), epoch=epoch)
        self.commit.wrote(
            journal,
            lambda end: self.told.append((number, end)),
            lambda error: self.told.append((number, error)),
            appended_bytes=100 * len(texts),
        )


def play(story: object) -> None:
    run(story, VirtualTimeLoop())  # type: ignore[arg-type]


def test_the_appends_of_one_turn_share_one_sync() -> None:
    async def story() -> None:
        scene = Scene(FakeDisk(), count=3)
        for number in range(3):
            for text in "abc":
                scene.write(number, text)
        await scene.commit.flush()
        assert scene.disk.commits == 1
        assert scene.told == [(0, 4), (1, 4), (2, 4)]
        assert [stats.journals for stats in scene.stats] == [3]
        assert all(replayed(journal) == ["a", "b", "c"] for journal in scene.journals)

    play(story())


def test_what_is_not_written_is_counted_until_its_commit_ends_in_whatever_way() -> None:
    """It takes room: what were forgotten would overfill the disk, what were counted for ever would
    refuse data for ever."""

    async def story() -> None:
        scene = Scene(FakeDisk(), count=3)
        scene.write(0, "a")
        scene.write(0, "b")
        scene.write(1, "c")
        assert scene.commit.unwritten_bytes == 300
        await asyncio.sleep(0)
        scene.write(1, "d")
        assert scene.commit.unwritten_bytes == 400, "beside a commit that is under way"
        await scene.commit.flush()
        assert scene.commit.unwritten_bytes == 0
        scene.disk.fail_next()
        scene.write(0, "e")
        await scene.commit.flush()
        assert scene.commit.unwritten_bytes == 0
        scene.write(1, "f")
        scene.write(2, "g")
        await scene.commit.leave(scene.journals[1])
        assert scene.commit.unwritten_bytes == 100
        await scene.commit.flush()
        assert scene.commit.unwritten_bytes == 0

    play(story())


def test_who_leaves_waits_for_the_disk_and_is_in_no_later_commit() -> None:
    """Its directory may be moved then; a name that is gone would fail the others' commit."""

    async def story() -> None:
        scene = Scene(FakeDisk(delay_ms=(10, 10)), count=2)
        scene.write(0, "a")
        scene.write(1, "a")
        await asyncio.sleep(0.005)
        scene.write(0, "b")
        scene.write(1, "b")
        await scene.commit.leave(scene.journals[0])
        assert asyncio.get_running_loop().time() >= 0.01
        assert scene.told[:1] == [(0, 2)]
        await scene.commit.flush()
        assert scene.told == [(0, 2), (1, 2), (1, 3)]
        await scene.commit.leave(scene.journals[0])

    play(story())


def test_what_is_appended_during_a_sync_goes_down_in_the_next_one() -> None:
    async def story() -> None:
        scene = Scene(FakeDisk(delay_ms=(10, 10)))
        scene.write(0, "a")
        await asyncio.sleep(0.005)
        for text in "bcdef":
            scene.write(0, text)
            await asyncio.sleep(0)
        assert scene.told == []
        await scene.commit.flush()
        assert scene.disk.commits == 2
        assert scene.told == [(0, 2), (0, 7)]

    play(story())


def test_i25_nobody_is_told_before_the_disk_has_synced() -> None:
    class Watched(FakeDisk):
        returned = False

        async def commit(self, writes: Sequence[Write]) -> None:
            self.returned = False
            await super().commit(writes)
            self.returned = True

    async def story() -> None:
        disk = Watched()
        scene = Scene(disk)
        # Collected, for a callback that raises is somebody's bug and not heard here.
        early: list[int] = []
        for number in range(30):
            end = scene.journals[0].log_end + 1 + (number == 0)

            def synced(told: int, end: int = end) -> None:
                if not disk.returned or min(told, scene.journals[0].synced_end) < end:
                    early.append(end)

            scene.write(0, str(number))
            scene.commit.wrote(scene.journals[0], synced, scene.told.append)  # type: ignore[arg-type]
            await asyncio.sleep(0.0003)
        await scene.commit.flush()
        assert early == [], "told before the sync"
        assert scene.told == []
        disk.crash()
        again = Journal.open(disk.reopen(), "p0")
        assert replayed(again) == [str(number) for number in range(30)]

    play(story())


@pytest.mark.parametrize("errno", [EIO, ENOSPC])
def test_a_failed_commit_fails_those_who_had_bytes_in_it_and_nobody_else(errno: int) -> None:
    async def story() -> None:
        scene = Scene(FakeDisk(delay_ms=(10, 10)), count=3)
        scene.write(0, "a")
        scene.write(1, "a")
        scene.disk.fail_next(errno)
        await asyncio.sleep(0.005)
        # Appended while the failing sync is under way: 0 goes down with it, 2 goes on.
        scene.write(0, "b")
        scene.write(2, "b")
        await scene.commit.flush()
        assert [number for number, _ in scene.told] == [0, 1, 2]
        first, second, third = (said for _, said in scene.told)
        assert isinstance(first, OSError)
        assert first.errno == errno
        assert first is second
        assert third == 2
        assert scene.journals[0].synced_end == 0
        assert [stats.failed for stats in scene.stats] == [True, False]

    play(story())


def test_a_failed_journal_writes_nothing_until_it_has_abandoned_what_is_in_doubt() -> None:
    async def story() -> None:
        disk = FakeDisk()
        scene = Scene(disk)
        scene.write(0, "a")
        await scene.commit.flush()
        scene.write(0, "x")
        disk.short_write_next()
        await scene.commit.flush()
        with pytest.raises(OSError):
            scene.write(0, "y")
        scene.journals[0].abandon_unsynced()
        scene.write(0, "b", epoch=2)
        await scene.commit.flush()
        assert [said for _, said in scene.told if isinstance(said, int)] == [2, 4]
        disk.crash()
        assert replayed(Journal.open(disk.reopen(), "p0")) == ["a", "b"]

    play(story())


def test_a_file_that_cannot_be_made_fails_only_its_journal() -> None:
    class Picky(FakeDisk):
        refuse = ""

        def open(self, path: str, *, create: bool = False, grows_to: int = 0):  # type: ignore[no-untyped-def]
            if self.refuse and path.startswith(self.refuse):
                raise OSError(ENOSPC, "no inode left", path)
            return super().open(path, create=create, grows_to=grows_to)

    async def story() -> None:
        disk = Picky()
        scene = Scene(disk, count=2)
        disk.refuse = "p0"
        scene.write(0, "a")
        scene.write(1, "a")
        await scene.commit.flush()
        assert scene.told[1] == (1, 2)
        assert isinstance(scene.told[0][1], OSError)

    play(story())


def test_i25_a_commit_that_fails_for_any_reason_has_not_happened() -> None:
    class Broken(FakeDisk):
        async def commit(self, writes: Sequence[Write]) -> None:
            raise RuntimeError("a fault of ours")

    async def story() -> None:
        scene = Scene(Broken())
        scene.write(0, "a")
        await scene.commit.flush()
        ((number, told),) = scene.told
        assert number == 0
        assert isinstance(told, OSError), "the bytes are in doubt"
        assert scene.journals[0].synced_end == 0

    play(story())


def test_a_callback_that_raises_does_not_keep_the_others_from_being_told() -> None:
    async def story() -> None:
        seen: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        scene = Scene(FakeDisk(), count=2)
        append(scene.journals[0], EPOCH_START)
        scene.commit.wrote(scene.journals[0], lambda end: 1 // 0, lambda error: None)  # type: ignore[arg-type]
        scene.write(1, "a")
        await scene.commit.flush()
        assert scene.told == [(1, 2)]
        assert isinstance(seen[0]["exception"], ZeroDivisionError)

    play(story())


def test_who_cannot_tell_what_is_durable_fails_and_is_not_left_waiting() -> None:
    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        scene = Scene(FakeDisk())
        append(scene.journals[0], EPOCH_START)
        heard: list[OSError] = []
        scene.commit.wrote(scene.journals[0], lambda end: 1 // 0, heard.append)  # type: ignore[arg-type]
        await scene.commit.flush()
        assert [error.errno for error in heard] == [EIO]
        with pytest.raises(OSError, match="takes no frames"):
            append(scene.journals[0], record("b"))

    play(story())


def test_a_journal_that_fails_in_a_way_of_its_own_stops_no_other() -> None:
    """The exception went through the commit of all: none of the node was written any more."""

    async def story() -> None:
        seen: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        scene = Scene(FakeDisk(), count=3)

        def broken() -> tuple[list[Write], int]:
            raise ZeroDivisionError("a bug")

        for number in range(3):
            scene.write(number, "a")
        scene.journals[1].take_writes = broken  # type: ignore[method-assign]
        await scene.commit.flush()
        scene.write(0, "b")
        scene.write(2, "b")
        await scene.commit.flush()
        others = [told for told in scene.told if told[0] != 1]
        assert others == [(0, 2), (2, 2), (0, 3), (2, 3)], "the others go on"
        ((_, why),) = [told for told in scene.told if told[0] == 1]
        assert isinstance(why, OSError), "it waits for ever"
        assert isinstance(seen[0]["exception"], ZeroDivisionError), "nobody hears of the bug"
        assert scene.fatal == []

    play(story())


def test_a_commit_that_is_cancelled_leaves_nothing_to_be_taken_for_written() -> None:
    """A process that ends cancels it; what else of it runs on must not stumble over that."""

    async def story() -> None:
        scene = Scene(FakeDisk(delay_ms=(10, 10)), count=2)
        scene.write(0, "a")
        await asyncio.sleep(0.005)
        (running,) = scene.commit._running
        running.cancel()
        await scene.commit.flush()
        scene.write(1, "a")
        await scene.commit.flush()
        assert scene.told == [(1, 2)]
        assert scene.journals[0].take_writes()[0] == []
        assert scene.journals[0].synced_end == 0

    play(story())


def test_a_commit_that_breaks_for_all_ends_the_process() -> None:
    async def story() -> None:
        scene = Scene(FakeDisk())

        def broken(stats: CommitStats) -> None:
            raise ZeroDivisionError("a bug")

        scene.commit._on_commit = broken
        scene.write(0, "a")
        await scene.commit.flush()
        await asyncio.sleep(0)
        assert [type(error) for error in scene.fatal] == [ZeroDivisionError]

    play(story())


def test_stop_flushes_and_takes_no_more() -> None:
    async def story() -> None:
        scene = Scene(FakeDisk())
        scene.write(0, "a")
        await scene.commit.stop()
        assert scene.told == [(0, 2)]
        with pytest.raises(AssertionError, match="after GroupCommit"):
            scene.write(0, "b")

    play(story())


def test_a_wrote_without_bytes_is_told_what_is_synced_already() -> None:
    async def story() -> None:
        scene = Scene(FakeDisk())
        scene.write(0, "a")
        await scene.commit.flush()
        scene.write(0)
        await scene.commit.flush()
        assert scene.told == [(0, 2), (0, 2)]
        assert scene.disk.commits == 1

    play(story())
