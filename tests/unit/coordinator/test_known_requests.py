"""A request that is known gets its old answer, whatever has happened since; and a commit's answer
is its own: what came along with it is told beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelogpb import records
from oncelogpb.errors import InvalidArgument, OncelogError, Unavailable, from_status
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import batch, begin, commit, init, refused, run
from tests.unit.coordinator.harness import ORDERS, Coordinator, FakeCall, until

LATER_INSTANCE = b"a later instance"
SOMEBODY_ELSE = b"somebody else..."


def why_no_next(reply: pb.CommitTransactionReply) -> str:
    assert not reply.HasField("next")
    return from_status(reply.next_error).reason


@pytest.mark.parametrize("is_over", [False, True])
def test_i1_i4_a_commit_is_a_fact_although_its_next_is_fenced(is_over: bool) -> None:
    async def story(c: Coordinator) -> None:
        if not is_over:
            c.around.leader = None
        who = await init(c)
        tx_id = await begin(c, who)
        first = await commit(c, who, tx_id, begin_next=pb.BeginNext(request_id=2))
        assert first.HasField("next")
        # The answer is lost, and somebody takes the name over.
        await init(c, LATER_INSTANCE)
        if is_over:
            await until(lambda: len(c.state.transactions) == 0)
        again = await commit(c, who, tx_id, begin_next=pb.BeginNext(request_id=2))
        assert why_no_next(again) == "PRODUCER_FENCED"
        assert again.visible is is_over

    run(story)


@pytest.mark.parametrize(
    ("following", "why"),
    [
        (pb.BeginNext(request_id=2, timeout_ms=4_000_000), "INVALID_TIMEOUT"),
        (pb.BeginNext(request_id=0), "STALE_REQUEST_ID"),
        (
            pb.BeginNext(request_id=2, parts=[types.Partition(topic_id=ORDERS, number=9)]),
            "UNKNOWN_PARTITION",
        ),
        (
            pb.BeginNext(request_id=2, parts=[types.Partition(topic_id=b"short")]),
            "INVALID_ARGUMENT",
        ),
        (
            pb.BeginNext(request_id=2, commit_seq=types.CommitSeq(scope="s" * 256)),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_i4_a_commit_happens_whatever_refuses_the_next(following: pb.BeginNext, why: str) -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        for _ in range(2):
            reply = await commit(c, who, tx_id, begin_next=following)
            assert why_no_next(reply) == why
        await until(lambda: len(c.state.transactions) == 0)
        # Nothing is left open.
        await begin(c, who, 3)

    run(story)


def test_a_commit_makes_room_for_its_next() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        reply = await commit(c, who, tx_id, begin_next=pb.BeginNext(request_id=2))
        assert reply.next.result == pb.BeginTransactionReply.RESULT_OPEN

    run(story, CoordinatorConfig(open_transactions_max=1))


def test_a_commit_that_changed_nothing_begins_no_next() -> None:
    """ALREADY_COMMITTED leaves its transaction open, and the caller is told so."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        seq = types.CommitSeq(scope="q", number=1)
        await commit(c, who, await begin(c, who), commit_seq=seq)
        tx_id = await begin(c, who, 2)
        reply = await commit(c, who, tx_id, commit_seq=seq, begin_next=pb.BeginNext(request_id=3))
        assert reply.already_committed
        assert why_no_next(reply) == "CONCURRENT_TRANSACTION"

    run(story)


def test_i16_who_was_replaced_registers_again_and_fences_nobody() -> None:
    async def story(c: Coordinator) -> None:
        replaced = await init(c)
        living = await init(c, LATER_INSTANCE)
        again = init(c, SOMEBODY_ELSE, held_generation=replaced.generation)
        assert await refused(again) == "PRODUCER_FENCED"
        await begin(c, living)
        # The living one may, and so may who holds nothing.
        await init(c, SOMEBODY_ELSE, held_generation=living.generation)
        await init(c, b"a fresh start...")

    run(story)


# ------------------------------------------------------------------------------------- one-shots


