"""What somebody with a valid certificate, and nothing else, tries. Each attack is told as it would
go, and must leave its victim untouched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.core.ids import journal_partition_of
from oncelogpb import calls, errors, records
from oncelogpb.v1 import (
    coordinator_pb2,
    participant_pb2,
    partition_leader_pb2,
    types_pb2,
)
from tests.access.stage import init, set_up
from tests.access.world import OPERATOR, World, refusal_of, running

RECORDS = 100


def test_i1_a_forged_abort_marker_does_not_touch_a_transaction(tmp_path: Path) -> None:
    """An ABORTED marker obeys no order, so one with any prepare_offset would end the victim's
    transaction at that partition: its commit would be told visible, and nothing could be read."""

    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow(
                "victim create,write,read topic:payments", "victim write producer:enricher"
            )
            log = world.caller("victim").log()
            topic = await log.admin.create_topic("payments", partitions=1)
            producer = await log.transactional_producer("enricher")
            async with producer.transaction(wait="visible") as tx:
                for number in range(RECORDS):
                    await tx.send("payments", b"%d" % number)
                await tx.flush()
                for identity in ("mallory", "victim"):
                    forged = forged_marker(bytes.fromhex(topic.topic_id), tx)
                    for call in ways(world, identity, "Participant", "write_markers", forged):
                        refused = await refusal_of(call)
                        assert isinstance(refused, errors.PermissionDenied)
                        assert refused.metadata["identity"] == identity
            assert len(await readable(log, "payments")) == RECORDS
            await log.close()

    asyncio.run(story())


def forged_marker(topic_id: bytes, tx: Any) -> participant_pb2.WriteMarkersRequest:
    """As a coordinator would send it, from the far future."""
    request = participant_pb2.WriteMarkersRequest()
    group = request.groups.add(journal_partition=journal_partition_of(tx.tx_id))
    group.coordinator_epoch = 1
    group.partition.topic_id = topic_id
    group.markers.add(
        tx_id=tx.tx_id, prepare_offset=1 << 40, kind=participant_pb2.MARKER_KIND_ABORTED
    )
    return request


def ways(world: World, identity: str, service: str, method: str, request: Any) -> list[Any]:
    """The unary call, and the same over a stream."""
    caller = world.caller(identity)
    return [
        caller.call(service, method, request),
        caller.call_on_stream(service, method, request),
    ]


async def require_refused(call: Any, needed: str) -> None:
    refused = await refusal_of(call)
    assert isinstance(refused, errors.PermissionDenied), refused
    told = refused.metadata
    assert f"{told['verb']} {told['kind']}:{told['name']}" == needed


async def readable(log: Any, topic: str, at_most: int = RECORDS) -> list[bytes]:
    """What a committed reader is given."""
    consumer = await log.consumer([topic], start="earliest")
    found: list[bytes] = []
    while len(found) < at_most and (batch := await consumer.poll(2.0)) is not None:
        found += [record.value or b"" for record in batch]
    return found


# ------------------------------------------------------------------------------------- producers


def test_i16_a_producers_name_is_not_taken_over_by_who_may_only_write_as_it(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("* write producer:enricher")
            victim, mallory = world.caller("victim"), world.caller("mallory")
            mine = await victim.call("Coordinator", "init_producer", init("enricher"))
            taken = mallory.call("Coordinator", "init_producer", init("enricher"))
            await require_refused(taken, "fence producer:enricher")
            begun = await victim.call("Coordinator", "begin_transaction", begin(mine.producer))
            assert begun.tx_id, "the victim is not fenced"
            await world.allow("mallory fence producer:enricher")
            theirs = await mallory.call("Coordinator", "init_producer", init("enricher"))
            assert theirs.producer.generation > mine.producer.generation
            taken_back = victim.call("Coordinator", "init_producer", init("enricher"))
            await require_refused(taken_back, "fence producer:enricher")

    asyncio.run(story())


def test_an_unnamed_producer_is_nobody_elses_whatever_the_rules_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("* write topic:*", "mallory write,fence producer:*")
            victim = world.caller("victim")
            asked = init(group="any")
            granted = await victim.call("Coordinator", "init_producer", asked)
            for _ in range(2):
                for method, request in asked_as(granted.producer):
                    for call in ways(world, "mallory", "Coordinator", method, request):
                        await require_refused(call, "write producer:")
                again = world.caller("mallory").call("Coordinator", "init_producer", asked)
                await require_refused(again, "write producer:")
                await world.cluster.restart("coordinator")
            begun = await victim.call("Coordinator", "begin_transaction", begin(granted.producer))
            assert begun.tx_id

    asyncio.run(story())


def asked_as(producer: types_pb2.Producer) -> list[tuple[str, Any]]:
    tx_id = producer.producer_id + 1
    return [
        ("begin_transaction", begin(producer)),
        (
            "commit_transaction",
            coordinator_pb2.CommitTransactionRequest(tx_id=tx_id, producer=producer),
        ),
        ("transact", coordinator_pb2.TransactRequest(producer=producer, request_number=1)),
    ]


def begin(producer: types_pb2.Producer) -> coordinator_pb2.BeginTransactionRequest:
    return coordinator_pb2.BeginTransactionRequest(
        producer=producer, request_id=1, timeout_ms=600_000
    )


# ---------------------------------------------------------------------- transactions of others


def test_transactions_of_others_are_neither_seen_nor_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("* write topic:none")
            victim, mallory = world.caller("victim"), world.caller("mallory")
            mine = await victim.call("Coordinator", "init_producer", init(group="mine"))
            theirs = await mallory.call("Coordinator", "init_producer", init(group="theirs"))
            tx = (await victim.call("Coordinator", "begin_transaction", begin(mine.producer))).tx_id
            await mallory.call("Coordinator", "begin_transaction", begin(theirs.producer))
            for describe in (
                coordinator_pb2.GetTransactionRequest(tx_id=tx),
                coordinator_pb2.GetTransactionRequest(producer=mine.producer, request_number=1),
            ):
                for call in ways(world, "mallory", "Coordinator", "get_transaction", describe):
                    await require_refused(call, "describe transaction:")
            for request in (
                coordinator_pb2.AbortTransactionRequest(tx_id=tx, operator=True),
                coordinator_pb2.AbortTransactionRequest(tx_id=tx, producer=mine.producer),
            ):
                for call in ways(world, "mallory", "Coordinator", "abort_transaction", request):
                    await require_refused(call, "abort transaction:")
            everything = coordinator_pb2.ListTransactionsRequest()
            seen = {
                who: {
                    one.producer.producer_id
                    for one in (
                        await world.caller(who).call("Coordinator", "list_transactions", everything)
                    ).transactions
                }
                for who in ("victim", "mallory", "stranger", OPERATOR)
            }
            ids = {"victim": mine.producer.producer_id, "mallory": theirs.producer.producer_id}
            assert seen == {
                "victim": {ids["victim"]},
                "mallory": {ids["mallory"]},
                "stranger": set(),
                OPERATOR: set(ids.values()),
            }
            own = coordinator_pb2.AbortTransactionRequest(tx_id=tx, operator=True)
            await victim.call("Coordinator", "abort_transaction", own)

    asyncio.run(story())


def test_what_is_ones_own_is_seen_and_ended_also_when_all_rights_are_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow("alice write producer:p")
            alice = world.caller("alice")
            mine = await alice.call("Coordinator", "init_producer", init("p"))
            tx = (await alice.call("Coordinator", "begin_transaction", begin(mine.producer))).tx_id
            await world.withdraw("alice write producer:p")
            again = alice.call("Coordinator", "begin_transaction", begin(mine.producer))
            await require_refused(again, "write producer:p")
            abort = coordinator_pb2.AbortTransactionRequest(tx_id=tx, producer=mine.producer)
            await alice.call("Coordinator", "abort_transaction", abort)
            described = await alice.call(
                "Coordinator",
                "get_transaction",
                coordinator_pb2.GetTransactionRequest(tx_id=tx),
            )
            assert described.transaction.state == types_pb2.TRANSACTION_STATE_ABORTED

    asyncio.run(story())


@pytest.mark.parametrize("field", ["abort", "begin_next"])
def test_hints_without_a_right_are_left_out_and_decide_nothing(tmp_path: Path, field: str) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            stage = await set_up(world)
            await world.allow("alice write producer:p", "alice write topic:a")
            alice = world.caller("alice")
            mine = (await alice.call("Coordinator", "init_producer", init("p"))).producer
            tx = (await alice.call("Coordinator", "begin_transaction", begin(mine))).tx_id
            parts = [stage.place("a"), stage.place("b")]
            if field == "abort":
                abort = coordinator_pb2.AbortTransactionRequest(
                    tx_id=tx, producer=mine, parts=parts
                )
                await alice.call("Coordinator", "abort_transaction", abort)
            else:
                following = coordinator_pb2.BeginNext(request_id=2, parts=parts)
                commit = coordinator_pb2.CommitTransactionRequest(
                    tx_id=tx, producer=mine, begin_next=following
                )
                tx = (await alice.call("Coordinator", "commit_transaction", commit)).next.tx_id
            described = await alice.call(
                "Coordinator",
                "get_transaction",
                coordinator_pb2.GetTransactionRequest(tx_id=tx),
            )
            named = [topic.topic_id for topic in described.transaction.parts.topics]
            assert named == [stage.topics["a"]]

    asyncio.run(story())


# -------------------------------------------------------------------- batches in another's name


def test_i3_i6_nobody_writes_into_a_transaction_or_a_sequence_of_another(tmp_path: Path) -> None:
    """Although he may write the topic, and knows every number, for he may read it, too."""

    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow(
                "victim create,write,read topic:payments",
                "victim write producer:enricher",
                "mallory write,read topic:payments",
            )
            log = world.caller("victim").log()
            await log.admin.create_topic("payments", partitions=1)
            plain = await log.producer()
            await plain.send("payments", b"plain 0")
            await plain.flush()
            producer = await log.transactional_producer("enricher")
            async with producer.transaction(wait="visible") as tx:
                await tx.send("payments", b"tx 0")
                await tx.flush()
                for batch in await raw(world, "mallory", log):
                    await forge(world, "mallory", batch)
                await tx.send("payments", b"tx 1")
                await plain.send("payments", b"plain 1")
                await plain.flush()
            found = await readable(log, "payments", 4)
            assert sorted(found) == [b"plain 0", b"plain 1", b"tx 0", b"tx 1"]
            await log.close()

    asyncio.run(story())


async def raw(world: World, identity: str, log: Any) -> list[Any]:
    """What stands in the journal, with everybody's numbers."""
    (described,) = [t for t in await log.admin.topics() if t.name == "payments"]
    request = partition_leader_pb2.FetchRequest(isolation=partition_leader_pb2.ISOLATION_RAW)
    wanted = request.partitions.add()
    wanted.partition.topic_id = bytes.fromhex(described.topic_id)
    reply = await world.caller(identity).call("PartitionLeader", "fetch", request)
    (partition,) = reply.partitions
    batches = [
        (partition.partition, batch)
        for batch in partition.batches
        if batch.kind == partition_leader_pb2.FetchedBatch.KIND_DATA
    ]
    assert len(batches) == 2, "one of each kind"
    return batches


