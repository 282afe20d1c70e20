"""Three machines, each one process of all three roles over a folder of its own, with an etcd beside
them: they live, burn down, run from a backup. Whoever is gone is killed by its process id, with its
folder.

    with three_copies(tmp_path) as machines:
        with machines.writer("payer") as writer:
            writer.wrote(20)
            machines.burn("a", "b")
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oncelog_server.cli.processes import Service
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.loopback_ports import free_ports
from tests.integration.cluster import make_etcd, until
from tests.integration.shell import Shell
from tests.integration.writing import Writer

TOPIC = "payments"
PARTITIONS = 2


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
        self.kill(*names)
        for name in names:
            del self._services[name]
            shutil.rmtree(self._data_of(name))
        self.bootstrap = ",".join(service.address for service in self._services.values())

    def empty(self, name: str) -> None:
        """Its logs are gone; it is the same node, and runs again."""
        self.kill(name)
        shutil.rmtree(self._data_of(name) / "partitions")
        self.start(name)

    def kill(self, *names: str) -> None:
        """All at once."""
        for name in names:
            os.kill(self._services[name].pid or 0, signal.SIGKILL)
        for name in names:
            self._services[name].stop()

    def start(self, *names: str) -> None:
        for name in names:
            self._services[name].start()

    def back_up(self, name: str) -> Path:
        """What its disk holds: while it is down, or of a moment."""
        return Path(shutil.copytree(self._data_of(name), self._folder / f"{name}.backup"))

    def put_back(self, name: str, backup: Path) -> None:
        shutil.rmtree(self._data_of(name))
        shutil.copytree(backup, self._data_of(name))

    def writer(self, name: str) -> Writer:
        """To all partitions of the topic."""
        return Writer(self.bootstrap, name, TOPIC, PARTITIONS, timeout_ms=5_000)

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


@contextlib.contextmanager
def three_copies(folder: Path) -> Iterator[Machines]:
    """Of a topic and of all control partitions, on machines a, b and c."""
    made = Machines(folder)
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


def values(machines: Machines) -> list[str]:
    return [row["value"] for row in machines.lines("consume", TOPIC)]


def wait_for(machines: Machines, acknowledged: set[str]) -> None:
    """All of these are there, each once. Who commits hears of it a moment before readers do."""
    until(lambda: acknowledged <= set(values(machines)), "nothing that was acknowledged is lost")
    now = values(machines)
    assert len(set(now)) == len(now), "no record is there twice"