def shot(who: types.Producer, number: int = 1, value: bytes = b"v") -> pb.TransactRequest:
    rows = types.Rows(rows=[types.Row(value=value, timestamp_us=5)]).SerializeToString()
    one = batch(payload=rows, crc32c=records.checksum(rows))
    return pb.TransactRequest(producer=who, request_number=number, batches=[one])


async def transact(c: Coordinator, request: pb.TransactRequest) -> pb.TransactReply:
    reply: pb.TransactReply = await c.service.transact(request, FakeCall())
    return reply


def its_topic_is_deleted(c: Coordinator) -> None:
    c.around.delete(ORDERS)


def its_topic_takes_less(c: Coordinator) -> None:
    c.around.topics[ORDERS] = c.around.topics[ORDERS]._replace(configs={"max.batch.bytes": "1"})


def the_disk_is_full(c: Coordinator) -> None:
    c.replica.full = True


def etcd_is_away(c: Coordinator) -> None:
    del c.around.topics[ORDERS]

    async def nobody_knows(topic_id: bytes) -> bool:
        raise Unavailable("cannot ask etcd")

    c.around.is_gone = nobody_knows  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "happens", [its_topic_is_deleted, its_topic_takes_less, the_disk_is_full, etcd_is_away]
)
def test_i4_a_known_one_shot_gets_its_old_answer(happens: Callable[[Coordinator], None]) -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        first = await transact(c, shot(who))
        assert not first.duplicate
        happens(c)
        for _ in range(2):
            again = await transact(c, shot(who))
            assert (again.tx_id, again.duplicate) == (first.tx_id, True)
        # What is new is refused.
        await refused(c.service.transact(shot(who, 2), FakeCall()))

    run(story)


def test_i4_a_commit_is_told_again_whatever_became_of_its_partitions() -> None:
    """The coordinator had not heard of the topic when it committed, and knows better now."""

    async def story(c: Coordinator) -> None:
        orders = c.around.topics.pop(ORDERS)
        c.around.leader = None
        who = await init(c)
        tx_id = await begin(c, who)
        request = pb.CommitTransactionRequest(tx_id=tx_id, producer=who)
        request.manifest.topics.add(topic_id=ORDERS, partition=[1], writer=[0], record_count=[1])
        await c.service.commit_transaction(request, FakeCall())
        c.around.topics[ORDERS] = orders._replace(partitions=1)
        await c.service.commit_transaction(request, FakeCall())

    run(story)


def another_payload(request: pb.TransactRequest) -> None:
    request.batches[0].CopyFrom(shot(request.producer, value=b"w").batches[0])


def another_payload_that_claims_to_be_the_same(request: pb.TransactRequest) -> None:
    request.batches[0].payload = shot(request.producer, value=b"w").batches[0].payload


def another_partition(request: pb.TransactRequest) -> None:
    request.batches[0].partition.number = 1


def one_batch_more(request: pb.TransactRequest) -> None:
    request.batches.append(batch(1))


def another_encoding(request: pb.TransactRequest) -> None:
    request.batches[0].encoding = types.ENCODING_ARROW_V1


def another_number_of_records(request: pb.TransactRequest) -> None:
    request.batches[0].record_count = 2


def with_offsets(request: pb.TransactRequest) -> None:
    request.offsets.group = "c"


def with_a_commit_seq(request: pb.TransactRequest) -> None:
    request.commit_seq.number = 3


@pytest.mark.parametrize(
    "change",
    [
        another_payload,
        another_payload_that_claims_to_be_the_same,
        another_partition,
        one_batch_more,
        another_encoding,
        another_number_of_records,
        with_offsets,
        with_a_commit_seq,
    ],
)
@pytest.mark.parametrize("since", ["", "failover", "take-over"])
def test_i1_a_used_request_number_with_another_content_is_refused(
    change: Callable[[pb.TransactRequest], None], since: str
) -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        first = await transact(c, shot(who))
        if since == "failover":
            c.replica.host.sync()
            c.replica.host.failover(lose_tail=False)
            c.replica.host.sync()
        if since == "take-over":
            await init(c, LATER_INSTANCE)
        other = shot(who)
        change(other)
        assert await refused(c.service.transact(other, FakeCall())) == "DUPLICATE_SEQUENCE"
        assert (await transact(c, shot(who))).tx_id == first.tx_id

    run(story)


