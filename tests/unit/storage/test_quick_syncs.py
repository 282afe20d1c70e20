"""A commit that is small goes through the loop's own thread while the disk is quick."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.runtime.storage import disk as disks
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.port import Write
from oncelog_server.runtime.storage.quick_syncs import BYTES_MAX, QUICK_MS_MAX, QuickSyncs
from oncelog_server.runtime.storage.syscalls import datasync

SPACE = 64 << 10


def test_a_disk_that_is_not_known_is_not_waited_for() -> None:
    assert not QuickSyncs().may_wait(1)


def test_one_that_was_quick_for_a_while_is_until_one_commit_is_slow() -> None:
    quick = QuickSyncs()
    for _ in range(100):
        quick.took(QUICK_MS_MAX / 4)
    assert quick.may_wait(BYTES_MAX)
    assert not quick.may_wait(BYTES_MAX + 1)
    quick.took(100)
    waited = 0
    while not quick.may_wait(1):
        quick.took(QUICK_MS_MAX / 4)
        waited += 1
        assert waited < 1_000, "it is tried again some day"
    assert waited > 20, "a stall is not forgotten at once"


class Threads:
    """Which threads synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[int] = []
        self.error: OSError | None = None

        def noted(fd: int) -> None:
            self.synced.append(threading.get_ident())
            if self.error is not None:
                raise self.error
            datasync(fd)

        monkeypatch.setattr(disks, "datasync", noted)

    def here(self) -> bool:
        """The last one was this thread."""
        return self.synced[-1] == threading.get_ident()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    made = RealDisk(tmp_path / "data")
    yield made
    made.close()


def be_quick(disk: RealDisk) -> None:
    for _ in range(100):
        disk._quick.took(QUICK_MS_MAX / 10)


async def known(disk: RealDisk, path: str = "a") -> Any:
    """A file with space, whose name is durable."""
    file = disk.open(path, create=True, grows_to=SPACE)
    await disk.commit([Write(file, 0, [b"first"])])
    return file


def test_a_small_commit_of_a_quick_disk_is_done_in_this_thread(
    disk: RealDisk, threads: Threads, tmp_path: Path
) -> None:
    async def story() -> None:
        file = await known(disk)
        assert not threads.here()
        be_quick(disk)
        await disk.commit([Write(file, 5, [b"sec", b"ond"])])
        assert threads.here()
        assert file.read(0, 11) == b"firstsecond"

    asyncio.run(story())


def test_all_else_is_handed_to_the_writer(disk: RealDisk, threads: Threads) -> None:
    async def story() -> None:
        file, other = await known(disk), await known(disk, "b")
        slow = disk.open("c", create=True)
        for writes in (
            [Write(file, 5, [b"x"]), Write(other, 5, [b"y"])],
            [Write(file, 5, [bytes(BYTES_MAX + 1)])],
            # Beyond the space that is there: the file must be made longer.
            [Write(file, file.allocated - 1, [b"xy"])],
            # Its name is not durable yet.
            [Write(slow, 0, [b"x"])],
        ):
            be_quick(disk)
            await disk.commit(writes)
            assert not threads.here()
        for _ in range(100):
            disk._quick.took(QUICK_MS_MAX * 2)
        await disk.commit([Write(file, 5, [b"x"])])
        assert not threads.here()

    asyncio.run(story())


def test_i5_while_the_writer_has_one_nothing_goes_past_it(disk: RealDisk, threads: Threads) -> None:
    async def story() -> None:
        file, other = await known(disk), await known(disk, "b")
        be_quick(disk)
        large = asyncio.ensure_future(disk.commit([Write(file, 5, [bytes(BYTES_MAX + 1)])]))
        await asyncio.sleep(0)
        # Whoever waited for it has gone; the writer has not.
        large.cancel()
        await asyncio.wait([large])
        before = len(threads.synced)
        await disk.commit([Write(other, 5, [b"x"])])
        assert len(threads.synced) > before
        assert not threads.here(), "it went past the writer"

    asyncio.run(story())


def test_i25_a_sync_that_fails_here_fails_the_commit(disk: RealDisk, threads: Threads) -> None:
    async def story() -> None:
        file = await known(disk)
        be_quick(disk)
        threads.error = OSError(EIO, os.strerror(EIO))
        with pytest.raises(OSError, match=os.strerror(EIO)):
            await disk.commit([Write(file, 5, [b"x"])])
        assert threads.here()

    asyncio.run(story())
