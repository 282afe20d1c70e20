"""Days of several nodes: the same in every process, spread over the nodes, and honest about what
they did not reach."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.roles import ROLES
from tests.simulation import sim
from tests.simulation.machines import names_of
from tests.simulation.moments import CUT_MET, LOST, MOMENT, STRUCK, broken_promises
from tests.simulation.plan import Plan
from tests.simulation.seeds import Outcome, Sum
from tests.simulation.swarm import NODES, plan_of
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

ROOT: Final = Path(__file__).parents[2]
THREE: Final = dict.fromkeys(ROLES, 3)
CHANGE: Final = {
    "nodes": THREE,
    "rollout": "together",
    "paces": [0.99, 1.01],
    "etcd_ms": 0.5,
    "faults": ["strike", "power", "ring", "one way", "split", "watch gap", "lease", "wall clock"],
    "process_calls": [0.0, 0.1],
    "client_calls": [0.0, 0.1],
    "hands": 2,
    "between_faults": [0.02, 0.2],
    "trouble_s": 6.0,
}


@pytest.mark.parametrize("seed", [3, 8])
def test_one_seed_of_several_nodes_gives_one_trace_whatever_the_hash_seed(seed: int) -> None:
    days = [
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.simulation.workload",
                str(seed),
                "--change",
                json.dumps(CHANGE),
            ],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert days[0].count(b"\n") > 300
    assert b"coordinator-3" in days[0]
    assert days[0] == days[1]


def test_a_cluster_that_is_rolled_out_together_shares_its_partitions() -> None:
    async def tell() -> Counter[str]:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic("orders", partitions=6, replication_factor=1)
        await client.close()
        await world.ready()
        led = {name: len(process.node.led_replicas()) for name, process in world.processes.items()}
        await world.stop_all()
        return Counter(led)

    loop = VirtualTimeLoop()
    world = World(1, loop, cluster=Cluster(THREE, rollout="together"))
    led = run(tell(), loop)
    assert sorted(led[name] for name in world.names if "coordinator" in name) == [5, 5, 6]
    assert sorted(led[name] for name in world.names if "offset" in name) == [5, 5, 6]
    assert sorted(led[name] for name in world.names if "partition" in name) == [2, 2, 2]


def test_while_one_node_is_away_the_others_go_on() -> None:
    """Its partitions wait for it, and for nobody else's sake does anybody wait."""

    async def tell() -> None:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic("orders", partitions=3, replication_factor=1)
        await world.ready()
        [away] = [
            name
            for name in world.names
            if "partition_leader" in name
            and any(partition.number == 1 for partition in led_by(name))
        ]
        world.fall(away, None)
        await world.bury(away)
        producer = await client.producer(delivery_timeout_ms=3_000)
        for partition in (0, 2):
            await producer.send("orders", b"here", partition=partition)
        await producer.flush()
        await world.start(away)
        await world.ready()
        await producer.send("orders", b"back", partition=1)
        await producer.flush()
        await client.close()
        await world.stop_all()

    def led_by(name: str) -> list[PartitionId]:
        return [replica.partition for replica in world.processes[name].node.led_replicas()]

    loop = VirtualTimeLoop()
    world = World(2, loop, cluster=Cluster(THREE, rollout="together"))
    run(tell(), loop)


def test_days_have_one_to_five_nodes_and_mostly_few() -> None:
    drawn = Counter(plan_of(seed).nodes["coordinator"] for seed in range(400))
    assert set(drawn) == set(NODES)
    assert drawn[1] + drawn[2] + drawn[3] > 0.8 * 400
    assert names_of({"coordinator": 2})[:3] == (
        "coordinator-1",
        "coordinator-2",
        "partition_leader-1",
    )


def _planned(*faults: str) -> Plan:
    return dataclasses.replace(plan_of(1), faults=faults, applications=("feeder", "twins"))


def test_a_run_that_did_not_reach_what_it_planned_says_so() -> None:
    reached = {
        "fault": {"power", "sever", "strike"},
        MOMENT: {LOST, STRUCK},
        "reason": {"PRODUCER_FENCED"},
    }
    assert broken_promises(_planned("power", "strike"), reached) == []
    assert broken_promises(_planned("power", "sever"), reached) == [f"sever: {CUT_MET}"]
    assert broken_promises(_planned("eio"), {**reached, "reason": set()}) == [
        "fault eio",
        "twins: PRODUCER_FENCED",
    ]


def test_uninformative_runs_are_counted_by_what_they_did_not_reach() -> None:
    total = Sum()
    total.add(Outcome(1, "", broken=["fault eio", "sever: x"]))
    total.add(Outcome(2, "", broken=["fault eio"]))
    total.add(Outcome(3, ""))
    said = "\n".join(sim.summary(total, 60.0))
    assert "uninformative: 2 runs did not reach all that they planned" in said
    assert "   2  fault eio" in said


def test_i18_a_machine_whose_clock_is_slow_gives_up_its_lease_before_etcd_does() -> None:
    """Its deadline allows for it: a hundredth slower, and it stops answering in time."""

    async def tell() -> tuple[float, float]:
        await world.start_all()
        process = world.processes["partition_leader-1"]
        process.etcd.keep_alives_lost = True
        key = f"boots/{process.node.boot_id.hex()}"
        silent_s, first = 0.0, world.etcd.get(key)
        # Its next lease writes it again.
        while world.etcd.get(key) == first:
            if not silent_s and not process.node._lease_valid():
                silent_s = loop.now_s
            await asyncio.sleep(0.001)
        await world.stop_all()
        return silent_s, loop.now_s

    loop = VirtualTimeLoop()
    world = World(1, loop, cluster=Cluster(paces=(0.99,), etcd_ms=5.0))
    silent_s, gone_s = run(tell(), loop)
    assert 0.0 < silent_s <= gone_s
