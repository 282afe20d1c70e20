"""Whom a call goes to, and what the client believes about leaders."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core import routing
from oncelog._core.routing import Directory, Endpoint, Key, Kind, PartitionKey
from oncelogpb import errors, rpcs
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as types

TOPIC = b"t" * 16
TX = 5 << 48 | 77


def leader(port: int) -> types.Leader:
    return types.Leader(node_id="n", endpoint=types.Endpoint(host="h", port=port))


def metadata(*ports: int | None) -> cluster_pb2.GetMetadataReply:
    parts = [
        partition_leader_pb2.PartitionDescription(
            number=number, leader=None if port is None else leader(port)
        )
        for number, port in enumerate(ports)
    ]
    topic = partition_leader_pb2.TopicDescription(name="a", topic_id=TOPIC, partitions=parts)
    return cluster_pb2.GetMetadataReply(cluster_id=b"c", topics=[topic])


def test_only_the_latest_routes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each producer without a name is a group of its own: a connection that makes many would
    remember them all."""
    monkeypatch.setattr(routing, "ROUTES_KEPT", 3)
    directory = Directory()
    keys = [Key(Kind.CONSUMER_GROUP, f"g{number}") for number in range(6)]
    for number, key in enumerate(keys):
        reply = cluster_pb2.GetMetadataReply(cluster_id=b"c")
        reply.consumer_groups.add(group=str(key.name), leader=leader(number))
        directory.learn(routing.metadata_request(keys=[key]), reply)
        # What is asked for again stays.
        moved = errors.NotLeader("x", leader_host="h", leader_port=9)
        directory.redirect(keys[0], moved)
    assert [directory.route(key) is not None for key in keys] == [
        True,
        False,
        False,
        False,
        True,
        True,
    ]


def test_every_method_of_the_users_services_has_a_route() -> None:
    unrouted = {"ask_transactions", "subscribe"}
    for service in ("Cluster", "Coordinator", "OffsetManager", "PartitionLeader"):
        for name in rpcs.methods(rpcs.find(service)):
            routed = f"{rpcs.snake(service)}.{name}" in routing.METHODS
            assert routed is (name not in unrouted), name


def test_what_is_said_to_travel_on_a_stream_does() -> None:
    for method, rule in routing.METHODS.items():
        service, _, name = method.partition(".")
        assert rule.streamed is (name in rpcs.stream_fields(rpcs.find(service))), method


@pytest.mark.parametrize(
    ("method", "request_", "key"),
    [
        (
            "coordinator.init_producer",
            coordinator_pb2.InitProducerRequest(name="p"),
            Key(Kind.TRANSACTION_GROUP, "p"),
        ),
        (
            "coordinator.init_producer",
            coordinator_pb2.InitProducerRequest(name="p", group="g"),
            Key(Kind.TRANSACTION_GROUP, "g"),
        ),
        (
            "coordinator.begin_transaction",
            coordinator_pb2.BeginTransactionRequest(producer=types.Producer(producer_id=3 << 48)),
            Key(Kind.JOURNAL, 3),
        ),
        (
            "coordinator.commit_transaction",
            coordinator_pb2.CommitTransactionRequest(
                tx_id=TX, producer=types.Producer(producer_id=3 << 48)
            ),
            Key(Kind.JOURNAL, 5),
        ),
        (
            "coordinator.get_transaction",
            coordinator_pb2.GetTransactionRequest(tx_id=TX),
            Key(Kind.JOURNAL, 5),
        ),
        (
            "coordinator.transact",
            coordinator_pb2.TransactRequest(producer=types.Producer(producer_id=9 << 48)),
            Key(Kind.JOURNAL, 9),
        ),
        (
            "offset_manager.fetch_offsets",
            offset_manager_pb2.FetchOffsetsRequest(group="g"),
            Key(Kind.CONSUMER_GROUP, "g"),
        ),
        (
            "offset_manager.commit_offsets",
            offset_manager_pb2.CommitOffsetsRequest(
                offsets=offset_manager_pb2.GroupOffsets(group="g")
            ),
            Key(Kind.CONSUMER_GROUP, "g"),
        ),
        (
            "offset_manager.commit_transaction_offsets",
            offset_manager_pb2.CommitTransactionOffsetsRequest(
                tx_id=TX, offsets=offset_manager_pb2.GroupOffsets(group="g")
            ),
            Key(Kind.CONSUMER_GROUP, "g"),
        ),
    ],
)
def test_a_call_is_routed_by_its_content(method: str, request_: Any, key: Key) -> None:
    assert routing.key_of(method, request_) == key


