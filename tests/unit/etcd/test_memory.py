"""The in-memory etcd means what etcd means: revisions, compare-and-set, leases, watches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from oncelog_server.runtime.etcd.memory import MemoryEtcd, MemoryEtcdServer
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    EtcdCompacted,
    EtcdLeaseGone,
    EtcdUnavailable,
    Exists,
    Put,
    WatchEvent,
)
from tests.unit.etcd.world import World


def test_a_failed_compare_changes_nothing_and_takes_no_revision(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        first = await etcd.txn([Compare("a", 0)], [Put("a", b"1")])
        assert first.succeeded
        refused = (False, first.revision)
        assert await etcd.txn([Compare("a", 0)], [Put("a", b"2")]) == refused
        same = Compare("a", first.revision)
        assert await etcd.txn([same, Exists("b")], [Put("a", b"2")]) == refused
        assert await etcd.get("a") == (("a", b"1", first.revision), first.revision)

    world.run(story)


def test_deleting_what_is_absent_takes_no_revision(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        assert await etcd.txn([], [Delete("a")]) == (True, 1)

    world.run(story)


def test_a_key_may_change_once_in_a_transaction(world: World) -> None:
    async def story() -> None:
        with pytest.raises(ValueError, match="only once"):
            await MemoryEtcd(world.server).txn([], [Put("a", b"1"), Delete("a")])

    world.run(story)


def test_a_lease_takes_its_keys_along_when_its_time_is_over(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        lease = await etcd.grant_lease(5_000)
        await etcd.txn([], [Put("a", b"1", lease), Put("b", b"2", lease), Put("c", b"3")])
        await asyncio.sleep(4)
        assert await etcd.keep_alive(lease) == 5_000
        await asyncio.sleep(4.9)
        assert [kv.key for kv in (await etcd.range(""))[0]] == ["a", "b", "c"]
        await asyncio.sleep(0.2)
        assert [kv.key for kv in (await etcd.range(""))[0]] == ["c"]
        assert await etcd.keep_alive(lease) == 0
        with pytest.raises(EtcdLeaseGone):
            await etcd.txn([], [Put("a", b"1", lease)])

    world.run(story)


def test_a_key_put_again_under_another_lease_leaves_the_first(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        first, second = await etcd.grant_lease(5_000), await etcd.grant_lease(50_000)
        await etcd.txn([], [Put("a", b"1", first)])
        await etcd.txn([], [Put("a", b"2", second)])
        world.server.expire(first)
        found, _ = await etcd.get("a")
        assert found is not None
        assert found.value == b"2"

    world.run(story)


def test_a_watch_gives_each_revision_once_and_in_order_over_an_outage(world: World) -> None:
    async def story() -> None:
        etcd, other = MemoryEtcd(world.server), MemoryEtcd(world.server)
        seen: list[list[WatchEvent]] = []

        async def follow() -> None:
            async for batch in etcd.watch("k/", 2):
                seen.append(list(batch))

        task = asyncio.create_task(follow())
        await other.txn([], [Put("k/a", b"1"), Put("k/b", b"2"), Put("other", b"x")])
        await asyncio.sleep(1)
        etcd.unavailable = True
        await other.txn([], [Put("k/a", b"3")])
        await other.txn([], [Delete("k/b")])
        await asyncio.sleep(1)
        assert len(seen) == 1
        etcd.unavailable = False
        await asyncio.sleep(1)
        task.cancel()
        assert seen == [
            [("k/a", b"1", 2), ("k/b", b"2", 2)],
            [("k/a", b"3", 3)],
            [("k/b", None, 4)],
        ]

    world.run(story)


def test_a_watch_below_the_compacted_revision_says_so(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        for value in (b"1", b"2", b"3"):
            await etcd.txn([], [Put("a", value)])
        world.server.compact(3)
        with pytest.raises(EtcdCompacted):
            await anext(aiter(etcd.watch("", 3)))
        assert await anext(aiter(etcd.watch("", 4))) == [("a", b"3", 4)]

    world.run(story)


def test_the_compacted_revision_can_still_be_read_whatever_was_written_since(world: World) -> None:
    """A process that starts reads there what it has seen: etcd keeps, of each key, what stood."""

    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        for value in (b"1", b"2"):
            await etcd.txn([], [Put("a", value), Put("b", value)])
        world.server.compact(3)
        await etcd.txn([], [Put("a", b"3"), Delete("b")])
        world.server.compact(3)
        with pytest.raises(EtcdCompacted):
            await etcd.get_at("a", 2)
        assert await etcd.get_at("a", 3) == ("a", b"2", 3)
        assert await etcd.get_at("b", 3) == ("b", b"2", 3)
        world.server.compact(4)
        assert await etcd.get_at("a", 4) == ("a", b"3", 4)
        assert await etcd.get_at("b", 4) is None

    world.run(story)


def test_faults_are_seen_as_unavailable_whatever_happened(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        etcd.drop_next_txn_reply()
        with pytest.raises(EtcdUnavailable):
            await etcd.txn([], [Put("applied", b"")])
        etcd.hold_next_txn()
        with pytest.raises(EtcdUnavailable):
            await etcd.txn([], [Put("delayed", b"")])
        assert [kv.key for kv in (await etcd.range(""))[0]] == ["applied"]
        etcd.release_held_txns()
        assert [kv.key for kv in (await etcd.range(""))[0]] == ["applied", "delayed"]
        etcd.unavailable = True
        with pytest.raises(EtcdUnavailable):
            await etcd.get("applied")

    world.run(story)


def test_the_same_story_gives_the_same_answers() -> None:
    def tell() -> list[object]:
        world = World()

        async def story() -> list[object]:
            etcd = MemoryEtcd(world.server, latency_ms=3)
            lease = await etcd.grant_lease(1_000)
            await etcd.txn([], [Put("b", b"", lease), Put("a", b"")])
            await asyncio.sleep(2)
            return [*(await etcd.range("")), world.server.revision, lease]

        return world.run(story)

    assert tell() == tell()


def test_a_wiped_store_has_lost_its_revisions_too() -> None:
    async def story() -> None:
        server = MemoryEtcdServer()
        etcd = MemoryEtcd(server)
        await etcd.txn([], [Put("a", b"")])
        server.wipe(cluster_id=7)
        assert await etcd.range("") == ([], 1)
        assert await etcd.etcd_cluster_id() == 7

    World().run(story)


def test_a_stale_watch_tells_late_and_in_order_while_everything_else_is_answered(
    world: World,
) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        seen: list[Sequence[WatchEvent]] = []
        etcd.stale = True
        watching = asyncio.create_task(_collect(etcd, seen))
        for number in range(3):
            await etcd.txn([], [Put("a", b"%d" % number)])
        await asyncio.sleep(1)
        assert seen == []
        found, _ = await etcd.get("a")
        assert found is not None
        assert found.value == b"2"
        etcd.stale = False
        await asyncio.sleep(1)
        assert [event.value for batch in seen for event in batch] == [b"0", b"1", b"2"]
        etcd.break_watches()
        with pytest.raises(EtcdUnavailable, match="the watch broke"):
            await watching

    world.run(story)


def test_a_gap_in_a_stale_watch_is_told_as_compaction(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        etcd.stale = True
        watching = asyncio.create_task(_collect(etcd, []))
        await etcd.txn([], [Put("a", b"1")])
        await asyncio.sleep(1)
        world.server.compact(world.server.revision)
        etcd.stale = False
        with pytest.raises(EtcdCompacted):
            await watching

    world.run(story)


def test_a_lease_whose_keep_alives_are_lost_runs_out(world: World) -> None:
    async def story() -> None:
        etcd = MemoryEtcd(world.server)
        lease = await etcd.grant_lease(5_000)
        await etcd.txn([], [Put("a", b"1", lease)])
        await asyncio.sleep(4)
        etcd.keep_alives_lost = True
        with pytest.raises(EtcdUnavailable, match="never arrived"):
            await etcd.keep_alive(lease)
        assert (await etcd.get("a"))[0] is not None
        await asyncio.sleep(2)
        assert (await etcd.get("a"))[0] is None

    world.run(story)


async def _collect(etcd: MemoryEtcd, seen: list[Sequence[WatchEvent]]) -> None:
    async for batch in etcd.watch("", 1 + etcd.server.revision):
        seen.append(batch)
