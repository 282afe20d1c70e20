"""The services as another language sees them: the protos, a channel, and nothing of our client."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.integration.by_hand import batch_of, manifest_of, offset_commit, rows_batch
from tests.integration.cluster import (
    COORDINATOR,
    OFFSET_MANAGER,
    PARTITION_LEADER,
    ROLES,
    Cluster,
    until,
)
from tests.integration.stubs import TIMEOUT_S, Stubs, info_of, produce, refusal

pytestmark = pytest.mark.integration

_names = itertools.count()


@pytest.fixture
def stubs(cluster: Cluster) -> Iterator[Stubs]:
    with Stubs(cluster) as made:
        yield made


SERVED = {
    COORDINATOR: {"Coordinator", "Cluster", "Replication"},
    PARTITION_LEADER: {"PartitionLeader", "Participant", "Cluster", "Replication"},
    OFFSET_MANAGER: {"OffsetManager", "Participant", "Cluster", "Replication"},
}


@pytest.mark.parametrize("role", ROLES)
def test_reflection_lists_the_services_and_shows_their_files(stubs: Stubs, role: str) -> None:
    reflection = reflection_pb2_grpc.ServerReflectionStub(stubs.channels[role])
    names = {f"oncelogpb.v1.{name}" for name in SERVED[role]}
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            for name in sorted(names)
        ),
    ]
    listed, *files = reflection.ServerReflectionInfo(iter(asked), timeout=TIMEOUT_S)
    listing = {service.name for service in listed.list_services_response.service}
    assert {name for name in listing if name.startswith("oncelogpb.")} == names
    assert "grpc.health.v1.Health" in listing
    assert all(reply.file_descriptor_response.file_descriptor_proto for reply in files)


@pytest.mark.parametrize("role", ROLES)
def test_health_is_serving_for_the_process_and_each_service(stubs: Stubs, role: str) -> None:
    health = health_pb2_grpc.HealthStub(stubs.channels[role])

    def serves(name: str) -> bool:
        request = health_pb2.HealthCheckRequest(service=name)
        status = health.Check(request, timeout=TIMEOUT_S).status
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    for name in ("", *(f"oncelogpb.v1.{name}" for name in SERVED[role])):
        until(functools.partial(serves, name), f"{name} is served")
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="oncelogpb.v1.Nothing"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


class Program:
    """A program that writes transactions, in unary calls."""

    def __init__(self, stubs: Stubs) -> None:
        self.stubs = stubs
        init = coordinator_pb2.InitProducerRequest(
            name=f"program-{next(_names)}", instance_id=os.urandom(16)
        )
        reply = stubs.coordinator.InitProducer(init, timeout=TIMEOUT_S)
        self.producer = reply.producer
        self._request_id = 0

    def create_topic(self, partitions: int = 1) -> bytes:
        """The topic's id, once each partition has a leader that answers."""
        request = partition_leader_pb2.CreateTopicRequest(
            name=f"topic-{next(_names)}", partitions=partitions
        )
        topic_id = self.stubs.leader.CreateTopic(request, timeout=TIMEOUT_S).topic.topic_id
        until(lambda: self._is_led(topic_id), "the topic has leaders")
        for number in range(partitions):
            until(functools.partial(self._answers, topic_id, number), "its leaders have loaded")
        return bytes(topic_id)

    def _is_led(self, topic_id: bytes) -> bool:
        request = cluster_pb2.GetMetadataRequest(topic_ids=[topic_id])
        reply = self.stubs.cluster[COORDINATOR].GetMetadata(request, timeout=TIMEOUT_S)
        return bool(reply.topics) and all(
            partition.HasField("leader") for partition in reply.topics[0].partitions
        )

    def _answers(self, topic_id: bytes, number: int) -> bool:
        return not self._fetch(topic_id, number).HasField("error")

    def begin(self) -> int:
        self._request_id += 1
        request = coordinator_pb2.BeginTransactionRequest(
            producer=self.producer, request_id=self._request_id
        )
        reply = self.stubs.coordinator.BeginTransaction(request, timeout=TIMEOUT_S)
        assert reply.result == coordinator_pb2.BeginTransactionReply.RESULT_OPEN
        return int(reply.tx_id)

    def read(self, topic_id: bytes, number: int = 0) -> list[pb.Row]:
        """What is committed, as rows."""
        fetched = self._fetch(topic_id, number)
        assert not fetched.HasField("error"), fetched.error
        return [row for batch in fetched.batches for row in pb.Rows.FromString(batch.payload).rows]

    def _fetch(self, topic_id: bytes, number: int) -> partition_leader_pb2.FetchedPartition:
        wanted = partition_leader_pb2.FetchPartition(
            partition=pb.Partition(topic_id=topic_id, number=number)
        )
        request = partition_leader_pb2.FetchRequest(
            partitions=[wanted],
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
            format=partition_leader_pb2.FORMAT_ROWS,
        )
        (fetched,) = self.stubs.leader.Fetch(request, timeout=TIMEOUT_S).partitions
        return fetched


