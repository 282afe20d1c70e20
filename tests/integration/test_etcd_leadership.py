"""Leases and elections on a real etcd, with the lease thread and its blocking channel."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from oncelog_server.core.ids import BootId, PartitionId
from oncelog_server.runtime.clock import RealClock
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.control_partitions import create_control_partitions
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, find_or_build
from oncelog_server.runtime.etcd.identity import ClusterIdentity, ClusterSettings
from oncelog_server.runtime.etcd.keys import BootValue
from oncelog_server.runtime.etcd.port import Compare, EtcdUnavailable, Put
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.etcd.topics import EtcdTopics
from oncelog_server.runtime.leadership.election import Elections
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.storage.disk import RealDisk
from tests.integration.etcd_cluster import until
from tests.unit.etcd.test_identity import never
from tests.unit.etcd.world import Host, Log

pytestmark = pytest.mark.integration

LEASE_MS = 2_000
ROLES = ("coordinator", "partition_leader")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    etcd = EmbeddedEtcd(tmp_path / "etcd", find_or_build(print))
    etcd.start()
    yield etcd
    etcd.stop()


class Process:
    """What one Oncelog process has of etcd."""

    def __init__(self, endpoint: str, directory: Path, node_id: str, *, renew: bool = True) -> None:
        self.etcd = EtcdClient([endpoint])
        self.disk = RealDisk(directory)
        self.identity = ClusterIdentity(
            self.disk,
            self.etcd,
            node_id=node_id,
            on_older=never,
            random_bytes=os.urandom,
        )
        self.host, self.log = Host(node_id), Log()
        self.refused: list[BaseException] = []
        self._node = BootValue(node_id, "localhost", 7401, ROLES, "0.1")
        # Its keep-alives do not get through.
        self.is_stuck = not renew

    async def start(self) -> Process:
        record = await self.identity.join(ClusterSettings(lease_ms=LEASE_MS))
        self.view = ClusterView(
            self.etcd,
            cluster_id=record.cluster_id,
            guard=self.identity,
            on_fatal=self.refused.append,
        )
        await self.view.start()
        self.membership = Membership(
            self.etcd,
            boot_id=BootId(os.urandom(16)),
            node=self._node,
            lease_ms=record.lease_ms,
            reporter=self.log,
            renewals=lambda: Renewing(self),
        )
        await self.membership.start(previous_boot_id=self.identity.previous_boot_id)
        own = self.membership.boot_id
        await self.identity.remember_boot(own)
        await self.view.wait_for(
            lambda view: any(node.boot_id == own for node in view.nodes()), timeout_ms=10_000
        )
        await create_control_partitions(self.etcd, self.view, "coordinator")
        self.elections = Elections(
            self.etcd,
            self.view,
            self.membership,
            host=self.host,
            reporter=self.log,
            on_fatal=self.refused.append,
        )
        await self.elections.start()
        self.topics = EtcdTopics(
            self.etcd,
            self.view,
            lease=lambda: self.membership.lease,
            clock=RealClock(),
            random_bytes=os.urandom,
        )
        return self

    async def stop(self) -> None:
        await self.elections.stop()
        await self.membership.stop()
        await self._close()

    async def crash(self) -> None:
        """As kill -9: the lease is not given back."""
        await self.elections.stop()
        self.membership._held = None
        await self.membership.stop()
        await self._close()

    async def _close(self) -> None:
        await self.view.stop()
        await self.identity.stop()
        await self.etcd.close()
        self.disk.close()

    def epoch(self, partition: PartitionId) -> int:
        return self.elections.led_epoch(partition)

    @property
    def key(self) -> str:
        return keys.boot_key(self.membership.boot_id)


class Renewing:
    """What a lease thread calls; it gets nothing through while its process is stuck."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._real = process.etcd.renewals()

    def keep_alive(self, lease: int, timeout_ms: int) -> int:
        if self._process.is_stuck:
            raise EtcdUnavailable("stuck")
        return self._real.keep_alive(lease, timeout_ms)

    def close(self) -> None:
        self._real.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await story()

    asyncio.run(bounded())


def test_a_process_leads_restarts_and_leads_a_later_epoch(
    server: EmbeddedEtcd, tmp_path: Path
) -> None:
    async def story() -> None:
        first = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        info = await first.topics.create("orders", 120, 1, {})
        p119 = PartitionId(info.topic_id, 119)
        await until(lambda: len(first.elections.led()) == 120 + 16)
        await first.crash()
        again = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        # The dead boot's key was removed, so no lease had to end.
        await until(lambda: again.epoch(p119) == 2)
        await again.topics.delete("orders")
        await until(lambda: len(again.elections.led()) == 16)
        await again.stop()

    run(story)


