"""Whose etcd this is: what a data directory remembers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from oncelog_server.core.ids import BootId
from oncelog_server.runtime.etcd.identity import (
    FILE,
    REMEMBER_EVERY_MS,
    ClusterIdentity,
    ClusterSettings,
    Offload,
)
from oncelog_server.runtime.etcd.keys import CLUSTER, ClusterValue, encode
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.port import Compare, Delete, KeyValue, Put
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.storage.disk import RealDisk
from tests.unit.etcd.world import World, loop_ms


class CountedDisk(RealDisk):
    """How often the file is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.replaced = 0

    def replace_file(self, path: str, data: bytes) -> None:
        self.replaced += 1
        super().replace_file(path, data)


async def at_once(work: Callable[[], None]) -> None:
    work()


def never() -> None:
    raise AssertionError("it is no older state of itself")


def identity(
    disk: RealDisk,
    etcd: MemoryEtcd,
    seed: bytes = b"1",
    on_older: Callable[[], None] = never,
    offload: Offload = at_once,
) -> ClusterIdentity:
    return ClusterIdentity(
        disk,
        etcd,
        node_id="node",
        on_older=on_older,
        random_bytes=lambda size: seed * size,
        offload=offload,
        now_ms=loop_ms,
    )


def test_the_first_process_founds_the_cluster_and_later_ones_find_it(
    world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        first = await identity(RealDisk(tmp_path / "1"), etcd, b"1").join(
            ClusterSettings(lease_ms=7_000)
        )
        second = await identity(RealDisk(tmp_path / "2"), etcd, b"2").join(ClusterSettings())
        assert first == second
        assert (second.lease_ms, len(second.cluster_id)) == (7_000, 16)

    world.run(story)


def test_a_founder_whose_answer_was_lost_founds_on_the_next_try(
    world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        one = identity(RealDisk(tmp_path), etcd)
        etcd.drop_next_txn_reply()
        with pytest.raises(Exception, match="lost"):
            await one.join(ClusterSettings())
        assert (await one.join(ClusterSettings())).cluster_id

    world.run(story)


Change = Callable[[World], None]


def other_cluster(world: World) -> None:
    value = ClusterValue("ab" * 16, 16, 16, 1, 5_000)
    world.server.txn([], [Put(CLUSTER, encode(value))])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda world: setattr(world.server, "cluster_id", 99), "this data directory belongs to"),
        (lambda world: world.server.wipe(), "revision"),
        (lambda world: world.server.wipe(cluster_id=99), "this data directory belongs to"),
        (lambda world: world.server.txn([], [Delete(CLUSTER)]), "no cluster record"),
        (other_cluster, "etcd belongs to cluster abab"),
    ],
)
def test_another_etcd_is_refused_and_the_way_out_is_named(
    world: World, tmp_path: Path, change: Change, says: str
) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        await identity(RealDisk(tmp_path), etcd).join(ClusterSettings())
        change(world)
        with pytest.raises(EtcdRefused, match=says) as refused:
            await identity(RealDisk(tmp_path), etcd).join(ClusterSettings())
        assert "`oncelog cluster recover --data DIR --etcd HOST:PORT`" in str(refused.value)

    world.run(story)


def test_a_restored_etcd_is_refused_by_its_lower_revision(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), RealDisk(tmp_path)
        own = identity(disk, etcd)
        await own.join(ClusterSettings())
        backup, _ = await etcd.get(CLUSTER)
        assert backup is not None
        for number in range(10):
            await etcd.txn([], [Put("x", b"%d" % number)])
        own.observe(*await etcd.get(CLUSTER), at_least=own.revision)
        await own.stop()
        world.server.wipe()
        world.server.txn([Compare(CLUSTER, 0)], [Put(CLUSTER, backup.value)])
        with pytest.raises(EtcdRefused, match="has seen 12"):
            own.observe(*await etcd.get(CLUSTER), at_least=own.revision)
        with pytest.raises(EtcdRefused, match="has seen 12"):
            await identity(disk, etcd).join(ClusterSettings())

    world.run(story)


