"""What the real disk's rare verbs make durable, in which order: bytes before the name that shows
them, and every directory whose names changed. A simulated loss of power cannot see it, for the
simulated disk keeps these promises by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.runtime.storage import disk as disk_module
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.syscalls import datasync


class Calls:
    """System calls that change names or make something durable, as `verb path`, in order."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = f"{root}/"
        self.made: list[str] = []
        for verb in ("rename", "unlink", "mkdir", "ftruncate"):
            patch.setattr(os, verb, self._noted(verb, getattr(os, verb)))
        patch.setattr(os, "fsync", self._noted("sync", os.fsync))
        patch.setattr(disk_module, "datasync", self._noted("sync", datasync))

    def _noted(self, verb: str, call: Any) -> Any:
        def noted(first: Any, *more: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            answer = call(first, *more)
            self.made.append(f"{verb} {self._short(path)}")
            return answer

        return noted

    def _short(self, path: str) -> str:
        return f"{path}/".removeprefix(self._root).rstrip("/") or "."

    def taken(self) -> list[str]:
        made, self.made = self.made, []
        return made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    made = RealDisk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def calls(tmp_path: Path, disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, monkeypatch)


def test_i25_a_replaced_file_is_whole_before_its_name_shows_it(
    disk: RealDisk, calls: Calls
) -> None:
    disk.replace_file("node_id", b"one")
    assert calls.taken() == ["sync node_id.new", "rename node_id.new", "sync ."]


def test_i25_each_directory_on_the_way_is_durable_in_its_parent(
    disk: RealDisk, calls: Calls
) -> None:
    disk.make_directory("partitions/p")
    assert calls.taken() == ["mkdir partitions", "sync .", "mkdir partitions/p", "sync partitions"]
    disk.make_directory("partitions/p")
    assert calls.taken() == [], "known to be durable"


def test_i25_a_data_directory_is_durable_with_all_directories_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(tmp_path, monkeypatch)
    RealDisk(tmp_path / "a/b/data").close()
    # What is above was there: perhaps of a process that was killed before it synced that.
    assert calls.taken()[1:] == [
        *("mkdir a", "sync .", "mkdir a/b", "sync a", "mkdir a/b/data", "sync a/b"),
    ]
    RealDisk(tmp_path / "a/b/data").close()
    assert calls.taken() == ["sync a/b"]
    os.rmdir(tmp_path / "a/b/data")
    RealDisk(tmp_path / "a/b/data").close()
    assert calls.taken() == ["sync a", "mkdir a/b/data", "sync a/b"]


def test_a_directory_that_another_process_left_is_made_durable(
    disk: RealDisk, calls: Calls, tmp_path: Path
) -> None:
    (tmp_path / "left").mkdir()
    calls.taken()
    disk.make_directory("left")
    assert calls.taken() == ["sync ."], "it may have been killed before it synced"


def test_i25_one_sync_is_for_all_directories_that_another_process_left(
    disk: RealDisk, calls: Calls, tmp_path: Path
) -> None:
    for name in ("p", "q"):
        (tmp_path / "partitions" / name).mkdir(parents=True)
    calls.taken()
    disk.make_directory("partitions/p")
    assert calls.taken() == ["sync .", "sync partitions"]
    disk.make_directory("partitions/q")
    assert calls.taken() == []
    # It was not there when that sync began.
    disk.make_directory("partitions/r")
    assert calls.taken() == ["mkdir partitions/r", "sync partitions"]
    (tmp_path / "partitions" / "s").mkdir()
    calls.taken()
    disk.make_directory("partitions/s")
    assert calls.taken() == ["sync partitions"]


def test_i25_a_rename_is_durable_where_it_left_and_where_it_came(
    disk: RealDisk, calls: Calls
) -> None:
    disk.make_directory("partitions/p")
    disk.make_directory("orphans")
    calls.taken()
    disk.rename("partitions/p", "orphans/p")
    assert calls.taken() == ["rename partitions/p", "sync orphans", "sync partitions"]
    # Its name is free, and nothing is known of what comes in its place.
    disk.make_directory("partitions/p")
    assert calls.taken() == ["mkdir partitions/p", "sync partitions"]


def test_what_stood_in_a_renamed_directory_is_not_taken_for_durable(
    disk: RealDisk, calls: Calls
) -> None:
    disk.make_directory("p")
    disk.sync(disk.open("p/log", create=True))
    disk.rename("p", "aside")
    disk.make_directory("p")
    file = disk.open("p/log", create=True)
    calls.taken()
    disk.sync(file)
    assert calls.taken() == ["sync p/log", "sync p"]


def test_i25_a_removed_name_does_not_come_back(disk: RealDisk, calls: Calls) -> None:
    disk.make_directory("p")
    disk.sync(disk.open("p/log", create=True))
    calls.taken()
    disk.remove("p/log")
    assert calls.taken() == ["unlink p/log", "sync p"]
    # Made again: the name that was durable was another file's.
    again = disk.open("p/log", create=True)
    disk.sync(again)
    assert calls.taken() == ["sync p/log", "sync p"]


def test_i26_a_cut_is_durable_and_what_follows_it_is_allocated_anew(
    disk: RealDisk, calls: Calls
) -> None:
    file = disk.open("log", create=True, grows_to=1 << 20)
    disk.write_and_sync(file, 0, b"x" * 100)
    calls.taken()
    disk.truncate_and_sync(file, 10)
    assert calls.taken() == ["ftruncate log", "sync log"]
    assert file.allocated == 10


def test_i25_a_sync_that_fails_leaves_no_name_for_durable(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.make_directory("p")
    file = disk.open("p/log", create=True)
    asked: list[str] = []

    def fail(path: str) -> None:
        asked.append(path)
        raise OSError(5, "as told")

    monkeypatch.setattr(disk_module, "sync_directory", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="as told"):
            disk.sync(file)
    assert len(asked) == 2, "the second try asks again"