def test_a_number_that_was_passed_over_keeps_its_content_too() -> None:
    """It was answered ALREADY_COMMITTED: there is no transaction, but the number is used."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        for number in (1, 2):
            request = shot(who, number)
            request.commit_seq.number = 1
            reply = await transact(c, request)
        assert reply.already_committed
        assert not reply.duplicate
        again = await transact(c, request)
        assert (again.already_committed, again.duplicate) == (True, True)
        another_payload(request)
        assert await refused(c.service.transact(request, FakeCall())) == "DUPLICATE_SEQUENCE"

    run(story)


def test_one_that_waited_for_the_offset_manager_is_no_duplicate_of_itself() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        request = shot(who)
        request.offsets.CopyFrom(offsets_pb.GroupOffsets(group="c"))
        assert not (await transact(c, request)).duplicate
        assert (await transact(c, request)).duplicate

    run(story)


async def limit_of(c: Coordinator, request: pb.TransactRequest) -> str:
    with pytest.raises(OncelogError) as told:
        await transact(c, request)
    assert told.value.reason == "TOO_LARGE"
    return told.value.metadata["limit"]


def test_a_one_shot_honours_the_limit_of_its_topic() -> None:
    async def story(c: Coordinator) -> None:
        limited = c.around.topics[ORDERS]._replace(configs={"max.batch.bytes": "1024"})
        c.around.topics[ORDERS] = limited
        who = await init(c)
        assert await limit_of(c, shot(who, value=b"x" * 1100)) == "max.batch.bytes"
        # Its number is not used up.
        await transact(c, shot(who, value=b"x" * 900))

    run(story)


def test_a_one_shot_to_a_topic_that_is_compacted_needs_keys() -> None:
    async def story(c: Coordinator) -> None:
        c.around.topics[ORDERS] = c.around.topics[ORDERS]._replace(
            configs={"cleanup.policy": "compact,delete"}
        )
        who = await init(c)
        with pytest.raises(InvalidArgument, match="record 0 of the batch has no key") as no:
            await transact(c, shot(who))
        assert no.value.metadata["field"] == "key"
        # Its number is not used up.
        rows = types.Rows(rows=[types.Row(key=b"", value=b"v", timestamp_us=5)]).SerializeToString()
        keyed = batch(payload=rows, crc32c=records.checksum(rows))
        request = pb.TransactRequest(producer=who, request_number=1, batches=[keyed])
        await transact(c, request)

    run(story)


def test_what_decompresses_above_the_limit_is_told_by_its_name() -> None:
    """So that its producer can begin a transaction for it instead."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        plain = records.make_batch([None] * 20, [b"x" * 300_000] * 20, 5)
        payload = records.encode_arrow(plain, records.Compression.ZSTD)
        request = shot(who)
        request.batches[0].CopyFrom(
            batch(
                encoding=types.ENCODING_ARROW_V1,
                record_count=20,
                crc32c=records.checksum(payload),
                payload=bytes(payload),
            )
        )
        assert len(payload) < 256 * 1024
        assert await limit_of(c, request) == "one_shot_decompressed_bytes_max"
        assert await limit_of(c, shot(who, value=b"x" * 1_100_000)) == "one_shot_bytes_max"

    run(story)


def test_offsets_count_in_what_a_one_shot_may_have() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        metadata = "m" * 4_000
        offsets = offsets_pb.GroupOffsets(
            group="g", offsets=[offsets_pb.OffsetCommit(metadata=metadata) for _ in range(300)]
        )
        request = pb.TransactRequest(producer=who, request_number=1, offsets=offsets)
        assert await limit_of(c, request) == "one_shot_bytes_max"

    run(story)
