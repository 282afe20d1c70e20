"""A real cluster for tests: etcd and three `oncelog serve` processes, each to be killed by hand.

    with running(tmp_path) as cluster:
        cluster.kill("coordinator")
        cluster.start("coordinator")

Every process keeps its port and its data over restarts. Only processes that were started here are
touched, each by its id. Their logs stay in the folder and are shown with a test that fails
(conftest.py).

Left out: TLS, several processes of one role.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import oncelog
from oncelog.protocol import Protocol
from oncelog_server.cli.processes import Service
from oncelog_server.core.ids import CONTROL_PARTITIONS, partition_of_name
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, find_or_build
from oncelog_server.runtime.loopback_ports import free_ports
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import cluster_pb2

COORDINATOR: Final = "coordinator"
PARTITION_LEADER: Final = "partition_leader"
OFFSET_MANAGER: Final = "offset_manager"
ROLES: Final = (COORDINATOR, PARTITION_LEADER, OFFSET_MANAGER)

# Bounds that only end a test that would hang.
PATIENCE_S: Final = 60.0
STOP_S: Final = 30.0
LOOK_EVERY_S: Final = 0.05
METADATA_MS: Final = 3_000

# Short, so that a test of a lost lease takes seconds; long enough for two busy cores.
LEASE_MS: Final = 3_000
# Small segments and many snapshots, so that restarts meet both.
SETTINGS: Final = (
    f"node.lease_ms={LEASE_MS}",
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=65536",
    "node.disk_free_floor_bytes=0",
    "node.log_format=json",
)

# Clusters of this test, for the report of one that fails.
OF_THIS_TEST: Final[list[Cluster]] = []


def until(predicate: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Waits until the predicate holds."""
    end = time.monotonic() + within_s
    while not predicate():
        assert time.monotonic() < end, f"it did not come about: {what}"
        time.sleep(LOOK_EVERY_S)


