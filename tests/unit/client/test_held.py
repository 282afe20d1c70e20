"""What a buffered consumer holds: bounded in memory, whole on disk, gone with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import stat
from pathlib import Path

import pytest

from oncelog import _held
from oncelog._core.pending import HeldBatch, Part
from oncelog._held import BATCH_OVERHEAD_BYTES, HeldBatches
from oncelog.errors import BufferFailed
from oncelogpb import records

LIMIT = 64 * 1024


def made(size: int, fill: int = 7) -> HeldBatch:
    payload = bytes([fill]) * size
    return HeldBatch(1, records.ROWS, records.checksum(payload), payload)


def hold(held: HeldBatches, part: Part, batch: HeldBatch) -> None:
    held.make_room(len(batch.payload))
    held.hold(part, batch)


def in_files(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*/part-*"))


def test_memory_stays_below_its_limit_and_everything_comes_back_in_order(tmp_path: Path) -> None:
    chance = random.Random(1)
    held = HeldBatches(LIMIT, tmp_path)
    parts = [Part() for _ in range(20)]
    sent: dict[Part, list[HeldBatch]] = {part: [] for part in parts}
    for number in range(500):
        part = chance.choice(parts)
        batch = made(chance.choice([10, 500, 9_000]), number % 256)
        hold(held, part, batch)
        sent[part].append(batch)
        assert held.memory_bytes <= LIMIT
    assert in_files(tmp_path) == held.disk_bytes > 10 * LIMIT
    for part in parts:
        assert list(held.take(part, len(sent[part]))) == sent[part]
        held.release(part)
    assert (held.memory_bytes, held.disk_bytes, in_files(tmp_path)) == (0, 0, 0)


def test_what_is_given_may_be_moved_to_disk_meanwhile(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    given, other = Part(), Part()
    sent = [made(1_000, number) for number in range(50)]
    for batch in sent:
        hold(held, given, batch)
    taking = held.take(given, 50)
    got = [next(taking) for _ in range(5)]
    for _ in range(2):
        for _ in range(40):
            hold(held, other, made(1_000))
        got += [next(taking) for _ in range(5)]
    assert got + list(taking) == sent


def test_of_many_small_parts_only_some_go_to_disk_at_once(tmp_path: Path) -> None:
    """Each is a file: a loop that makes thousands of them stands still."""
    held = HeldBatches(LIMIT, tmp_path)
    before = 0
    for _ in range(1_000):
        hold(held, Part(), made(10))
        assert held.memory_bytes <= LIMIT
        files = len(list(tmp_path.glob("*/part-*")))
        assert files - before <= 32
        before = files
    assert before > 100


def test_the_largest_goes_first_and_small_ones_stay(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    small, large = Part(), Part()
    hold(held, small, made(100))
    for _ in range(100):
        hold(held, large, made(1_000))
    assert (small.spilled_bytes, small.held_bytes) == (0, 100 + BATCH_OVERHEAD_BYTES)
    assert large.spilled_bytes > 0


def test_one_batch_above_the_limit_is_held_alone(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    part = Part()
    for _ in range(3):
        hold(held, part, made(2 * LIMIT))
        assert held.memory_bytes <= 2 * LIMIT + BATCH_OVERHEAD_BYTES


def test_i28_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    part = Part()
    sent = [made(1_000, number) for number in range(200)]
    for batch in sent[:60]:
        hold(held, part, batch)
    (file,) = tmp_path.glob("*/part-1")
    kept = file.rename(tmp_path / "kept")
    # A disk without room.
    file.symlink_to("/dev/full")
    done = 60
    with pytest.raises(BufferFailed, match="buffer_dir or more than buffer_memory_bytes"):
        for batch in sent[60:]:
            hold(held, part, batch)
            done += 1
    for _ in range(3):
        with pytest.raises(BufferFailed):
            held.make_room(1_000)
    assert held.memory_bytes <= LIMIT
    file.unlink()
    kept.rename(file)
    for batch in sent[done:]:
        hold(held, part, batch)
    assert list(held.take(part, 200)) == sent


def test_i26_what_the_disk_gives_back_is_checked(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    part = Part()
    for number in range(100):
        hold(held, part, made(1_000, number))
    (file,) = tmp_path.glob("*/part-1")
    data = bytearray(file.read_bytes())
    data[500] ^= 1
    file.write_bytes(data)
    with pytest.raises(BufferFailed, match="does not match its checksum"):
        list(held.take(part, 100))
    file.write_bytes(b"")
    with pytest.raises(BufferFailed, match="cannot be read back"):
        list(held.take(part, 100))


def open_below(folder: Path) -> int:
    """Descriptors of this process: threads of other tests may open some elsewhere."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
    return count


