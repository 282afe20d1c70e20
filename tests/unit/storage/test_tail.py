"""What the memory tail holds, and what it lets go."""

from __future__ import annotations

import weakref
from typing import Final

import pytest

from oncelog_server.core.frame import At, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.storage import tail as tail_module
from oncelog_server.runtime.storage.frames import HEADER_BYTES, encoded_bytes
from oncelog_server.runtime.storage.tail import FRAME_MEMORY_BYTES, MemoryTail, TailBudget

MAX_BYTES: Final = 64 * 1024


@pytest.mark.parametrize("payload_bytes", [10, 4_000, 30_000])
def test_what_is_dropped_is_let_go_soon_however_large_frames_are(payload_bytes: int) -> None:
    """A list of dropped frames that only counts them would hold a thousand of a MiB."""
    tail = MemoryTail(0, max_bytes=MAX_BYTES)
    payloads: list[weakref.ref[memoryview]] = []
    for offset in range(20 * MAX_BYTES // (payload_bytes + HEADER_BYTES)):
        payload = memoryview(bytes(payload_bytes))
        payloads.append(weakref.ref(payload))
        stored = StoredFrame(
            Frame(FrameKind.DATA, payload, record_count=1),
            At(JournalOffset(offset), LeaderEpoch(1), 0),
        )
        tail.append(stored, bytes(HEADER_BYTES), synced_end=offset)
        del payload, stored
    held = sum(payload() is not None for payload in payloads)
    frame_bytes = payload_bytes + HEADER_BYTES
    assert held * frame_bytes <= MAX_BYTES + MAX_BYTES // 4 + 2 * frame_bytes
    assert len(tail.read(tail.start, MAX_BYTES, below=len(payloads))) * frame_bytes <= MAX_BYTES
    assert len(payloads) - tail.start <= held, "everything from its start on is there"


def frame(offset: int, payload_bytes: int = 1_000) -> StoredFrame:
    return StoredFrame(
        Frame(FrameKind.DATA, bytes(payload_bytes), record_count=1),
        At(JournalOffset(offset), LeaderEpoch(1), 0),
    )


def fill(tail: MemoryTail, frames: int, *, synced: bool = True) -> None:
    start = tail.start if not tail._offsets else tail._offsets[-1] + 1
    for offset in range(start, start + frames):
        tail.append(frame(offset), bytes(HEADER_BYTES), synced_end=tail._synced_end)
        if synced:
            tail.trim(offset + 1)


ONE: Final = 1_000 + HEADER_BYTES + FRAME_MEMORY_BYTES


def test_all_tails_of_a_node_keep_to_one_budget_and_the_idle_give_way_first() -> None:
    """4 MiB for each of thousands of partitions were as many GiB."""
    budget = TailBudget(100 * ONE)
    tails = [MemoryTail(0, budget=budget) for _ in range(50)]
    for tail in tails:
        fill(tail, 20)
        assert budget.bytes <= 100 * ONE
    held = [len(tail._frames) for tail in tails]
    assert held == [0] * 45 + [20] * 5, "who was written to last keeps all"
    assert sum(held) * ONE == budget.bytes
    assert tails[0].start == 20, "the disk has it"
    fill(tails[0], 1)
    assert [len(tail._frames) for tail in tails[45:]] == [19, 20, 20, 20, 20]
    assert tails[0].get(20) is not None


def test_what_is_not_synced_never_gives_way_to_others() -> None:
    budget = TailBudget(10 * ONE)
    unsynced, other = MemoryTail(0, budget=budget), MemoryTail(0, budget=budget)
    fill(unsynced, 30, synced=False)
    fill(other, 30)
    assert [stored.at.offset for stored in unsynced.frames_from(0)] == list(range(30))
    assert len(other._frames) <= 1, "it is over the budget already"
    unsynced.trim(30)
    fill(other, 1)
    assert budget.bytes <= 10 * ONE


def test_i6_i7_a_thread_cuts_all_behind_the_end_though_others_need_room_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frames that were cut and stay would be served, and applied."""
    budget = TailBudget(100 * ONE)
    cut, other = MemoryTail(0, budget=budget), MemoryTail(0, budget=budget)
    fill(cut, 50)
    counted = 0

    def counts(given: Frame) -> int:
        """The interpreter lets the loop run in the middle."""
        nonlocal counted
        counted += 1
        if counted == 1:
            fill(other, 80)
        return encoded_bytes(given)

    with cut.apart():
        monkeypatch.setattr(tail_module, "encoded_bytes", counts)
        cut.cut(40)
        monkeypatch.undo()
    assert counted > 1
    offsets = [stored.at.offset for stored in cut.frames_from(0)]
    assert offsets == list(range(cut.start, 40)), "some of what was cut is there"
    assert budget.bytes == (len(cut._frames) + len(other._frames)) * ONE <= 100 * ONE


@pytest.mark.parametrize("end", [0, 3, 10])
def test_what_is_cut_or_closed_is_given_back(end: int) -> None:
    budget = TailBudget()
    tail = MemoryTail(0, budget=budget)
    fill(tail, 10)
    tail.cut(end)
    assert budget.bytes == end * ONE
    tail.clear()
    assert budget.bytes == 0
    assert not budget._tails