async def forge(world: World, identity: str, found: Any) -> None:
    """The next batch of that source."""
    partition, batch = found
    forged = records.seal(records.make_batch([None], [b"forged"], 1))
    forged.partition.CopyFrom(partition)
    forged.base_sequence = batch.base_sequence + batch.record_count
    request = partition_leader_pb2.ProduceRequest(
        tx_id=batch.tx_id, producer=batch.producer, writer=batch.writer, batches=[forged]
    )
    for call in ways(world, identity, "PartitionLeader", "produce", request):
        (result,) = (await call).results
        refused = errors.from_status(result.error)
        assert isinstance(refused, errors.PermissionDenied), refused


# ------------------------------------------------------------------------------ what is told


def test_a_topic_without_a_right_to_it_is_as_one_that_is_not_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await set_up(world)
            await world.allow("alice read topic:a")
            log = world.caller("alice").log()
            assert [topic.name for topic in await log.admin.topics()] == ["a"]
            for topic in ("b", "never-was"):
                for ask in (log.admin.describe_topic(topic), log.consumer([topic])):
                    with pytest.raises(errors.PermissionDenied) as refused:
                        await ask
                    assert refused.value.metadata["name"] == topic
                    assert refused.value.metadata["identity"] == "alice"
            await log.close()

    asyncio.run(story())


