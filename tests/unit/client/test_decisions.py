"""What a commit waits for and says, and what its answer makes of consumer and producer (I3, I4,
I12, I21)."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import ONE_SHOT_ALONE_BYTES_MAX
from oncelog.aio.admin import Admin
from oncelog.aio.outcomes import ExposedPart
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID, place
from tests.unit.client.test_transactions import BIG, Services, consumer_of, transacting

KEY = PartitionKey(TOPIC_ID, 0)
Begun = pb.BeginTransactionReply


async def fill(tx: Any, *, large: bool) -> None:
    await tx.send("a", b"v", partition=0)
    if large:
        await tx.flush()


def slow_leaders(services: Services, transport: Any) -> None:
    """Their acknowledgements take a second."""
    handler = transport.handlers["partition_leader.produce"]

    def later(to: Any, request: Any) -> Any:
        async def answer() -> Any:
            await asyncio.sleep(1)
            return handler(to, request)

        return answer()

    transport.handlers["partition_leader.produce"] = later


large_too = pytest.mark.parametrize("large", [False, True], ids=["one message", "opened"])


@large_too
@pytest.mark.parametrize(
    ("wait", "wire"), [("prepared", types.WAIT_PREPARED), ("visible", types.WAIT_VISIBLE)]
)
def test_i12_the_commit_waits_for_what_was_asked(large: bool, wait: str, wire: int) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction(wait=wait) as tx:
            await fill(tx, large=large)
        (request,) = services.of("commit_transaction" if large else "transact")
        assert request.wait == wire

    transacting(work)


@large_too
def test_what_is_visible_is_told_with_its_place_and_needs_no_chain(large: bool) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        exposed = [types.ExposedPart(partition=place(0), first_offset=40, record_count=1)]
        services.script = {
            "transact": [pb.TransactReply(tx_id=101, visible=True, exposed=exposed)],
            "commit_transaction": [pb.CommitTransactionReply(visible=True, exposed=exposed)],
        }
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer, wait="visible") as tx:
            await fill(tx, large=large)
        assert (tx.tx_id, tx.visible) == (101, True)
        assert tx.exposed == [ExposedPart("a", 0, 40, 1)]
        assert consumer._positions.after(KEY) is None
        assert consumer._positions.since(KEY) == 10

    transacting(work)


@large_too
def test_i21_what_an_earlier_run_committed_moves_no_position(large: bool) -> None:
    """The group is asked: this run may have read something else."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script = {
            "transact": [pb.TransactReply(tx_id=101, already_committed=True)],
            "begin_transaction": [Begun(result=Begun.RESULT_ALREADY_COMMITTED)],
        }
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer, commit_seq=("s", 1)) as tx:
            await fill(tx, large=large)
        assert tx.already_committed
        assert consumer._positions.unknown() == [KEY]

    transacting(work)


def test_a_commit_that_finds_its_number_taken_only_then_moves_no_position() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [pb.CommitTransactionReply(already_committed=True)]
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer, commit_seq=("s", 1)) as tx:
            await fill(tx, large=True)
        assert tx.already_committed
        assert consumer._positions.unknown() == [KEY]

    transacting(work)


def test_i3_a_commit_waits_for_all_acknowledgements_and_counts_them() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        slow_leaders(services, transport)
        async with producer.transaction() as tx:
            for number in range(7):
                await tx.send("a", BIG, partition=number % 2)
        (commit,) = services.of("commit_transaction")
        counts = [(list(t.partition), list(t.record_count)) for t in commit.manifest.topics]
        assert counts == [([0, 1], [4, 3])]
        sent = [b for request in services.of("produce") for b in request.batches]
        assert sum(batch.record_count for batch in sent) == 7, "each once"

    transacting(work)


def test_a_flush_returns_when_all_is_durable() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        slow_leaders(services, transport)
        async with producer.transaction() as tx:
            await tx.send("a", b"v", partition=0)
            begun = asyncio.get_running_loop().time()
            await tx.flush()
            assert asyncio.get_running_loop().time() - begun >= 1

    transacting(work)


