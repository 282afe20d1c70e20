"""Administration, as the client does it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.admin import Admin
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, on_virtual_time, protocol_over


def creating(transport: ScriptedTransport, timeout_ms: int = 30_000) -> tuple[Any, float]:
    """The topic, as it was when create_topic returned, or its error; and the virtual seconds."""
    bare = leader.TopicDescription(name="a", topic_id=TOPIC_ID)
    for number in range(len(transport.partitions)):
        bare.partitions.add(number=number)

    def created(to: Endpoint, request: Any) -> Any:
        return leader.CreateTopicReply(topic=bare)

    transport.handlers["partition_leader.create_topic"] = created

    async def work() -> Any:
        protocol = protocol_over(transport, timeout_ms=timeout_ms)
        try:
            return await Admin(protocol).create_topic("a")
        except errors.OncelogError as error:
            return error
        finally:
            await protocol.close()

    return on_virtual_time(work)


def test_who_creates_a_topic_waits_for_its_leaders() -> None:
    transport = ScriptedTransport(5, 0)
    asked = 0

    def metadata(to: Endpoint, request: Any) -> Any:
        nonlocal asked
        asked += bool(request.topics)
        if asked == 3:
            transport.partitions = [5, 6]
        return transport.metadata(to, request)

    transport.handlers["cluster.get_metadata"] = metadata
    topic, _ = creating(transport)
    assert [partition.leader for partition in topic.partitions] == ["boot:5", "boot:6"]


@pytest.mark.parametrize("metadata", ["nobody leads", "nobody answers"])
def test_i31_a_topic_that_gets_no_leaders_is_created_all_the_same(metadata: str) -> None:
    """An error would say that nothing happened."""
    transport = ScriptedTransport(5, 0)
    if metadata == "nobody answers":

        def silent(to: Endpoint, request: Any) -> Any:
            if request.topics:
                raise errors.Unavailable("nobody listens")
            return transport.metadata(to, request)

        transport.handlers["cluster.get_metadata"] = silent
    topic, seconds = creating(transport, timeout_ms=2_000)
    assert topic.name == "a"
    assert None in [partition.leader for partition in topic.partitions]
    assert seconds <= 2.1


@pytest.mark.parametrize(("limit", "seen"), [(0, "abcdefg"), (3, "abc"), (7, "abcdefg")])
def test_listings_are_read_page_by_page(limit: int, seen: str) -> None:
    transport = ScriptedTransport(5)

    def transactions(to: Endpoint, request: Any) -> Any:
        behind = [tx_id for tx_id in range(1, 8) if tx_id > request.after_tx_id]
        listed = [
            coordinator.TransactionDescription(tx_id=tx_id, name="abcdefg"[tx_id - 1])
            for tx_id in behind[:2]
        ]
        return coordinator.ListTransactionsReply(transactions=listed, more=len(behind) > 2)

    def groups(to: Endpoint, request: Any) -> Any:
        behind = [name for name in "abcdefg" if name > request.after]
        listed = [offsets.GroupListing(group=name) for name in behind[:3]]
        return offsets.ListGroupsReply(groups=listed, more=len(behind) > 3)

    transport.handlers["coordinator.list_transactions"] = transactions
    transport.handlers["offset_manager.list_groups"] = groups

    async def work() -> tuple[str, str]:
        protocol = protocol_over(transport)
        admin = Admin(protocol)
        found = await admin.transactions(limit=limit)
        of_groups = await admin.groups()
        await protocol.close()
        return "".join(one.name for one in found), "".join(one.group for one in of_groups)

    assert on_virtual_time(work)[0] == (seen, "abcdefg")


def test_a_topic_is_deleted_by_its_id_so_that_a_late_request_deletes_no_other() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)
        standing = b"n" * 16

        def delete(to: Endpoint, request: Any) -> Any:
            if request.topic_id != standing:
                raise errors.UnknownTopic("another", topic="a", topic_id=standing.hex())
            return leader.DeleteTopicReply(topic_id=standing)

        transport.handlers["partition_leader.delete_topic"] = delete
        await Admin(protocol_over(transport)).delete_topic("a")
        asked = [r.topic_id for r in transport.requests if isinstance(r, leader.DeleteTopicRequest)]
        assert asked == [TOPIC_ID, standing], "it was made again since it was looked at"

    on_virtual_time(work)


Call = Callable[[Admin], Coroutine[Any, Any, Any]]


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("partitions", lambda admin: admin.create_topic("a", partitions="6")),
        ("partitions", lambda admin: admin.create_topic("a", partitions=-1)),
        ("partitions", lambda admin: admin.create_topic("a", partitions=6.5)),
        ("partitions", lambda admin: admin.create_topic("a", partitions=True)),
        ("partitions", lambda admin: admin.create_topic("a", partitions=1 << 40)),
        ("replication_factor", lambda admin: admin.create_topic("a", replication_factor=-3)),
        ("configs", lambda admin: admin.create_topic("a", configs={"retention_ms": 5})),
        ("configs", lambda admin: admin.create_topic("a", configs="retention_ms")),
        ("name", lambda admin: admin.create_topic(5)),
        ("name", lambda admin: admin.create_topic("\udcff")),
        ("partitions", lambda admin: admin.alter_topic("a", partitions="6")),
        ("partitions", lambda admin: admin.alter_topic("a", partitions=-1)),
        ("configs", lambda admin: admin.alter_topic("a", {"retention_ms": 5})),
        ("name", lambda admin: admin.describe_topic(5)),
        ("name", lambda admin: admin.delete_topic(5)),
        ("topic", lambda admin: admin.offsets(5)),
        ("at", lambda admin: admin.offsets("a", at=1.5)),
        ("at", lambda admin: admin.offsets("a", at=True)),
        ("at", lambda admin: admin.offsets("a", at="7")),
        ("at", lambda admin: admin.offsets("a", at=1 << 70)),
        ("isolation", lambda admin: admin.offsets("a", isolation=["committed"])),
        ("min_age_ms", lambda admin: admin.transactions(min_age_ms=-1)),
        ("limit", lambda admin: admin.transactions(limit="3")),
        ("limit", lambda admin: admin.transactions(limit=-3)),
        (
            "producer_id",
            lambda admin: admin.describe_transaction(producer_id="x", request_number=1),
        ),
        ("request_number", lambda admin: admin.describe_transaction(request_number=-1)),
        ("tx_id", lambda admin: admin.abort_transaction("xyz")),
        ("tx_id", lambda admin: admin.abort_transaction(-1)),
        ("tx_id", lambda admin: admin.resolve_transaction("7", "a", 0, "drop")),
        ("partition", lambda admin: admin.resolve_transaction(7, "a", -1, "drop")),
        ("topic", lambda admin: admin.resolve_transaction(7, 5, 0, "drop")),
        ("prefix", lambda admin: admin.groups(5)),
        ("group", lambda admin: admin.group_offsets(5)),
        ("group", lambda admin: admin.delete_group(5)),
        ("identity", lambda admin: admin.access.allow(5, "read", "topic:a")),
        ("verbs", lambda admin: admin.access.allow("a", ["read"], "topic:a")),
        ("what", lambda admin: admin.access.allow("a", "read", ["topic:a"])),
        ("identity", lambda admin: admin.access.set_quota(5, calls_per_second=1)),
        ("calls_per_second", lambda admin: admin.access.set_quota("a", calls_per_second="9")),
        ("bytes_per_second", lambda admin: admin.access.set_quota("a", bytes_per_second=-9)),
    ],
)
def test_what_a_field_does_not_take_is_refused_by_its_name(field: str, call: Call) -> None:
    async def work() -> errors.InvalidArgument:
        protocol = protocol_over(ScriptedTransport(5))
        with pytest.raises(errors.InvalidArgument) as refused:
            await call(Admin(protocol))
        await protocol.close()
        return refused.value

    refused, _ = on_virtual_time(work)
    assert refused.metadata["field"] == field
    assert refused.message.startswith(f"{field} is ")
