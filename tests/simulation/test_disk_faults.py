"""Random days on disks that fail, write short, and fill up: what clients were told fits the
promises, and everybody succeeds again once it is over (I28, I29)."""

from __future__ import annotations

import asyncio
import itertools
import re
from errno import EIO

import pytest

from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.workload import Workload, run_seed

FLOOR_BYTES = 1 << 20
SETTINGS = (f"node.disk_free_floor_bytes={FLOOR_BYTES}",)
# Epoch and partition, as the trace has them.
LED = re.compile(r"epoch=(\d+)|partition=(\S+)")
ROLES = ("coordinator", "partition_leader", "offset_manager")


class FailingDisks(Workload):
    """Trouble with disks, and nothing else: each kind at each role."""

    async def trouble(self) -> None:
        faults = [self._eio, self._short, self._below_the_floor, self._full]
        for role, fault in self.random.sample(list(itertools.product(ROLES, faults)), 12):
            await asyncio.sleep(self.random.choice([0.05, 0.5, 3.0]))
            self.world.say(f"-- {fault.__name__} at {role}")
            await fault(role)
        await self.world.ready()

    async def _eio(self, role: str) -> None:
        self.world.processes[role].disk.fail_next(EIO, after=self.random.randrange(6))
        await asyncio.sleep(1)
        # Not left for the days that must be good.
        self.world.processes[role].disk.fail_next(0)

    async def _short(self, role: str) -> None:
        self.world.processes[role].disk.short_write_next()
        await asyncio.sleep(0.5)

    async def _below_the_floor(self, role: str) -> None:
        """Data is refused, the rest goes on."""
        disk = self.world.processes[role].disk
        disk.left_bytes = FLOOR_BYTES - 1
        await asyncio.sleep(self.random.choice([0.5, 2, 7]))
        disk.left_bytes = None

    async def _full(self, role: str) -> None:
        """Not a byte."""
        disk = self.world.processes[role].disk
        disk.full = True
        await asyncio.sleep(self.random.choice([0.5, 2, 7]))
        disk.full = False


class LostFiles(Workload):
    """Files that can be made again are gone, or older, when a process starts again."""

    async def trouble(self) -> None:
        lost: set[str] = set()
        for role in self.random.sample(ROLES * 3, 9):
            await asyncio.sleep(self.random.choice([0.5, 2.0, 4.0]))
            await self.world.lose_power(role, self.random.choice(list(Tear)))
            process = self.world.processes[role]
            process.disk = process.disk.reopen()
            lost |= self._lose(process.disk)
            await self.world.start(role)
        await self.world.ready()
        assert lost == {"index", "epochs", "snapshot", "rows"}, f"only {lost} was lost"

    def _lose(self, disk: FakeDisk) -> set[str]:
        """Which kinds."""
        lost = set()
        for replica in disk.list("partitions"):
            directory = f"partitions/{replica}"
            newest = [name for name in disk.list(directory) if name.startswith("snapshot-")][-1:]
            rows = [f"tables/{name}" for name in disk.list(f"{directory}/tables")]
            indexes = [name for name in disk.list(directory) if name.endswith(".index")]
            for name in [*newest, *rows, *indexes, "epochs", "replica.json"]:
                if disk.exists(f"{directory}/{name}") and self.random.random() < 0.3:
                    disk.remove(f"{directory}/{name}")
                    self.world.say(f"-- lost {directory}/{name}")
                    lost |= {
                        kind for kind in ("index", "epochs", "snapshot", "rows") if kind in name
                    }
        return lost


@pytest.mark.parametrize("seed", range(520, 522))
def test_i24_i35_hold_where_files_that_can_be_made_again_are_lost(seed: int) -> None:
    settings = ("node.disk_free_floor_bytes=0", "node.snapshot_every_bytes=20000")
    report, _, _ = run_seed(seed, LostFiles, settings)
    assert report.clean, str(report)
    assert report.size.committed > 50, "a day without work shows nothing"
    assert not report.size.unknown, "everything was read at the end: each commit has its outcome"


@pytest.mark.parametrize("seed", range(500, 502))
def test_i5_i28_i29_hold_on_disks_that_fail_and_fill_up(seed: int) -> None:
    report, trace, _ = run_seed(seed, FailingDisks, SETTINGS)
    assert report.clean, str(report)
    assert report.size.committed > 50, "a day without work shows nothing"
    assert not report.size.unknown, "everything was read at the end: each commit has its outcome"
    assert any("write failed, resigning" in line for line in trace)
    assert any("disk full, data is refused" in line for line in trace)
    # Nobody goes on in an epoch that a failed write ended: each one is led once.
    led = [tuple(LED.findall(line)) for line in trace if ": leading " in line]
    assert led
    assert len(led) == len(set(led)), "an epoch is never continued"
