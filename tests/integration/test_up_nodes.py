"""`oncelog up --nodes 3`: three processes of each role on one machine. They share the work, one of
them may die, and another number of them may be started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog_server.cli.folder import Folder
from oncelog_server.cli.layout import choose
from oncelog_server.core.roles import ROLES
from tests.integration.cluster import until
from tests.integration.up import Up, children_of, up_over

pytestmark = pytest.mark.integration

NODES = 3
NAMES = [role if node == 1 else f"{role}-{node}" for node in (1, 2, 3) for role in ROLES]
# Of each topic: as many as there are partition leaders, so that each holds one.
PARTITIONS = 3
TURNS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with up_over(folder, f"--nodes={NODES}") as made:
        yield made


def running(up: Up, folder: Path, name: str) -> list[int]:
    """Its process ids, found by its data."""
    return children_of(up.pid, f"--data={folder / name}\0")


def process_of(up: Up, folder: Path, name: str) -> int:
    (pid,) = running(up, folder, name)
    return pid


def test_three_of_each_are_started_and_share_the_partitions(up: Up, folder: Path) -> None:
    services = [said["service"] for said in up.said if "address" in said]
    assert sorted(services) == sorted(["etcd", *NAMES])
    assert len(up.said[-1]["bootstrap"].split(",")) == len(NAMES)
    assert all((folder / name / "node_id").exists() for name in NAMES)
    up.ask("topic", "create", "shared", "--partitions", str(PARTITIONS))
    (described,) = up.ask("topic", "describe", "shared")
    leaders = {partition["leader_node"] for partition in described["partitions"]}
    assert len(leaders) == NODES


def test_i21_a_copy_goes_on_while_one_process_of_each_role_is_killed(up: Up, folder: Path) -> None:
    """Payments are paid here and enriched there, each exactly once."""
    for topic in ("payments", "enriched"):
        up.ask("topic", "create", topic, "--partitions", str(PARTITIONS))
    doomed = {5 * turn: f"{role}-2" for turn, role in enumerate(ROLES, start=1)}
    with oncelog.connect(up.bootstrap) as log:
        consumer = log.consumer(["payments"], group="enricher")
        copying = threading.Thread(target=enrich, args=(log, consumer))
        copying.start()
        with log.transactional_producer("payer") as payer:
            for turn in range(TURNS):
                if turn in doomed:
                    os.kill(process_of(up, folder, doomed[turn]), signal.SIGKILL)
                with payer.transaction() as tx:
                    for number in range(PARTITIONS):
                        tx.send("payments", f"{turn}/{number}".encode(), partition=number)
        until(lambda: enriched(up) == TURNS * PARTITIONS, "all is enriched")
        consumer.close()
        copying.join()
    seen = sorted(row["value"] for row in up.lines("consume", "enriched"))
    assert seen == sorted(f"{turn}/{n} EUR" for turn in range(TURNS) for n in range(PARTITIONS))
    until(lambda: all(running(up, folder, name) for name in NAMES), "who died is started again")


def test_leadership_goes_back_to_who_should_lead(up: Up) -> None:
    """What was killed may be led by others, until somebody asks; or it was back in time."""
    until(lambda: not up.ask("cluster", "partitions", "--under-replicated"), "all are in sync")
    asked = up.ask("cluster", "balance")
    assert len(asked) == len(NAMES)
    assert sum(told["kept"] for told in asked.values()) == 0
    until(lambda: all_led_as_they_should(up), "each is led by its first replica")


def all_led_as_they_should(up: Up) -> bool:
    found = up.ask("cluster", "partitions")
    return all(one["leader_node"] == one["replicas"][0] for one in found)


def enrich(log: oncelog.Log, consumer: Any) -> None:
    """Until the consumer is closed."""

    def step(batch: Any, tx: Any) -> None:
        for record in batch:
            tx.send("enriched", record.value + b" EUR")

    with log.transactional_producer("enricher") as producer:
        log.run(consumer, step, producer)


def enriched(up: Up) -> int:
    (topic,) = up.ask("topic", "describe", "enriched")
    return sum(journal["committed_end"] for journal in topic["journals"])


def test_fewer_are_started_and_the_data_of_the_others_stays(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with up_over(folder, f"--nodes={NODES}") as up:
        up.ask("topic", "create", "kept", f"--partitions={PARTITIONS}", "--replication-factor=1")
        up.ask("topic", "create", "copied", "--partitions", "1")
        for number in range(PARTITIONS):
            up.ask("produce", "kept", "--partition", str(number), given=f"{number}\n")
        (before,) = up.ask("topic", "describe", "kept")
        # Who stops before another joined the ISR is missed, and rightly.
        until(lambda: not up.ask("cluster", "partitions", "--under-replicated"), "all are in sync")
        stopped = up.interrupt()
        assert sorted(said["stopped"] for said in stopped) == sorted(NAMES)
        assert all(said["clean"] for said in stopped)
        addresses = up.bootstrap
    with up_over(folder, "--nodes=2") as up:
        (away,) = [said for said in up.said if "away" in said]
        assert (sorted(away["away"]), away["nodes"]) == (sorted(f"{r}-3" for r in ROLES), NODES)
        here = ("partition_leader", "partition_leader-2")
        two = {(folder / name / "node_id").read_text() for name in here}
        up.ask("produce", "copied", given="of three replicas, two are here\n")
        until(lambda: all_led(up, "kept", two), "all partitions are led that can be")
        (now,) = up.ask("topic", "describe", "kept")
        for partition in now["partitions"]:
            assert bool(partition["leader"]) == (partition["replicas"][0] in two)
        status = up.ask("cluster", "status")
        missing = {node["node_id"] for node in status["nodes_away"]}
        assert (folder / "partition_leader-3" / "node_id").read_text() in missing
        whys = {one["partition"]: one["why_offline"] for one in status["offline"]}
        assert len([name for name in whys if name.startswith("kept/")]) == 1
        assert all("start the process of node" in why for why in whys.values())
        offline = up.ask("cluster", "partitions", "kept", "--offline")
        assert {one["replicas"][0] for one in offline} <= missing
    with up_over(folder, f"--nodes={NODES}") as up:
        assert sorted(up.bootstrap.split(",")) == sorted(addresses.split(","))
        (after,) = up.ask("topic", "describe", "kept")
        assert [p["replicas"] for p in after["partitions"]] == [
            p["replicas"] for p in before["partitions"]
        ]
        until(lambda: all_led(up, "kept"), "all partitions are led again")
        assert sorted(row["value"] for row in up.lines("consume", "kept")) == ["0", "1", "2"]


def all_led(up: Up, topic: str, nodes: Collection[str] | None = None) -> bool:
    """All whose first replica is of `nodes`."""
    (described,) = up.ask("topic", "describe", topic)
    return all(
        partition["leader"]
        for partition in described["partitions"]
        if nodes is None or partition["replicas"][0] in nodes
    )


def test_etcd_does_not_come_back_on_a_port_that_is_a_services_by_now(tmp_path: Path) -> None:
    """Neither does it draw one: all look free, for etcd is started before the services."""
    options: dict[str, Any] = {"nodes": 1, "ports_from": None, "free": True, "one_process": True}
    layout = choose(None, str(tmp_path), **options)
    with contextlib.closing(Folder.take(tmp_path)) as folder:
        folder.keep_layout(layout)
    kept = {"client": layout.ports.coordinator, "peer": layout.ports.partition_leader}
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd" / "ports.json").write_text(json.dumps(kept))
    with up_over(tmp_path, "--one-process") as one:
        assert one.said[-1]["bootstrap"].endswith(f":{layout.ports.coordinator}")
