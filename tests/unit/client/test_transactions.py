"""Transactions against a scripted coordinator on virtual time: what goes over the wire, and what
becomes of lost answers, fences and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import TopicPartition
from oncelog.errors import CannotConnect
from oncelog.options import ConsumerOptions, ProducerOptions
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import (
    TOPIC_ID,
    ScriptedTransport,
    on_virtual_time,
    place,
    produced,
    protocol_over,
)

BIG = b"x" * 100_000
OPEN = pb.BeginTransactionReply.RESULT_OPEN


class Services:
    """A coordinator, an offset manager and leaders that say yes, unless a test says otherwise:
    `script` holds answers by method, each taken once, before the ordinary ones."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.script: dict[str, list[Any]] = {}
        self.generation = 1
        self.instances: list[bytes] = []
        self.last_tx = 100
        self.asked_visible: list[int] = []
        self.state = types.TRANSACTION_STATE_ONGOING
        self.expected_number = 1

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def of(self, name: str) -> list[Any]:
        return [request for called, request in self.calls if called == name]

    def handler(self, method: str) -> Callable[[Endpoint, Any], Any]:
        name = method.partition(".")[2]

        def handle(to: Endpoint, request: Any) -> Any:
            message = produced(request) if name == "produce" else request
            self.calls.append((name, type(message).FromString(message.SerializeToString())))
            if self.script.get(name):
                answer = self.script[name].pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            return getattr(self, name)(message)

        return handle

    def init_producer(self, request: Any) -> Any:
        if request.instance_id not in self.instances:
            self.instances.append(request.instance_id)
        producer = types.Producer(
            producer_id=len(self.instances) if not request.name else 1,
            generation=self.instances.index(request.instance_id) + 1,
        )
        return pb.InitProducerReply(producer=producer, default_timeout_ms=60_000)

    def begin_transaction(self, request: Any) -> Any:
        self.last_tx += 1
        return pb.BeginTransactionReply(result=OPEN, tx_id=self.last_tx)

    def commit_transaction(self, request: Any) -> Any:
        reply = pb.CommitTransactionReply()
        if request.HasField("begin_next"):
            self.last_tx += 1
            reply.next.result, reply.next.tx_id = OPEN, self.last_tx
        return reply

    def abort_transaction(self, request: Any) -> Any:
        return pb.AbortTransactionReply(state=types.TRANSACTION_STATE_ABORTED)

    def transact(self, request: Any) -> Any:
        self.last_tx += 1
        return pb.TransactReply(tx_id=self.last_tx)

    def get_transaction(self, request: Any) -> Any:
        described = pb.TransactionDescription(tx_id=request.tx_id, state=self.state)
        if request.only_visibility:
            self.asked_visible.append(request.tx_id)
            described.state = types.TRANSACTION_STATE_COMMITTED
            described.visible = len(self.asked_visible) > 1
        return pb.GetTransactionReply(transaction=described)

    def produce(self, request: Any) -> Any:
        reply = leader.ProduceReply()
        for batch in request.batches:
            reply.results.add(partition=batch.partition)
        return reply

    def commit_transaction_offsets(self, request: Any) -> Any:
        participant = types.Partition(topic_id=b"o" * 16, number=3)
        return offsets.CommitTransactionOffsetsReply(participant=participant)

    def fetch_offsets(self, request: Any) -> Any:
        committed = [offsets.CommittedOffset(partition=p, offset=7) for p in request.partitions]
        return offsets.FetchOffsetsReply(offsets=committed)


Work = Callable[[TransactionalProducer, Services, ScriptedTransport], Awaitable[Any]]


def transacting(
    work: Work, *, name: str | None = None, timeout_ms: int = 30_000, **options: Any
) -> Any:
    async def main() -> Any:
        services, transport = Services(), ScriptedTransport(5, 5)
        for method in (
            "coordinator.init_producer",
            "coordinator.begin_transaction",
            "coordinator.commit_transaction",
            "coordinator.abort_transaction",
            "coordinator.transact",
            "coordinator.get_transaction",
            "partition_leader.produce",
            "offset_manager.commit_transaction_offsets",
            "offset_manager.fetch_offsets",
        ):
            transport.handlers[method] = services.handler(method)
        protocol = protocol_over(transport, timeout_ms=timeout_ms)
        settings = ProducerOptions(**options)
        producer = TransactionalProducer(protocol, settings, name=name, group=None)
        return await work(producer, services, transport)

    return on_virtual_time(main)[0]


