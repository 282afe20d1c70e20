"""Outcomes whose slots cannot be written: answers go out, nothing is forgotten, and no snapshot
leaves behind what is only in memory (I4, I28)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from errno import EIO, ENOSPC
from typing import Any

import pytest

from oncelog_server.core.frame import At
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Slots
from oncelog_server.runtime.replica.snapshots import SNAPSHOT_RETRY_MS
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.storage.port import File
from tests.simulation.disk import FakeDisk
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add, Added, CounterRole


class SlotDisk(FakeDisk):
    """Fails, as it is told, whatever is done to a file of slots, and nothing else."""

    errno = 0
    # "write" and "sync": what of it fails.
    steps = frozenset({"write", "sync"})

    def write_unsynced(self, file: File, position: int, data: bytes) -> None:
        self._fail("write", file)
        super().write_unsynced(file, position, data)

    def sync(self, file: File) -> None:
        if self.errno and "sync" in self.steps and "/slots/" in file.path:
            self.fail_next(self.errno)
        super().sync(file)

    def reopen(self) -> SlotDisk:
        disk = SlotDisk(platter=super().reopen()._platter)
        disk.errno, disk.steps = self.errno, self.steps
        return disk

    def _fail(self, step: str, file: File) -> None:
        if self.errno and step in self.steps and "/slots/" in file.path:
            raise OSError(self.errno, "as told", file.path)


class SlotRole(CounterRole):
    """Keeps each number that was added in a slot."""

    slots: Slots

    def projection(self, partition: PartitionId, slots: Callable[[str, int], Slots]) -> SlotRole:
        self.slots = slots("numbers", 8)
        return self

    def project(self, record: Added, at: At) -> None:
        self.slots.write(at.offset, record.number.to_bytes(8, "big"))

    def number(self, offset: int) -> int | None:
        slot = self.slots.read(offset)
        return None if slot is None else int.from_bytes(slot, "big")


class SlotBench(Bench):
    def __init__(self, loop: VirtualTimeLoop, disk: SlotDisk | None = None) -> None:
        self.slot_disk = disk or SlotDisk(seed=1)
        super().__init__(loop, self.slot_disk)

    def _open(self) -> Any:
        self.slot_role = self.role = SlotRole()
        return super()._open()

    def next_process(self) -> SlotBench:
        self.slot_disk.crash()
        return SlotBench(self.loop, self.slot_disk.reopen())

    async def snapshot(self) -> int | None:
        """Asks for one, as a clean stop does; the offset of the newest."""
        await self.driver.checkpoint()
        saved = self.driver.journal.load_snapshot()
        return None if saved is None else saved[0]


def story(tell: Callable[[SlotBench], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(SlotBench(loop))

    run(main(), loop)


@pytest.mark.parametrize("errno", [ENOSPC, EIO])
def test_i4_i28_an_answer_goes_out_though_its_outcome_cannot_be_written(errno: int) -> None:
    async def tell(bench: SlotBench) -> None:
        await bench.lead()
        bench.slot_disk.errno = errno
        reply = bench.driver.submit(Add(3))
        await asyncio.sleep(10)
        assert reply.done(), "it hangs until the next append"
        assert await reply == 3
        assert bench.driver.stage is Stage.READY
        assert bench.slot_role.number(1) == 3, "it was acknowledged, so it is told for ever"
        with contextlib.suppress(OSError):
            bench.driver.journal.slots.flush()
        assert bench.slot_role.number(1) == 3, "a try that failed forgets nothing"

    story(tell)


@pytest.mark.parametrize("steps", [{"write"}, {"sync"}, {"write", "sync"}])
def test_i4_no_snapshot_leaves_behind_an_outcome_that_only_memory_has(steps: set[str]) -> None:
    async def tell(bench: SlotBench) -> None:
        await bench.lead()
        bench.slot_disk.errno, bench.slot_disk.steps = EIO, frozenset(steps)
        for number in range(1, 9):
            await bench.driver.submit(Add(number))
        assert await bench.snapshot() is None
        # The power goes while the disk is as it was: replay has all that is missing.
        after = bench.next_process()
        await after.lead(2)
        assert [after.slot_role.number(n) for n in range(1, 9)] == list(range(1, 9))
        # It heals: what was in doubt is written again, and then a snapshot may stand.
        after.slot_disk.errno = 0
        await asyncio.sleep(2 * SNAPSHOT_RETRY_MS / 1000)
        assert await after.snapshot() == after.driver.log_end
        last = after.next_process()
        await last.lead(3)
        assert [last.slot_role.number(n) for n in range(1, 9)] == list(range(1, 9))

    story(tell)


def test_i4_what_a_failed_sync_let_go_of_is_written_again_before_the_next_snapshot() -> None:
    """A disk takes for clean what it could not write, and no later sync tells."""

    async def tell(bench: SlotBench) -> None:
        await bench.lead()
        for number in range(1, 30):
            await bench.driver.submit(Add(number))
        bench.slot_disk.errno, bench.slot_disk.steps = EIO, frozenset({"sync"})
        assert await bench.snapshot() is None
        bench.slot_disk.errno = 0
        await bench.driver.submit(Add(30))
        await asyncio.sleep(2 * SNAPSHOT_RETRY_MS / 1000)
        bench.driver.report()
        await asyncio.sleep(1)
        saved = await bench.snapshot()
        assert saved == bench.driver.log_end, "one failure is not the end of all snapshots"
        after = bench.next_process()
        assert [number for _, number in after.role.projected] == []
        await after.lead(2)
        assert [after.slot_role.number(n) for n in range(1, 31)] == list(range(1, 31))

    story(tell)


def test_i28_a_full_disk_at_the_start_does_not_fail_the_replay() -> None:
    async def tell(bench: SlotBench) -> None:
        await bench.lead()
        for number in range(1, 6):
            await bench.driver.submit(Add(number))
        bench.slot_disk.errno = ENOSPC
        after = bench.next_process()
        await after.lead(2)
        assert after.driver.machine.total == 15
        assert after.slot_role.number(5) == 5

    story(tell)


def test_slots_that_cannot_be_written_raise_an_alarm_that_ends_with_it() -> None:
    async def tell(bench: SlotBench) -> None:
        await bench.lead()
        await bench.driver.submit(Add(1))
        bench.slot_disk.errno = ENOSPC
        assert await bench.snapshot() is None
        name = ("snapshot_failing", str(bench.driver.partition))
        assert bench.reporter.gauges[name] == 1
        assert "snapshot failed" in bench.reporter.events
        bench.slot_disk.errno = 0
        assert await bench.snapshot() is not None
        assert bench.reporter.gauges[name] == 0

    story(tell)