@pytest.fixture
def program(stubs: Stubs) -> Program:
    return Program(stubs)


def test_i3_i21_a_transaction_over_two_topics_and_offsets_by_rows(program: Program) -> None:
    stubs = program.stubs
    first = pb.Partition(topic_id=program.create_topic())
    second = pb.Partition(topic_id=program.create_topic(partitions=2), number=1)
    tx_id = program.begin()
    produce = partition_leader_pb2.ProduceRequest(
        tx_id=tx_id,
        producer=program.producer,
        batches=[rows_batch(first, b"a", b"b"), rows_batch(second, b"c")],
    )
    results = stubs.leader.Produce(produce, timeout=TIMEOUT_S).results
    assert [result.HasField("error") for result in results] == [False, False]
    offsets = offset_manager_pb2.CommitTransactionOffsetsRequest(
        tx_id=tx_id,
        producer=program.producer,
        offsets=offset_manager_pb2.GroupOffsets(
            group="group", offsets=[offset_commit(first, since=None, to=2)]
        ),
    )
    participant = stubs.offsets.CommitTransactionOffsets(offsets, timeout=TIMEOUT_S).participant
    assert program.read(first.topic_id) == [], "nothing is seen before its commit"
    commit = coordinator_pb2.CommitTransactionRequest(
        tx_id=tx_id,
        producer=program.producer,
        manifest=manifest_of([(first, 2), (second, 1), (participant, 0)]),
        wait=pb.WAIT_VISIBLE,
    )
    reply = stubs.coordinator.CommitTransaction(commit, timeout=TIMEOUT_S)
    assert reply.visible
    places = {(p.partition.topic_id, p.first_offset, p.record_count) for p in reply.exposed}
    assert (first.topic_id, 0, 2) in places
    assert (second.topic_id, 0, 1) in places
    assert [row.value for row in program.read(first.topic_id)] == [b"a", b"b"]
    assert [row.value for row in program.read(second.topic_id, 1)] == [b"c"]
    asked = offset_manager_pb2.FetchOffsetsRequest(
        group="group", stable=True, with_last_commits=True
    )
    committed = stubs.offsets.FetchOffsets(asked, timeout=TIMEOUT_S)
    assert [place.offset for place in committed.offsets] == [2]
    assert [last.tx_id for last in committed.last_commits] == [tx_id]


def test_i3_the_same_as_one_transact(program: Program) -> None:
    stubs = program.stubs
    first = pb.Partition(topic_id=program.create_topic())
    second = pb.Partition(topic_id=program.create_topic(partitions=2), number=1)
    transact = coordinator_pb2.TransactRequest(
        producer=program.producer,
        request_number=1,
        batches=[rows_batch(first, b"a", b"b"), rows_batch(second, b"c")],
        offsets=offset_manager_pb2.GroupOffsets(
            group="one-shot", offsets=[offset_commit(first, since=None, to=2)]
        ),
        wait=pb.WAIT_VISIBLE,
    )
    reply = stubs.coordinator.Transact(transact, timeout=TIMEOUT_S)
    assert reply.visible
    again = stubs.coordinator.Transact(transact, timeout=TIMEOUT_S)
    assert again.tx_id == reply.tx_id, "a repeat gets its old answer"
    assert [row.value for row in program.read(first.topic_id)] == [b"a", b"b"]
    assert [row.value for row in program.read(second.topic_id, 1)] == [b"c"]
    asked = offset_manager_pb2.FetchOffsetsRequest(group="one-shot", stable=True)
    committed = stubs.offsets.FetchOffsets(asked, timeout=TIMEOUT_S)
    assert [place.offset for place in committed.offsets] == [2]