@pytest.mark.parametrize("tx_id", [16 << 48, (1 << 64) - 1])
def test_what_no_coordinator_can_have_given_out_is_not_asked_about(tx_id: int) -> None:
    request = coordinator_pb2.GetTransactionRequest(tx_id=tx_id)
    with pytest.raises(errors.UnknownTransaction):
        routing.key_of("coordinator.get_transaction", request)


def test_a_producer_without_name_and_group_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="group"):
        routing.key_of("coordinator.init_producer", coordinator_pb2.InitProducerRequest())


def test_an_unknown_method_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"coordinator\.transact"):
        routing.method_of("coordinator.dance")


def test_a_split_request_keeps_everything_but_the_other_items() -> None:
    request = partition_leader_pb2.FetchRequest(
        isolation=partition_leader_pb2.ISOLATION_RAW, max_wait_ms=7, max_bytes=9
    )
    for number in range(3):
        request.partitions.add(partition=PartitionKey(TOPIC, number).wire(), offset=number)
    part = routing.part_of("partition_leader.fetch", request, [0, 2])
    assert [item.offset for item in part.partitions] == [0, 2]
    assert (part.isolation, part.max_wait_ms, part.max_bytes) == (3, 7, 9)


def test_a_split_produce_keeps_in_whose_name_it_is() -> None:
    producer = types.Producer(producer_id=5, generation=2)
    request = partition_leader_pb2.ProduceRequest(tx_id=7, writer=3, producer=producer)
    for number in range(2):
        request.batches.add(partition=PartitionKey(TOPIC, number).wire())
    part = routing.part_of("partition_leader.produce", request, [1])
    assert (part.tx_id, part.writer, part.producer) == (7, 3, producer)


def test_a_topic_that_was_made_again_takes_its_name_from_the_old_one() -> None:
    directory = Directory()
    asked = cluster_pb2.GetMetadataRequest(topics=["a"])
    directory.learn(asked, metadata(1))
    again = metadata(2)
    again.topics[0].topic_id = b"n" * 16
    directory.learn(cluster_pb2.GetMetadataRequest(), again)
    assert directory.topic_by_id(TOPIC) is None
    assert directory.leader(PartitionKey(TOPIC, 0)) is None
    assert directory.leader(PartitionKey(b"n" * 16, 0)) == Endpoint("h", 2)


def test_a_topic_never_loses_partitions_by_an_answer_of_before() -> None:
    """A process that has not heard yet of those that were added knows of fewer."""
    directory = Directory()
    directory.learn(cluster_pb2.GetMetadataRequest(topics=["a"]), metadata(1, 2, 3))
    for asked in (
        cluster_pb2.GetMetadataRequest(topics=["a"]),
        cluster_pb2.GetMetadataRequest(topic_ids=[TOPIC]),
        cluster_pb2.GetMetadataRequest(),
    ):
        directory.learn(asked, metadata(1, 4))
        topic = directory.topic("a")
        assert topic is not None
        assert [part.number for part in topic.partitions] == [0, 1, 2]
        assert [directory.leader(PartitionKey(TOPIC, n)) for n in range(3)] == [
            Endpoint("h", 1),
            Endpoint("h", 4),
            Endpoint("h", 3),
        ]
    # Another topic of that name has its own.
    again = metadata(5)
    again.topics[0].topic_id = b"n" * 16
    directory.learn(cluster_pb2.GetMetadataRequest(topics=["a"]), again)
    assert directory.leader(PartitionKey(TOPIC, 2)) is None
    assert len((directory.topic("a") or pytest.fail("gone")).partitions) == 1


def test_a_group_that_nobody_leads_any_more_has_no_address() -> None:
    directory, key = Directory(), Key(Kind.CONSUMER_GROUP, "g")
    for route in (cluster_pb2.Route(group="g", leader=leader(9)), cluster_pb2.Route(group="g")):
        reply = cluster_pb2.GetMetadataReply(cluster_id=b"c", consumer_groups=[route])
        directory.learn(cluster_pb2.GetMetadataRequest(consumer_groups=["g"]), reply)
    assert directory.route(key) is None


def test_a_topic_that_is_absent_from_the_answer_is_forgotten_with_its_leaders() -> None:
    directory = Directory()
    directory.learn(cluster_pb2.GetMetadataRequest(topics=["a"]), metadata(1, None))
    assert directory.leader(PartitionKey(TOPIC, 0)) == Endpoint("h", 1)
    assert directory.leader(PartitionKey(TOPIC, 1)) is None
    directory.learn(
        cluster_pb2.GetMetadataRequest(topics=["a"]),
        cluster_pb2.GetMetadataReply(cluster_id=b"c"),
    )
    assert directory.topic("a") is None
    assert directory.leader(PartitionKey(TOPIC, 0)) is None


