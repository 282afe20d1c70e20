"""How a log is loaded: a turn for the loop after so many frames, and after so many bytes; and what
is known to be durable by then."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.core.frame import At, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import Incarnation, JournalOffset, LeaderEpoch
from oncelog_server.runtime.replica import replaying
from oncelog_server.runtime.replica.replaying import Slice
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.storage.frames import HEADER_BYTES
from oncelog_server.runtime.target import Isr
from tests.unit.runtime.bench import Bench, story
from tests.unit.runtime.counter import Add


def frame(payload_bytes: int) -> StoredFrame:
    payload = bytes(payload_bytes)
    return StoredFrame(Frame(FrameKind.RECORD, payload), At(JournalOffset(1), LeaderEpoch(1), 0))


@pytest.mark.parametrize(
    ("payload_bytes", "frames"), [(0, 10), (100, 10), (1_000 - HEADER_BYTES, 5), (1 << 20, 1)]
)
def test_a_slice_ends_by_frames_or_by_bytes(payload_bytes: int, frames: int) -> None:
    part = Slice(frames_max=10, bytes_max=5_000)
    for _ in range(3):
        taken = 1
        while not part.is_full(frame(payload_bytes)):
            taken += 1
        assert taken == frames


async def turns_to_load(bench: Bench, epoch: int) -> int:
    """Of the loop, from the first frame on."""
    bench.grant(epoch)
    while bench.driver.stage is not Stage.LOADING:
        await asyncio.sleep(0)
    turns = 0
    while bench.driver.machine is None or bench.driver.machine.epoch < epoch:
        await asyncio.sleep(0)
        turns += 1
    return turns


def test_i18_the_loop_has_a_turn_after_so_many_bytes_of_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "SLICE_BYTES", 10 * (HEADER_BYTES + 10))

    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        for number in range(1, 301):
            bench.driver.submit(Add(number))
        await bench.around.commit.flush()
        bench.depose()
        await bench.driver.settled()
        assert await turns_to_load(bench, 2) >= 20, "the lease is not kept by a loop that stands"

    story(tell)


def test_i4_what_a_snapshot_holds_is_known_to_be_durable_after_a_restart() -> None:
    async def tell(bench: Bench) -> None:
        bench = Bench(bench.loop, snapshot_every_bytes=1_000)
        await bench.lead(1)
        for number in range(1, 30):
            await bench.driver.submit(Add(number))
        await asyncio.sleep(1)
        bench.disk.crash()
        after = Bench(bench.loop, bench.disk.reopen(), min_insync_replicas=2)
        saved = after.journal.load_snapshot()
        assert saved is not None
        others = (Incarnation(after.journal.incarnation), Incarnation(b"o" * 16))
        after.grant(2, isr=Isr(7, others), replication_factor=3)
        await asyncio.sleep(1)
        assert after.driver.stage is Stage.LOADING, "nobody else has its EPOCH_START"
        assert after.driver.high_watermark == saved[0], "all below was durable when it was written"
        assert after.role.projected == [], "what is behind it may be in no other log"

    story(tell)
