"""The client against a real etcd: what it promises over restarts, compaction, dead endpoints."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from oncelog_server.runtime.etcd import client as client_module
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd, find_or_build
from oncelog_server.runtime.etcd.endpoints import EtcdTls, parse_endpoints
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    DeletePrefix,
    Etcd,
    EtcdCompacted,
    EtcdLeaseGone,
    EtcdUnavailable,
    Exists,
    Put,
    WatchEvent,
)
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.loopback_ports import free_ports
from tests.integration.etcd_cluster import Authority, etcd_with_tls, until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def binary() -> Path:
    return find_or_build(print)


@pytest.fixture(scope="module")
def shared(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    """For tests that leave it running; each uses a prefix of its own."""
    etcd = EmbeddedEtcd(tmp_path_factory.mktemp("etcd"), binary)
    etcd.start()
    yield etcd
    etcd.stop()


@pytest.fixture
def own(binary: Path, tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    """For tests that stop and kill it."""
    etcd = EmbeddedEtcd(tmp_path / "etcd", binary)
    etcd.start()
    yield etcd
    etcd.stop()


def run(
    story: Callable[[EtcdClient], Awaitable[None]],
    *endpoints: str,
    prefix: str = "/test/",
    tls: EtcdTls | None = None,
) -> None:
    async def with_client() -> None:
        client = EtcdClient(endpoints, prefix=prefix, tls=tls)
        try:
            async with asyncio.timeout(60):
                await story(client)
        finally:
            await client.close()

    asyncio.run(with_client())


async def follow(etcd: Etcd, revision: int, seen: list[WatchEvent]) -> None:
    async for batch in etcd.watch("", revision):
        assert len({event.mod_revision for event in batch}) == 1, "one batch per revision"
        seen.extend(batch)


async def same_story(etcd: Etcd, base: int) -> list[object]:
    """What both etcds must answer alike; revisions relative to the first."""
    told: list[object] = []
    first = await etcd.txn([Compare("a", 0)], [Put("a", b"1"), Put("b", b"2")])
    told.append((first.succeeded, first.revision - base))
    for compares in (
        [Compare("a", 0)],
        [Compare("a", first.revision), Exists("c")],
        [Compare("a", first.revision), Exists("b")],
    ):
        result = await etcd.txn(compares, [Put("c", b"3")])  # type: ignore[arg-type]
        told.append((result.succeeded, result.revision - base))
    lease = await etcd.grant_lease(60_000)
    await etcd.txn([], [Put("leased", b"", lease), Delete("absent")])
    await etcd.txn([], [Put("many/1", b""), Put("many/2", b""), Put("manyfold", b"")])
    result = await etcd.txn([], [DeletePrefix("many/"), DeletePrefix("none/"), Put("d", b"4")])
    told.append((result.revision - base, [kv.key for kv in (await etcd.range(""))[0]]))
    told.append(await etcd.keep_alive(lease))
    await etcd.revoke_lease(lease)
    await etcd.revoke_lease(lease)
    told.append(await etcd.keep_alive(lease))
    try:
        await etcd.txn([], [Put("leased", b"", lease)])
    except EtcdLeaseGone:
        told.append("lease gone")
    listed, revision = await etcd.range("")
    told.append([(kv.key, kv.value, kv.mod_revision - base) for kv in listed])
    told.append(revision - base)
    missing, revision = await etcd.get("absent")
    told.append((missing, revision - base))
    seen: list[WatchEvent] = []
    watching = asyncio.create_task(follow(etcd, base + 1, seen))
    await until(lambda: len(seen) >= 11)
    watching.cancel()
    told.extend((event.key, event.value, event.mod_revision - base) for event in seen)
    return told


def test_the_in_memory_etcd_means_the_same_as_the_real_one(shared: EmbeddedEtcd) -> None:
    memory: list[object] = []
    real: list[object] = []

    async def in_memory() -> None:
        memory.extend(await same_story(MemoryEtcd(), 1))

    async def in_etcd(client: EtcdClient) -> None:
        _, base = await client.get("")
        real.extend(await same_story(client, base))

    asyncio.run(in_memory())
    run(in_etcd, shared.endpoint, prefix="/same/")
    assert real == memory


def test_a_range_longer_than_a_page_is_of_one_revision(
    shared: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE_KEYS", 7)

    async def story(client: EtcdClient) -> None:
        await client.txn([], [Put(f"p/{number:03}", b"x") for number in range(100)])
        await client.txn([], [Put("q", b"not asked for")])
        listed, _ = await client.range("p/")
        assert [kv.key for kv in listed] == [f"p/{number:03}" for number in range(100)]

    run(story, shared.endpoint, prefix="/pages/")


def test_a_request_that_etcd_cannot_take_is_a_programming_error(shared: EmbeddedEtcd) -> None:
    async def story(client: EtcdClient) -> None:
        with pytest.raises(ValueError, match="duplicate key"):
            await client.txn([], [Put("a", b"1"), Put("a", b"2")])
        with pytest.raises(ValueError, match="more than 128"):
            await client.txn([], [Put(str(number), b"") for number in range(129)])

    run(story, shared.endpoint)


def test_a_watch_goes_on_over_a_kill_of_etcd_and_misses_nothing(own: EmbeddedEtcd) -> None:
    async def story(client: EtcdClient) -> None:
        _, base = await client.get("")
        seen: list[WatchEvent] = []
        watching = asyncio.create_task(follow(client, base + 1, seen))
        await client.txn([], [Put("a", b"1")])
        await until(lambda: len(seen) == 1)
        own.kill()
        with pytest.raises(EtcdUnavailable):
            await client.txn([], [Put("a", b"never sent")])
        endpoint = own.endpoint
        await asyncio.to_thread(own.start)
        assert own.endpoint == endpoint, "it keeps its port"
        for number in range(2, 6):
            await client.txn([], [Put("a", b"%d" % number)])
        await client.txn([], [Delete("a")])
        await until(lambda: len(seen) == 6)
        assert not watching.done()
        watching.cancel()
        assert [event.value for event in seen] == [b"1", b"2", b"3", b"4", b"5", None]
        assert [event.mod_revision for event in seen] == list(range(base + 1, base + 7))

    run(story, own.endpoint)


@pytest.mark.parametrize("prefix", ["/test/", "/somebody/else/"])
def test_a_restored_etcd_is_refused_by_a_watch_though_it_is_past_that_revision_again(
    own: EmbeddedEtcd, tmp_path: Path, prefix: str
) -> None:
    """Revisions alone do not tell: others may have written to it before this process looks."""

    async def story(etcd: EtcdClient) -> None:
        await etcd.txn([], [Put("old", b"1")])
        own.stop()
        shutil.copytree(own.data_dir / "member", tmp_path / "copy")
        own.start()
        _, revision = await etcd.get("old")
        seen: list[WatchEvent] = []
        watching = asyncio.create_task(follow(etcd, revision + 1, seen))
        await etcd.txn([], [Put("acknowledged", b"1")])
        await until(lambda: seen)
        own.stop()
        shutil.rmtree(own.data_dir / "member")
        shutil.copytree(tmp_path / "copy", own.data_dir / "member")
        own.start()
        other = EtcdClient([own.endpoint], prefix=prefix)
        for _ in range(3):
            await other.txn([], [Put("another", b"1")])
        await other.close()
        with pytest.raises(EtcdRefused, match="another history"):
            await watching
        assert [event.key for event in seen] == ["acknowledged"]

    run(story, own.endpoint)


def test_a_frozen_etcd_is_unavailable_within_the_deadline_and_comes_back(
    own: EmbeddedEtcd,
) -> None:
    async def story(client: EtcdClient) -> None:
        await client.txn([], [Put("a", b"1")])
        assert own.pid is not None
        os.kill(own.pid, signal.SIGSTOP)
        try:
            # One answer may come before the signal has reached all of its threads.
            with pytest.raises(EtcdUnavailable):
                for _ in range(1_000):
                    await client.get("a")
        finally:
            os.kill(own.pid, signal.SIGCONT)
        found = None
        while found is None:
            try:
                found, _ = await client.get("a")
            except EtcdUnavailable:
                continue
        assert found.value == b"1"

    run(story, own.endpoint)


def test_compaction_under_a_watch(own: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WATCH_QUIET_MS", 100)

    async def story(client: EtcdClient) -> None:
        _, base = await client.get("")
        for number in range(5):
            last = await client.txn([], [Put("a", b"%d" % number)])
        await client.compact(last.revision)
        with pytest.raises(EtcdCompacted):
            await anext(aiter(client.watch("", base + 1)))
        # A running watch is not hurt, and one that was quiet neither: progress carries it on.
        seen: list[WatchEvent] = []
        watching = asyncio.create_task(follow(client, last.revision + 1, seen))
        other = EtcdClient([own.endpoint], prefix="/other/")
        for number in range(5):
            elsewhere = await other.txn([], [Put("b", b"%d" % number)])
        # Time for many questions about progress.
        await asyncio.sleep(2)
        own.kill()
        await asyncio.to_thread(own.start)
        await other.compact(elsewhere.revision)
        await other.close()
        await client.txn([], [Put("a", b"after")])
        await until(lambda: seen or watching.done())
        assert [event.value for event in seen] == [b"after"]
        assert not watching.done() or watching.exception() is None
        watching.cancel()

    run(story, own.endpoint)


def test_of_several_endpoints_one_may_be_dead(shared: EmbeddedEtcd) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"

    async def story(client: EtcdClient) -> None:
        # Nothing could be sent to the dead one, so not even a transaction is in doubt.
        result = await client.txn([], [Put("a", b"1")])
        seen: list[WatchEvent] = []
        watching = asyncio.create_task(follow(client, result.revision, seen))
        await until(lambda: seen)
        assert not watching.done() or watching.exception() is None
        watching.cancel()
        lease = await client.grant_lease(10_000)
        assert await client.keep_alive(lease) > 0
        renewals = client.renewals()
        lived = 0
        for _ in range(3):
            try:
                lived += await asyncio.to_thread(renewals.keep_alive, lease, 1_000) > 0
            except EtcdUnavailable:
                continue
        assert lived >= 1, "it goes to the next endpoint after a failure"
        renewals.close()

    run(story, dead, shared.endpoint, prefix="/dead-first/")
    run(story, shared.endpoint, dead, prefix="/dead-last/")


def test_without_any_endpoint_nothing_hangs() -> None:
    async def story(client: EtcdClient) -> None:
        with pytest.raises(EtcdUnavailable, match="no etcd endpoint answers"):
            await client.get("a")
        with pytest.raises(EtcdUnavailable):
            await client.txn([], [Put("a", b"")])

    run(story, *(f"127.0.0.1:{port}" for port in free_ports(2)))


def test_tls_with_client_certificates(binary: Path, tmp_path: Path) -> None:
    authority, stranger = Authority.make(), Authority.make()

    async def works(client: EtcdClient) -> None:
        found = None
        while found is None:
            try:
                await client.txn([], [Put("a", b"secret")])
                found, _ = await client.get("a")
            except EtcdUnavailable:
                # It comes up.
                await asyncio.sleep(0.1)
        assert found.value == b"secret"
        lease = await client.grant_lease(10_000)
        renewals = client.renewals()
        assert await asyncio.to_thread(renewals.keep_alive, lease, 5_000) > 0
        renewals.close()

    async def is_refused(client: EtcdClient) -> None:
        with pytest.raises(EtcdUnavailable):
            await client.get("a")

    with etcd_with_tls(binary, tmp_path, authority) as endpoint:
        run(works, endpoint, tls=authority.tls("oncelog"))
        run(is_refused, endpoint, tls=authority.tls(None))
        run(is_refused, endpoint, tls=stranger.tls("oncelog"))
        run(is_refused, endpoint.removeprefix("https://"))


def test_certificates_are_renewed_under_a_watch_and_a_lease(binary: Path, tmp_path: Path) -> None:
    """That the new ones are used is shown by a pair that etcd does not take."""
    authority, stranger = Authority.make(), Authority.make()

    async def story(client: EtcdClient) -> None:
        async def put(value: bytes) -> None:
            while True:
                try:
                    await client.txn([], [Put("a", value)])
                    return
                except EtcdUnavailable:
                    await asyncio.sleep(0.1)

        await put(b"0")
        _, revision = await client.get("a")
        seen: list[bytes | None] = []

        async def follow() -> None:
            async for batch in client.watch("", revision):
                seen.extend(event.value for event in batch)

        watching = asyncio.create_task(follow())
        lease = await client.grant_lease(60_000)
        renewals = client.renewals()
        assert await asyncio.to_thread(renewals.keep_alive, lease, 5_000) > 0
        client.renew_tls(authority.tls("renewed"))
        await put(b"1")
        assert await asyncio.to_thread(renewals.keep_alive, lease, 5_000) > 0
        await until(lambda: seen == [b"0", b"1"])
        client.renew_tls(stranger.tls("stranger"))
        with pytest.raises(EtcdUnavailable):
            await client.get("a")
        with pytest.raises(EtcdUnavailable):
            await asyncio.to_thread(renewals.keep_alive, lease, 1_000)
        client.renew_tls(authority.tls("again"))
        # Past the time at which the first connections are closed.
        await asyncio.sleep(
            (client_module.CALL_TIMEOUT_MS + client_module.WATCH_SILENCE_MS) / 1000 + 1
        )
        await put(b"2")
        await until(lambda: seen[-1] == b"2" or watching.done())
        assert seen == [b"0", b"1", b"2"], "nothing is missed, nothing comes twice"
        assert await asyncio.to_thread(renewals.keep_alive, lease, 5_000) > 0
        renewals.close()
        assert not watching.done() or watching.exception() is None
        watching.cancel()

    with etcd_with_tls(binary, tmp_path, authority) as endpoint:
        run(story, endpoint, tls=authority.tls("oncelog"))


@pytest.mark.parametrize(
    ("endpoints", "tls", "says"),
    [
        ([], None, "1 to 20"),
        (["https://a:1"], None, "needs TLS"),
        (["http://a:1"], EtcdTls(b""), "without TLS"),
        (["a"], None, "not host:port"),
        (["ftp://a:1"], None, "use http://"),
    ],
)
def test_endpoints_that_make_no_sense_are_refused(
    endpoints: list[str], tls: EtcdTls | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        parse_endpoints(endpoints, tls)


def test_the_stubs_of_etcd_and_ours_live_in_one_process() -> None:
    """pyetcd registers files named rpc.proto and kv.proto in the one pool that protobuf has."""
    code = (
        "import pyetcd.etcdrpc, oncelog_server.runtime.etcd.client\n"
        "from oncelogpb.v1 import cluster_pb2, coordinator_pb2, partition_leader_pb2\n"
        "from grpc_health.v1 import health_pb2\n"
        "from grpc_reflection.v1alpha import reflection_pb2\n"
    )
    for order in (code, "\n".join(reversed(code.splitlines()))):
        subprocess.run([sys.executable, "-W", "error", "-c", order], check=True, timeout=60)