def test_revisions_are_written_at_most_once_a_second_and_at_the_end(
    world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), CountedDisk(tmp_path)
        own = identity(disk, etcd)
        await own.join(ClusterSettings())
        before, started_ms = disk.replaced, loop_ms()
        for revision in range(100, 300):
            own.saw(revision)
            await asyncio.sleep(0.05)
        seconds = (loop_ms() - started_ms) // REMEMBER_EVERY_MS
        assert 1 <= disk.replaced - before <= seconds + 1
        await own.stop()
        assert json.loads((tmp_path / FILE).read_text())["revision"] == 299
        written = disk.replaced
        own.saw(299)
        await own.stop()
        assert disk.replaced == written, "nothing new, nothing written"

    world.run(story)


def test_the_previous_boot_is_remembered(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        first = identity(RealDisk(tmp_path), etcd)
        assert first.previous_boot_id is None
        await first.join(ClusterSettings())
        await first.remember_boot(BootId(b"b" * 16))
        assert identity(RealDisk(tmp_path), etcd).previous_boot_id == b"b" * 16

    world.run(story)


def test_writes_of_the_memory_never_overlap_and_lose_nothing(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd, disk, writing = MemoryEtcd(world.server), RealDisk(tmp_path), 0

        async def slowly(work: Callable[[], None]) -> None:
            nonlocal writing
            writing += 1
            assert writing == 1, "two writers of one file"
            await asyncio.sleep(5)
            work()
            writing -= 1

        for boot in (b"1", b"2"):
            own = identity(disk, etcd, offload=slowly)
            # A restart judges etcd, which remembers the revision in the background, and joins.
            joining = asyncio.create_task(own.join(ClusterSettings()))
            await asyncio.sleep(1)
            await etcd.txn([], [Put("x", boot)])
            await joining
            own.observe(*await etcd.get(CLUSTER), at_least=own.revision)
            await own.remember_boot(BootId(boot * 16))
            await own.stop()
            kept = json.loads((tmp_path / FILE).read_text())
            assert (kept["revision"], kept["boot_id"]) == (world.server.revision, boot.hex() * 16)

    world.run(story)


def test_a_damaged_memory_is_named(world: World, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ValueError, match=FILE):
        identity(RealDisk(tmp_path), MemoryEtcd(world.server))


def test_a_cluster_of_another_layout_is_refused(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        value = ClusterValue("ab" * 16, 32, 16, 1, 5_000)
        world.server.txn([], [Put(CLUSTER, encode(value))])
        with pytest.raises(EtcdRefused, match="control partitions"):
            await identity(RealDisk(tmp_path), MemoryEtcd(world.server)).join(ClusterSettings())

    world.run(story)


@pytest.mark.parametrize(("lease_ms", "isr"), [(999, 1), (60_001, 1), (5_000, 0)])
def test_settings_out_of_range_are_refused(lease_ms: int, isr: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        ClusterSettings(min_insync_replicas=isr, lease_ms=lease_ms).validate()


def test_an_answer_that_the_watch_overtook_is_no_older_etcd(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        own = identity(RealDisk(tmp_path), etcd)
        await own.join(ClusterSettings())
        seen = own.revision
        answer = await etcd.get(CLUSTER)
        written = await etcd.txn([], [Put("topics/meanwhile", b"1")])
        own.witness(KeyValue("topics/meanwhile", b"1", written.revision))
        own.observe(*answer, at_least=seen)
        assert own.revision == written.revision
        await own.stop()

    world.run(story)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_restored_etcd_is_refused_though_it_is_past_the_revision_that_was_seen(
    world: World, tmp_path: Path, compacted: bool
) -> None:
    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), RealDisk(tmp_path)
        own = identity(disk, etcd)
        await own.join(ClusterSettings())
        record, _ = await etcd.get(CLUSTER)
        assert record is not None
        written = await etcd.txn([], [Put("topics/later", b"1")])
        own.witness(KeyValue("topics/later", b"1", written.revision))
        own.observe(*await etcd.get(CLUSTER), at_least=own.revision)
        await own.stop()
        # As it is: nothing to say against it, also when others have gone on.
        await etcd.txn([], [Delete("topics/later")])
        await identity(disk, etcd).join(ClusterSettings())
        # Restored without that key, and then others write to it.
        world.server.wipe()
        await etcd.txn([], [Put(CLUSTER, record.value)])
        for number in range(9):
            await etcd.txn([], [Put("x", b"%d" % number)])
        if compacted:
            # Nobody can tell any more.
            world.server.compact(world.server.revision)
            await identity(disk, etcd).join(ClusterSettings())
            return
        with pytest.raises(EtcdRefused, match="another history"):
            await identity(disk, etcd).join(ClusterSettings())

    world.run(story)


@pytest.mark.parametrize("stands", ["older", "otherwise", "newer"])
def test_a_restored_etcd_that_was_compacted_is_refused_by_the_key_that_stands(
    world: World, tmp_path: Path, stands: str
) -> None:
    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), RealDisk(tmp_path)
        own = identity(disk, etcd)
        await own.join(ClusterSettings())
        await etcd.txn([], [Put("x", b"1")])
        backup = world.server.backup()
        for _ in range(3):
            await etcd.txn([], [Put("y", b"1")])
        written = await etcd.txn([], [Put("x", b"2")])
        own.witness(KeyValue("x", b"2", written.revision))
        await own.stop()
        world.server.restore(backup)
        while world.server.revision < written.revision - 1:
            await etcd.txn([], [Put("z", b"1")])
        await etcd.txn([], [Put("z" if stands == "older" else "x", b"3")])
        await etcd.txn([], [Put("x" if stands == "newer" else "z", b"4")])
        world.server.compact(world.server.revision)
        if stands == "newer":
            # Nobody can tell any more.
            await identity(disk, etcd).join(ClusterSettings())
            return
        with pytest.raises(EtcdRefused, match="another history"):
            await identity(disk, etcd).join(ClusterSettings())

    world.run(story)


@pytest.mark.parametrize("now", [1, 3])
def test_another_recovery_than_the_directory_knows_is_refused(
    world: World, tmp_path: Path, now: int
) -> None:
    async def story() -> None:
        etcd, disk = MemoryEtcd(world.server), RealDisk(tmp_path)
        value = ClusterValue("ab" * 16, 16, 16, 1, 5_000, recovery=2)
        await etcd.txn([], [Put(CLUSTER, encode(value))])
        own = identity(disk, etcd)
        await own.join(ClusterSettings())
        changed = msgspec.structs.replace(value, recovery=now)
        await etcd.txn([], [Put(CLUSTER, encode(changed))])
        with pytest.raises(EtcdRefused, match=f"recovery {now} of this cluster"):
            own.observe(*await etcd.get(CLUSTER), at_least=own.revision)
        with pytest.raises(EtcdRefused, match="of recovery 2"):
            await identity(disk, etcd).join(ClusterSettings())

    world.run(story)


def test_what_could_not_be_written_is_written_later(world: World, tmp_path: Path) -> None:
    async def story() -> None:
        etcd, full = MemoryEtcd(world.server), False

        async def offload(work: Callable[[], None]) -> None:
            if full:
                raise OSError(28, "no space")
            work()

        own = identity(RealDisk(tmp_path), etcd, offload=offload)
        await own.join(ClusterSettings())
        await asyncio.sleep(2)
        full = True
        written = await etcd.txn([], [Put("x", b"1")])
        own.saw(written.revision)
        await asyncio.sleep(2)
        full = False
        await own.stop()
        assert json.loads((tmp_path / FILE).read_text())["revision"] == written.revision

    world.run(story)


class FullDisk(RealDisk):
    """Takes no writes while `full`."""

    full = True

    def replace_file(self, path: str, data: bytes) -> None:
        if self.full:
            raise OSError(28, "no space")
        super().replace_file(path, data)


def test_i28_a_process_that_starts_on_a_full_disk_joins_all_the_same(
    world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        with pytest.raises(OSError, match="no space"):
            await identity(FullDisk(tmp_path), etcd).join(ClusterSettings())
        await identity(RealDisk(tmp_path), etcd).join(ClusterSettings())
        disk = FullDisk(tmp_path)
        again = identity(disk, etcd)
        await again.join(ClusterSettings())
        await again.remember_boot(BootId(b"b" * 16))
        assert identity(disk, etcd).previous_boot_id is None
        disk.full = False
        await again.stop()
        assert identity(disk, etcd).previous_boot_id == b"b" * 16

    world.run(story)
