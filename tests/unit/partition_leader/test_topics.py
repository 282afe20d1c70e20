"""Topics: names, settings, and what a later version will build."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from oncelog_server.core.ids import TRANSACTION_CONTROL, TRANSACTION_CONTROL_ID, TopicId
from oncelog_server.core.ports import TopicInfo
from oncelog_server.partition_leader import topic_admin
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelog_server.runtime.node_config import NodeConfig
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import TOPIC, FakeCall, World

CALL = FakeCall()
# Settings that are numbers.
NUMBERS = (
    "max.batch.bytes",
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
)


class Admin:
    """A process and its handlers."""

    def __init__(self) -> None:
        self.world = World()
        self.service = PartitionLeaderService(self.world.env, self.world.config)

    def do(self, name: str, request: Any) -> Any:
        handler: Coroutine[Any, Any, Any] = getattr(self.service, name)(request, CALL)
        return asyncio.run(handler)

    def create(self, name: str = "new", **fields: Any) -> pb.TopicDescription:
        reply: pb.CreateTopicReply = self.do(
            "create_topic", pb.CreateTopicRequest(name=name, **fields)
        )
        return reply.topic


def test_create_fills_in_the_defaults_and_shows_what_is_in_force() -> None:
    admin = Admin()
    topic = admin.create(configs={"max.batch.bytes": "2048"})
    assert (topic.name, len(topic.partitions), topic.replication_factor) == ("new", 3, 1)
    assert topic.configs == {
        "cleanup.policy": "delete",
        "delete.retention.ms": "86400000",
        "max.batch.bytes": "2048",
        "materialization": "auto",
        "min.compaction.lag.ms": "0",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    assert topic.partitions[2].leader.node_id == "node"
    assert admin.world.metadata.by_name["new"].configs == {"max.batch.bytes": "2048"}


def test_materialization_is_taken_both_ways_on_a_living_topic() -> None:
    admin = Admin()
    assert admin.create(configs={"materialization": "copy"}).configs["materialization"] == "copy"
    for value in ("reference", "copy", "auto", ""):
        request = pb.AlterTopicRequest(name="new", configs={"materialization": value})
        topic = admin.do("alter_topic", request).topic
        assert topic.configs["materialization"] == (value or "auto")


def test_policies_are_taken_both_ways_on_a_living_topic() -> None:
    admin = Admin()
    created = admin.create(configs={"cleanup.policy": "compact", "delete.retention.ms": "0"})
    assert created.configs["cleanup.policy"] == "compact"
    assert created.configs["delete.retention.ms"] == "0"
    for value in ("delete", "compact,delete", "compact", ""):
        request = pb.AlterTopicRequest(name="new", configs={"cleanup.policy": value})
        topic = admin.do("alter_topic", request).topic
        assert topic.configs["cleanup.policy"] == (value or "delete")


def test_validate_only_creates_nothing() -> None:
    admin = Admin()
    topic = admin.create(validate_only=True, partitions=5)
    assert len(topic.partitions) == 5
    assert "new" not in admin.world.metadata.by_name


REFUSED = [
    ({"name": ""}, errors.InvalidArgument),
    ({"name": "__mine"}, errors.InvalidArgument),
    ({"name": "a/b"}, errors.InvalidArgument),
    ({"name": "a" * 250}, errors.InvalidArgument),
    ({"name": ".."}, errors.InvalidArgument),
    ({"partitions": 10_001}, errors.TooLarge),
    ({"configs": {"materialization": "paste"}}, errors.InvalidArgument),
    ({"configs": {"max.batch.bytes": "12"}}, errors.InvalidArgument),
    ({"configs": {"max.batch.bytes": "1MiB"}}, errors.InvalidArgument),
    ({"configs": {"max.batch.bytes": str(17 << 20)}}, errors.InvalidArgument),
    ({"configs": {"max.batch.bytes": "٢٠٤٨"}}, errors.InvalidArgument),
    ({"configs": {"max.batch.bytes": "0" * 30 + "2048"}}, errors.InvalidArgument),
    *(
        ({"configs": {name: "1" * digits}}, refusal)
        for name in NUMBERS
        for digits, refusal in ((4_000, errors.InvalidArgument), (4_301, errors.LimitExceeded))
    ),
    ({"configs": {"n" * 5_000: "1"}}, errors.LimitExceeded),
    ({"configs": {"retention.ms": "999"}}, errors.InvalidArgument),
    ({"configs": {"retention.ms": "7d"}}, errors.InvalidArgument),
    ({"configs": {"retention.bytes": "0"}}, errors.InvalidArgument),
    ({"configs": {"retention.bytes": "-2"}}, errors.InvalidArgument),
    ({"configs": {"retention.bytes": str(1 << 62)}}, errors.InvalidArgument),
    ({"configs": {"segment.ms": "1"}}, errors.Unsupported),
    ({"configs": {"cleanup.policy": "compacted"}}, errors.InvalidArgument),
    ({"configs": {"delete.retention.ms": "-1"}}, errors.InvalidArgument),
    ({"configs": {"min.compaction.lag.ms": "soon"}}, errors.InvalidArgument),
    ({"name": TOPIC.name}, errors.TopicExists),
]


@pytest.mark.parametrize(("fields", "kind"), REFUSED)
@pytest.mark.parametrize("validate_only", [False, True])
def test_refused(
    fields: dict[str, Any], kind: type[errors.OncelogError], validate_only: bool
) -> None:
    admin = Admin()
    with pytest.raises(kind):
        admin.create(**{"validate_only": validate_only, **fields})
    assert set(admin.world.metadata.by_name) == {TOPIC.name}


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("min.insync.replicas", "min_insync_replicas"),
        ("segment.bytes", "segment_bytes"),
        ("segment.ms", "segment_bytes"),
    ],
)
def test_a_setting_of_kafka_that_topics_do_not_have_names_what_there_is(
    name: str, instead: str
) -> None:
    assert hasattr(NodeConfig(), instead)
    with pytest.raises(errors.Unsupported, match=rf"{name}.*node\.{instead}"):
        Admin().create(configs={name: "1"})


@pytest.mark.parametrize("name", ["partitions", "replication_factor"])
def test_what_is_no_setting_is_refused_with_where_it_is_said(name: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="a field of its own") as refusal:
        Admin().create(configs={name: "6"})
    assert "did you mean" not in refusal.value.message


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        errors.InvalidArgument, match=r"did you mean 'max\.batch\.bytes'"
    ) as refusal:
        Admin().create(configs={"max.batch.byte": "2048"})
    assert refusal.value.metadata["nearest"] == "max.batch.bytes"


def test_alter_and_restore_the_default() -> None:
    admin = Admin()

    def alter(value: str) -> dict[str, str]:
        request = pb.AlterTopicRequest(name=TOPIC.name, configs={"max.batch.bytes": value})
        return dict(admin.do("alter_topic", request).topic.configs)

    assert alter("4096")["max.batch.bytes"] == "4096"
    assert alter("")["max.batch.bytes"] == str(16 << 20)
    with pytest.raises(errors.InvalidArgument):
        alter("-1")
    with pytest.raises(errors.UnknownTopic):
        admin.do("alter_topic", pb.AlterTopicRequest(name="none"))


def test_alter_adds_partitions_up_to_the_limit_of_a_topic() -> None:
    admin = Admin()

    def alter(partitions: int) -> int:
        request = pb.AlterTopicRequest(name=TOPIC.name, partitions=partitions)
        return len(admin.do("alter_topic", request).topic.partitions)

    before = TOPIC.partitions
    assert [alter(0), alter(before + 2), alter(0)] == [before, before + 2, before + 2]
    with pytest.raises(errors.TooLarge) as refusal:
        alter(PartitionLeaderConfig().topic_partitions_max + 1)
    assert refusal.value.metadata["limit"] == "topic_partitions_max"


def test_the_control_topics_are_left_alone_and_hidden() -> None:
    admin = Admin()
    control = TopicInfo(TRANSACTION_CONTROL, TRANSACTION_CONTROL_ID, 16, 1, {}, 0)
    admin.world.metadata.by_name[TRANSACTION_CONTROL] = control
    with pytest.raises(errors.InvalidArgument):
        admin.do("delete_topic", pb.DeleteTopicRequest(name=TRANSACTION_CONTROL))
    with pytest.raises(errors.InvalidArgument):
        admin.do("alter_topic", pb.AlterTopicRequest(name=TRANSACTION_CONTROL))
    names = [t.name for t in admin.do("list_topics", pb.ListTopicsRequest()).topics]
    assert names == [TOPIC.name]
    topics = admin.do("list_topics", pb.ListTopicsRequest(internal=True)).topics
    assert [t.name for t in topics] == [TRANSACTION_CONTROL, TOPIC.name]
    assert len(topics[0].partitions) == 16


def test_a_list_may_say_names_and_ids_only() -> None:
    (topic,) = Admin().do("list_topics", pb.ListTopicsRequest(names_only=True)).topics
    assert topic == pb.TopicDescription(name=TOPIC.name, topic_id=TOPIC.topic_id)


def test_who_lists_topics_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may know of 100,000 partitions, which take more than a second to describe."""
    monkeypatch.setattr(topic_admin, "DESCRIBED_PER_TURN", 4)
    admin = Admin()
    known = admin.world.metadata.by_name
    for number in range(6):
        topic = TopicInfo(f"t{number}", TopicId(bytes([number] * 16)), 9, 1, {}, 0)
        known[topic.name] = topic

    async def turns(name: str, request: Any) -> tuple[int, list[pb.TopicDescription]]:
        listing = asyncio.ensure_future(getattr(admin.service, name)(request, CALL))
        count = 0
        while not listing.done():
            await asyncio.sleep(0)
            count += 1
            if count == 3:
                known.pop("t5", None)
        return count, list(listing.result().topics)

    count, topics = asyncio.run(turns("list_topics", pb.ListTopicsRequest()))
    assert count >= 5 * (1 + 9) // 4
    assert [topic.name for topic in topics] == sorted(known), "without what is deleted meanwhile"
    assert all(len(topic.partitions) == known[topic.name].partitions for topic in topics)
    names = [f"t{number}" for number in range(5)]
    count, topics = asyncio.run(turns("describe_topics", pb.DescribeTopicsRequest(names=names)))
    assert count >= 5 * 9 // 4
    assert [topic.name for topic in topics] == names


def test_describe_by_name_and_id() -> None:
    admin = Admin()
    request = pb.DescribeTopicsRequest(names=[TOPIC.name], topic_ids=[TOPIC.topic_id])
    topics = admin.do("describe_topics", request).topics
    assert [t.topic_id for t in topics] == [TOPIC.topic_id] * 2
    with pytest.raises(errors.UnknownTopic, match="'none'"):
        admin.do("describe_topics", pb.DescribeTopicsRequest(names=["none"]))
    with pytest.raises(errors.InvalidArgument):
        admin.do("describe_topics", pb.DescribeTopicsRequest())


def test_delete() -> None:
    admin = Admin()
    with pytest.raises(errors.UnknownTopic):
        admin.do("delete_topic", pb.DeleteTopicRequest(name=TOPIC.name, topic_id=b"o" * 16))
    request = pb.DeleteTopicRequest(name=TOPIC.name, topic_id=TOPIC.topic_id)
    reply = admin.do("delete_topic", request)
    assert reply.topic_id == TOPIC.topic_id
    assert admin.world.metadata.by_name == {}
