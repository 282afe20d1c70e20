"""Three machines, each with a member of etcd and a process of each role: real processes.

A machine keeps its address and its data over everything. `partition_leader` has a small volume of
its own, where the run is inside of a sandbox, so that it can be filled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from oncelog_server.core.roles import PARTITION_LEADER, PORTS, ROLES
from tests.chaos.network import MACHINES, Network

ETCD: Final = "etcd"
PROCESSES: Final = (ETCD, *ROLES)
ETCD_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380

MIB: Final = 1 << 20
VOLUME_BYTES: Final = 512 * MIB
# What decides how long a failover takes stays as it is by default: leases, ticks, the lag after
# which a replica is out of sync, timeouts of clients. Segments are small so that the volume is.
SETTINGS: Final = (
    "node.control_replication_factor=3",
    f"node.segment_bytes={4 * MIB}",
    f"node.disk_free_floor_bytes={32 * MIB}",
    "node.log_format=json",
)


class Machine:
    """One of three. Only processes that it started are touched, each by its id."""

    def __init__(
        self,
        number: int,
        folder: Path,
        network: Network,
        etcd: Path,
        further: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`further`: settings of a role beside those that all have."""
        self.number = number
        self._further = further or {}
        self.address = network.address(number)
        self.folder = folder / f"machine-{number}"
        self._network = network
        self._etcd = etcd
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.can_fill = network.can_cut
        for name in PROCESSES:
            self.volume_of(name).mkdir(parents=True)
        if self.can_fill:
            _mount(self.volume_of(PARTITION_LEADER))

    def volume_of(self, name: str) -> Path:
        return self.folder / name

    def data_of(self, name: str) -> Path:
        return self.volume_of(name) / "data"

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @property
    def addresses(self) -> list[str]:
        return [f"{self.address}:{PORTS[role]}" for role in ROLES]

    # ---------------------------------------------------------------------------------- processes

    def start(self, *names: str) -> None:
        """Those that do not run; nobody waits for them."""
        for name in names or PROCESSES:
            if not self.is_running(name):
                command = self._etcd_command() if name == ETCD else self._role_command(name)
                with self.log_of(name).open("ab") as log:
                    self._running[name] = subprocess.Popen(
                        [*self._network.within(self.number), *command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )

    def is_running(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def kill(self, *names: str) -> None:
        """kill -9, of all at once."""
        chosen = [self._running[name] for name in names or PROCESSES if self.is_running(name)]
        for process in chosen:
            process.kill()
        for process in chosen:
            process.wait()

    def end(self, *names: str) -> None:
        """SIGTERM: they hand over what they lead. Nobody waits for them."""
        for name in names:
            os.kill(self._running[name].pid, signal.SIGTERM)

    def pause(self, *names: str) -> None:
        """SIGSTOP."""
        for name in names:
            os.kill(self._running[name].pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT, to all."""
        for name in PROCESSES:
            if self.is_running(name):
                os.kill(self._running[name].pid, signal.SIGCONT)

    def _etcd_command(self) -> list[str]:
        client = f"http://{self.address}:{ETCD_PORT}"
        peer = f"http://{self.address}:{ETCD_PEER_PORT}"
        members = [
            f"m{number}=http://{self._network.address(number)}:{ETCD_PEER_PORT}"
            for number in MACHINES
        ]
        return [
            str(self._etcd),
            f"--name=m{self.number}",
            f"--data-dir={self.data_of(ETCD)}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={','.join(members)}",
        ]

    def _role_command(self, role: str) -> list[str]:
        endpoints = [f"{self._network.address(number)}:{ETCD_PORT}" for number in MACHINES]
        return [
            sys.executable,
            "-m",
            "oncelog_server.cli",
            "serve",
            role,
            f"--data={self.data_of(role)}",
            f"--listen={self.address}:{PORTS[role]}",
            *(f"--etcd={endpoint}" for endpoint in endpoints),
            *(f"--set={pair}" for pair in (*SETTINGS, *self._further.get(role, ()))),
        ]

    # --------------------------------------------------------------------------------------- disk

    def fill_disk(self) -> None:
        """Not a byte more fits into the volume of the partition leader."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (MIB, 4096):
                _write_until_full(file.fileno(), bytes(size))

    def free_disk(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.volume_of(PARTITION_LEADER) / "ballast"


def _mount(folder: Path) -> None:
    options = f"size={VOLUME_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def _write_until_full(file: int, data: bytes) -> None:
    try:
        while os.write(file, data):
            pass
    except OSError:
        return


def addresses(machines: Sequence[Machine]) -> str:
    """Where clients begin."""
    return ",".join(address for machine in machines for address in machine.addresses)
