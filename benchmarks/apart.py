"""A cluster of separate processes, with as many partition leaders as one likes, and on request a
wire before each process: `oncelog up` has as many of each role, and none between them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import oncelog
from benchmarks.wire import HOST, wired
from oncelog_server.cli.processes import Service
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, find_or_build
from oncelog_server.runtime.loopback_ports import free_ports

READY_SECONDS_MAX: Final = 120.0
LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Apart:
    """It runs."""

    bootstrap: str
    pids: list[int]


@contextmanager
def apart(folder: Path, *, leaders: int = 1, wire_ms: float = 0.0) -> Iterator[Apart]:
    """All processes have joined. With a wire, whoever connects to one of them, another one of them
    too, does so over it, that late each way."""
    roles = ["coordinator", "offset_manager", *["partition_leader"] * leaders]
    ports = free_ports(2 * len(roles))
    listening, told = ports[: len(roles)], ports[len(roles) :]
    if not wire_ms:
        told = listening
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        (folder / "etcd").mkdir()
        etcd = EmbeddedEtcd(folder / "etcd", find_or_build(print))
        stack.callback(etcd.stop)
        etcd.start()
        if wire_ms:
            stack.enter_context(wired(wire_ms, dict(zip(told, listening, strict=True))))
        services = []
        for number, (role, port, reached) in enumerate(zip(roles, listening, told, strict=True)):
            service = Service(
                role,
                [
                    *("serve", role, f"--data={folder / f'{role}-{number}'}"),
                    *(f"--listen={HOST}:{port}", f"--advertise={HOST}:{reached}"),
                    *(f"--etcd={etcd.endpoint}", "--set=node.disk_free_floor_bytes=0"),
                ],
                address=f"{HOST}:{port}",
                log=folder / f"{role}-{number}.log",
            )
            stack.callback(service.stop)
            service.start()
            services.append(service)
        bootstrap = ",".join(f"{HOST}:{port}" for port in told)
        _wait_until_joined(bootstrap, services)
        yield Apart(bootstrap, [service.pid for service in services if service.pid is not None])


def _wait_until_joined(bootstrap: str, services: list[Service]) -> None:
    give_up = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < give_up:
        for service in services:
            if service.exit_code is not None:
                raise RuntimeError(f"a {service.name} ended:\n{service.tail()}")
        try:
            with oncelog.connect(bootstrap, connect_timeout_ms=2_000, timeout_ms=5_000) as log:
                if len(log.admin.nodes()) == len(services):
                    return
        except oncelog.OncelogError:
            pass
        time.sleep(LOOK_EVERY_S)
    raise TimeoutError(f"the processes had not joined after {READY_SECONDS_MAX:.0f} s")
