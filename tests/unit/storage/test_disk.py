"""The real disk: what it promises, on the file system of this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from errno import EBADF, EIO, ENOSPC
from pathlib import Path

import pytest

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.runtime.storage import disk as disk_module
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.disk import (
    ALLOCATION_STEP_BYTES_MIN,
    CHUNKS_PER_WRITE_MAX,
    PARALLEL_SYNCS_MAX,
    RealDisk,
)
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import Write
from oncelog_server.runtime.storage.real_file import RealFile
from tests.unit.storage.journals import EPOCH_START, record, replayed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    made = RealDisk(tmp_path / "data")
    yield made
    made.close()


def commit(disk: RealDisk, *writes: Write) -> None:
    asyncio.run(disk.commit(writes))


def test_a_commit_writes_all_chunks_in_order(disk: RealDisk) -> None:
    file = disk.open("f", create=True)
    chunks = [bytes([number % 251]) * 3 for number in range(CHUNKS_PER_WRITE_MAX * 2 + 5)]
    commit(disk, Write(file, 0, chunks), Write(file, 1, [b"XY"]))
    expected = bytearray(b"".join(chunks))
    expected[1:3] = b"XY"
    assert file.read(0, 1 << 20) == bytes(expected)


def test_a_write_larger_than_the_system_takes_is_split(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "WRITE_BYTES_MAX", 10)
    file = disk.open("f", create=True)
    commit(disk, Write(file, 4, [b"abcd", b"efgh", b"ijkl", b"", b"mnop"]))
    assert file.read(4, 100) == b"abcdefghijklmnop"


@pytest.mark.parametrize("count", [1, 2, PARALLEL_SYNCS_MAX, PARALLEL_SYNCS_MAX + 3])
@pytest.mark.parametrize("own_volume", [False, True])
def test_every_touched_file_is_synced_and_so_is_its_name(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, count: int, own_volume: bool
) -> None:
    synced: list[str] = []
    directories: list[str] = []
    volumes: list[int] = []

    def datasync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(disk_module, "datasync", datasync)
    monkeypatch.setattr(disk_module, "sync_directory", directories.append)
    disk._syncfs = volumes.append if own_volume else None
    disk.make_directory("d")
    directories.clear()
    files = [disk.open(f"d/{number}", create=True) for number in range(count)]
    for _ in range(2):
        commit(disk, *(Write(file, 0, [b"x"]) for file in files))
    if own_volume and count > PARALLEL_SYNCS_MAX:
        assert (len(volumes), synced) == (2, [])
        assert directories == [], "what syncs the volume syncs its names"
    else:
        assert sorted(synced) == sorted([file.full_path for file in files] * 2)
        assert directories == [os.path.dirname(files[0].full_path)], "once, for all of them"


def test_the_name_of_a_file_that_another_process_left_is_synced_too(tmp_path: Path) -> None:
    (tmp_path / "left").write_bytes(b"")
    disk = RealDisk(tmp_path)
    file = disk.open("left")
    assert file.full_path not in disk._durable_names
    disk.write_and_sync(file, 0, b"x")
    assert file.full_path in disk._durable_names
    disk.remove("left")
    assert disk.open("left", create=True).full_path not in disk._durable_names
    disk.close()


def fail(errno: int) -> Callable[..., int]:
    def failing(*_: object) -> int:
        raise OSError(errno, os.strerror(errno))

    return failing


@pytest.mark.parametrize("errno", [EIO, ENOSPC])
def test_errors_of_the_system_arrive_as_they_are(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, errno: int
) -> None:
    file = disk.open("f", create=True)
    for name in ("datasync", None):
        with monkeypatch.context() as patch:
            if name:
                patch.setattr(disk_module, name, fail(errno))
            else:
                patch.setattr(os, "pwritev", fail(errno))
            with pytest.raises(OSError) as caught:
                commit(disk, Write(file, 0, [b"x"]))
            assert caught.value.errno == errno
    commit(disk, Write(file, 0, [b"y"]))


@pytest.mark.parametrize("failing", range(4))
def test_one_failed_sync_of_several_fails_the_commit(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    files = [disk.open(str(number), create=True) for number in range(4)]

    def datasync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(f"/{failing}"):
            raise OSError(EIO, "bad sector")

    monkeypatch.setattr(disk_module, "datasync", datasync)
    with pytest.raises(OSError, match="bad sector"):
        commit(disk, *(Write(file, 0, [b"x"]) for file in files))


@pytest.mark.parametrize(("free", "errno"), [(1 << 40, EIO), (0, ENOSPC)])
def test_a_short_write_is_an_error_never_a_record(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, free: int, errno: int
) -> None:
    pwritev = os.pwritev

    def short(fd: int, chunks: Sequence[bytes], position: int) -> int:
        return pwritev(fd, [b"".join(chunks)[:-1]], position)

    file = disk.open("f", create=True)
    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(disk, "free_bytes", lambda: free)
    ways: list[Callable[[], None]] = [
        lambda: commit(disk, Write(file, 0, [b"abc", b"def"])),
        lambda: disk.write_and_sync(file, 0, b"abcdef"),
        lambda: disk.write_unsynced(file, 0, b"abcdef"),
        lambda: disk.replace_file("g", b"abcdef"),
    ]
    for write in ways:
        with pytest.raises(OSError, match="short write: 5 of 6 bytes") as caught:
            write()
        assert caught.value.errno == errno
    assert not disk.exists("g")


def test_a_replacement_that_fails_leaves_nothing(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def short(fd: int, chunks: Sequence[bytes], position: int) -> int:
        return pwritev(fd, [b"".join(chunks)[:-1]], position)

    monkeypatch.setattr(os, "pwritev", short)
    for name in ("snapshot-1", "snapshot-2"):
        with pytest.raises(OSError, match="short write"):
            disk.replace_file(name, b"abcdef")
    assert sorted(os.listdir(tmp_path / "data")) == []


def test_what_a_crash_left_of_a_replacement_is_gone_after_a_start(
    disk: RealDisk, tmp_path: Path
) -> None:
    Journal.open(disk, "p").close()
    left = tmp_path / "data/p" / f"snapshot-{5:020d}.new"
    left.write_bytes(b"the first half")
    Journal.open(disk, "p").close()
    assert not left.exists()


def test_a_growing_file_is_allocated_ahead_with_zeros(disk: RealDisk) -> None:
    file = disk.open("f", create=True, grows_to=ALLOCATION_STEP_BYTES_MIN * 3)
    commit(disk, Write(file, 0, [b"abc"]))
    assert file.size() in (3, ALLOCATION_STEP_BYTES_MIN), "where the file system can"
    assert file.read(0, 5).rstrip(b"\0") == b"abc"
    end = ALLOCATION_STEP_BYTES_MIN * 3
    commit(disk, Write(file, end - 1, [b"x"]))
    assert file.size() == end
    commit(disk, Write(file, end, [b"beyond"]))
    assert file.size() == end + 6
    disk.truncate_and_sync(file, 3)
    commit(disk, Write(file, 3, [b"d"]))
    assert file.read(0, 6).rstrip(b"\0") == b"abcd"


def test_without_fallocate_a_file_just_grows(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "fallocate", lambda *_: False)
    file = disk.open("f", create=True, grows_to=1 << 20)
    commit(disk, Write(file, 0, [b"abc"]))
    assert file.size() == 3


def test_a_file_closed_under_a_commit_is_written_all_the_same(
    disk: RealDisk, tmp_path: Path
) -> None:
    file = disk.open("f", create=True)

    async def story() -> None:
        task = asyncio.ensure_future(disk.commit([Write(file, 0, [b"x" * 100_000])]))
        await asyncio.sleep(0)
        file.close()
        others = [disk.open(f"o{number}", create=True) for number in range(5)]
        await task
        assert [other.size() for other in others] == [0] * 5

    asyncio.run(story())
    assert (tmp_path / "data" / "f").stat().st_size == 100_000
    with pytest.raises(OSError) as caught:
        file.read(0, 1)
    assert caught.value.errno == EBADF


@pytest.mark.parametrize("cached", [True, False])
def test_reads_end_at_the_end_of_the_file(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    if not cached:
        monkeypatch.setattr(RealFile, "read_cached", lambda *_: None)
    file = disk.open("f", create=True)
    disk.write_and_sync(file, 0, b"abcdef")
    assert asyncio.run(disk.read(file, 2, 3)) == b"cde"
    assert asyncio.run(disk.read(file, 4, 100)) == b"ef"
    assert asyncio.run(disk.read(file, 100, 100)) == b""


def test_replace_rename_remove_list(disk: RealDisk, tmp_path: Path) -> None:
    disk.make_directory("a/b")
    disk.make_directory("a/b")
    disk.replace_file("a/b/f", b"old and long")
    disk.replace_file("a/b/f", b"new")
    (tmp_path / "data/a/b/g.new").write_bytes(b"left by a crash")
    assert disk.list("a/b") == ["f"]
    assert disk.open("a/b/f").read(0, 100) == b"new"
    disk.make_directory("c")
    disk.rename("a/b", "c/b")
    assert (disk.exists("a/b/f"), disk.exists("c/b/f")) == (False, True)
    disk.remove("c/b/f")
    assert disk.list("c/b") == []
    assert disk.list("nowhere") == []
    with pytest.raises(FileNotFoundError):
        disk.open("nowhere")


def test_a_second_process_is_refused_by_name(disk: RealDisk, tmp_path: Path) -> None:
    disk.lock()
    program = (
        "import sys; from oncelog_server.runtime.storage.disk import RealDisk\n"
        "try: RealDisk(sys.argv[1]).lock()\n"
        "except OSError as error: print(error); sys.exit(3)"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    refused = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert refused.returncode == 3, refused.stderr
    assert "another process uses this data directory" in refused.stdout
    assert str(tmp_path / "data") in refused.stdout
    disk.close()
    assert subprocess.run(command, cwd=root, check=False).returncode == 0


def test_a_file_is_renamed_beside_commits_that_make_names_durable(disk: RealDisk) -> None:
    """Compaction renames in a thread of its own."""
    disk._durable_names.update(f"{disk._root}/{number}" for number in range(20_000))
    disk.open("a", create=True)
    is_over = threading.Event()

    def add() -> None:
        while not is_over.is_set():
            disk._durable_names.add(f"{disk._root}/more")
            disk._durable_names.discard(f"{disk._root}/more")
        disk._durable_names.add(f"{disk._root}/more")

    writer = threading.Thread(target=add)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        writer.start()
        for _ in range(3):
            disk.rename("a", "b")
            disk.rename("b", "a")
    finally:
        is_over.set()
        writer.join()
        sys.setswitchinterval(before)
    assert f"{disk._root}/more" in disk._durable_names
    assert f"{disk._root}/19999" in disk._durable_names


def test_after_close_a_commit_is_refused(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file = disk.open("f", create=True)
    disk.close()
    disk.close()
    with pytest.raises(OSError, match="closed"):
        commit(disk, Write(file, 0, [b"x"]))


def test_a_commit_under_way_is_finished_before_the_disk_closes(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file = disk.open("f", create=True)

    async def story() -> None:
        task = asyncio.ensure_future(disk.commit([Write(file, 0, [b"x" * 1000])]))
        await asyncio.sleep(0)
        disk.close()
        await task

    asyncio.run(story())
    assert (tmp_path / "f").stat().st_size == 1000


def test_a_journal_on_the_real_disk_comes_back(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)

    async def story() -> None:
        commit = GroupCommit(disk, ahead_bytes=1)
        journals = [Journal.open(disk, f"p/{number}", segment_bytes=5000) for number in range(8)]
        ends: list[int] = []
        errors: list[OSError] = []
        for journal in journals:
            journal.append(EPOCH_START, epoch=1, time_ms=1)
        for text in map(str, range(100, 140)):
            for journal in journals:
                journal.append(record(text), epoch=1, time_ms=1)
                journal.append(Frame(FrameKind.DATA, b"x" * 300, 2), epoch=1, time_ms=1)
                commit.wrote(journal, ends.append, errors.append)
            await asyncio.sleep(0)
        await commit.flush()
        assert (max(ends), errors) == (1 + 40 * 3, [])
        frames = await journals[0].read(0, 1 << 20, below=journals[0].synced_end)
        assert frames == list(journals[0].replay(0))[: len(frames)]
        journals[0].note_synced_end()
        await commit.stop()

    asyncio.run(story())
    disk.close()
    disk = RealDisk(tmp_path)
    for number in range(8):
        journal = Journal.open(disk, f"p/{number}", segment_bytes=5000)
        assert journal.log_end == 1 + 40 * 3
        assert [text for text in replayed(journal) if text[0] != "x"] == list(
            map(str, range(100, 140))
        )
        journal.close()
    disk.close()


def test_what_a_file_takes_leaves_its_holes_out(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    file = disk.open("sparse", create=True)
    disk.write_and_sync(file, 64 << 20, b"x" * 4096)
    assert file.size() > 64 << 20
    assert 0 < disk.taken_bytes("sparse") < 1 << 20
    assert disk.taken_bytes("none") == 0
    file.close()
    disk.close()


def test_what_was_allocated_ahead_is_blank_and_what_was_written_there_is_not(
    disk: RealDisk,
) -> None:
    file = disk.open("log", create=True, grows_to=1 << 20)
    assert file.is_blank_from(0)
    commit(disk, Write(file, 0, [b"x" * 5_000]))
    assert file.size() > 5_000
    assert not file.is_blank_from(0)
    assert not file.is_blank_from(4_999)
    assert file.is_blank_from(5_000)
    assert file.is_blank_from(file.size() + 1)
    disk.write_and_sync(file, 200_000, bytes(100_000))
    assert file.is_blank_from(5_000), "zeros that were written are zeros"
    disk.write_and_sync(file, file.size() - 1, b"x")
    assert not file.is_blank_from(5_000)


@pytest.mark.parametrize("seek_data", [None, 99])
def test_a_file_system_that_knows_of_no_holes_reads_its_zeros(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, seek_data: int | None
) -> None:
    monkeypatch.setattr(os, "SEEK_DATA", seek_data)
    file = disk.open("log", create=True)
    disk.write_and_sync(file, 0, b"x" + bytes(200_000))
    assert file.is_blank_from(1)
    disk.write_and_sync(file, 200_000, b"x")
    assert not file.is_blank_from(1)
