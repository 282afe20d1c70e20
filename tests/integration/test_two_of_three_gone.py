"""Drills for the worst day of a cluster with three copies: two of three machines burn down while
records are written. What an operator sees, what he does (docs/operating.md, "Two of three machines
are gone"), which records survive, and how there are three copies again.

Each machine is one process of all three roles, over a folder of its own; whoever is gone is killed
by its process id, with its folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog.protocol import Protocol
from oncelog_server.cli.processes import Service
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.loopback_ports import free_ports
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, types_pb2
from tests.integration.cluster import make_etcd, until
from tests.integration.shell import REFUSED, WRONG_USAGE, Shell

pytestmark = pytest.mark.integration

TOPIC = "payments"
PARTITIONS = 2
GROUP = "enricher"
CONTROL = ("__transaction_control", "__consumer_offsets")
# A move copies little here; the bound only ends a test that would hang.
WAIT = "--wait-s=120"


class Machines(Shell):
    """Some live, some burn down, some are bought."""

    def __init__(self, folder: Path) -> None:
        super().__init__("")
        self._folder = folder
        self._etcd = make_etcd(folder / "etcd")
        self._etcd.start()
        self._services: dict[str, Service] = {}

    def buy(self, *names: str) -> None:
        for name, port in zip(names, free_ports(len(names)), strict=True):
            (self._folder / name).mkdir()
            self._services[name] = Service(
                name,
                [
                    "serve",
                    *ROLES,
                    f"--data={self._data_of(name)}",
                    f"--listen=127.0.0.1:{port}",
                    f"--etcd={self._etcd.endpoint}",
                    "--set=node.control_replication_factor=3",
                    "--set=node.replica_lag_ms=2000",
                    "--set=node.segment_bytes=1048576",
                    "--set=node.disk_free_floor_bytes=0",
                    "--set=node.log_format=json",
                    f"--set=authorization.audit_log={self._folder / name / 'audit.log'}",
                ],
                address=f"127.0.0.1:{port}",
                log=self._folder / name / "log",
            )
            self._services[name].start()
        self.bootstrap = ",".join(service.address for service in self._services.values())
        until(lambda: all(self._node_file(name).exists() for name in names), "they start")

    def _data_of(self, name: str) -> Path:
        return self._folder / name / "data"

    def _node_file(self, name: str) -> Path:
        return self._data_of(name) / "node_id"

    def node(self, name: str) -> str:
        return self._node_file(name).read_text()

    def freeze(self, name: str) -> None:
        os.kill(self._services[name].pid or 0, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        os.kill(self._services[name].pid or 0, signal.SIGCONT)

    def burn(self, *names: str) -> None:
        """All at once."""
        services = [self._services.pop(name) for name in names]
        for service in services:
            os.kill(service.pid or 0, signal.SIGKILL)
        for name, service in zip(names, services, strict=True):
            service.stop()
            shutil.rmtree(self._data_of(name))
        self.bootstrap = ",".join(service.address for service in self._services.values())

    def empty(self, name: str) -> None:
        """Its logs are gone; it is the same node, and runs again."""
        service = self._services[name]
        os.kill(service.pid or 0, signal.SIGKILL)
        service.stop()
        shutil.rmtree(self._data_of(name) / "partitions")
        service.start()

    def events(self, name: str) -> str:
        return (self._folder / name / "log").read_text()

    def audit(self, name: str) -> list[dict[str, Any]]:
        lines = (self._folder / name / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for service in self._services.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(service.pid or 0, signal.SIGCONT)
            service.ask_to_stop()
        for service in self._services.values():
            service.stop()
        self._etcd.stop()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        made.buy("a", "b", "c")
        nodes = {made.node(name) for name in "abc"}
        until(lambda: len(made.ask("cluster", "status")["nodes"]) == 3, "three machines")
        made.ask("topic", "create", TOPIC, f"--partitions={PARTITIONS}", "--replication-factor=3")
        until(lambda: all_in_sync(made, nodes), "three copies of everything")
        yield made
    finally:
        made.close()


def all_in_sync(machines: Machines, nodes: set[str]) -> bool:
    """Three copies of every partition, on these nodes, and all of them led."""
    found = machines.ask("cluster", "partitions")
    return len(found) == PARTITIONS + 32 and all(
        one["leader_node"] and len(one["isr"]) == 3 and set(one["replicas"]) <= nodes
        for one in found
    )


class Writer:
    """A transaction over all partitions after the other, and the group's position with it: what
    was acknowledged, and what was merely tried."""

    def __init__(self, machines: Machines, name: str) -> None:
        self._bootstrap, self._name = machines.bootstrap, name
        self._over = threading.Event()
        self.acknowledged: list[str] = []
        self.tried: list[str] = []
        self._task = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._task.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._task.join()

    def wrote(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= goal, f"{count} records are acknowledged")

    def _write(self) -> None:
        turn = 0
        with oncelog.connect(self._bootstrap, timeout_ms=5_000) as log:
            producer = log.transactional_producer(self._name)
            while not self._over.wait(0.02):
                turn += 1
                values = [f"{self._name}/{turn}/{number}" for number in range(PARTITIONS)]
                self.tried += values
                with contextlib.suppress(errors.OncelogError):
                    with producer.transaction() as tx:
                        for number, value in enumerate(values):
                            tx.send(TOPIC, value.encode(), partition=number)
                    self.acknowledged += values
            with contextlib.suppress(errors.OncelogError):
                producer.close()


def values(machines: Machines) -> list[str]:
    return [row["value"] for row in machines.lines("consume", TOPIC)]


def wait_for(machines: Machines, acknowledged: set[str]) -> None:
    """All of these are there, each once. Who commits hears of it a moment before readers do."""
    until(lambda: acknowledged <= set(values(machines)), "nothing that was acknowledged is lost")
    now = values(machines)
    assert len(set(now)) == len(now), "no record is there twice"


def offline(machines: Machines) -> set[str]:
    return set(machines.ask("cluster", "status")["partitions_without_leader"])


def everything() -> set[str]:
    return {f"{TOPIC}/{number}" for number in range(PARTITIONS)} | {
        f"{topic}/{number}" for topic in CONTROL for number in range(16)
    }


def replace(machines: Machines, gone: Sequence[str]) -> None:
    """Two new machines in the place of two that are gone."""
    machines.buy("d", "e")
    until(lambda: len(machines.ask("cluster", "status")["nodes"]) == 3, "they are there")
    first, second = gone
    # Nobody waits for this one: what is put on the second one cannot be there before that goes.
    machines.ask("cluster", "drain", first, "--wait-s=0")
    machines.ask("cluster", "drain", second, WAIT)
    nodes = {machines.node(name) for name in "cde"}
    until(lambda: all_in_sync(machines, nodes), "three copies of everything again")


def commit(machines: Machines, offset: int) -> None:
    """Whatever is there: `oncelog group reset-offsets` goes to what a partition has."""
    with contextlib.closing(Protocol(machines.bootstrap)) as protocol:
        partition = types_pb2.Partition(topic_id=protocol.topic(TOPIC).topic_id)
        step = offset_manager_pb2.OffsetCommit(
            partition=partition, from_any=True, to_offset=offset, view=types_pb2.VIEW_COMMITTED
        )
        offsets = offset_manager_pb2.GroupOffsets(group=GROUP, offsets=[step])
        request = offset_manager_pb2.CommitOffsetsRequest(offsets=offsets)
        protocol.call("offset_manager.commit_offsets", request)


def test_i5_two_of_three_burn_down_and_the_third_is_in_sync(machines: Machines) -> None:
    """Nothing is lost, and nothing has to be forced: it leads by itself, and waits for copies."""
    gone = [machines.node(name) for name in "ab"]
    commit(machines, 7)
    with Writer(machines, "payer") as writer:
        writer.wrote(20)
        machines.burn("a", "b")
    until(lambda: not offline(machines), "the third leads everything")
    # What an operator sees: it is led, and unwritable.
    places = (TOPIC, *CONTROL)
    assert machines.ask("cluster", "unclean-elect", *places, "--dry-run")["proposals"] == []
    refused = machines.refused("cluster", "unclean-elect", f"{TOPIC}/0", "--accept-loss")
    assert refused == "INVALID_ARGUMENT"
    found = machines.run("doctor")
    assert found.exit_code == REFUSED
    assert "are unwritable" in found.stdout
    unwritable = machines.ask("cluster", "partitions", TOPIC, "--unwritable")
    assert len(unwritable) == PARTITIONS
    replace(machines, gone)
    wait_for(machines, set(writer.acknowledged))
    survived = values(machines)
    assert set(survived) <= set(writer.tried)
    goes_on(machines, before=survived, committed=7)
    assert all(one["unclean_epoch"] is None for one in machines.ask("cluster", "partitions"))


def test_i5_two_of_three_burn_down_and_the_third_goes_on_alone(machines: Machines) -> None:
    """There are no new machines yet: with one copy of everything it takes writes at once."""
    with Writer(machines, "payer") as writer:
        writer.wrote(20)
        machines.burn("a", "b")
    until(lambda: not offline(machines), "the third leads everything")
    places = (TOPIC, *CONTROL)
    machines.ask("topic", "reassign", *places, f"--to={machines.node('c')}", WAIT)
    with Writer(machines, "alone") as alone:
        alone.wrote(10)
    acknowledged = {*writer.acknowledged, *alone.acknowledged}
    wait_for(machines, acknowledged)
    machines.buy("d", "e")
    until(lambda: len(machines.ask("cluster", "status")["nodes"]) == 3, "they are there")
    machines.ask("topic", "reassign", *places, "--replication-factor=3", WAIT)
    nodes = {machines.node(name) for name in "cde"}
    until(lambda: all_in_sync(machines, nodes), "three copies of everything again")
    wait_for(machines, acknowledged)


def test_i5_two_of_three_burn_down_and_the_third_is_behind(machines: Machines) -> None:
    """What it lacks is lost, and only that."""
    gone = [machines.node(name) for name in "ab"]
    third = machines.node("c")
    commit(machines, 7)
    with Writer(machines, "payer") as writer:
        writer.wrote(20)
        kept = list(writer.acknowledged)
        machines.freeze("c")
        until(lambda: only_two_in_sync(machines), "the third is dropped")
        writer.wrote(20)
        machines.burn("a", "b")
    machines.thaw("c")
    until(lambda: offline(machines) == everything(), "nothing is led")
    places = (TOPIC, *CONTROL)
    dry = machines.ask("cluster", "unclean-elect", *places, "--dry-run")
    assert dry["elected"] == []
    assert {one["node_id"] for one in dry["proposals"]} == {third}
    assert {one["node_id"] for one in dry["proposals"][0]["unheard"]} == set(gone)
    assert "does not run" in "\n".join(dry["proposals"][0]["may_be_lost"])
    assert machines.run("doctor").exit_code == REFUSED
    elected = machines.ask("cluster", "unclean-elect", *places, "--accept-loss")["elected"]
    assert {one["partition"] for one in elected} == everything()
    assert not offline(machines)
    assert "elected uncleanly, by an operator" in machines.events("c")
    audited = [line for line in machines.audit("c") if line["what"] == "Cluster.unclean_elect"]
    assert len(audited) == len(everything())
    told = [json.loads(line["request"])["told"] for line in audited]
    assert all("none of the 2 replicas in sync was found" in words for words in told)
    replace(machines, gone)
    wait_for(machines, set(kept))
    survived = values(machines)
    lost = set(writer.acknowledged) - set(survived)
    assert lost, "it lacked some"
    goes_on(machines, before=survived, committed=7)


def test_i5_of_one_that_is_behind_and_one_that_is_empty_the_first_is_proposed(
    machines: Machines,
) -> None:
    """One burns down, the logs of the other one in sync are lost. With two that run there are two
    copies at once."""
    empty, behind = machines.node("b"), machines.node("c")
    with Writer(machines, "payer") as writer:
        writer.wrote(20)
        kept = list(writer.acknowledged)
        machines.freeze("c")
        until(lambda: only_two_in_sync(machines), "the third is dropped")
        writer.wrote(20)
        machines.burn("a")
        machines.empty("b")
    machines.thaw("c")
    until(lambda: offline(machines) == everything(), "nothing is led")
    places = (TOPIC, *CONTROL)
    until(lambda: both_report(proposals(machines, places)), "both logs are open, and known")
    assert {one["best"] for one in proposals(machines, places)} == {behind}
    refused = machines.run(
        "cluster", "unclean-elect", f"{TOPIC}/0", f"--node={empty}", "--accept-loss"
    )
    assert refused.exit_code == WRONG_USAGE
    assert f"node {behind} has more than node {empty}" in refused.stderr
    assert offline(machines) == everything()
    machines.ask("cluster", "unclean-elect", *places, "--accept-loss")
    wait_for(machines, set(kept))
    with Writer(machines, "successor") as successor:
        successor.wrote(10)
    wait_for(machines, {*kept, *successor.acknowledged})


def proposals(machines: Machines, places: Sequence[str]) -> list[dict[str, Any]]:
    return list(machines.ask("cluster", "unclean-elect", *places, "--dry-run")["proposals"])


def both_report(found: list[dict[str, Any]]) -> bool:
    """Not while the one that was frozen still believes that the others lead."""
    return len(found) == len(everything()) and all(len(one["replicas"]) == 2 for one in found)


def only_two_in_sync(machines: Machines) -> bool:
    """Whoever asks may meet the one that is frozen first, and be late for the others."""
    done = machines.run("cluster", "partitions")
    found = json.loads(done.stdout) if done.exit_code == 0 else []
    return bool(found) and all(len(one["isr"]) == 2 for one in found)


def goes_on(machines: Machines, *, before: list[str], committed: int) -> None:
    """Transactions, groups, and what was there."""
    with Writer(machines, "successor") as writer:
        writer.wrote(10)
    wait_for(machines, {*before, *writer.acknowledged})
    positions = {
        row["partition"]: row["offset"]
        for row in machines.ask("group", "describe", GROUP)["offsets"]
    }
    assert positions[f"{TOPIC}/0"] == committed
