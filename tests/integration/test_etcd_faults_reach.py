"""One process does not reach etcd, or its lease is ended by hand, while all others go on as ever:
it answers nothing past its own deadline, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import oncelog
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import VISIBLE, ByHand, offset_commit
from tests.integration.cluster import (
    COORDINATOR,
    PARTITION_LEADER,
    ROLES,
    Cluster,
    running,
    until,
)
from tests.integration.proxy import Proxy, Road
from tests.integration.reading import values
from tests.integration.stubs import TIMEOUT_S, Stubs, info_of, produce

pytestmark = pytest.mark.integration

# etcd's answer about a lease that has ended.
LEASE_NOT_FOUND = 404

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def roads(cluster: Cluster) -> Iterator[dict[str, Proxy]]:
    """From each process to etcd."""
    proxies = {role: Proxy(cluster.etcd.endpoint) for role in ROLES}
    for role, proxy in proxies.items():
        proxy.__enter__()
        cluster.of_role[role] = [f"node.etcd_endpoints={proxy.address}"]
    cluster.restart(*ROLES)
    cluster.wait_ready()
    yield proxies
    for proxy in proxies.values():
        proxy.__exit__()


@pytest.fixture
def log(cluster: Cluster) -> Iterator[oncelog.Log]:
    with cluster.connect() as made:
        yield made


@pytest.fixture
def topic(log: oncelog.Log) -> str:
    return log.admin.create_topic(f"topic-{next(_names)}", partitions=2).name


def ask(role: str, stubs: Stubs, partition: pb.Partition) -> str:
    """Something that only a leader may acknowledge, of that process; why it does not, or ""."""
    try:
        if role == PARTITION_LEADER:
            return produce(stubs, partition, b"asked")
        if role == COORDINATOR:
            init = coordinator_pb2.InitProducerRequest(group="cut", instance_id=os.urandom(16))
            stubs.coordinator.InitProducer(init, timeout=TIMEOUT_S)
        else:
            commit = offset_commit(partition, since=None, to=0)
            commit.from_any = True
            offsets = offset_manager_pb2.GroupOffsets(group="cut", offsets=[commit])
            request = offset_manager_pb2.CommitOffsetsRequest(offsets=offsets)
            stubs.offsets.CommitOffsets(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return info_of(error).reason or str(error)
    return ""


@pytest.mark.parametrize(
    ("role", "road"),
    [*((role, Road.SILENT) for role in ROLES), (PARTITION_LEADER, Road.REFUSED)],
)
def test_i18_i29_etcd_is_out_of_reach_for_one_role_alone(
    cluster: Cluster,
    roads: dict[str, Proxy],
    log: oncelog.Log,
    topic: str,
    role: str,
    road: Road,
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand, Stubs(cluster) as stubs:
        partition = hand.partition(topic, 1)
        tx = hand.begin()
        tx.produce(topic, 0, b"open")
        lapses = len(cluster.events(role, "lease not renewed in time"))
        try:
            roads[role].road = road
            # Its lease ends in etcd too, by hand and at once, unless it has by itself: it cannot
            # hear of it.
            revoke(cluster, role)
            until(
                lambda: len(cluster.events(role, "lease not renewed in time")) > lapses,
                "it finds its own deadline past",
            )
            assert ask(role, stubs, partition) == "NOT_LEADER"
            for other in ROLES:
                if other != role:
                    # Not at once: on a busy machine its own lease may lapse for a moment.
                    _until_it_answers(other, stubs, partition)
        finally:
            roads[role].road = Road.OPEN
        _until_it_answers(role, stubs, partition)
        assert tx.commit(VISIBLE).visible
        assert b"open" in values(log, topic)
    cluster.wait_ready()


def _until_it_answers(role: str, stubs: Stubs, partition: pb.Partition) -> None:
    until(lambda: ask(role, stubs, partition) == "", f"{role} answers")


@pytest.mark.parametrize("role", ROLES)
def test_i5_i29_a_lease_is_revoked_by_hand_under_a_living_process(
    cluster: Cluster, roads: dict[str, Proxy], log: oncelog.Log, topic: str, role: str
) -> None:
    acknowledged: list[bytes] = []
    stopping = threading.Event()

    def send() -> None:
        with cluster.connect() as own:
            producer = own.transactional_producer(topic)
            for number in itertools.count():
                with producer.transaction() as tx:
                    tx.send(topic, b"%d" % number, partition=0)
                acknowledged.append(b"%d" % number)
                if stopping.is_set():
                    return

    with ThreadPoolExecutor(1) as threads:
        sender = threads.submit(send)
        try:
            until(functools.partial(_reached, sender, acknowledged, 5), "it sends")
            for _ in range(2):
                _revoke_and_wait(cluster, role)
                enough = len(acknowledged) + 5
                until(functools.partial(_reached, sender, acknowledged, enough), "it goes on")
        finally:
            stopping.set()
        sender.result()
    until(lambda: len(values(log, topic)) >= len(acknowledged), "all markers arrive")
    assert values(log, topic) == acknowledged


def _revoke_and_wait(cluster: Cluster, role: str) -> None:
    before = len(cluster.events(role, "lease regained"))
    until(lambda: revoke(cluster, role), "it has a lease to revoke")
    until(lambda: len(cluster.events(role, "lease regained")) > before, "it gets a new lease")


def _reached(sender: Future[None], acknowledged: list[bytes], enough: int) -> bool:
    """Raises what ended the sender, which nothing here may."""
    if sender.done():
        sender.result()
    return len(acknowledged) > enough


def test_what_one_process_missed_while_etcd_was_compacted_it_learns(
    cluster: Cluster, roads: dict[str, Proxy], log: oncelog.Log
) -> None:
    """Its watch begins behind what is gone: it lists again."""
    missed = f"missed-{next(_names)}"
    roads[COORDINATOR].road = Road.REFUSED
    try:
        log.admin.create_topic(missed, partitions=1)
        compact(cluster)
    finally:
        roads[COORDINATOR].road = Road.OPEN
    # A one-shot is refused by a coordinator that does not know its topic.
    until(lambda: _one_shot(log, missed), "the coordinator knows the topic")
    # Once, unless a lost answer had it sent again.
    assert set(values(log, missed)) == {b"known"}
    cluster.wait_ready()


def _one_shot(log: oncelog.Log, topic: str) -> bool:
    try:
        with log.transactional_producer().transaction(wait="visible") as tx:
            tx.send(topic, b"known", partition=0)
    except oncelog.OncelogError:
        return False
    return True


# ----------------------------------------------------------------------------- etcd, by its gateway


def revoke(cluster: Cluster, role: str) -> bool:
    """Ends the lease of a process, as an operator may. False where it has none now: on a busy
    machine it may just have lost it."""
    boots = _ask_etcd(cluster, "kv/range", _prefix("/oncelog/boots/")).get("kvs", [])
    by_port = {json.loads(base64.b64decode(boot["value"]))["port"]: boot for boot in boots}
    boot = by_port.get(cluster.ports[role])
    if boot is None:
        return False
    try:
        _ask_etcd(cluster, "lease/revoke", {"ID": boot["lease"]})
    except urllib.error.HTTPError as error:
        if error.code != LEASE_NOT_FOUND:
            raise
        return False
    return True


def compact(cluster: Cluster) -> None:
    """Forgets every revision but the present."""

    async def now() -> None:
        client = EtcdClient([cluster.etcd.endpoint])
        _, revision = await client.get("")
        await client.compact(revision)
        await client.close()

    asyncio.run(now())


def _prefix(prefix: str) -> dict[str, str]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return {
        "key": base64.b64encode(prefix.encode()).decode(),
        "range_end": base64.b64encode(end.encode()).decode(),
    }


def _ask_etcd(cluster: Cluster, method: str, body: dict[str, str]) -> Any:
    request = urllib.request.Request(
        f"http://{cluster.etcd.endpoint}/v3/{method}", json.dumps(body).encode()
    )
    # A proxy that the environment names is not for our own loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as reply:
        return json.load(reply)