@pytest.mark.parametrize(
    ("answers", "raised"),
    [
        ([Begun(result=Begun.RESULT_ENDED, tx_id=9)], errors.TransactionEnded),
        ([errors.UnknownOutcome("x")] * 100, errors.UnknownOutcome),
    ],
    ids=["ended before it was used", "nobody answers"],
)
def test_a_begin_that_gives_nothing_open_sends_nothing(
    answers: list[Any], raised: type[Exception]
) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["begin_transaction"] = list(answers)
        with pytest.raises(raised):
            async with producer.transaction() as tx:
                await fill(tx, large=True)
        assert "produce" not in services.names()
        services.script.clear()
        async with producer.transaction() as tx:
            await fill(tx, large=True)
        # Where something may be open that nobody knows, a new instance ends it.
        assert len(services.instances) == (2 if raised is errors.UnknownOutcome else 1)

    transacting(work, name="n", timeout_ms=3_000)


def test_a_begin_that_was_cancelled_may_have_happened() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        await producer.start()
        transport.delay_s = 1
        tx = producer.transaction()
        await tx.__aenter__()
        opening = asyncio.create_task(tx.flush())
        await asyncio.sleep(0.5)
        assert tx._opening is not None
        tx._opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        transport.delay_s = 0.001
        await tx.abort()
        await tx.leave(None)
        async with producer.transaction() as following:
            await fill(following, large=False)
        assert len(services.instances) == 2

    transacting(work, name="n")


def test_an_ended_transaction_gives_its_place_back_to_whoever_waits() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            await fill(tx, large=False)
        assert producer._place._current is None
        async with producer.transaction() as second:
            # Leaving the first again takes nothing from the second.
            await tx.leave(None)
            with pytest.raises(errors.InvalidArgument, match="under way"):
                producer._place.occupy(producer.transaction())
            await fill(second, large=False)

    transacting(work)


@pytest.mark.parametrize(
    "told", [errors.TransactionEnded("x"), errors.UnknownTransaction("x")], ids=lambda e: e.reason
)
def test_i4_a_commit_that_is_told_ended_is_looked_up_it_may_be_its_own(told: Exception) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [told]
        services.state = types.TRANSACTION_STATE_COMMITTED
        async with producer.transaction() as tx:
            await fill(tx, large=True)
        assert tx.state == "committed"
        assert not tx.visible

    transacting(work)


def test_a_new_session_of_the_same_generation_goes_on_with_the_numbers() -> None:
    """Request ids that began again would find the transactions of before."""

    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        async with producer.transaction(commit_seq=("s", 1)) as tx:
            await fill(tx, large=True)
        (listener,) = transport.listeners
        listener()
        await asyncio.sleep(0.1)
        async with producer.transaction(commit_seq=("s", 2)) as tx:
            await fill(tx, large=True)
        assert [request.request_id for request in services.of("begin_transaction")] == [1, 2]
        await producer.close()

    transacting(work, name="n")


def test_after_an_abort_that_nobody_answers_a_new_instance_registers() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["abort_transaction"] = [errors.UnknownOutcome("x")] * 1_000
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as tx:
                await fill(tx, large=True)
                raise ZeroDivisionError
        services.script.clear()
        async with producer.transaction() as tx:
            await fill(tx, large=False)
        assert len(services.instances) == 2

    transacting(work, name="n")


@pytest.mark.parametrize("at", ["init_producer", "begin_transaction", "abort_transaction"])
def test_i16_a_fence_is_remembered_wherever_it_is_met(at: str) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script[at] = [errors.ProducerFenced("x")]
        with pytest.raises((errors.ProducerFenced, ZeroDivisionError)):
            async with producer.transaction() as tx:
                await fill(tx, large=True)
                raise ZeroDivisionError
        with pytest.raises(errors.ProducerFenced):
            producer.transaction()

    transacting(work, name="n")


def test_i21_a_number_alone_is_committed_so_that_a_replay_finds_it() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction(commit_seq=("s", 4)):
            pass
        (request,) = services.of("transact")
        assert (request.commit_seq.scope, request.commit_seq.number) == ("s", 4)

    transacting(work)


