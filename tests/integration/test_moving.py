"""Replicas move between real processes while transactions are written: copies are added and taken
away, a node is drained of all that it has, and the leader of what moves is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import until
from tests.integration.up import Up, children_of, up_over
from tests.integration.writing import Writer

pytestmark = pytest.mark.integration

TOPIC = "payments"
PARTITIONS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moving") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with up_over(folder, "--nodes=3") as made:
        yield made


def node_of(folder: Path, name: str) -> str:
    return (folder / name / "node_id").read_text()


def described(up: Up) -> list[dict[str, Any]]:
    (topic,) = up.ask("topic", "describe", TOPIC)
    return list(topic["partitions"])


def leader_of(up: Up) -> str:
    """Of the first partition. While it moves there is none for a moment."""
    found: list[str] = []

    def has_one() -> bool:
        found.extend(filter(None, [described(up)[0]["leader_node"]]))
        return bool(found)

    until(has_one, "somebody leads while it moves")
    return found[0]


def values(up: Up) -> list[str]:
    return [row["value"] for row in up.lines("consume", TOPIC)]


def test_i5_replicas_move_while_records_are_written(up: Up, folder: Path) -> None:
    one, two, three = (node_of(folder, f"partition_leader{which}") for which in ("", "-2", "-3"))
    up.ask("topic", "create", TOPIC, f"--partitions={PARTITIONS}", "--replication-factor=1")
    with Writer(up.bootstrap, "payer", TOPIC, PARTITIONS, timeout_ms=30_000) as writer:
        until(lambda: len(writer.acknowledged) > 30, "it writes")
        up.ask("topic", "reassign", TOPIC, "--replication-factor=3")
        assert all(len(part["replicas"]) == len(part["isr"]) == 3 for part in described(up))
        (topic,) = up.ask("topic", "describe", TOPIC)
        assert topic["replication_factor"] == 3
        up.ask("topic", "reassign", TOPIC, f"--to={two},{three}")
        assert all(part["replicas"] == [two, three] for part in described(up))
        up.ask("topic", "reassign", TOPIC, f"--to={one},{two}", "--wait-s=0")
        name = {one: "", two: "-2", three: "-3"}[leader_of(up)]
        (pid,) = children_of(up.pid, f"--data={folder / f'partition_leader{name}'}\0")
        os.kill(pid, signal.SIGKILL)
        up.ask("topic", "reassign", TOPIC, f"--to={one},{two}")
        written = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > written + 30, "it writes on")
    assert all(part["replicas"] == [one, two] for part in described(up))
    # A commit is acknowledged once it is decided; its records may be seen a moment later.
    until(lambda: set(writer.acknowledged) <= set(values(up)), "what was acknowledged is seen")
    seen = values(up)
    assert len(seen) == len(set(seen)), "once"
    assert list((folder / "partition_leader-3" / "orphans").iterdir()), "nothing is deleted"


def test_a_node_is_drained_of_what_it_has_and_leads(up: Up, folder: Path) -> None:
    doomed = node_of(folder, "partition_leader")
    moved = up.ask("cluster", "drain", doomed)
    assert moved["moving"] == []
    status = up.ask("cluster", "status")
    (node,) = [node for node in status["nodes"] if node["node_id"] == doomed]
    assert (node["leads"], node["replicas"]) == (0, 0)
    up.ask("produce", TOPIC, "--partition=0", given="still here\n")
    up.ask("cluster", "rebalance")
    status = up.ask("cluster", "status")
    (node,) = [node for node in status["nodes"] if node["node_id"] == doomed]
    assert node["replicas"] == 2


def test_a_control_topic_moves(up: Up, folder: Path) -> None:
    coordinators = [node_of(folder, f"coordinator{which}") for which in ("", "-2", "-3")]
    place = "__transaction_control/0"
    up.ask("topic", "reassign", place, f"--to={coordinators[2]},{coordinators[1]}")
    (found,) = [
        part
        for part in up.ask("cluster", "partitions", "__transaction_control")
        if part["partition"] == place
    ]
    assert found["replicas"] == [coordinators[2], coordinators[1]]
    up.ask("produce", TOPIC, "--partition=0", given="paid\n")
