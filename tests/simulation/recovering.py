"""`oncelog cluster recover` over simulated disks: one run of the command, without its process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from oncelog_server.runtime.cluster_recovery.inventory import DataDirectory, look, take
from oncelog_server.runtime.cluster_recovery.perform import (
    Loss,
    Mode,
    Replace,
    perform,
    plan_of,
    survey,
)
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from tests.simulation.disk import FakeDisk


async def recover(
    disks: Sequence[FakeDisk],
    etcd: MemoryEtcd,
    replace: Replace = Replace.NOTHING,
    loss: Loss = Loss.REFUSED,
) -> Mode:
    """Of machines whose processes are down. Raises RecoveryRefused, EtcdUnavailable."""
    with _taken(disks) as directories:
        surveyed = await survey(directories, etcd, replace)
        await perform(surveyed, plan_of(surveyed, loss), etcd, lambda: None)
        return surveyed.mode


async def require_no_doubts(disks: Sequence[FakeDisk], etcd: MemoryEtcd) -> None:
    """A dry run, of all machines. Raises RecoveryRefused."""
    with _taken(disks) as directories:
        plan_of(await survey(directories, etcd, Replace.EVERYTHING), Loss.REFUSED)


@contextmanager
def _taken(disks: Sequence[FakeDisk]) -> Iterator[list[DataDirectory]]:
    """As a command that ends, well or not, leaves them."""
    directories: list[DataDirectory] = []
    try:
        for number, disk in enumerate(disks):
            directories.append(take(f"disk {number}", disk))
            look(directories[-1], lambda partition: None)
        yield directories
    finally:
        for disk in disks:
            disk.kill()
