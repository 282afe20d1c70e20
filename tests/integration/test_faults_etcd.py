"""etcd goes away for longer than the lease: nothing acknowledged is lost, what cannot be answered
truly is refused by name, and everything goes on when it is back (docs/operating.md, the table)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import oncelog
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import VISIBLE, ByHand, offset_commit, rows_batch
from tests.integration.cluster import (
    COORDINATOR,
    PARTITION_LEADER,
    ROLES,
    Cluster,
    until,
)
from tests.integration.reading import next_values, values
from tests.integration.stubs import TIMEOUT_S, Stubs, info_of, refusal

pytestmark = pytest.mark.integration

# A producer of its own for a plain batch: the top bit is set.
PLAIN = pb.Producer(producer_id=1 << 63 | 7)


@contextlib.contextmanager
def etcd_killed(cluster: Cluster) -> Iterator[None]:
    cluster.etcd.kill()
    try:
        yield
    finally:
        cluster.etcd.start()


@contextlib.contextmanager
def etcd_stopped(cluster: Cluster) -> Iterator[None]:
    with cluster.etcd_paused():
        yield


@pytest.mark.parametrize("away", [etcd_killed, etcd_stopped])
def test_i29_i5_etcd_is_away_for_longer_than_the_lease(
    cluster: Cluster,
    log: oncelog.Log,
    topic: str,
    away: Callable[[Cluster], contextlib.AbstractContextManager[None]],
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand, Stubs(cluster) as stubs:
        with log.producer() as plain:
            plain.send(topic, b"acknowledged", partition=1)
        tx = hand.begin()
        tx.produce(topic, 0, b"pending")
        tx.send_offset(topic, topic, 0, since=None, to=3)
        partition = hand.partition(topic, 1)
        consumer = log.consumer([topic])
        assert consumer.position(topic, 1) == 0
        before = {role: lapses(cluster, role) for role in ROLES}
        with away(cluster):
            until(
                lambda: all(lapses(cluster, role) > before[role] for role in ROLES),
                "every service finds its lease out",
            )
            refuses_by_name(stubs, hand, partition)
            answers_what_needs_no_lease(stubs, partition)
            # Also a consumer that knew where it was.
            assert next_values(consumer, 1) == [b"acknowledged"]
        # Everything resumes: what was open goes on, what was acknowledged is there.
        tx.produce(topic, 0, b"and more")
        assert tx.commit(VISIBLE).visible
        with log.producer() as plain:
            plain.send(topic, b"after", partition=1)
        assert values(log, topic) == [b"pending", b"and more", b"acknowledged", b"after"]
        assert [place.offset for place in log.admin.group_offsets(topic)] == [3, None]
        assert log.admin.create_topic(f"{topic}-after").name == f"{topic}-after"
        cluster.wait_ready()


def lapses(cluster: Cluster, role: str) -> int:
    return len(cluster.events(role, "lease not renewed in time"))


def refuses_by_name(stubs: Stubs, hand: ByHand, partition: pb.Partition) -> None:
    """What only a leader may say. Nothing of it happens."""
    produce = partition_leader_pb2.ProduceRequest(
        producer=PLAIN, batches=[rows_batch(partition, b"refused")]
    )
    reply = stubs.leader.Produce(produce, timeout=TIMEOUT_S)
    assert errors_of(reply.results) == {"NOT_LEADER"}
    nothing = partition_leader_pb2.FetchRequest(
        partitions=[partition_leader_pb2.FetchPartition(partition=partition, offset=1)]
    )
    fetched = stubs.leader.Fetch(nothing, timeout=TIMEOUT_S)
    assert errors_of(fetched.partitions) == {"NOT_LEADER"}
    latest = partition_leader_pb2.ListOffsetsRequest(
        queries=[partition_leader_pb2.OffsetQuery(partition=partition, latest=True)]
    )
    listed = stubs.leader.ListOffsets(latest, timeout=TIMEOUT_S)
    assert errors_of(listed.offsets) == {"NOT_LEADER"}
    begin = coordinator_pb2.BeginTransactionRequest(producer=hand.producer, request_id=77)
    assert refusal(stubs.coordinator.BeginTransaction, begin).reason == "NOT_LEADER"
    offsets = offset_manager_pb2.GroupOffsets(
        group="refused", offsets=[offset_commit(partition, since=None, to=1)]
    )
    commit = offset_manager_pb2.CommitOffsetsRequest(offsets=offsets)
    assert refusal(stubs.offsets.CommitOffsets, commit).reason == "NOT_LEADER"
    create = partition_leader_pb2.CreateTopicRequest(name="refused")
    assert refusal(stubs.leader.CreateTopic, create).reason in ("UNAVAILABLE", "UNKNOWN_OUTCOME")


def answers_what_needs_no_lease(stubs: Stubs, partition: pb.Partition) -> None:
    """What is there stands for ever; what a process knows of etcd, it knows."""
    fetch = partition_leader_pb2.FetchRequest(
        partitions=[partition_leader_pb2.FetchPartition(partition=partition)]
    )
    fetched = stubs.leader.Fetch(fetch, timeout=TIMEOUT_S)
    assert [batch.record_count for batch in fetched.partitions[0].batches] == [1]
    for role in ROLES:
        request = cluster_pb2.GetMetadataRequest()
        metadata = stubs.cluster[role].GetMetadata(request, timeout=TIMEOUT_S)
        assert len(metadata.nodes) == len(ROLES)
        assert not metadata.etcd_reachable
        config = stubs.cluster[role].GetConfig(cluster_pb2.GetConfigRequest(), timeout=TIMEOUT_S)
        assert config.values


def errors_of(items: Iterable[Any]) -> set[str]:
    """Reasons; each item must be refused."""
    found = list(items)
    assert all(item.HasField("error") for item in found), "it was answered"
    return {errors.from_status(item.error).reason for item in found}


# ------------------------------------------------------------------------- a service that sleeps


@pytest.mark.parametrize("role", ROLES)
def test_i18_i19_who_slept_longer_than_the_lease_answers_nothing_until_it_has_rejoined(
    cluster: Cluster, log: oncelog.Log, topic: str, role: str
) -> None:
    with ByHand(cluster.bootstrap, topic) as hand, Stubs(cluster) as stubs:
        tx = hand.begin()
        tx.produce(topic, 0, b"pending")
        partition = hand.partition(topic, 1)
        asked = question_of(role, stubs, hand, partition)
        before = len(cluster.events(role, "lease regained"))
        boot_id = boot_of(stubs, role)
        with cluster.paused(role):
            others = next(stubs.cluster[other] for other in ROLES if other != role)
            until(lambda: boot_id not in boots(others), "etcd ends its lease")
            # Asked while it sleeps; it finds the question when it wakes. etcd sleeps by then, so it
            # cannot rejoin, and must not answer.
            waiting = asked.future()
            with cluster.etcd_paused():
                os.kill(cluster.pid(role), signal.SIGCONT)
                assert reason_of(waiting) == "NOT_LEADER"
                assert reason_of(asked.future()) == "NOT_LEADER"
                assert len(cluster.events(role, "lease regained")) == before
        until(lambda: len(cluster.events(role, "lease regained")) > before, "it rejoins")
        until(lambda: reason_of(asked.future()) == "", "it answers")
        assert tx.commit(VISIBLE).visible
    assert b"pending" in values(log, topic)


class Question:
    """A call that a leader of that role acknowledges; the same each time."""

    def __init__(self, call: Any, request: object) -> None:
        self._call = call
        self._request = request

    def future(self) -> Any:
        return self._call.future(self._request, timeout=TIMEOUT_S, wait_for_ready=True)


def question_of(role: str, stubs: Stubs, hand: ByHand, partition: pb.Partition) -> Question:
    if role == COORDINATOR:
        instance = os.urandom(16)
        return Question(
            stubs.coordinator.InitProducer,
            coordinator_pb2.InitProducerRequest(group="sleepers", instance_id=instance),
        )
    if role == PARTITION_LEADER:
        producer = pb.Producer(producer_id=1 << 63 | 11)
        return Question(
            stubs.leader.Produce,
            partition_leader_pb2.ProduceRequest(
                producer=producer, batches=[rows_batch(partition, b"asked of a sleeper")]
            ),
        )
    offsets = offset_manager_pb2.GroupOffsets(
        group="sleepers", offsets=[offset_commit(partition, since=None, to=0)]
    )
    offsets.offsets[0].from_any = True
    return Question(
        stubs.offsets.CommitOffsets, offset_manager_pb2.CommitOffsetsRequest(offsets=offsets)
    )


def reason_of(answer: Any) -> str:
    """Of the refusal; "" where it was acknowledged."""
    error = answer.exception()
    if error is not None:
        return info_of(error).reason or str(error)
    for result in getattr(answer.result(), "results", ()):
        if result.HasField("error"):
            return errors.from_status(result.error).reason
    return ""


def boots(stub: Any) -> set[bytes]:
    metadata = stub.GetMetadata(cluster_pb2.GetMetadataRequest(), timeout=TIMEOUT_S)
    return {node.boot_id for node in metadata.nodes}


def boot_of(stubs: Stubs, role: str) -> bytes:
    metadata = stubs.cluster[role].GetMetadata(cluster_pb2.GetMetadataRequest(), timeout=TIMEOUT_S)
    (boot_id,) = (node.boot_id for node in metadata.nodes if role in node.roles)
    return bytes(boot_id)