def test_pending_offsets_end_with_their_transaction() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction(consumer_of(producer, 3), timeout_ms=5_000) as tx:
            await fill(tx, large=True)
        (pending,) = services.of("commit_transaction_offsets")
        assert (pending.tx_id, pending.timeout_ms) == (tx.tx_id, 5_000)

    transacting(work)


def test_what_is_spoiled_while_it_opens_sends_nothing() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        await producer.start()
        transport.delay_s = 0.1
        with pytest.raises(errors.UnknownPartition):
            async with producer.transaction() as tx:
                await tx.send("a", b"v", partition=0)
                opening = asyncio.create_task(tx.flush())
                await asyncio.sleep(0.05)
                await tx.send("a", b"v", partition=9)
                await tx.recorder.seal_all()
                await opening
        await asyncio.sleep(1)
        assert "produce" not in services.names()

    transacting(work)


def test_i4_where_the_lookup_fails_too_the_outcome_is_unknown() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script = {
            "commit_transaction": [errors.UnknownOutcome("x")] * 1_000,
            "get_transaction": [errors.Unavailable("y")] * 1_000,
        }
        with pytest.raises(errors.UnknownOutcome, match="describe_transaction"):
            async with producer.transaction() as tx:
                await fill(tx, large=True)
        assert tx.state == "in doubt"

    transacting(work, timeout_ms=3_000)


def test_a_session_whose_producer_was_forgotten_goes_on_under_the_new_id() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        await producer.start()
        forgotten = types.Producer(producer_id=9, generation=8)
        services.script["init_producer"] = [pb.InitProducerReply(producer=forgotten)]
        (listener,) = transport.listeners
        listener()
        await asyncio.sleep(0.1)
        async with producer.transaction() as tx:
            await fill(tx, large=False)
        assert services.of("transact")[0].producer == forgotten
        await producer.close()

    transacting(work)


def test_a_session_that_is_taken_over_late_does_not_replace_a_newer_registration() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        await producer.start()
        transport.delay_s = 1
        (listener,) = transport.listeners
        listener()
        await asyncio.sleep(0.5)
        producer.registration.doubt(await producer.identity(), 0)
        transport.delay_s = 0.001
        await producer.start()
        newer = (await producer.identity()).producer_id
        await asyncio.sleep(2)
        assert (await producer.identity()).producer_id == newer

    transacting(work)


def test_after_an_abort_that_was_cancelled_a_new_instance_registers() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        tx = producer.transaction()
        await tx.__aenter__()
        await fill(tx, large=True)
        transport.delay_s = 1
        aborting = asyncio.create_task(tx.leave(ZeroDivisionError()))
        await asyncio.sleep(0.5)
        aborting.cancel()
        await asyncio.gather(aborting, return_exceptions=True)
        transport.delay_s = 0.001
        async with producer.transaction() as following:
            await fill(following, large=False)
        assert len(services.instances) == 2

    transacting(work, name="n")


ONE_SHOT_NAMES = {
    "producer_id": "0000000000000001",
    "generation": "0.1",
    "request_number": "1",
}


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (
            pb.GetTransactionReply(
                transaction=pb.TransactionDescription(
                    tx_id=77, state=types.TRANSACTION_STATE_COMMITTED, visible=True
                )
            ),
            "committed",
        ),
        (pb.GetTransactionReply(already_committed=True), "committed"),
        (
            pb.GetTransactionReply(
                transaction=pb.TransactionDescription(
                    tx_id=77, state=types.TRANSACTION_STATE_ABORTED
                )
            ),
            "aborted",
        ),
        (
            pb.GetTransactionReply(
                transaction=pb.TransactionDescription(state=types.TRANSACTION_STATE_EXPIRED)
            ),
            "in doubt",
        ),
        (errors.UnknownTransaction("it may yet arrive"), "in doubt"),
    ],
    ids=["committed", "its number was committed", "aborted", "forgotten", "not heard of"],
)
def test_i4_a_small_commit_in_doubt_is_looked_up_by_its_request_number(
    reply: Any, state: str
) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script = {
            "transact": [errors.UnknownOutcome("lost")] * 200,
            "get_transaction": [reply] * 5,
        }
        consumer = consumer_of(producer, 3)
        tx = producer.transaction(consumer)
        told: errors.OncelogError | None = None
        try:
            async with tx:
                await tx.send("a", b"v")
        except errors.OncelogError as error:
            told = error
        raised = {"aborted": "TRANSACTION_ENDED", "in doubt": "UNKNOWN_OUTCOME"}
        assert (told and told.reason) == raised.get(state)
        assert told is None or state == "aborted" or told.metadata == ONE_SHOT_NAMES
        assert {"spoiled": "aborted"}.get(tx.state, tx.state) == state
        (asked,) = {
            (r.producer.producer_id, r.producer.generation, r.request_number)
            for r in services.of("get_transaction")
        }
        assert asked == (1, 1, 1)

    transacting(work, timeout_ms=3_000)