def consumer_of(producer: TransactionalProducer, count: int) -> Consumer:
    """One that was given records 7 to 7 + count of partition 0."""
    key = PartitionKey(TOPIC_ID, 0)
    names = {key: TopicPartition("a", 0)}
    consumer = Consumer(producer.protocol, ConsumerOptions(), names, "g")
    consumer._positions.start(key, 7, 7)
    consumer._positions.fetched(key, 7 + count)
    consumer._positions.given(key, 7 + count)
    return consumer


# ------------------------------------------------------------------------------------ what is sent


def test_a_small_transaction_is_one_message() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            await tx.send("a", b"v", partition=0)
            await tx.send("a", b"w", partition=1)
        assert services.names() == ["init_producer", "transact"]
        (request,) = services.of("transact")
        assert [batch.partition.number for batch in request.batches] == [0, 1]
        (offset,) = request.offsets.offsets
        assert (request.offsets.group, offset.from_offset, offset.to_offset) == ("g", 7, 10)
        assert (tx.state, tx.tx_id) == ("committed", 101)

    transacting(work)


def test_a_transaction_that_holds_nothing_asks_nobody() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            pass
        assert services.names() == ["init_producer"]
        assert tx.state == "committed"

    transacting(work)


def test_one_that_overflows_begins_produces_and_commits_with_its_manifest() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            for number in range(6):
                await tx.send("a", BIG, partition=number % 2)
        assert services.names()[:2] == ["init_producer", "begin_transaction"]
        assert services.names()[-1] == "commit_transaction"
        (commit,) = services.of("commit_transaction")
        named = {topic.topic_id: topic for topic in commit.manifest.topics}
        assert list(named[TOPIC_ID].record_count) == [3, 3]
        assert list(named[b"o" * 16].partition) == [3]
        assert commit.HasField("begin_next")
        assert {request.tx_id for request in services.of("produce")} == {101}
        sequences = [
            (batch.partition.number, batch.base_sequence)
            for request in services.of("produce")
            for batch in request.batches
        ]
        assert min(sequences) == (0, 0)
        assert consumer.feeding.progress() == []

    transacting(work)


def test_the_next_large_one_is_open_already_and_a_begun_one_asks_only_once() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        for _ in range(3):
            async with producer.transaction() as tx:
                for _ in range(5):
                    await tx.send("a", BIG)
        assert len(services.of("begin_transaction")) == 1
        assert [request.tx_id for request in services.of("commit_transaction")] == [101, 102, 103]
        ids = [services.of("begin_transaction")[0].request_id] + [
            request.begin_next.request_id for request in services.of("commit_transaction")
        ]
        assert ids == sorted(set(ids)), "request ids grow"

    transacting(work)


def test_a_transaction_opened_too_long_ago_is_aborted_not_used() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            for _ in range(5):
                await tx.send("a", BIG)
        await asyncio.sleep(40)
        async with producer.transaction() as tx:
            await tx.send("a", b"small")
        assert services.names()[-3:] == ["begin_transaction", "produce", "commit_transaction"]
        assert [request.tx_id for request in services.of("abort_transaction")] == [102]

    transacting(work)


def test_an_abort_names_where_it_wrote_and_rewinds() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(consumer) as tx:
                await tx.send("a", b"v", partition=1)
                await tx.flush()
                raise ZeroDivisionError
        (abort,) = services.of("abort_transaction")
        assert [part.number for part in abort.parts] == [1]
        assert await consumer.position("a", 0) == 7
        assert tx.state == "aborted"

    transacting(work)


