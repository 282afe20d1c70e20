"""Random days on disks that fail, write short, and fill up: what clients were told fits the
promises, and everybody succeeds again once it is over (I28, I29)."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence

import pytest

from oncelog._core.routing import Endpoint
from oncelog_server.core.roles import ROLES
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.hand import rows
from tests.simulation.plan import Spice
from tests.simulation.swarm import plan_of
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.workload import Told, run_plan
from tests.simulation.world import World

FLOOR_BYTES = 65_536
SPICE = Spice(
    large=0.0,
    flush=0.1,
    abort=0.1,
    interrupt=0.05,
    slow=0.0,
    visible=0.5,
    cramped=0.0,
    tired=0.05,
    records=5,
    pauses=(0.001, 0.01, 0.1),
)
# Epoch and partition, as the trace has them.
LED = re.compile(r"epoch=(\d+)|partition=(\S+)")


# Who writes, consumes and reads, each in its own way.
APPLICATIONS = ("feeder", "writer", "enricher", "unnamed enricher", "job", "committed reader")


def _day(seed: int, *faults: str, settings: Sequence[str] = ()) -> Told:
    """With these faults alone, at one process of each role, and the usual haste."""
    plan = dataclasses.replace(
        plan_of(seed),
        applications=APPLICATIONS,
        faults=faults,
        trouble_s=15.0,
        nodes=dict.fromkeys(ROLES, 1),
        etcd_ms=0.0,
        rests=False,
        between_faults=(0.05, 0.5),
        client_calls=(0.0,),
        process_calls=(0.0,),
        slowness=1.0,
        settings=(f"node.disk_free_floor_bytes={FLOOR_BYTES}", *settings),
        spice=SPICE,
    )
    told = run_plan(plan, seed)
    assert told.report.clean, str(told.report)
    assert told.report.size.committed > 50, "a day without work shows nothing"
    assert not told.report.size.unknown, "all was read at the end: each commit has its outcome"
    return told


def test_i24_i35_hold_where_files_that_can_be_made_again_are_lost() -> None:
    lost: set[str] = set()
    for seed in range(522, 525):
        told = _day(seed, "lost files", settings=("node.snapshot_every_bytes=20000",))
        lost |= told.reached["lost file"]
    assert lost >= {"index", "epochs", "snapshot", "rows"}


@pytest.mark.parametrize("seed", range(500, 502))
def test_i5_i28_i29_hold_on_disks_that_fail_and_fill_up(seed: int) -> None:
    told = _day(seed, "eio", "short", "floor", "full")
    assert any("write failed, resigning" in line for line in told.trace)
    assert any("disk full, data is refused" in line for line in told.trace)
    # Nobody goes on in an epoch that a failed write ended: each one is led once.
    led = [tuple(LED.findall(line)) for line in told.trace if ": leading " in line]
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
        leader = world.processes["partition_leader-1"]
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
