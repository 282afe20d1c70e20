"""A coordinator that decides one-shots when a test says so, in request order, and knows chains
(ADR 78): what producers with several transactions in flight are tried against, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog._core.routing import PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import TopicPartition
from oncelog.options import ConsumerOptions, ProducerOptions
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, on_virtual_time, protocol_over
from tests.unit.client.test_transactions import Services

COMMITTED = types.TRANSACTION_STATE_COMMITTED


class ChainServices(Services):
    """`refuses_arrival`: what meets a request before it is journaled, by number, each taken once.
    `loses`: numbers whose answers never come; `forgets`: that nobody can look up."""

    def __init__(self) -> None:
        super().__init__()
        self.next_number = 1
        self.chain = 0
        self.broken = 0
        self.accepted: dict[int, Any] = {}
        self.outcomes: dict[int, asyncio.Future[Any]] = {}
        self.refuses_arrival: dict[int, list[errors.OncelogError]] = {}
        self.loses: set[int] = set()
        self.forgets: set[int] = set()
        self.decides_at_once = False

    def init_producer(self, request: Any) -> Any:
        reply = super().init_producer(request)
        if request.instance_id == self.instances[-1]:
            self.next_number = 1
            self.chain = self.broken = 0
        return reply

    async def transact(self, request: Any) -> Any:
        number = request.request_number
        refusals = self.refuses_arrival.get(number)
        if refusals:
            raise refusals.pop(0)
        if number not in self.accepted or number >= self.next_number:
            self._accept(request)
        if number in self.loses:
            raise errors.UnknownOutcome("its answer was lost")
        outcome = await asyncio.shield(self.outcomes[number])
        if isinstance(outcome, errors.OncelogError):
            raise outcome
        return outcome

    def _accept(self, request: Any) -> None:
        number, first = request.request_number, request.chain_first
        if number != self.next_number:
            raise errors.OutOfOrderSequence("a gap", expected=self.next_number)
        if first and first != number and (first != self.chain or first == self.broken):
            raise errors.TransactionEnded("its chain is broken", cause="CHAIN")
        self.next_number, self.chain = number + 1, first
        self.accepted[number] = request
        self.outcomes[number] = asyncio.get_running_loop().create_future()
        if self.decides_at_once:
            self.decide(number)

    def decide(self, number: int, refusal: errors.OncelogError | None = None) -> None:
        """Those before it are decided."""
        first = self.accepted[number].chain_first
        assert all(self.outcomes[n].done() for n in self.accepted if n < number), "in order"
        if refusal is None:
            self.outcomes[number].set_result(super().transact(self.accepted[number]))
            return
        self.outcomes[number].set_result(refusal)
        self.broken = first
        for other, request in self.accepted.items():
            if other > number and first and request.chain_first == first:
                self.outcomes[other].set_result(errors.TransactionEnded("", cause="CHAIN"))

    def get_transaction(self, request: Any) -> Any:
        number = request.request_number
        if not number:
            return super().get_transaction(request)
        if number in self.forgets or number not in self.outcomes:
            raise errors.UnknownTransaction("not accepted")
        outcome = self.outcomes[number]
        described = pb.TransactionDescription(state=types.TRANSACTION_STATE_ONGOING)
        if outcome.done():
            refused = isinstance(outcome.result(), errors.OncelogError)
            described.state = types.TRANSACTION_STATE_ABORTED if refused else COMMITTED
            described.tx_id = 0 if refused else outcome.result().tx_id
        return pb.GetTransactionReply(transaction=described)


Work = Callable[[TransactionalProducer, Any], Awaitable[Any]]


def in_flight(
    work: Work,
    *,
    services: ChainServices | None = None,
    name: str | None = None,
    timeout_ms: int = 30_000,
    **o: Any,
) -> Any:
    """On virtual time, against `services`; `in_flight` is 4 unless given."""

    async def main() -> Any:
        transport = ScriptedTransport(5, 5)
        answers = services or ChainServices()
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
            transport.handlers[method] = answers.handler(method)
        protocol = protocol_over(transport, timeout_ms=timeout_ms)
        settings = ProducerOptions(**({"in_flight": 4} | o))
        producer = TransactionalProducer(protocol, settings, name=name, group=None)
        return await work(producer, answers)

    return on_virtual_time(main)[0]


def reader(producer: TransactionalProducer, *numbers: int) -> Consumer:
    """Of these partitions, at 7 in each; `given` gives it more."""
    names = {PartitionKey(TOPIC_ID, number): TopicPartition("a", number) for number in numbers}
    consumer = Consumer(producer.protocol, ConsumerOptions(), names, "g")
    for key in names:
        consumer._positions.start(key, 7, 7)
    return consumer


def given(consumer: Consumer, count: int, number: int = 0) -> None:
    """As a poll gives records."""
    key = PartitionKey(TOPIC_ID, number)
    position = consumer._positions.position(key)
    assert position is not None
    consumer._positions.fetched(key, position + count)
    consumer._positions.given(key, position + count)
    consumer.feeding.gave()


def stands(consumer: Consumer, number: int = 0) -> int | None:
    return consumer._positions.position(PartitionKey(TOPIC_ID, number))


async def filled(
    producer: TransactionalProducer, consumer: Consumer | None, count: int = 3, number: int = 0
) -> Any:
    """A transaction of `count` more records, left."""
    if consumer is not None:
        given(consumer, count, number)
    tx = producer.transaction(consumer)
    async with tx:
        await tx.send("a", b"v", partition=0)
    return tx


async def opened(
    producer: TransactionalProducer, services: ChainServices, consumer: Consumer | None
) -> None:
    """The first of a chain, which goes alone, and is committed."""
    services.decides_at_once = True
    await filled(producer, consumer)
    services.decides_at_once = False


async def sent_back(producer: TransactionalProducer, services: ChainServices) -> Consumer:
    """A consumer that a refusal has sent back to 10, and whose user holds what was given behind
    that."""
    consumer = reader(producer, 0)
    await opened(producer, services, consumer)
    await filled(producer, consumer)
    given(consumer, 3)
    await settled()
    services.decide(2, errors.TransactionEnded("no"))
    await settled()
    return consumer


async def require_over(*waiting: Awaitable[Any]) -> list[BaseException | None]:
    """How each has ended: nobody waits for ever, whatever fails in the client."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    tasks = [asyncio.ensure_future(one) for one in waiting]
    done, _ = await asyncio.wait(tasks, timeout=60)
    assert len(done) == len(tasks), "they wait for ever"
    return [task.exception() for task in tasks]


def fails(what: object) -> Any:
    raise RuntimeError("a fault of this client")


async def settled() -> None:
    """What is on its way has arrived."""
    await asyncio.sleep(0.1)
