"""The low-level face against processes that move, refuse and lose answers (I29, I31)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncelog._core import paging
from oncelog._core.routing import Endpoint
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2 as cluster
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import (
    BOOT,
    TOPIC_ID,
    ScriptedTransport,
    on_virtual_time,
    place,
    protocol_over,
)

FETCH = offsets.FetchOffsetsRequest(group="g")


def answers(*script: Any) -> Any:
    """A handler that gives these answers one after another, the last for ever."""
    left: Iterator[Any] = iter(script)
    last: Any = None

    def handler(to: Endpoint, request: Any) -> Any:
        nonlocal last
        last = next(left, last)
        if isinstance(last, Exception):
            raise last
        return last

    return handler


def ask(
    transport: ScriptedTransport, method: str, request: Any, timeout_ms: int = 30_000
) -> tuple[Any, float]:
    """The reply or the error, and the virtual seconds."""

    async def work() -> Any:
        protocol = protocol_over(transport)
        try:
            return await protocol.call(method, request, timeout_ms)
        except errors.OncelogError as error:
            return error
        finally:
            await protocol.close()

    return on_virtual_time(work)


def test_a_call_goes_to_the_process_that_metadata_name() -> None:
    transport = ScriptedTransport(5)
    transport.handlers["offset_manager.fetch_offsets"] = answers(offsets.FetchOffsetsReply())
    reply, _ = ask(transport, "offset_manager.fetch_offsets", FETCH)
    assert reply == offsets.FetchOffsetsReply()
    assert transport.asked == [("cluster.get_metadata", 1), ("offset_manager.fetch_offsets", 5)]


@pytest.mark.parametrize("cut_off", [{5}, {5, 6}], ids=["one of them", "all of them"])
def test_i29_who_does_not_reach_etcd_is_believed_only_where_nobody_does(cut_off: set[int]) -> None:
    """What such a process says of leaders and topics may be of long ago, and stays so."""
    transport = ScriptedTransport(5, 6)
    leaders = {BOOT.port: 5, 5: 5, 6: 6}

    def metadata(to: Endpoint, request: Any) -> Any:
        reply = transport.metadata(to, request)
        reply.etcd_reachable = to.port not in cut_off
        for group in reply.consumer_groups:
            group.leader.endpoint.port = leaders[to.port]
        return reply

    transport.handlers["cluster.get_metadata"] = metadata
    transport.handlers["offset_manager.fetch_offsets"] = answers(
        errors.NotLeader("moved"), offsets.FetchOffsetsReply()
    )
    reply, _ = ask(transport, "offset_manager.fetch_offsets", FETCH)
    assert reply == offsets.FetchOffsetsReply()
    asked = [port for method, port in transport.asked if method == "offset_manager.fetch_offsets"]
    assert asked == [5, 6 if 6 not in cut_off else 5]


def test_not_leader_that_names_the_leader_is_followed_without_asking_again() -> None:
    transport = ScriptedTransport(5)
    moved = errors.NotLeader("x", leader_host="boot", leader_port=6)
    transport.handlers["offset_manager.fetch_offsets"] = answers(moved, offsets.FetchOffsetsReply())
    _, seconds = ask(transport, "offset_manager.fetch_offsets", FETCH)
    assert transport.asked[1:] == [
        ("offset_manager.fetch_offsets", 5),
        ("offset_manager.fetch_offsets", 6),
    ]
    assert seconds < 0.01


def test_an_unclean_election_goes_to_the_node_that_shall_lead() -> None:
    transport = ScriptedTransport(5)
    nodes = [
        cluster.Node(node_id=f"n{port}", endpoint=types.Endpoint(host="boot", port=port))
        for port in (5, 6, 7)
    ]
    transport.handlers["cluster.get_metadata"] = answers(cluster.GetMetadataReply(nodes=nodes))
    transport.handlers["cluster.unclean_elect"] = answers(cluster.UncleanElectReply(epoch=3))
    for port in (6, 7):
        request = cluster.UncleanElectRequest(topic="t", node_id=f"n{port}", accept_loss=True)
        reply, _ = ask(transport, "cluster.unclean_elect", request)
        assert reply.epoch == 3
        assert transport.asked[-1] == ("cluster.unclean_elect", port)
    request.node_id = "n8"
    refused, _ = ask(transport, "cluster.unclean_elect", request, 1_000)
    assert refused.reason == "UNAVAILABLE"
    assert "n8" in str(refused)


def test_i29_a_call_for_any_process_finds_the_one_that_came_back_elsewhere() -> None:
    """Nobody listens where the only process of the role was."""
    transport = ScriptedTransport(5)

    def listed(to: Endpoint, request: Any) -> Any:
        transport.partitions = [6]
        if to.port == 5:
            raise errors.Unavailable("nobody listens")
        return leader.ListTopicsReply()

    transport.handlers["partition_leader.list_topics"] = listed
    transport.handlers["partition_leader.create_topic"] = listed
    for method, request in (
        ("partition_leader.list_topics", leader.ListTopicsRequest()),
        ("partition_leader.create_topic", leader.CreateTopicRequest(name="a")),
    ):
        transport.partitions = [5]
        reply, seconds = ask(transport, method, request)
        assert reply == leader.ListTopicsReply()
        assert seconds < 1


@pytest.mark.parametrize("lost", [errors.Unavailable("gone"), errors.UnknownOutcome("cut")])
def test_i29_who_asks_all_processes_finds_the_one_that_came_back_elsewhere(
    lost: errors.OncelogError,
) -> None:
    """And asks nobody twice who has answered."""
    transport = ScriptedTransport(5, 6)

    def listed(to: Endpoint, request: Any) -> Any:
        if to.port == 6:
            transport.partitions = [5, 7]
            raise lost
        described = [coordinator.TransactionDescription(tx_id=tx_id) for tx_id in (to.port, 9)]
        return coordinator.ListTransactionsReply(transactions=described)

    transport.handlers["coordinator.list_transactions"] = listed
    request = coordinator.ListTransactionsRequest()
    reply, seconds = ask(transport, "coordinator.list_transactions", request)
    # A partition that moved in between is listed by both; it is shown once.
    assert [described.tx_id for described in reply.transactions] == [5, 7, 9]
    asked = [port for method, port in transport.asked if method == "coordinator.list_transactions"]
    assert asked == [5, 6, 7]
    assert seconds < 1


def test_i31_who_asks_all_processes_ends_at_the_deadline_with_what_one_says() -> None:
    transport = ScriptedTransport(5, 6)

    def listed(to: Endpoint, request: Any) -> Any:
        if to.port == 6:
            raise errors.Unavailable("gone")
        return coordinator.ListTransactionsReply()

    transport.handlers["coordinator.list_transactions"] = listed
    request = coordinator.ListTransactionsRequest()
    error, seconds = ask(transport, "coordinator.list_transactions", request, 2_000)
    assert isinstance(error, errors.Unavailable)
    assert 1 < seconds <= 2
    transport.handlers["coordinator.list_transactions"] = answers(errors.PermissionDenied("no"))
    error, seconds = ask(transport, "coordinator.list_transactions", request)
    assert isinstance(error, errors.PermissionDenied)
    assert seconds < 0.1


def test_two_processes_that_name_each_other_do_not_make_a_storm() -> None:
    transport = ScriptedTransport(5)

    def each_other(to: Endpoint, request: Any) -> Any:
        raise errors.NotLeader("x", leader_host="boot", leader_port=11 - to.port)

    transport.handlers["offset_manager.fetch_offsets"] = each_other
    error, seconds = ask(transport, "offset_manager.fetch_offsets", FETCH, 5_000)
    assert isinstance(error, errors.NotLeader)
    assert seconds <= 5.0
    assert transport.count("offset_manager.fetch_offsets") < 40


@pytest.mark.parametrize(
    "refusal",
    [
        errors.Loading("x"),
        errors.Unavailable("x"),
        errors.Throttled("x", retry_after_ms=5),
        errors.DiskFull("x"),
        errors.NotEnoughReplicas("x"),
        errors.PendingTransaction("x"),
    ],
    ids=lambda error: error.reason,
)
def test_what_promises_that_nothing_happened_is_repeated(refusal: errors.OncelogError) -> None:
    transport = ScriptedTransport(5)
    reply = offsets.FetchOffsetsReply()
    transport.handlers["offset_manager.fetch_offsets"] = answers(refusal, refusal, reply)
    assert ask(transport, "offset_manager.fetch_offsets", FETCH)[0] == reply


def test_a_lost_answer_is_repeated_where_the_call_is_idempotent() -> None:
    transport = ScriptedTransport(5)
    lost, reply = errors.UnknownOutcome("x"), coordinator.TransactReply(tx_id=9)
    transport.handlers["coordinator.transact"] = answers(lost, reply)
    assert ask(transport, "coordinator.transact", coordinator.TransactRequest())[0] == reply


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("offset_manager.commit_offsets", offsets.CommitOffsetsRequest()),
        ("partition_leader.create_topic", leader.CreateTopicRequest(name="b")),
        ("partition_leader.delete_topic", leader.DeleteTopicRequest(name="b")),
        ("offset_manager.delete_group", offsets.DeleteGroupRequest(group="g")),
        (
            "partition_leader.resolve_transaction",
            leader.ResolveTransactionRequest(partition=place(0)),
        ),
        ("cluster.unclean_elect", cluster.UncleanElectRequest(node_id="5")),
    ],
)
def test_a_lost_answer_is_told_where_repeating_could_do_it_twice(
    method: str, request_: Any
) -> None:
    transport = ScriptedTransport(5)
    transport.handlers[method] = answers(errors.UnknownOutcome("x"))
    error, _ = ask(transport, method, request_)
    assert isinstance(error, errors.UnknownOutcome)
    assert transport.count(method) == 1


def test_i31_a_call_ends_at_its_deadline_with_the_last_error() -> None:
    transport = ScriptedTransport(5)
    transport.handlers["offset_manager.fetch_offsets"] = answers(errors.Loading("x"))
    error, seconds = ask(transport, "offset_manager.fetch_offsets", FETCH, 3_000)
    assert isinstance(error, errors.Loading)
    assert seconds <= 3.0


def test_i31_a_process_that_never_answers_ends_the_call_in_doubt() -> None:
    transport = ScriptedTransport(5)
    transport.delay_s = 1_000.0
    transport.handlers["cluster.get_metadata"] = transport.metadata
    error, seconds = ask(transport, "offset_manager.fetch_offsets", FETCH, 3_000)
    assert isinstance(error, errors.OncelogError)
    assert seconds <= 3.1


def test_a_refusal_after_a_lost_answer_is_still_an_unknown_outcome() -> None:
    transport = ScriptedTransport(5)
    transport.handlers["coordinator.transact"] = answers(
        errors.UnknownOutcome("x"), errors.Loading("x")
    )
    error, _ = ask(transport, "coordinator.transact", coordinator.TransactRequest(), 2_000)
    assert isinstance(error, errors.UnknownOutcome)


@pytest.mark.parametrize("whole", [True, False], ids=["the call", "one item"])
def test_a_refusal_of_a_batch_after_a_lost_answer_is_still_an_unknown_outcome(whole: bool) -> None:
    """NOT_LEADER alone would promise that nothing was appended (I6)."""
    transport = ScriptedTransport(5)
    lost = True

    def handler(to: Endpoint, request: Any) -> Any:
        nonlocal lost
        error = errors.UnknownOutcome("lost") if lost else errors.NotLeader("x")
        lost = False
        if whole:
            raise error
        reply = leader.ProduceReply()
        reply.results.add(partition=place(0), error=errors.to_status(error))
        return reply

    transport.handlers["partition_leader.produce"] = handler
    reply, _ = ask(transport, "partition_leader.produce", produce_request(0), 2_000)
    told = errors.from_status(reply.results[0].error)
    assert isinstance(told, errors.UnknownOutcome)
    assert "an answer was lost, and then: NOT_LEADER" in told.message


def test_nobody_leads_it_now_is_waited_for() -> None:
    transport = ScriptedTransport(0)
    asked = 0

    def metadata(to: Endpoint, request: Any) -> Any:
        nonlocal asked
        asked += 1
        reply = transport.metadata(to, request)
        if asked < 3:
            for route in reply.consumer_groups:
                route.ClearField("leader")
        return reply

    transport.handlers["cluster.get_metadata"] = metadata
    transport.handlers["offset_manager.fetch_offsets"] = answers(offsets.FetchOffsetsReply())
    assert ask(transport, "offset_manager.fetch_offsets", FETCH)[0] == offsets.FetchOffsetsReply()
    assert asked == 3


def produce_request(*partitions: int) -> leader.ProduceRequest:
    request = leader.ProduceRequest(tx_id=3)
    for number, partition in enumerate(partitions):
        request.batches.add(partition=place(partition), base_sequence=number)
    return request


def accept(to: Endpoint, request: Any) -> Any:
    """Every leader says at which port it is, and which batch it got."""
    reply = leader.ProduceReply()
    for batch in request.batches:
        reply.results.add(
            partition=batch.partition, journal_offset=batch.base_sequence, offset=to.port
        )
    return reply


def test_produce_is_split_by_leader_and_merged_in_order() -> None:
    transport = ScriptedTransport(5, 6, 5)
    transport.handlers["partition_leader.produce"] = accept
    reply, _ = ask(transport, "partition_leader.produce", produce_request(0, 1, 2, 1))
    assert [(r.partition.number, r.journal_offset, r.offset) for r in reply.results] == [
        (0, 0, 5),
        (1, 1, 6),
        (2, 2, 5),
        (1, 3, 6),
    ]
    assert transport.count("partition_leader.produce") == 2
    assert all(request.tx_id == 3 for request in transport.requests)


def test_an_item_that_failed_for_good_does_not_fail_the_others() -> None:
    transport = ScriptedTransport(5, 6)

    def one_is_refused(to: Endpoint, request: Any) -> Any:
        if to.port == 6:
            raise errors.TransactionEnded("x")
        return accept(to, request)

    transport.handlers["partition_leader.produce"] = one_is_refused
    reply, _ = ask(transport, "partition_leader.produce", produce_request(0, 1))
    assert not reply.results[0].HasField("error")
    assert errors.from_status(reply.results[1].error).reason == "TRANSACTION_ENDED"


def test_only_the_items_that_may_succeed_later_are_repeated() -> None:
    transport = ScriptedTransport(5, 5)
    seen: list[list[int]] = []

    def first_time_half(to: Endpoint, request: Any) -> Any:
        seen.append([batch.partition.number for batch in request.batches])
        reply = accept(to, request)
        if len(seen) == 1:
            refusal = errors.to_status(errors.NotLeader("x"))
            reply.results[1].error.CopyFrom(refusal)
        return reply

    transport.handlers["partition_leader.produce"] = first_time_half
    reply, _ = ask(transport, "partition_leader.produce", produce_request(0, 1))
    assert seen == [[0, 1], [1]]
    assert not any(result.HasField("error") for result in reply.results)


def test_a_gap_behind_a_refused_batch_is_repeated_with_it() -> None:
    transport = ScriptedTransport(5)
    seen: list[list[int]] = []

    def loading_at_first(to: Endpoint, request: Any) -> Any:
        seen.append([batch.base_sequence for batch in request.batches])
        reply = accept(to, request)
        if len(seen) == 1:
            refusals = (errors.Loading("x"), errors.OutOfOrderSequence("x"))
            for result, error in zip(reply.results, refusals, strict=True):
                result.error.CopyFrom(errors.to_status(error))
        return reply

    transport.handlers["partition_leader.produce"] = loading_at_first
    reply, _ = ask(transport, "partition_leader.produce", produce_request(0, 0))
    assert seen == [[0, 1], [0, 1]]
    assert not any(result.HasField("error") for result in reply.results)


@pytest.mark.parametrize(
    ("partition", "reason"), [(b"x" * 16, "UNKNOWN_TOPIC"), (TOPIC_ID, "UNKNOWN_PARTITION")]
)
def test_what_does_not_exist_is_told_per_item(partition: bytes, reason: str) -> None:
    transport = ScriptedTransport(5)
    request = leader.ListOffsetsRequest()
    query = request.queries.add(earliest=True)
    query.partition.topic_id, query.partition.number = partition, 9
    reply, _ = ask(transport, "partition_leader.list_offsets", request)
    assert errors.from_status(reply.offsets[0].error).reason == reason


def test_listings_ask_every_process_and_merge_by_name() -> None:
    transport = ScriptedTransport(5, 6)

    def groups(to: Endpoint, request: Any) -> Any:
        names = ["b", "d"] if to.port == 5 else ["a", "c"]
        return offsets.ListGroupsReply(groups=[offsets.GroupListing(group=n) for n in names])

    transport.handlers["offset_manager.list_groups"] = groups
    reply, _ = ask(transport, "offset_manager.list_groups", offsets.ListGroupsRequest())
    assert [group.group for group in reply.groups] == ["a", "b", "c", "d"]


def test_a_page_of_several_processes_ends_where_the_first_of_them_has_more() -> None:
    """What lies behind is in the next page: else some would be in none."""
    transport = ScriptedTransport(5, 6)
    held = {5: ["a", "d", "e", "h"], 6: ["b", "c", "f", "g", "i"]}

    def groups(to: Endpoint, request: Any) -> Any:
        names = [name for name in held[to.port] if name > request.after]
        listed = [offsets.GroupListing(group=name) for name in names[: request.limit]]
        return offsets.ListGroupsReply(groups=listed, more=len(names) > request.limit)

    transport.handlers["offset_manager.list_groups"] = groups
    request: Any = offsets.ListGroupsRequest(limit=2)
    pages: list[str] = []
    while request is not None:
        reply, _ = ask(transport, "offset_manager.list_groups", request)
        pages.append("".join(group.group for group in reply.groups))
        request = paging.following("offset_manager.list_groups", request, reply)
    assert pages == ["abc", "de", "fg", "hi"]


def test_what_waits_is_told_that_the_connection_was_closed() -> None:
    import asyncio

    from oncelog.errors import Closed

    async def work() -> None:
        transport = ScriptedTransport(5)
        transport.handlers["offset_manager.fetch_offsets"] = answers(errors.Loading("x"))
        protocol = protocol_over(transport)
        waiting = asyncio.create_task(protocol.call("offset_manager.fetch_offsets", FETCH))
        await asyncio.sleep(0.5)
        await protocol.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await protocol.topic("b")

    assert on_virtual_time(work)[1] < 3


def test_the_topic_is_cached_and_an_unknown_one_is_told_within_its_grace() -> None:
    async def work() -> int:
        transport = ScriptedTransport(5)
        protocol = protocol_over(transport)
        for _ in range(3):
            assert (await protocol.topic("a")).topic_id == TOPIC_ID
        assert transport.count("cluster.get_metadata") == 1
        with pytest.raises(errors.UnknownTopic, match="create_topic"):
            await protocol.topic("nowhere")
        return transport.count("cluster.get_metadata")

    asked, seconds = on_virtual_time(work)
    assert asked > 1
    assert seconds < 2


def test_a_process_of_the_bootstrap_list_that_is_down_is_passed_over() -> None:
    from oncelog.options import ConnectOptions
    from oncelog.protocol import AsyncProtocol

    async def work() -> Any:
        transport = ScriptedTransport(5)

        def first_is_down(to: Endpoint, request: Any) -> Any:
            if to.host == "down":
                raise errors.Unavailable("x")
            return transport.metadata(to, request)

        transport.handlers["cluster.get_metadata"] = first_is_down
        protocol = AsyncProtocol("down:1,boot:1", ConnectOptions(), transport=transport)
        return await protocol.topic("a")

    assert on_virtual_time(work)[0].name == "a"


def test_a_gap_behind_a_batch_that_is_refused_for_good_is_told_with_it() -> None:
    transport = ScriptedTransport(5)

    def refuse(to: Endpoint, request: Any) -> Any:
        reply = accept(to, request)
        refusals = (errors.TooLarge("x"), errors.OutOfOrderSequence("x"))
        for result, error in zip(reply.results, refusals, strict=True):
            result.error.CopyFrom(errors.to_status(error))
        return reply

    transport.handlers["partition_leader.produce"] = refuse
    reply, _ = ask(transport, "partition_leader.produce", produce_request(0, 0))
    assert transport.count("partition_leader.produce") == 1
    reasons = [errors.from_status(result.error).reason for result in reply.results]
    assert reasons == ["TOO_LARGE", "OUT_OF_ORDER_SEQUENCE"]