class Cluster:
    """Started by `running`. A service that a test stopped is started by that test."""

    def __init__(
        self,
        folder: Path,
        etcd: EmbeddedEtcd,
        settings: Sequence[str],
        of_role: Mapping[str, Sequence[str]],
    ) -> None:
        self.folder = folder
        self.etcd = etcd
        # Of every service, and of one role; what stands later wins.
        self.settings = list(settings)
        self.of_role = {role: list(of_role.get(role, ())) for role in ROLES}
        self.ports = dict(zip(ROLES, free_ports(len(ROLES)), strict=True))
        # Where others are told to connect, of a role that stands behind something.
        self.advertised: dict[str, str] = {}
        self.is_over = False
        self._services: dict[str, Service] = {}
        # Where the log of each service's newest run begins.
        self._run_at = dict.fromkeys(ROLES, 0)

    # ---------------------------------------------------------------------------------- where

    @property
    def bootstrap(self) -> str:
        return ",".join(self.reached_at(role) for role in ROLES)

    def address(self, role: str) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.ports[role]}"

    def reached_at(self, role: str) -> str:
        return self.advertised.get(role, self.address(role))

    def data_of(self, role: str) -> Path:
        return self.folder / role

    def log_of(self, role: str) -> str:
        """All that the service wrote, over all its runs."""
        path = self._log_path(role)
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self, role: str, event: str) -> list[dict[str, object]]:
        """What the service logged under that name, over all its runs."""
        found = []
        for line in self.log_of(role).splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == event:
                    found.append(entry)
        return found

    def _log_path(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    # ----------------------------------------------------------------------------- one service

    def start(self, *roles: str) -> None:
        """Does not wait: clients have to cope. `wait_ready` waits."""
        for role in roles:
            assert not self.is_running(role), f"{role} runs already"
            pairs = [*SETTINGS, *self.settings, *self.of_role[role]]
            service = Service(
                role,
                [
                    "serve",
                    role,
                    f"--data={self.data_of(role)}",
                    f"--listen={self.address(role)}",
                    f"--advertise={self.reached_at(role)}",
                    f"--etcd={self.etcd.endpoint}",
                    *(f"--set={pair}" for pair in pairs),
                ],
                address=self.address(role),
                log=self._log_path(role),
            )
            self._run_at[role] = len(self.log_of(role))
            service.start()
            self._services[role] = service

    def kill(self, *roles: str) -> None:
        """kill -9."""
        for role in roles:
            os.kill(self.pid(role), signal.SIGKILL)
        for role in roles:
            self._services[role].stop()

    def stop(self, *roles: str) -> None:
        """SIGTERM; a service must end by itself."""
        for role in roles:
            self._services[role].ask_to_stop()
        for role in roles:
            assert self._services[role].stop(), f"{role} did not end by itself"
            assert self._services[role].exit_code == 0, f"{role} did not end well"

    def restart(self, *roles: str) -> None:
        """kill -9 and start."""
        self.kill(*roles)
        self.start(*roles)

    @contextlib.contextmanager
    def paused(self, *roles: str) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        for role in roles:
            os.kill(self.pid(role), signal.SIGSTOP)
        try:
            yield
        finally:
            for role in roles:
                if self.is_running(role):
                    os.kill(self.pid(role), signal.SIGCONT)

    @contextlib.contextmanager
    def etcd_paused(self) -> Iterator[None]:
        """The same for etcd."""
        assert self.etcd.pid is not None
        os.kill(self.etcd.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.etcd.pid, signal.SIGCONT)

    def is_running(self, role: str) -> bool:
        service = self._services.get(role)
        return service is not None and service.pid is not None and service.exit_code is None

    def wait_exit(self, role: str) -> int:
        """Its exit code, once it ended by itself."""
        until(lambda: not self.is_running(role), f"{role} ends")
        code = self._services[role].exit_code
        assert code is not None
        return code

    def pid(self, role: str) -> int:
        assert self.is_running(role), f"{role} does not run"
        pid = self._services[role].pid
        assert pid is not None
        return pid

    # ------------------------------------------------------------------------------- all of it

    def wait_ready(self) -> None:
        """Every service is a member and every control partition has a living leader, as each of the
        services sees it."""
        for role in ROLES:
            self._wait_started(role)
        for role in ROLES:
            until(
                functools.partial(self._is_whole, role), f"the cluster is whole, as {role} sees it"
            )

    def wait_topic(self, name: str) -> None:
        """Each of the services has heard from etcd of the topic."""
        for role in ROLES:
            until(functools.partial(self._knows_topic, role, name), f"{role} hears of {name!r}")

    def _knows_topic(self, role: str, name: str) -> bool:
        request = cluster_pb2.GetMetadataRequest(topics=[name])
        try:
            with Protocol(self.address(role)) as protocol:
                reply = protocol.call("cluster.get_metadata", request, METADATA_MS)
        except OncelogError:
            return False
        return [topic.name for topic in reply.topics] == [name]

    def _wait_started(self, role: str) -> None:
        """In its newest run: what others see of it before that may be its last one."""

        def has_started() -> bool:
            assert self.is_running(role), f"{role} ended:\n{self._services[role].tail()}"
            return "node started" in self.log_of(role)[self._run_at[role] :]

        until(has_started, f"{role} starts")

    def _is_whole(self, role: str) -> bool:
        try:
            with Protocol(self.address(role)) as protocol:
                return _is_whole(protocol, {self.reached_at(role) for role in ROLES})
        except OncelogError:
            return False

    def connect(self, **options: object) -> oncelog.Log:
        return oncelog.connect(self.bootstrap, **options)

    def stop_all(self) -> None:
        """At the end of a test, whatever state it left."""
        self.is_over = True
        for service in reversed(self._services.values()):
            if service.pid is not None and service.exit_code is None:
                os.kill(service.pid, signal.SIGCONT)
                service.ask_to_stop()
        for service in reversed(self._services.values()):
            service.stop()
        if self.etcd.alive() and self.etcd.pid is not None:
            os.kill(self.etcd.pid, signal.SIGCONT)
        self.etcd.stop()


@contextlib.contextmanager
def running(
    folder: Path,
    *settings: str,
    of_role: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Cluster]:
    """A cluster that is ready. `settings` are section.key=value, of every service."""
    with created(folder, *settings, of_role=of_role) as cluster:
        cluster.start(*ROLES)
        cluster.wait_ready()
        yield cluster


@contextlib.contextmanager
def created(
    folder: Path,
    *settings: str,
    of_role: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Cluster]:
    """A cluster whose etcd runs and whose services are not started."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, make_etcd(folder / "etcd"), settings, of_role or {})
    OF_THIS_TEST.append(cluster)
    try:
        cluster.etcd.start()
        yield cluster
    finally:
        cluster.stop_all()


def make_etcd(folder: Path) -> EmbeddedEtcd:
    """Gets its port back after every restart."""
    folder.mkdir(parents=True)
    return EmbeddedEtcd(folder, find_or_build(print))


def _is_whole(protocol: Protocol, addresses: set[str]) -> bool:
    groups = _group_per_partition()
    reply: cluster_pb2.GetMetadataReply = protocol.call(
        "cluster.get_metadata",
        cluster_pb2.GetMetadataRequest(
            journal_partitions=range(CONTROL_PARTITIONS), consumer_groups=groups
        ),
        METADATA_MS,
    )
    routes = [*reply.journal_partitions, *reply.consumer_groups]
    nodes = {f"{node.endpoint.host}:{node.endpoint.port}" for node in reply.nodes}
    return nodes == addresses and all(route.HasField("leader") for route in routes)


def _group_per_partition() -> list[str]:
    """Names of groups, one for each partition of `__consumer_offsets`."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < CONTROL_PARTITIONS:
        found.setdefault(partition_of_name(f"g{number}"), f"g{number}")
        number += 1
    return list(found.values())