def test_a_restart_of_etcd_costs_no_leadership(server: EmbeddedEtcd, tmp_path: Path) -> None:
    async def story() -> None:
        process = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        await until(lambda: len(process.elections.led()) == 16)
        server.kill()
        await until(lambda: not process.membership.valid())
        await until(lambda: not process.view.reachable)
        await asyncio.to_thread(server.start)
        await until(process.membership.valid)
        await until(lambda: process.view.reachable)
        await process.topics.create("after", 1, 1, {})
        await until(lambda: len(process.elections.led()) == 17)
        assert process.membership.lost == 0, "etcd kept the lease over its restart"
        assert not [told for told in process.host.told if told[0] == "deposed"]
        assert process.refused == []
        await process.stop()

    run(story)


def test_i18_valid_ends_before_a_real_etcd_ends_the_lease(
    server: EmbeddedEtcd, tmp_path: Path
) -> None:
    async def story() -> None:
        stuck = await Process(server.endpoint, tmp_path / "n1", "n1", renew=False).start()
        watcher = EtcdClient([server.endpoint])
        # Looked at in this order: while the key is seen gone, valid must have been false before.
        while True:
            valid = stuck.membership.valid()
            found, _ = await watcher.get(stuck.key)
            assert found is not None or not valid
            if found is None:
                break
            await asyncio.sleep(0.01)
        await until(lambda: stuck.membership.lost >= 1)
        await until(lambda: stuck.epoch(stuck.view.replicas_on("n1")[0]) == 1)
        await watcher.close()
        await stuck.stop()

    run(story)


def test_another_node_takes_over_and_the_paused_one_learns_of_it(
    server: EmbeddedEtcd, tmp_path: Path
) -> None:
    async def story() -> None:
        stuck = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        info = await stuck.topics.create("orders", 1, 1, {})
        partition = PartitionId(info.topic_id, 0)
        await until(lambda: stuck.epoch(partition) >= 1)
        other = Process(server.endpoint, tmp_path / "n2", "n2")
        other.host.default = stuck.host.default
        await other.start()
        found, _ = await stuck.etcd.get(keys.partition_key(partition))
        assert found is not None
        epoch = keys.decode_partition(found.value).epoch
        await _assign(stuck.etcd, partition, "n1", "n2")
        stuck.is_stuck = True
        await until(lambda: other.epoch(partition) > epoch)
        await until(lambda: stuck.epoch(partition) == 0)
        await other.stop()
        await stuck.stop()

    run(story)


async def _assign(etcd: EtcdClient, partition: PartitionId, *nodes: str) -> None:
    while True:
        found, _ = await etcd.get(keys.partition_key(partition))
        assert found is not None
        state = msgspec.structs.replace(keys.decode_partition(found.value), replicas=nodes)
        put = Put(found.key, keys.encode(state))
        if (await etcd.txn([Compare(found.key, found.mod_revision)], [put])).succeeded:
            return


def test_a_frozen_etcd_is_survived(server: EmbeddedEtcd, tmp_path: Path) -> None:
    async def story() -> None:
        process = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        await until(lambda: len(process.elections.led()) == 16)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await until(lambda: not process.membership.valid())
            await until(lambda: not process.view.reachable)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until(process.membership.valid)
        await until(lambda: process.view.reachable)
        await until(lambda: len(process.elections.led()) == 16)
        await process.stop()

    run(story)


def test_an_etcd_that_was_wiped_is_refused_while_running_and_at_start(
    server: EmbeddedEtcd, tmp_path: Path
) -> None:
    async def story() -> None:
        process = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        server.kill()
        (server.data_dir / "member").rename(tmp_path / "lost")
        await asyncio.to_thread(server.start)
        await until(lambda: process.refused)
        assert "oncelog cluster recover" in str(process.refused[0])
        await process.stop()
        with pytest.raises(EtcdRefused, match="this data directory belongs to"):
            await Process(server.endpoint, tmp_path / "n1", "n1").start()
        # The old etcd comes back, and all is well.
        server.kill()
        (server.data_dir / "member").rename(tmp_path / "wrong")
        (tmp_path / "lost").rename(server.data_dir / "member")
        await asyncio.to_thread(server.start)
        again = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        await until(lambda: len(again.elections.led()) == 16)
        await again.stop()

    run(story)


def test_compaction_under_a_view_makes_it_list_again(server: EmbeddedEtcd, tmp_path: Path) -> None:
    async def story() -> None:
        process = await Process(server.endpoint, tmp_path / "n1", "n1").start()
        lagging = ClusterView(process.etcd, cluster_id=process.view.cluster_id)
        await lagging._list_until_answered()
        await process.topics.create("a", 1, 1, {})
        await process.topics.create("b", 1, 1, {})
        await process.topics.delete("a")
        _, revision = await process.etcd.get(keys.CLUSTER)
        await process.etcd.compact(revision)
        assert lagging.topic("b") is None
        following = asyncio.create_task(lagging._follow())
        await until(lambda: lagging.topic("b"))
        assert lagging.topic("a") is None
        await process.topics.create("c", 1, 1, {})
        await until(lambda: lagging.topic("c"))
        following.cancel()
        await process.stop()

    run(story)