def test_groups_are_listed_as_far_as_they_may_be_described(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            await set_up(world)
            await world.allow("alice read group:g", "alice read topic:a")
            log = world.caller("alice").log()
            assert [group.group for group in await log.admin.groups()] == ["g"]
            offsets = await log.admin.group_offsets("g")
            assert [offset.topic for offset in offsets] == ["a"], "of b it may not know"
            await log.close()

    asyncio.run(story())


# --------------------------------------------------------------------------- rights that end


@pytest.mark.parametrize("way", ["subscribe", "fetch"])
def test_data_does_not_flow_on_after_the_right_to_it_is_withdrawn(tmp_path: Path, way: str) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            stage = await set_up(world)
            await world.allow("alice read topic:a")
            alice, operator = world.caller("alice"), world.operator
            wanted = partition_leader_pb2.FetchPartition(partition=stage.place("a"), offset=1)
            if way == "fetch":
                poll = partition_leader_pb2.FetchRequest(partitions=[wanted], max_wait_ms=20_000)
                waiting = asyncio.create_task(alice.call("PartitionLeader", "fetch", poll))
            else:
                follow = partition_leader_pb2.SubscribeRequest(partitions=[wanted])
                channel = alice.channels["partition_leader"]
                replies = calls.server_stream(channel, "PartitionLeader", "subscribe", follow)
                waiting = asyncio.create_task(anext(replies))
            await asyncio.sleep(0.3)
            await world.withdraw("alice read topic:a")
            await operator.call("PartitionLeader", "produce", stage.plain("a"))
            with pytest.raises(errors.PermissionDenied):
                await waiting

    asyncio.run(story())


def test_a_stream_that_is_open_obeys_the_rules_of_now(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as world:
            stage = await set_up(world)
            alice = world.caller("alice")

            async def send() -> bool:
                request = stage.plain("a")
                reply = await alice.call_on_stream("PartitionLeader", "produce", request)
                return not reply.results[0].HasField("error")

            assert not await send()
            await world.allow("alice write topic:*")
            assert await send()
            await world.allow("deny alice write topic:a")
            assert not await send()
            await world.withdraw("deny alice write topic:a")
            assert await send()

    asyncio.run(story())


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
