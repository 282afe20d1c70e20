"""What an operator sees of replicas (`cluster status`, `cluster partitions`, `topic describe`,
`doctor`) while processes of a cluster with three copies freeze: who is unreachable, what is
offline, what cannot be written, and that all is well again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelog_server.runtime.etcd.port import Delete, Put
from tests.integration.cluster import until
from tests.integration.shell import REFUSED, Shell
from tests.integration.up import Up, children_of, up_over

pytestmark = pytest.mark.integration

NODES = 3
# Until what is synced is noted durably, about each second.
NOTED_S = 2.5
WRONG = ("offline", "unwritable", "under-replicated")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shown") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with up_over(folder, f"--nodes={NODES}") as made:
        made.ask("topic", "create", "copied", "--partitions", str(NODES))
        made.ask("topic", "create", "alone", f"--partitions={NODES}", "--replication-factor=1")
        for number in range(NODES):
            made.ask("produce", "copied", "--partition", str(number), given="1\n2\n")
        yield made


def all_is_well(shell: Shell) -> bool:
    return not any(shell.ask("cluster", "partitions", f"--{wrong}") for wrong in WRONG)


def replicas(shell: Shell, topic: str, number: int) -> dict[str, Any]:
    """By node."""
    listed = shell.ask("cluster", "partitions", topic)
    return {one["node_id"]: one for one in listed[number]["replica_states"]}


@contextlib.contextmanager
def frozen(up: Up, folder: Path, name: str) -> Iterator[str]:
    """A process of that folder; its node."""
    (pid,) = children_of(up.pid, f"--data={folder / name}\0")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield (folder / name / "node_id").read_text()
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def registered(up: Up, node: str) -> Iterator[None]:
    """A frozen process of that node stays in etcd past the end of its lease, however long the
    commands take that a busy machine runs meanwhile."""
    (address,) = (said["address"] for said in up.said if said.get("service") == "etcd")

    async def asked(work: Callable[[EtcdClient], Awaitable[Any]]) -> Any:
        etcd = EtcdClient([address])
        try:
            return await work(etcd)
        finally:
            await etcd.close()

    listed, _ = asyncio.run(asked(lambda etcd: etcd.range(keys.BOOTS)))
    (boot,) = (one for one in listed if json.loads(one.value)["node_id"] == node)
    asyncio.run(asked(lambda etcd: etcd.txn([], [Put(boot.key, boot.value)])))
    try:
        yield
    finally:
        asyncio.run(asked(lambda etcd: etcd.txn([], [Delete(boot.key)])))


def others(up: Up, *names: str) -> Shell:
    """Asks the processes that are not frozen."""
    services = {said["address"]: said["service"] for said in up.said if "address" in said}
    addresses = [one for one in up.bootstrap.split(",") if services[one] not in names]
    return Shell(",".join(addresses))


def test_of_each_replica_it_is_said_what_it_does(up: Up) -> None:
    until(lambda: all_is_well(up), "all replicas are in sync")
    shown = replicas(up, "copied", 0)
    assert sorted(one["state"] for one in shown.values()) == ["in sync", "in sync", "leads"]
    assert {one["in_sync"] for one in shown.values()} == {True}
    (end,) = {one["log_end"] for one in shown.values()}
    assert end > 2
    assert {one["last_epoch"] for one in shown.values()} == {1}
    (described,) = up.ask("topic", "describe", "copied")
    assert [one["high_watermark"] for one in described["partitions"]] == [end] * NODES
    assert all(one["writable"] for one in described["partitions"])
    assert sorted(described["partitions"][0]["replica_states"][0]) == sorted(shown.popitem()[1])
    status = up.ask("cluster", "status")
    assert status["partitions_not_known"] == status["partitions_without_leader"] == []


def test_control_topics_have_three_replicas(up: Up) -> None:
    listed = {topic["name"]: topic for topic in up.ask("topic", "list", "--internal")}
    assert listed["__transaction_control"]["replication_factor"] == NODES
    assert listed["__consumer_offsets"]["replication_factor"] == NODES
    assert (listed["copied"]["replication_factor"], listed["alone"]["replication_factor"]) == (3, 1)


def test_what_is_wrong_while_processes_are_frozen(up: Up, folder: Path) -> None:
    until(lambda: all_is_well(up), "all replicas are in sync")
    with frozen(up, folder, PARTITION_LEADER) as first:
        shell = others(up, PARTITION_LEADER)
        with registered(up, first):
            it_is_unreachable(shell, first)
        it_is_not_running(shell, first)
        alone_is_offline(shell, first)
        with frozen(up, folder, f"{PARTITION_LEADER}-2"):
            last = others(up, PARTITION_LEADER, f"{PARTITION_LEADER}-2")
            nothing_is_written(last)
    until(lambda: all_is_well(up), "all is well again")
    told = up.ask("doctor")
    assert [one["status"] for one in told["checks"] if one["area"] == "partitions"] == ["OK"]


def it_is_unreachable(shell: Shell, first: str) -> None:
    """What the others have is shown."""
    status = shell.ask("cluster", "status")
    unreachable = {n["node_id"]: n["unreachable"] for n in status["nodes"] if n["unreachable"]}
    assert list(unreachable) == [first]
    assert "no answer within" in unreachable[first]
    the_others_are_asked_all_the_same(shell, len(status["nodes"]) - 1)
    shown = replicas(shell, "copied", 0)
    assert shown[first]["state"] == "unreachable"
    assert sum(one["log_end"] is not None for one in shown.values()) == NODES - 1


def it_is_not_running(shell: Shell, first: str) -> None:
    until(lambda: replicas(shell, "copied", 0)[first]["state"] == "not running", "its lease ended")
    until(lambda: copied_is_led(shell), "others lead")
    under = shell.ask("cluster", "partitions", "copied", "--under-replicated", "--node", first)
    assert len(under) == NODES
    assert all(one["writable"] for one in under)


def the_others_are_asked_all_the_same(shell: Shell, answering: int) -> None:
    for command in ("config", "balance"):
        done = shell.run("cluster", command, "--timeout", "3")
        assert len(json.loads(done.stdout)) == answering
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["reason"] == "UNAVAILABLE"
        assert "1 of 9 processes did not answer" in error["message"]


def copied_is_led(shell: Shell) -> bool:
    listed = shell.ask("cluster", "partitions", "copied")
    return all(one["writable"] for one in listed)


def alone_is_offline(shell: Shell, first: str) -> None:
    (offline,) = shell.ask("cluster", "partitions", "--offline")
    assert offline["partition"].startswith("alone/")
    assert offline["why_offline"].startswith(
        f"no living replica: start the process of node {first}"
    )
    status = shell.ask("cluster", "status")
    assert status["partitions_without_leader"] == [offline["partition"]]
    assert set(status["partitions_under_replicated"]) == {
        offline["partition"],
        *(f"copied/{number}" for number in range(NODES)),
    }


def nothing_is_written(shell: Shell) -> None:
    """Two of three are away: the last one leads, and refuses."""

    def unwritable() -> list[str]:
        return [one["partition"] for one in shell.ask("cluster", "partitions", "--unwritable")]

    copied = [f"copied/{number}" for number in range(NODES)]
    until(lambda: set(copied) <= set(unwritable()), "the last one leads all of them")
    whys = {one["why_unwritable"] for one in shell.ask("cluster", "partitions", "copied")}
    assert all("min_insync_replicas" in why for why in whys)
    status = shell.ask("cluster", "status")
    assert set(copied) <= set(status["partitions_unwritable"])
    done = shell.run("doctor")
    assert done.exit_code == REFUSED
    assert "are unwritable: copied/0, copied/1, copied/2" in done.stdout


def test_a_replica_whose_log_is_damaged_says_where(up: Up, folder: Path) -> None:
    """The only copy: with others, it would be copied anew."""
    created = up.ask("topic", "create", "rotten", "--partitions=1", "--replication-factor=1")
    up.ask("produce", "rotten", given="".join(f"{'x' * 100}{n}\n" for n in range(1_000)))
    (node,) = created["partitions"][0]["replicas"]
    (data,) = (path.parent for path in folder.glob("*/node_id") if path.read_text() == node)
    (pid,) = children_of(up.pid, f"--data={data}\0")
    time.sleep(NOTED_S)
    (segment,) = data.glob(f"partitions/{created['topic_id']}-0/*.log")
    with segment.open("r+b") as file:
        file.seek(10_000)
        file.write(b"rot")
    # `oncelog up` starts it again.
    os.kill(pid, signal.SIGKILL)

    def shown() -> Any:
        (partition,) = up.ask("cluster", "partitions", "rotten")
        return partition

    until(lambda: shown()["replica_states"][0]["state"] == "unfit", "it is looked at")
    assert segment.name in shown()["replica_states"][0]["why"]
    until(lambda: "is unfit: " in (shown()["why_offline"] or ""), "nobody leads it")
    assert segment.name in shown()["why_offline"]
    up.ask("topic", "delete", "rotten", "--yes")