def test_i21_a_transaction_that_cannot_be_entered_gives_its_input_back() -> None:
    """Its producer cannot register: whoever catches that and polls on must not lose a batch."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        services.script["init_producer"] = [errors.Unavailable("no coordinator")] * 100
        with pytest.raises(CannotConnect, match="no coordinator"):
            async with producer.transaction(consumer):
                pytest.fail("it was not entered")
        assert await consumer.position("a", 0) == 7

    transacting(work, timeout_ms=3_000)


def test_a_small_one_that_is_dropped_was_never_heard_of() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(consumer) as tx:
                await tx.send("a", b"v")
                raise ZeroDivisionError
        assert services.names() == ["init_producer"]
        assert await consumer.position("a", 0) == 7

    transacting(work)


def test_i11_the_next_offsets_chain_on_a_commit_that_is_not_visible_yet() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as first:
            await first.send("a", b"v")
        key = PartitionKey(TOPIC_ID, 0)
        consumer._positions.fetched(key, 12)
        consumer._positions.given(key, 12)
        async with producer.transaction(consumer) as second:
            await second.send("a", b"w")
        (offset,) = services.of("transact")[1].offsets.offsets
        assert (offset.from_offset, offset.to_offset, offset.after_tx_id) == (10, 12, first.tx_id)

    transacting(work)


def test_request_numbers_are_consecutive_and_a_refused_one_is_used_again() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["transact"] = [
            errors.TooLarge("refused before the journal"),
            errors.OutOfOrderSequence("a gap", expected=1),
        ]
        with pytest.raises(errors.TooLarge):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
        async with producer.transaction() as tx:
            await tx.send("a", b"w")
        assert [request.request_number for request in services.of("transact")] == [1, 2, 1]

    transacting(work)


# ------------------------------------------------------------------------------------ lost answers


def test_i4_a_lost_answer_to_a_one_shot_is_asked_for_again() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["transact"] = [errors.UnknownOutcome("x"), errors.UnknownOutcome("x")]
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
        assert tx.state == "committed"
        assert [request.request_number for request in services.of("transact")] == [1, 1, 1]

    transacting(work)


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        (types.TRANSACTION_STATE_COMMITTED, "committed"),
        (types.TRANSACTION_STATE_ABORTED, "aborted"),
        (types.TRANSACTION_STATE_ONGOING, "in doubt"),
    ],
)
def test_i4_a_commit_that_nobody_answers_is_looked_up(state: Any, ended: str) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [errors.UnknownOutcome("x")] * 100
        services.state = state
        consumer = consumer_of(producer, 3)
        tx = producer.transaction(consumer)
        error: BaseException | None = None
        try:
            async with tx:
                await tx.send("a", b"v")
                await tx.flush()
        except errors.OncelogError as caught:
            error = caught
        assert tx.state == ended
        if ended == "committed":
            assert error is None
            assert await consumer.position("a", 0) == 10
        elif ended == "aborted":
            assert isinstance(error, errors.TransactionEnded)
            assert await consumer.position("a", 0) == 7
        else:
            assert isinstance(error, errors.UnknownOutcome)
            assert error.metadata["tx_id"] == show_id(101)
            assert consumer.feeding.progress() == []
            assert consumer._positions.unknown(), "the group is asked where it stands"

    transacting(work, timeout_ms=3_000)


def test_a_damaged_commit_is_told_and_its_input_stays_consumed() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [errors.Damaged("x")]
        consumer = consumer_of(producer, 3)
        tx = producer.transaction(consumer, wait="visible")
        with pytest.raises(errors.Damaged):
            async with tx:
                await tx.send("a", b"v")
                await tx.flush()
        assert tx.state == "committed"
        assert await consumer.position("a", 0) == 10
        assert "abort_transaction" not in services.names()

    transacting(work)


def test_after_an_outcome_in_doubt_a_new_instance_registers_and_the_old_one_is_ended() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [errors.UnknownOutcome("x")] * 100
        with pytest.raises(errors.UnknownOutcome):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
                await tx.flush()
        services.script.clear()
        async with producer.transaction() as tx:
            await tx.send("a", b"w")
        assert len(services.instances) == 2
        (abort,) = services.of("abort_transaction")
        assert (abort.tx_id, abort.producer.producer_id) == (101, 1)

    transacting(work, timeout_ms=3_000)


def test_a_begin_whose_answer_is_lost_is_repeated_under_its_request_id() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["begin_transaction"] = [errors.UnknownOutcome("x")]
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
            await tx.flush()
        assert [r.request_id for r in services.of("begin_transaction")] == [1, 1]
        assert tx.state == "committed"

    transacting(work)


# ------------------------------------------------------------------------------- fences and ends


def test_i16_a_fenced_producer_stops_for_good() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["transact"] = [errors.ProducerFenced("x")]
        with pytest.raises(errors.ProducerFenced):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
        with pytest.raises(errors.ProducerFenced):
            producer.transaction()

    transacting(work, name="n")


def test_i20_a_batch_behind_the_marker_spoils_the_transaction_and_the_commit_says_why() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["produce"] = [errors.TransactionEnded("timed out")]
        consumer = consumer_of(producer, 3)
        with pytest.raises(errors.TransactionEnded, match="timed out"):
            async with producer.transaction(consumer) as tx:
                for _ in range(5):
                    await tx.send("a", BIG)
        assert "commit_transaction" not in services.names()
        assert await consumer.position("a", 0) == 7

    transacting(work)


@pytest.mark.parametrize("adopts", [False, True], ids=["begins", "ends the adopted one"])
def test_one_that_is_spoiled_while_it_opens_is_aborted_and_says_why(adopts: bool) -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        async with producer.transaction() as tx:
            for _ in range(5 if adopts else 1):
                await tx.send("a", BIG)
        await asyncio.sleep(40)
        transport.delay_s = 0.1
        with pytest.raises(errors.BadRequest):
            async with producer.transaction() as tx:
                for _ in range(5):
                    await tx.send("a", BIG)
                await asyncio.sleep(0.05)
                for _ in range(5):
                    await tx.send("a", BIG, partition=9)
                await tx.flush()
        ended = [request.tx_id for request in services.of("abort_transaction")]
        assert ended == [102], "the first one is 101; what was opened after it does not stay open"
        async with producer.transaction() as tx:
            await tx.send("a", b"next")

    transacting(work)


def test_a_lost_race_for_the_input_asks_the_group_where_it_stands() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["transact"] = [errors.StalePosition("x", committed=9)]
        consumer = consumer_of(producer, 3)
        with pytest.raises(errors.StalePosition):
            async with producer.transaction(consumer) as tx:
                await tx.send("a", b"v")
        assert consumer._positions.unknown()

    transacting(work)


def test_already_committed_changes_nothing_and_is_no_error() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["begin_transaction"] = [
            pb.BeginTransactionReply(result=pb.BeginTransactionReply.RESULT_ALREADY_COMMITTED)
        ]
        async with producer.transaction(commit_seq=("s", 1)) as tx:
            await tx.flush()
            for _ in range(10):
                await tx.send("a", BIG)
        assert (tx.already_committed, tx.state) == (True, "committed")
        assert "produce" not in services.names()
        assert producer.transaction().state == "buffering"

    transacting(work)


def test_one_transaction_at_a_time_and_none_after_its_end() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            with pytest.raises(errors.InvalidArgument, match="under way"):
                async with producer.transaction():
                    raise AssertionError("never entered")
        with pytest.raises(errors.InvalidArgument, match="committed"):
            await tx.send("a", b"v")

    transacting(work)


# ----------------------------------------------------------------------------------------- session


def test_a_broken_session_is_taken_over_by_the_same_instance() -> None:
    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
            await tx.flush()
            (listener,) = transport.listeners
            listener()
            await asyncio.sleep(0.1)
        registered = services.of("init_producer")
        assert len(registered) == 2
        assert registered[0].instance_id == registered[1].instance_id
        assert all(request.session for request in registered)
        assert tx.state == "committed"
        await producer.close()
        assert transport.listeners == []

    transacting(work, name="n")


def test_closing_aborts_what_is_open() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        tx = producer.transaction()
        await tx.__aenter__()
        await tx.send("a", b"v", partition=0)
        await tx.flush()
        await producer.close()
        await producer.close()
        assert tx.state == "aborted"
        (abort,) = services.of("abort_transaction")
        assert abort.parts[0] == place(0)

    transacting(work)


def test_what_is_spoiled_while_it_begins_sends_nothing_any_more() -> None:
    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        await producer.start()
        tx = producer.transaction()
        await tx.__aenter__()
        for _ in range(3):
            await tx.send("a", BIG, partition=0)
        while not transport.count("coordinator.begin_transaction"):
            await asyncio.sleep(0.0001)
        assert services.names() == ["init_producer"], "it is on its way"
        tx._spoil(errors.InvalidArgument("a record that cannot be encoded"))
        await asyncio.sleep(1)
        assert "produce" not in services.names()
        await tx.abort()
        assert [request.tx_id for request in services.of("abort_transaction")] == [101]

    transacting(work)