def test_few_files_are_open_however_many_parts_there_are(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    before = open_below(tmp_path)
    parts = [Part() for _ in range(500)]
    for part in parts:
        hold(held, part, made(1_000))
    taking = [held.take(part, 1) for part in parts]
    for one in taking:
        next(one)
        assert before < open_below(tmp_path) <= before + 2
    held.close()
    assert open_below(tmp_path) == before


def test_only_its_user_reads_what_is_held(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path / "new")
    hold(held, Part(), made(2 * LIMIT))
    hold(held, Part(), made(2 * LIMIT))
    for directory in (tmp_path / "new", *(tmp_path / "new").glob("consumer-*")):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_close_removes_it_and_the_next_one_removes_what_the_dead_left(tmp_path: Path) -> None:
    living, dead, closed = (HeldBatches(LIMIT, tmp_path) for _ in range(3))
    for held in (living, dead, closed):
        for _ in range(2):
            hold(held, Part(), made(2 * LIMIT))
    assert len(list(tmp_path.glob("consumer-*"))) == 3
    closed.close()
    assert len(list(tmp_path.glob("consumer-*"))) == 2
    # A process that dies lets go of its lock.
    assert dead._lock is not None
    fcntl.flock(dead._lock, fcntl.LOCK_UN)
    HeldBatches(LIMIT, tmp_path)
    assert list(tmp_path.glob("consumer-*")) == [living._own]


def test_a_folder_that_was_removed_while_it_was_empty_is_made_again(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path)
    part = Part()
    hold(held, part, made(2 * LIMIT))
    hold(held, part, made(2 * LIMIT))
    held.release(part)
    (folder,) = tmp_path.glob("consumer-*")
    shutil.rmtree(folder)
    other = Part()
    sent = [made(2 * LIMIT, fill) for fill in range(3)]
    for batch in sent:
        hold(held, other, batch)
    assert list(held.take(other, 3)) == sent
    held.close()


def test_who_cleans_up_files_by_their_age_takes_no_living_folder(tmp_path: Path) -> None:
    living = HeldBatches(LIMIT, tmp_path)
    part = Part()
    sent = [made(2 * LIMIT, fill) for fill in range(3)]
    for batch in sent:
        hold(living, part, batch)
    # All but what is held: nothing else there may be needed.
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.name.startswith("part-"):
            path.unlink()
    HeldBatches(LIMIT, tmp_path)
    assert list(living.take(part, 3)) == sent


def test_who_begins_waits_for_no_other_process(tmp_path: Path) -> None:
    # Blocking here would block the event loop: this test would not end.
    HeldBatches(LIMIT, tmp_path)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = HeldBatches(LIMIT, tmp_path)
        for _ in range(2):
            hold(held, Part(), made(2 * LIMIT))
        held.close()
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_only_this_users_own_folders_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    buffers = tmp_path / "buffers"
    (buffers / "consumer-1-left").mkdir(parents=True)
    (buffers / "consumer-2-link").symlink_to(elsewhere)
    (elsewhere / "kept").write_text("not ours")
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    HeldBatches(LIMIT, buffers)
    assert (buffers / "consumer-1-left").exists()
    monkeypatch.setattr(os, "getuid", lambda: user)
    HeldBatches(LIMIT, buffers)
    assert [path.name for path in buffers.iterdir()] == ["consumer-2-link"]
    assert (elsewhere / "kept").exists()


def test_another_users_folder_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_held, "default_directory", lambda: tmp_path / "mine")
    held = HeldBatches(LIMIT)
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4_321_234)
    hold(held, Part(), made(2 * LIMIT))
    with pytest.raises(BufferFailed, match="another user"):
        hold(held, Part(), made(2 * LIMIT))


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    held = HeldBatches(LIMIT, tmp_path / "new")
    hold(held, Part(), made(100))
    held.close()
    assert not (tmp_path / "new").exists()


def test_i28_what_could_never_be_written_is_let_go_of_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    held = HeldBatches(LIMIT, tmp_path / "file")
    part = Part()
    hold(held, part, made(2 * LIMIT))
    with pytest.raises(BufferFailed, match="File exists"):
        held.make_room(LIMIT)
    held.release(part)
    assert held.memory_bytes == 0
    held.close()
