"""Which files of a real disk have a descriptor, and that nobody can tell."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from errno import EBADF, ENOENT, ESTALE
from pathlib import Path

import pytest

from oncelog_server.runtime.storage import disk as disk_module
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.port import Write
from oncelog_server.runtime.storage.real_file import LOOKS_AT_ONCE, RealFile

COUNT_MAX = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    made = RealDisk(tmp_path, descriptors_max=COUNT_MAX)
    yield made
    made.close()


def made(disk: RealDisk, count: int, *, prefix: str = "") -> list[RealFile]:
    files = []
    for number in range(count):
        file = disk.open(f"{prefix}{number}", create=True)
        disk.write_and_sync(file, 0, b"%d" % number)
        files.append(file)
    return files


def answer_of(file: RealFile) -> bytes | OSError:
    try:
        return file.read(0, 1)
    except OSError as error:
        return error


def those_open(files: list[RealFile]) -> list[int]:
    return [number for number, file in enumerate(files) if file.is_open]


def test_so_many_are_open_and_all_can_be_read(disk: RealDisk) -> None:
    files = made(disk, 20)
    assert len(those_open(files)) <= COUNT_MAX
    for _ in range(2):
        for number, file in enumerate(files):
            assert file.read(0, 10) == b"%d" % number
            assert file.read_cached(0, len(b"%d" % number)) in (b"%d" % number, None)
            assert len(those_open(files)) <= COUNT_MAX


def test_who_is_used_stays_mostly(disk: RealDisk) -> None:
    files, more, stayed = made(disk, COUNT_MAX), [], 0
    for number in range(30):
        files[0].read(0, 1)
        more += made(disk, 1, prefix=f"more-{number}-")
        stayed += files[0].is_open
    assert stayed >= 20
    assert not any(file.is_open for file in files[1:])


def test_i25_what_is_not_synced_keeps_its_descriptor(disk: RealDisk) -> None:
    """An error of writing back is told to who had the file open."""
    files = [disk.open(f"{number}", create=True) for number in range(10)]
    for file in files:
        disk.write_unsynced(file, 0, b"x")
    for number in range(2 * LOOKS_AT_ONCE):
        made(disk, 1, prefix=f"more-{number}-")
    assert those_open(files) == list(range(10))
    for file in files:
        disk.sync(file)
    for number in range(2 * LOOKS_AT_ONCE):
        made(disk, 1, prefix=f"again-{number}-")
    assert those_open(files) == []


def test_i25_a_sync_that_failed_leaves_it_open(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "as told")

    file = disk.open("log", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "datasync", fail)
        with pytest.raises(OSError, match="as told"):
            asyncio.run(disk.commit([Write(file, 0, [b"x"])]))
    for number in range(2 * LOOKS_AT_ONCE):
        made(disk, 1, prefix=f"more-{number}-")
    assert file.is_open


def test_who_holds_a_descriptor_has_it_while_its_file_rests(disk: RealDisk) -> None:
    (file,) = made(disk, 1)
    held = file.descriptor
    made(disk, 20, prefix="more-")
    assert not file.is_open
    assert os.pread(held.fd, 1, 0) == b"0"


def test_a_file_at_rest_is_written_and_synced(disk: RealDisk) -> None:
    files = made(disk, 10)
    assert not files[0].is_open
    asyncio.run(disk.commit([Write(file, 1, [b"y"]) for file in files]))
    disk.truncate_and_sync(files[1], 1)
    assert [file.read(0, 9) for file in files[:3]] == [b"0y", b"1", b"2y"]
    assert files[2].size() == 2
    assert files[3].is_blank_from(2)


def test_a_file_at_rest_is_renamed(disk: RealDisk) -> None:
    disk.make_directory("p/q")
    (file,) = made(disk, 1, prefix="p/q/")
    made(disk, 20, prefix="more-")
    assert not file.is_open
    disk.rename("p", "r")
    assert answer_of(file) == b"0"
    made(disk, 20, prefix="again-")
    disk.rename("r/q/0", "r/q/1")
    assert answer_of(file) == b"0"


def test_another_file_of_its_name_is_not_taken_for_it(disk: RealDisk) -> None:
    (file,) = made(disk, 1)
    made(disk, 20, prefix="more-")
    disk.replace_file("0", b"another")
    with pytest.raises(OSError, match="another file has its name now") as stale:
        file.read(0, 1)
    assert stale.value.errno == ESTALE


def test_what_is_removed_or_closed_is_not_opened_again(disk: RealDisk) -> None:
    removed, closed = made(disk, 2)
    made(disk, 20, prefix="more-")
    disk.remove("0")
    with pytest.raises(OSError) as gone:
        removed.read(0, 1)
    assert gone.value.errno == ENOENT
    assert not (Path(disk._root) / "0").exists(), "nor made again"
    closed.close()
    with pytest.raises(OSError, match="the file is closed") as shut:
        closed.read(0, 1)
    assert shut.value.errno == EBADF


def test_files_that_nobody_has_any_more_count_for_nothing(disk: RealDisk) -> None:
    files = made(disk, COUNT_MAX)
    for file in files[1:]:
        file.close()
    made(disk, COUNT_MAX - 1, prefix="more-")
    assert files[0].is_open
    assert len(disk._descriptors._open) <= COUNT_MAX


def test_a_thousand_files_by_some_threads(disk: RealDisk) -> None:
    files, wrong = made(disk, 100), []

    def use(first: int) -> None:
        for turn in range(20):
            for number in range(first, 100, 2):
                disk.write_unsynced(files[number], 4, b"%02d" % turn)
                if files[number].read(4, 2) != b"%02d" % turn:
                    wrong.append(number)
                disk.sync(files[number])

    threads = [threading.Thread(target=use, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    # The last one that each thread used may still count as used.
    assert len(those_open(files)) <= COUNT_MAX + 2