def test_what_became_of_it_can_be_asked_with_the_error_itself() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        admin = Admin(producer.protocol)
        small = errors.UnknownOutcome("x")
        small.metadata = dict(ONE_SHOT_NAMES)
        opened = errors.UnknownOutcome("x", tx_id=0x0003000000000005)
        await admin.describe_transaction(small)
        await admin.describe_transaction(opened)
        await admin.describe_transaction("0003000000000005")
        await admin.describe_transaction(0x0003000000000005)
        await admin.describe_transaction(producer_id=1, generation=1, request_number=1)
        asked = [
            (r.tx_id, r.producer.producer_id, r.producer.generation, r.request_number)
            for r in services.of("get_transaction")
        ]
        by_tx_id = (0x0003000000000005, 0, 0, 0)
        assert asked == [(0, 1, 1, 1), by_tx_id, by_tx_id, by_tx_id, (0, 1, 1, 1)]
        for nothing in (0, -1, 1 << 64, "5", errors.UnknownOutcome("of something else")):
            with pytest.raises(errors.InvalidArgument, match="transaction"):
                await admin.describe_transaction(nothing)

    transacting(work)


def test_i31_a_buffer_smaller_than_one_message_does_not_wait_for_ever() -> None:
    """Nothing that is held for the end makes room: it begins early."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            for number in range(2):
                await tx.send("a", b"x" * 1_100, partition=number)
        assert tx.state == "committed"
        sent = [batch for request in services.of("produce") for batch in request.batches]
        assert sum(batch.record_count for batch in sent) == 2

    transacting(work, batch_bytes=1_024, buffer_bytes_max=1_500)


def test_what_is_small_only_because_it_is_compressed_goes_in_parts() -> None:
    """A coordinator refuses to load so much of one message."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            for partition in (0, 1):
                rows = {"value": [bytes(30_000)] * 100, "partition": [partition] * 100}
                await tx.send_arrow("a", pa.table(rows))
        assert tx.state == "committed"
        names = services.names()
        assert "transact" not in names
        assert "begin_transaction" in names
        sent = [batch for request in services.of("produce") for batch in request.batches]
        assert sum(len(batch.payload) for batch in sent) < ONE_SHOT_ALONE_BYTES_MAX

    transacting(work, compression="zstd", batch_bytes=4 * 1024 * 1024)


def test_one_message_that_a_coordinator_finds_too_large_begins_and_goes_in_parts() -> None:
    """Its limits may be lower than what this client takes for given."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        limit = "one_shot_decompressed_bytes_max"
        services.script["transact"] = [errors.TooLarge("x", limit=limit)]
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            receipt = await tx.send("a", b"v", partition=1)
        assert tx.state == "committed"
        assert (await receipt).partition == 1
        names = services.names()
        assert names[1:3] == ["transact", "begin_transaction"]
        assert names[-1] == "commit_transaction"
        assert consumer.feeding.progress() == []

    transacting(work)


def test_a_topic_that_takes_smaller_batches_now_is_asked_for_again() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        services.script["transact"] = [errors.TooLarge("x", limit="max_batch_bytes")]
        with pytest.raises(errors.TooLarge):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
        assert producer.protocol.directory.topic("a") is None

    transacting(work)
