"""Heartbeats at the handler: what they must say, what this process sees of their topics, and that
whoever sends them lives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.core.ids import partition_of_name
from oncelog_server.offset_manager import access
from oncelog_server.offset_manager.commands import Assigned, Heartbeat, MemberIdentity
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_membership import decide_heartbeat
from oncelog_server.offset_manager.service import OffsetManagerService
from oncelog_server.offset_manager.state import State
from oncelog_server.offset_manager.subscribing import host_of
from oncelogpb.errors import (
    DiskFull,
    GroupClaimed,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    OncelogError,
    TooLarge,
    UnknownMember,
)
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.offset_manager.fakes import Outside

GROUP = "billing"
HERE = partition_of_name(GROUP)
ORDERS, ORDERS_AGAIN = b"orders.........1", b"orders.........2"


class _Caller:
    peer = "ipv4:10.0.0.7:51234"

    def sees(self, need: object) -> bool:
        return True


CALL: Any = _Caller()


def _beat(member: str, generation: int = 0, **fields: Any) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        group=GROUP,
        member=pb.GroupMember(member_id=member, generation=generation),
        **{"subscribed_topics": ["orders"]} | fields,
    )


def _another_here() -> str:
    """A name of no group, that would be led here."""
    return next(str(n) for n in range(1_000) if partition_of_name(str(n)) == HERE)


def _numbers(reply: pb.HeartbeatReply) -> list[tuple[bytes, int]]:
    return [(partition.topic_id, partition.number) for partition in reply.assignment]


def _place(number: int, topic_id: bytes = ORDERS) -> types_pb2.Partition:
    return types_pb2.Partition(topic_id=topic_id, number=number)


REFUSALS: list[tuple[str, pb.HeartbeatRequest, type[OncelogError], str]] = [
    ("no group", pb.HeartbeatRequest(), InvalidArgument, "group"),
    ("nobody", pb.HeartbeatRequest(group=GROUP), InvalidArgument, "member"),
    ("no id", _beat(""), InvalidArgument, "member_id"),
    ("client id", _beat("m", client_id="c" * 256), InvalidArgument, "client_id"),
    ("assignor", _beat("m", assignor="random"), InvalidArgument, "assignor"),
    (
        "topics",
        _beat("m", subscribed_topics=[str(n) for n in range(10_001)]),
        TooLarge,
        "offsets_per_call_max",
    ),
    (
        "owned",
        _beat("m", owned=[_place(n) for n in range(10_001)]),
        TooLarge,
        "offsets_per_call_max",
    ),
]


@pytest.mark.parametrize(
    ("request_", "error", "what"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_a_heartbeat_of_the_wrong_shape_says_what_is_wrong(
    request_: pb.HeartbeatRequest, error: type[OncelogError], what: str
) -> None:
    async def story() -> None:
        service = OffsetManagerService(Outside(HERE).env, OffsetManagerConfig())
        with pytest.raises(error) as caught:
            await service.heartbeat(request_, CALL)
        assert what in caught.value.metadata.values()

    asyncio.run(story())


def test_a_member_joins_is_told_names_and_times_and_leaves() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        reply = await service.heartbeat(_beat("a"), CALL)
        assert _numbers(reply) == [(ORDERS, 0), (ORDERS, 1)]
        assert [(topic.topic_id, topic.name) for topic in reply.topics] == [(ORDERS, "orders")]
        assert (reply.session_timeout_ms, reply.heartbeat_interval_ms) == (10_000, 500)
        assert (reply.member.member_id, reply.member.generation) == ("a", 1)
        reply = await service.heartbeat(_beat("a", 1, leaving=True), CALL)
        assert not reply.assignment
        reply = await service.heartbeat(_beat("a", 1, leaving=True), CALL)
        assert not reply.assignment

    asyncio.run(story())


@pytest.mark.parametrize(
    ("members_here", "session_ms", "interval_ms"),
    [
        # Within half a second it hears of what others left or lost.
        (1, 10_000, 500),
        (7, 10_000, 500),
        # All of them together: some fifteen heartbeats a second.
        (25, 10_000, 1_600),
        # Never so rarely that a lost one would cost the membership.
        (1_000, 10_000, 3_333),
        (1, 1_000, 333),
    ],
)
def test_i29_news_is_asked_for_often_where_few_ask(
    members_here: int, session_ms: int, interval_ms: int
) -> None:
    beat = Heartbeat(
        GROUP, MemberIdentity(0, "a", ""), (), frozenset(), (), session_timeout_ms=session_ms
    )
    decision = decide_heartbeat(State(), OffsetManagerConfig(), beat, members_here=members_here)
    assert isinstance(decision.reply, Assigned)
    assert decision.reply.heartbeat_interval_ms == interval_ms


def test_a_view_that_is_behind_takes_nothing_away() -> None:
    """Only etcd itself says that a topic is gone; a topic of the same name is another one then."""

    async def story() -> None:
        outside = Outside(HERE)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        await service.heartbeat(_beat("a"), CALL)
        assert outside.metadata.asked_if_gone == 0

        outside.metadata.topics.clear()
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        assert len(reply.assignment) == 2

        outside.metadata.has("orders", ORDERS_AGAIN, 1)
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        assert _numbers(reply) == [(ORDERS, 0), (ORDERS, 1)]
        assert outside.metadata.asked_if_gone == 2

        outside.metadata.deleted = {ORDERS}  # type: ignore[arg-type]
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        assert _numbers(reply) == [(ORDERS_AGAIN, 0)]

    asyncio.run(story())


def test_i28_a_full_disk_refuses_who_joins_and_keeps_who_is_there() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        await service.heartbeat(_beat("a"), CALL)
        outside.replicas.by_number[HERE].full = DiskFull("full")
        with pytest.raises(DiskFull):
            await service.heartbeat(_beat("b"), CALL)
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        assert len(reply.assignment) == 2

    asyncio.run(story())


def test_i23_who_sends_heartbeats_lives() -> None:
    """Whatever its heartbeat is told: a member whose news find no room is not dead."""

    async def story() -> None:
        outside = Outside(HERE)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        host = outside.replicas.by_number[HERE].host
        await service.heartbeat(_beat("a"), CALL)
        outside.replicas.by_number[HERE].full = DiskFull("full")
        for _ in range(20):
            host.pass_time(1_000)
            host.tick()
            with pytest.raises(DiskFull):
                await service.heartbeat(_beat("a", 1, subscribed_topics=["orders", "bills"]), CALL)
        assert host.machine.members == 1  # type: ignore[attr-defined]
        for _ in range(11):
            host.pass_time(1_000)
            host.tick()
        assert host.machine.members == 0  # type: ignore[attr-defined]

    asyncio.run(story())


def test_operators_see_members_and_take_them_out() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        await service.heartbeat(_beat("a", client_id="worker"), CALL)
        await service.heartbeat(_beat("b", assignor="range", session_timeout_ms=20_000), CALL)
        told = await service.describe_group(pb.DescribeGroupRequest(group=GROUP), CALL)
        assert (told.generation, told.state, told.assignor) == (2, pb.GROUP_STATE_MOVING, "range")
        assert [(topic.topic_id, topic.name) for topic in told.topics] == [(ORDERS, "orders")]
        a, b = told.members
        assert (a.member_id, a.client_id, a.host, a.silent_ms) == ("a", "worker", "10.0.0.7", 0)
        assert list(a.subscribed_topics) == ["orders"]
        assert [len(a.owned), len(a.target), len(b.owned), len(b.target)] == [2, 1, 0, 1]
        assert (b.assignor, b.session_timeout_ms) == ("range", 20_000)
        (listed,) = (await service.list_groups(pb.ListGroupsRequest(), CALL)).groups
        assert (listed.members, listed.state) == (2, pb.GROUP_STATE_MOVING)

        with pytest.raises(InvalidArgument):
            await service.remove_member(pb.RemoveMemberRequest(group=GROUP), CALL)
        removal = pb.RemoveMemberRequest(group=GROUP, member_id="a")
        assert (await service.remove_member(removal, CALL)).member_id == "a"
        with pytest.raises(NotFound):
            await service.remove_member(removal, CALL)
        with pytest.raises(UnknownMember):
            await service.delete_group(pb.DeleteGroupRequest(group=GROUP), CALL)
        reply = await service.heartbeat(_beat("b", 3, assignor="range"), CALL)
        assert len(reply.assignment) == 2
        with pytest.raises(UnknownMember):
            await service.heartbeat(_beat("a", 3), CALL)
        with pytest.raises(NotFound):
            await service.describe_group(pb.DescribeGroupRequest(group=_another_here()), CALL)

    asyncio.run(story())


def test_i23_who_claims_a_group_is_named_to_who_joins() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        claim = pb.ClaimGroupRequest(group=GROUP, claim_id="c", holder="the query")
        assert (await service.claim_group(claim, CALL)).timeout_ms == 10_000
        with pytest.raises(GroupClaimed, match="the query commits for group 'billing' alone"):
            await service.heartbeat(_beat("a"), CALL)
        told = await service.describe_group(pb.DescribeGroupRequest(group=GROUP), CALL)
        assert [(one.holder, one.silent_ms) for one in told.claims] == [("the query", 0)]
        host = outside.replicas.by_number[HERE].host
        for _ in range(8):
            host.pass_time(1_000)
            host.tick()
        await service.claim_group(claim, CALL)
        for _ in range(8):
            host.pass_time(1_000)
            host.tick()
        with pytest.raises(GroupClaimed):
            await service.heartbeat(_beat("a"), CALL)
        claim.release = True
        await service.claim_group(claim, CALL)
        assert len((await service.heartbeat(_beat("a"), CALL)).assignment) == 2

    asyncio.run(story())


def test_i28_a_full_disk_refuses_a_claim_that_is_new_and_keeps_one_that_is_there() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        first = pb.ClaimGroupRequest(group=GROUP, claim_id="c", holder="the query")
        await service.claim_group(first, CALL)
        outside.replicas.by_number[HERE].full = DiskFull("full")
        await service.claim_group(first, CALL)
        with pytest.raises(DiskFull):
            other = pb.ClaimGroupRequest(group=GROUP, claim_id="d", holder="another")
            await service.claim_group(other, CALL)

    asyncio.run(story())


def test_who_describes_a_group_sees_the_topics_that_he_may_see() -> None:
    outside = Outside(HERE)
    outside.metadata.has("orders", ORDERS, 2)
    outside.metadata.has("salaries", ORDERS_AGAIN, 1)
    both = [_place(0), _place(0, ORDERS_AGAIN)]
    reply = pb.DescribeGroupReply(
        members=[
            pb.DescribedMember(subscribed_topics=["orders", "salaries"], owned=both, target=both)
        ],
        topics=[pb.TopicName(name="orders"), pb.TopicName(name="salaries")],
        outgrown=[pb.OutgrownTopic(name=name, partitions=5) for name in ("orders", "salaries")],
    )
    shown = access.entries(outside.env)["describe_group"].shown
    assert shown is not None
    shown(reply, lambda need: need.name != "salaries")
    (member,) = reply.members
    assert list(member.subscribed_topics) == ["orders"]
    assert list(member.owned) == list(member.target) == [_place(0)]
    assert [topic.name for topic in reply.topics] == ["orders"]
    assert [topic.name for topic in reply.outgrown] == ["orders"]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B::1%5D:51234", "::1"),
        ("ipv6:[fe80::1]:51234", "fe80::1"),
        ("", ""),
    ],
)
def test_where_a_member_calls_from(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_what_outgrew_its_group_is_said_once_and_shown() -> None:
    """Nobody has asked for it, so nobody can be refused: the group goes on with what it has."""

    async def story() -> None:
        config = OffsetManagerConfig(partitions_per_group_max=2)
        outside = Outside(HERE, config=config)
        outside.metadata.has("orders", ORDERS, 2)
        service = OffsetManagerService(outside.env, config)
        await service.heartbeat(_beat("a"), CALL)
        outside.metadata.has("orders", ORDERS, 5)
        with pytest.raises(UnknownMember):
            await service.heartbeat(_beat("z", 1), CALL)
        assert not outside.reporter.events, "a refused heartbeat says nothing of what the group has"
        for _ in range(2):
            reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
            assert _numbers(reply) == [(ORDERS, 0), (ORDERS, 1)]
        assert outside.reporter.events == ["a topic outgrew its group"]
        machine = outside.replicas.by_number[HERE].machine
        assert machine.partitions_left_out == 3
        described = await service.describe_group(pb.DescribeGroupRequest(group=GROUP), CALL)
        assert [(one.name, one.partitions, one.shared_out) for one in described.outgrown] == [
            ("orders", 5, 2)
        ]
        await service.heartbeat(_beat("a", 1, leaving=True), CALL)
        assert machine.partitions_left_out == 0, "nobody wants them any more"

    asyncio.run(story())


def _small(limit: int) -> tuple[Outside, OffsetManagerService]:
    """A group may have so many partitions."""
    config = OffsetManagerConfig(partitions_per_group_max=limit)
    outside = Outside(HERE, config=config)
    return outside, OffsetManagerService(outside.env, config)


async def _left_out(service: OffsetManagerService) -> list[tuple[str, int, int]]:
    told = await service.describe_group(pb.DescribeGroupRequest(group=GROUP), CALL)
    return [(one.name, one.partitions, one.shared_out) for one in told.outgrown]


def test_a_topic_that_is_made_again_too_large_is_gone_and_shown() -> None:
    """What was deleted is nobody's, whatever came in its place, and nobody reads that in silence
    unseen; once it fits it is shared out."""

    async def story() -> None:
        outside, service = _small(2)
        outside.metadata.has("orders", ORDERS, 2)
        await service.heartbeat(_beat("a"), CALL)
        outside.metadata.has("orders", ORDERS_AGAIN, 3)
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        assert len(reply.assignment) == 2, "nobody knows that it is gone"
        assert await _left_out(service) == []
        outside.metadata.deleted = {ORDERS}  # type: ignore[arg-type]
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        assert _numbers(reply) == [], "the topic that was deleted is no member's any more"
        assert await _left_out(service) == [("orders", 3, 0)]
        assert outside.reporter.events == ["a topic outgrew its group"]
        outside.metadata.topics.clear()
        generation = reply.member.generation
        await service.heartbeat(_beat("a", generation), CALL)
        assert await _left_out(service) == [], "it is gone, too"
        outside.metadata.has("orders", b"orders.........3", 2)
        reply = await service.heartbeat(_beat("a", generation), CALL)
        assert len(reply.assignment) == 2
        assert await _left_out(service) == []

    asyncio.run(story())


def test_what_outgrew_its_group_keeps_nobody_and_nothing_else_out() -> None:
    """A member that is started again comes back, and a topic that fits is shared out."""

    async def story() -> None:
        outside, service = _small(3)
        outside.metadata.has("orders", ORDERS, 2)
        both: Any = {"subscribed_topics": ["orders", "visits"]}
        await service.heartbeat(_beat("a", **both), CALL)
        outside.metadata.has("orders", ORDERS, 5)
        reply = await service.heartbeat(_beat("b", **both), CALL)
        assert reply.member.generation == 2, "it asks for nothing that the group does not have"
        assert await _left_out(service) == [("orders", 5, 2)]
        outside.metadata.has("visits", ORDERS_AGAIN, 1)
        owned = [_place(0), _place(1)]
        reply = await service.heartbeat(_beat("a", 2, owned=owned, **both), CALL)
        told = await service.describe_group(pb.DescribeGroupRequest(group=GROUP), CALL)
        targets = [place for member in told.members for place in member.target]
        assert _place(0, ORDERS_AGAIN) in targets
        outside.metadata.has("bills", b"bills..........1", 1)
        with pytest.raises(LimitExceeded):
            await service.heartbeat(_beat("c", subscribed_topics=["bills"]), CALL)
        await service.heartbeat(_beat("c", subscribed_topics=["orders"]), CALL)

    asyncio.run(story())


def test_of_a_group_that_is_deleted_nothing_is_left() -> None:
    async def story() -> None:
        outside, service = _small(2)
        outside.metadata.has("orders", ORDERS, 2)
        await service.heartbeat(_beat("a"), CALL)
        outside.metadata.has("orders", ORDERS, 5)
        reply = await service.heartbeat(_beat("a", 1, owned=[_place(0), _place(1)]), CALL)
        await service.heartbeat(_beat("a", reply.member.generation, leaving=True), CALL)
        await service.delete_group(pb.DeleteGroupRequest(group=GROUP), CALL)
        machine = outside.replicas.by_number[HERE].machine
        assert machine._outgrown.groups() == []

    asyncio.run(story())
