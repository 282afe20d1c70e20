"""Who leads what, as one process sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    BootId,
    PartitionId,
    TopicId,
    partition_of_name,
)
from oncelog_server.core.machine import Instant
from oncelog_server.core.ports import Address, NodeInfo, PartitionInfo, TopicInfo
from oncelog_server.runtime.config import Source, Value
from oncelog_server.runtime.leadership.unclean import Seen, UncleanElection
from oncelog_server.runtime.rpc.access_service import AccessService
from oncelog_server.runtime.rpc.cluster_access import METADATA_NAMES_MAX
from oncelog_server.runtime.rpc.cluster_service import ClusterService
from oncelog_server.runtime.rpc.handling import CallContext
from oncelogpb.errors import InvalidArgument, TooLarge, UnknownPartition, UnknownTopic
from oncelogpb.v1 import cluster_pb2 as pb

FLIGHTS = TopicInfo("flights", TopicId(b"f" * 16), 2, 1, {"materialization": "reference"}, 5)
LEADER = Address("n1", BootId(b"b" * 16), "10.0.0.1", 7401, 3)
CALL = CallContext(1_000, "")


class OneNode:
    """A ClusterMetadata in which n1 leads everything but partition 1 of flights."""

    cluster_id = b"c" * 16

    def leader_of(self, partition: Any) -> Any:
        return None if partition == PartitionId(FLIGHTS.topic_id, 1) else LEADER

    def topic(self, name: Any) -> Any:
        return FLIGHTS if name == "flights" else None

    def topic_by_id(self, topic_id: Any) -> Any:
        return FLIGHTS if topic_id == FLIGHTS.topic_id else None

    def topics(self) -> Any:
        return [FLIGHTS]

    def partition(self, partition: Any) -> Any:
        # As etcd names it; of partition 1 the leader's process is gone.
        return PartitionInfo(partition, ["n1"], ["n1"], LEADER, 3)

    def nodes(self) -> Any:
        return [NodeInfo("n1", LEADER.boot_id, "10.0.0.1", 7401, ["coordinator"], "0.1")]

    async def is_gone(self, topic_id: Any) -> Any:
        return False

    async def gone(self, topic_ids: Any, *, timeout_ms: int) -> Any:
        return set()

    async def exists(self, partition: Any) -> Any:
        return True

    def etcd_status(self) -> Any:
        return 42, True


class Noon:
    """A clock that stands still."""

    def now(self) -> Instant:
        return Instant(1, 43_200_000)


def service(elect: Any = None, balance: Any = None) -> ClusterService:
    values = [Value("node.tick_ms", "100", Source.DEFAULT, "How often.")]
    nobody: Any = None
    access = AccessService(nobody, None)
    return ClusterService(OneNode(), lambda: values, elect, balance, nobody, access, Noon())


def ask(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_metadata_tells_the_time_for_who_compares_clocks() -> None:
    reply = ask(service().get_metadata(pb.GetMetadataRequest(), CALL))
    assert reply.time_ms == 43_200_000


def test_metadata_routes_groups_by_the_hash_of_their_name() -> None:
    request = pb.GetMetadataRequest(
        transaction_groups=["payments", "zürich"],
        consumer_groups=["enricher"],
        journal_partitions=[7],
    )
    reply = ask(service().get_metadata(request, CALL))
    assert [
        (r.group, r.partition.topic_id, r.partition.number)
        for r in (*reply.transaction_groups, *reply.consumer_groups, *reply.journal_partitions)
    ] == [
        ("payments", TRANSACTION_CONTROL_ID, partition_of_name("payments")),
        ("zürich", TRANSACTION_CONTROL_ID, partition_of_name("zürich")),
        ("enricher", CONSUMER_OFFSETS_ID, partition_of_name("enricher")),
        ("", TRANSACTION_CONTROL_ID, 7),
    ]
    leader = reply.transaction_groups[0].leader
    assert (leader.node_id, leader.endpoint.host, leader.endpoint.port) == ("n1", "10.0.0.1", 7401)
    assert (leader.boot_id, leader.epoch) == (LEADER.boot_id, 3)


def test_metadata_describes_topics_and_leaves_out_the_unknown() -> None:
    request = pb.GetMetadataRequest(
        topics=["flights", "nothing"], topic_ids=[FLIGHTS.topic_id, b"x" * 16]
    )
    reply = ask(service().get_metadata(request, CALL))
    assert [t.name for t in reply.topics] == ["flights", "flights"]
    led, orphaned = reply.topics[0].partitions
    assert led.leader.node_id == "n1"
    assert (orphaned.number, orphaned.HasField("leader")) == (1, False)
    assert (orphaned.epoch, list(orphaned.replicas)) == (3, ["n1"])
    assert reply.topics[0].configs == {"materialization": "reference"}


def test_metadata_names_the_cluster_its_nodes_and_its_view_of_etcd() -> None:
    reply = ask(service().get_metadata(pb.GetMetadataRequest(), CALL))
    assert reply.cluster_id == b"c" * 16
    assert (reply.etcd_revision, reply.etcd_reachable) == (42, True)
    assert [(n.node_id, n.endpoint.port, list(n.roles)) for n in reply.nodes] == [
        ("n1", 7401, ["coordinator"])
    ]


def test_metadata_is_bounded() -> None:
    request = pb.GetMetadataRequest(topics=["t"] * (METADATA_NAMES_MAX + 1))
    with pytest.raises(TooLarge, match="metadata_names_max"):
        ask(service().get_metadata(request, CALL))
    with pytest.raises(UnknownPartition):
        ask(service().get_metadata(pb.GetMetadataRequest(journal_partitions=[16]), CALL))


def test_config_says_value_source_and_meaning() -> None:
    (value,) = ask(service().get_config(pb.GetConfigRequest(), CALL)).values
    assert (value.name, value.value, value.source) == ("node.tick_ms", "100", "default")
    assert value.help == "How often."


UNCLEAN = {"topic": "flights", "number": 1, "node_id": "n1", "accept_loss": True}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"accept_loss": False}, InvalidArgument),
        ({"node_id": ""}, InvalidArgument),
        ({"topic": "nothing"}, UnknownTopic),
        ({"number": 2}, UnknownPartition),
        ({"told": "x" * 1_001}, TooLarge),
        ({"topic": "__consumer_offsets", "number": 16}, UnknownPartition),
    ],
)
def test_an_unclean_election_that_is_refused_elects_nobody(change: Any, kind: Any) -> None:
    async def elect(election: Any) -> None:
        raise AssertionError("nobody was to be elected")

    with pytest.raises(kind):
        ask(service(elect).unclean_elect(pb.UncleanElectRequest(**{**UNCLEAN, **change}), CALL))


@pytest.mark.parametrize(
    ("topic", "topic_id"),
    [("flights", FLIGHTS.topic_id), ("__transaction_control", TRANSACTION_CONTROL_ID)],
)
def test_an_unclean_election_says_what_is_kept(topic: Any, topic_id: Any) -> None:
    asked = []

    async def elect(election: Any) -> Any:
        asked.append(election)
        return 9, 1_234

    request = pb.UncleanElectRequest(**{**UNCLEAN, "topic": topic})
    reply = ask(service(elect).unclean_elect(request, CALL))
    assert (reply.epoch, reply.kept_end) == (9, 1_234)
    request.seen.MergeFrom(
        pb.SeenReplica(epoch=8, incarnation="ab", last_epoch=7, synced_end=6, isr="x")
    )
    request.told = "much"
    ask(service(elect).unclean_elect(request, CALL))
    partition = PartitionId(topic_id, 1)
    assert asked == [
        UncleanElection(partition, "n1", by=CALL.identity),
        UncleanElection(
            partition, "n1", Seen(8, frozenset("x"), "ab", 7, 6), by=CALL.identity, told="much"
        ),
    ]


def test_what_was_handed_over_and_what_stays_is_told() -> None:
    reply = ask(service(balance=lambda: (3, 1)).balance_leaders(pb.BalanceLeadersRequest(), CALL))
    assert (reply.handed_over, reply.kept) == (3, 1)
