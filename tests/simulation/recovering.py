"""`oncelog cluster recover` over simulated disks: one run of the command, without its process."""

from __future__ import annotations

from collections.abc import Sequence

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
    directories: list[DataDirectory] = []
    try:
        for number, disk in enumerate(disks):
            directories.append(take(f"disk {number}", disk))
            look(directories[-1], lambda partition: None)
        surveyed = await survey(directories, etcd, replace)
        await perform(surveyed, plan_of(surveyed, loss), etcd, lambda: None)
        return surveyed.mode
    finally:
        for disk in disks:
            disk.kill()
