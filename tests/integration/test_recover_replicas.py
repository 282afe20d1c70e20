"""Drills with three copies of everything, on real processes: etcd is wiped, or restored from an old
backup; what was acknowledged is there afterwards, and transactions go on."""

from __future__ import annotations

import getpass
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import until
from tests.integration.up import Up, up_over

pytestmark = pytest.mark.integration

TOPIC = "payments"
RECORDS = 30


def fill(up: Up, first: int) -> None:
    """Over three partitions."""
    for partition in range(3):
        numbers = range(first + partition, first + RECORDS, 3)
        lines = "".join(f"{number}\n" for number in numbers)
        up.ask("produce", TOPIC, f"--partition={partition}", given=lines)


def consumed(up: Up) -> list[int]:
    return sorted(int(row["value"]) for row in up.lines("consume", TOPIC))


def partitions(up: Up) -> list[dict[str, Any]]:
    (topic,) = up.ask("topic", "describe", TOPIC)
    return list(topic["partitions"])


def is_noted(up: Up) -> bool:
    """Each replica has noted that it was in sync; without that it is in doubt once etcd is gone."""
    expected = sum(len(one["replicas"]) for one in up.ask("cluster", "partitions"))
    return len(list(up.folder.rglob("replica.json"))) == expected


def test_i5_a_wiped_etcd_is_rebuilt_from_three_copies(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with up_over(folder, "--nodes=3") as up:
        up.ask("topic", "create", TOPIC, "--partitions=3", "--replication-factor=3")
        fill(up, 0)
        until(lambda: is_noted(up), "all replicas are in sync")
        up.interrupt()
    shutil.rmtree(folder / "etcd" / "member")
    audit = tmp_path / "audit.log"
    with up_over(folder, "--nodes=3", "--recover", f"--set=authorization.audit_log={audit}") as up:
        assert consumed(up) == list(range(RECORDS))
        fill(up, RECORDS)
        assert consumed(up) == list(range(2 * RECORDS))
        assert all(len(part["replicas"]) == 3 for part in partitions(up))
        up.interrupt()
    # Each of the nine processes tells it.
    told = [line for line in audited(audit) if line["what"] == "oncelog cluster recover"]
    assert len(told) == 9
    assert {(line["who"], line["from"]) for line in told} == {
        (getpass.getuser(), socket.gethostname())
    }
    assert json.loads(told[0]["request"])["replace"] == "what is refused"
    assert not list(folder.glob("*/recovered.json")), "it is told once"


def audited(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_i5_an_etcd_restored_from_an_old_backup_is_rebuilt(tmp_path: Path) -> None:
    """It knows an old set in sync, and a topic as it was."""
    folder, backup = tmp_path / "data", tmp_path / "backup"
    with up_over(folder, "--nodes=3") as up:
        up.ask("topic", "create", TOPIC, "--partitions=3", "--replication-factor=1")
        fill(up, 0)
        until(lambda: is_noted(up), "all replicas are in sync")
        up.interrupt()
    shutil.copytree(folder / "etcd", backup)
    with up_over(folder, "--nodes=3") as up:
        up.ask("topic", "reassign", TOPIC, "--replication-factor=3")
        fill(up, RECORDS)
        until(lambda: is_noted(up), "all replicas are in sync")
        up.interrupt()
    shutil.rmtree(folder / "etcd")
    shutil.copytree(backup, folder / "etcd")
    with up_over(folder, "--nodes=3", "--recover") as up:
        assert consumed(up) == list(range(2 * RECORDS))
        assert all(len(part["replicas"]) == 3 for part in partitions(up))
        up.interrupt()