def test_everything_of_a_row_comes_back(program: Program) -> None:
    place = pb.Partition(topic_id=program.create_topic())
    sent = pb.Rows(
        rows=[
            pb.Row(key=b"", value=None, timestamp_us=0),
            pb.Row(
                key=None,
                value=b"v",
                timestamp_us=-5,
                headers=[pb.Header(key="a", value=b"1"), pb.Header(key="a")],
            ),
        ]
    )
    produce = partition_leader_pb2.ProduceRequest(
        producer=pb.Producer(producer_id=1 << 63 | 5), batches=[batch_of(place, sent)]
    )
    (result,) = program.stubs.leader.Produce(produce, timeout=TIMEOUT_S).results
    assert (result.offset, result.HasField("error")) == (0, False), result
    assert program.read(place.topic_id) == list(sent.rows)


def test_an_error_names_its_reason_and_what_is_wrong(program: Program) -> None:
    stubs = program.stubs
    taken = partition_leader_pb2.CreateTopicRequest(name="taken")
    stubs.leader.CreateTopic(taken, timeout=TIMEOUT_S)
    with pytest.raises(grpc.RpcError) as caught:
        stubs.leader.CreateTopic(taken, timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    info = info_of(caught.value)
    assert (info.domain, info.reason) == ("oncelog", "TOPIC_EXISTS")
    begin = coordinator_pb2.BeginTransactionRequest(
        producer=pb.Producer(producer_id=program.producer.producer_id, generation=1), request_id=1
    )
    assert refusal(stubs.coordinator.BeginTransaction, begin).reason == "PRODUCER_FENCED"
    # A record of the journal that began no transaction; and one that nobody has given out.
    unknown = coordinator_pb2.GetTransactionRequest(tx_id=program.producer.producer_id)
    assert refusal(stubs.coordinator.GetTransaction, unknown).reason == "UNKNOWN_TRANSACTION"
    unknown.tx_id += 1 << 30
    assert refusal(stubs.coordinator.GetTransaction, unknown).reason == "UNKNOWN_TRANSACTION"
    # Nobody in particular.
    heartbeat = offset_manager_pb2.HeartbeatRequest(group="g")
    assert refusal(stubs.offsets.Heartbeat, heartbeat).reason == "INVALID_ARGUMENT"


def test_a_call_to_the_wrong_process_names_the_right_one(
    cluster: Cluster, program: Program
) -> None:
    stubs = program.stubs
    place = pb.Partition(topic_id=program.create_topic())
    asked = partition_leader_pb2.FetchRequest(
        partitions=[partition_leader_pb2.FetchPartition(partition=place)]
    )
    misled = stubs.channels[COORDINATOR].unary_unary(
        "/oncelogpb.v1.PartitionLeader/Fetch",
        request_serializer=partition_leader_pb2.FetchRequest.SerializeToString,
        response_deserializer=partition_leader_pb2.FetchReply.FromString,
    )
    with pytest.raises(grpc.RpcError) as caught:
        misled(asked, timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    # Any process says where to go.
    request = cluster_pb2.GetMetadataRequest(topic_ids=[place.topic_id])
    metadata = stubs.cluster[COORDINATOR].GetMetadata(request, timeout=TIMEOUT_S)
    endpoint = metadata.topics[0].partitions[0].leader.endpoint
    assert f"{endpoint.host}:{endpoint.port}" == cluster.address(PARTITION_LEADER)


def test_a_subscription_of_a_service_that_stops_ends_with_a_reason(
    cluster: Cluster, program: Program
) -> None:
    stubs = program.stubs
    wanted = partition_leader_pb2.FetchPartition(
        partition=pb.Partition(topic_id=program.create_topic())
    )
    assert produce(stubs, wanted.partition) == ""
    request = partition_leader_pb2.SubscribeRequest(partitions=[wanted])
    replies = stubs.leader.Subscribe(request, timeout=TIMEOUT_S)
    assert next(iter(replies)).partitions[0].batches
    cluster.stop(PARTITION_LEADER)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in replies:
            pass
    assert info_of(caught.value).reason == "UNAVAILABLE"
    cluster.start(PARTITION_LEADER)
    cluster.wait_ready()