def test_not_leader_that_names_the_leader_is_believed() -> None:
    directory = Directory()
    directory.learn(cluster_pb2.GetMetadataRequest(topics=["a"]), metadata(1))
    place = PartitionKey(TOPIC, 0)
    moved = errors.NotLeader("x", leader_host="h", leader_port=2)
    assert directory.redirect(place, moved)
    assert directory.leader(place) == Endpoint("h", 2)
    assert not directory.redirect(place, moved), "the same address again is no news"


def test_not_leader_is_followed_at_the_address_that_we_were_told_of_that_node() -> None:
    """From outside we reach nodes at other addresses than they reach each other."""
    directory = Directory()
    reply = metadata(1)
    outside = types.Endpoint(host="outside", port=7)
    reply.nodes.add(node_id="n2", endpoint=outside)
    directory.learn(cluster_pb2.GetMetadataRequest(topics=["a"]), reply)
    place = PartitionKey(TOPIC, 0)
    moved = errors.NotLeader("x", leader_node="n2", leader_host="inside", leader_port=2)
    assert directory.redirect(place, moved)
    assert directory.leader(place) == Endpoint("outside", 7)
    unknown = errors.NotLeader("x", leader_node="n3", leader_host="h", leader_port=3)
    assert directory.redirect(place, unknown)
    assert directory.leader(place) == Endpoint("h", 3)


def test_not_leader_that_names_nobody_makes_the_client_ask() -> None:
    directory = Directory()
    directory.learn(cluster_pb2.GetMetadataRequest(topics=["a"]), metadata(1))
    assert not directory.redirect(PartitionKey(TOPIC, 0), errors.NotLeader("x"))
    assert directory.leader(PartitionKey(TOPIC, 0)) is None


def test_a_group_tells_the_leader_of_its_journal_partition_too() -> None:
    directory = Directory()
    route = cluster_pb2.Route(group="g", partition=types.Partition(number=4), leader=leader(9))
    directory.learn(
        cluster_pb2.GetMetadataRequest(transaction_groups=["g"]),
        cluster_pb2.GetMetadataReply(cluster_id=b"c", transaction_groups=[route]),
    )
    assert directory.route(Key(Kind.JOURNAL, 4)) == Endpoint("h", 9)


def test_a_bootstrap_list_of_two_clusters_is_refused() -> None:
    directory = Directory()
    directory.learn(cluster_pb2.GetMetadataRequest(), cluster_pb2.GetMetadataReply(cluster_id=b"1"))
    with pytest.raises(errors.InvalidArgument, match="two clusters"):
        directory.learn(
            cluster_pb2.GetMetadataRequest(), cluster_pb2.GetMetadataReply(cluster_id=b"2")
        )


def test_bootstrap_lists() -> None:
    assert routing.parse_bootstrap("a:1, [::1]:2,") == [Endpoint("a", 1), Endpoint("::1", 2)]
    assert str(Endpoint("::1", 2)) == "[::1]:2"


@pytest.mark.parametrize(
    "bootstrap", ["", "a", "a:", ":1", "a:0", "a:70000", "a:b", "a:²", "a:" + "1" * 5_000]
)
def test_what_is_no_bootstrap_list_is_refused(bootstrap: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        routing.parse_bootstrap(bootstrap)


@pytest.mark.parametrize("key", [PartitionKey(TOPIC, 0), Key(Kind.CONSUMER_GROUP, "g")])
def test_a_redirect_to_where_we_were_is_no_news(key: Key | PartitionKey) -> None:
    """Else two processes that disagree would be asked without a pause."""
    directory = Directory()
    there = errors.NotLeader("x", leader_host="h", leader_port=9)
    assert [directory.redirect(key, there) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (Key(Kind.JOURNAL, 9), "partition 9 of the transaction journal"),
        (Key(Kind.TRANSACTION_GROUP, "enricher"), "transaction group 'enricher'"),
        (Key(Kind.CONSUMER_GROUP, "enricher"), "consumer group 'enricher'"),
        (PartitionKey(b"\x0f" * 16, 3), "partition 3 of " + "0f" * 16),
    ],
)
def test_messages_say_in_users_words_what_is_led(key: Key | PartitionKey, words: str) -> None:
    assert Directory().shown(key) == words
