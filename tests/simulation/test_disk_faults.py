"""Random days on disks that fail, write short, and fill up: what clients were told fits the
promises, and everybody succeeds again once it is over (I28, I29)."""

from __future__ import annotations

import asyncio
import itertools
import re
from errno import EIO

import pytest

from oncelog._core.routing import Endpoint
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.hand import rows
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.workload import Workload, run_seed
from tests.simulation.world import World

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


def test_i28_a_burst_leaves_the_reserve_to_control_records() -> None:
    """What was accepted and is not written yet counts: else all that is in flight would pass the
    floor together, and the transactions' ends would find no room."""
    burst, batch_bytes = 64, 256 << 10
    reserve_bytes = burst * batch_bytes // 2
    loop = VirtualTimeLoop()
    world = World(1, loop, (f"node.disk_free_floor_bytes={reserve_bytes}",))

    async def tell() -> None:
        await world.start_all()
        log = world.client()
        topic = await log.admin.create_topic("full", partitions=1)
        where = pb.Partition(topic_id=bytes.fromhex(topic.topic_id), number=0)
        producer = await log.transactional_producer("p")
        opened = producer.transaction()
        await opened.__aenter__()
        await opened.send("full", b"before")
        await opened.flush()
        leader = world.processes["partition_leader"]
        epochs = {driver.partition: driver.epoch for driver in leader.node.led_replicas()}
        leader.disk.capacity_bytes = leader.disk.used_bytes() + reserve_bytes + 4 * batch_bytes
        # Until it was looked at.
        await asyncio.sleep(2)
        requests = [
            log_pb.ProduceRequest(
                producer=pb.Producer(producer_id=(1 << 63) + number),
                batches=[rows(where, bytes(batch_bytes))],
            )
            for number in range(burst)
        ]
        to = Endpoint("127.0.0.1", leader.node.port)
        call = log.protocol.transport.call
        replies = await asyncio.gather(
            *(call(to, "partition_leader.produce", request, 10_000) for request in requests)
        )
        refused = [reply for reply in replies if reply.results[0].HasField("error")]
        assert 0 < len(refused) < burst, "some had room"
        for reply in refused:
            assert "disk_free_floor" in reply.results[0].error.message
        # The one that crosses the floor is whole.
        assert leader.disk.free_bytes() >= reserve_bytes - 2 * batch_bytes
        await opened.commit()
        assert {d.partition: d.epoch for d in leader.node.led_replicas()} == epochs
        await log.close()
        await world.stop_all()

    run(tell(), loop)
