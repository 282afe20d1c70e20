"""What the sender does in bad weather, beyond order and losses: how long, how often and how much it
sends, and what it says became of a record (I6, I31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.batching import BATCH_BYTES
from oncelog.aio.producer import Producer
from oncelog.aio.sender import MESSAGE_BYTES, MESSAGES_IN_FLIGHT_MAX
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import ScriptedTransport, produced
from tests.unit.client.test_producing import Log, producing

PRODUCE = "partition_leader.produce"


def refuse(error: errors.OncelogError) -> Any:
    def handler(to: object, request: object) -> Any:
        raise error

    return handler


def test_i6_a_lost_answer_stays_in_doubt_whatever_is_refused_after_it() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        weather = [errors.UnknownOutcome("lost"), errors.Throttled("x"), errors.TooLarge("no")]
        transport.handlers[PRODUCE] = lambda to, request: refuse(weather.pop(0))(to, request)
        await producer.send("a", b"v")
        with pytest.raises(errors.UnknownOutcome, match="an answer was lost, and then: TOO_LARGE"):
            await producer.flush()

    producing(work)


def test_what_failed_last_is_what_is_told_and_not_a_trouble_that_passed() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        receive = transport.handlers[PRODUCE]
        transport.handlers[PRODUCE] = refuse(errors.Throttled("busy"))
        await producer.send("a", b"early")
        await asyncio.sleep(0.1)
        transport.handlers[PRODUCE] = receive
        await producer.flush()
        transport.handlers[PRODUCE] = refuse(errors.DiskFull("full"))
        await producer.send("a", b"late")
        with pytest.raises(errors.DiskFull):
            await producer.flush()

    producing(work, delivery_timeout_ms=2_000)


def test_what_is_sent_meanwhile_does_not_shorten_the_wait_before_a_retry() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> int:
        receive = transport.handlers[PRODUCE]
        transport.handlers[PRODUCE] = refuse(errors.Throttled("x", retry_after_ms=1_000))
        for _ in range(50):
            await producer.send("a", b"v")
            await asyncio.sleep(0.015)
        asked = transport.count(PRODUCE)
        transport.handlers[PRODUCE] = receive
        await producer.flush()
        return asked

    log, asked, _ = producing(work)
    assert asked == 1
    assert len(log.values(0)) == 50


def test_i31_a_stream_that_takes_nothing_more_is_asked_again_after_a_wait() -> None:
    """Its limits refuse at once, before anything is sent: the loop must get its turn meanwhile, or
    the stream never empties."""

    async def work(producer: Producer, transport: ScriptedTransport) -> int:
        begin, refusals = transport.begin, 0

        def full(*call: Any) -> Any:
            nonlocal refusals
            refusals += 1
            assert refusals <= 3, "it was asked again without a wait"
            raise errors.Throttled("waiting_bytes_max", retry_after_ms=100)

        transport.begin = full  # type: ignore[assignment, method-assign]
        await producer.send("a", b"v")
        await asyncio.sleep(0.25)
        transport.begin = begin  # type: ignore[method-assign]
        await producer.flush()
        return refusals

    log, refusals, _ = producing(work, linger_ms=0)
    assert refusals == 3
    assert log.values(0) == [b"v"]


def test_i31_a_leader_that_never_answers_is_not_waited_for_beyond_the_delivery_timeout() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("a", b"v")
        await asyncio.sleep(0.02)
        transport.delay_s = 1_000
        await producer.send("a", b"w")
        with pytest.raises(errors.UnknownOutcome):
            await producer.flush()

    _, _, seconds = producing(work, delivery_timeout_ms=5_000)
    assert seconds < 6


def test_a_topic_that_is_deleted_fails_what_waits_for_it_and_hangs_nobody() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        def gone(to: object, request: object) -> Any:
            transport.partitions = []
            raise errors.NotLeader("x")

        transport.handlers[PRODUCE] = gone
        await producer.send("a", b"v")
        with pytest.raises(errors.UnknownTopic):
            await producer.flush()

    producing(work)


def test_an_answer_of_another_length_is_an_error_and_hangs_nobody() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        transport.handlers[PRODUCE] = lambda to, request: leader.ProduceReply()
        await producer.send("a", b"v")
        with pytest.raises(errors.Internal, match="another number of results"):
            await producer.flush()

    producing(work)


def test_messages_are_of_one_size_and_so_many_are_in_flight_whoever_waits() -> None:
    """More partitions than the window has places: those behind get theirs when it moves on."""
    sizes: list[int] = []
    in_flight = most = 0

    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        receive = transport.handlers[PRODUCE]

        async def slowly(to: Any, request: Any) -> Any:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            sizes.append(sum(len(batch.payload) for batch in produced(request).batches))
            await asyncio.sleep(0.1)
            in_flight -= 1
            return receive(to, request)

        transport.handlers[PRODUCE] = slowly
        for partition in range(30):
            await producer.send("a", b"x" * 700_000, partition=partition)
            await producer.send("a", b"y" * 10, partition=partition)
        await producer.flush()

    log, _, _ = producing(work, log=Log(), partitions=(5,) * 30)
    assert all(len(log.values(partition)) == 2 for partition in range(30))
    assert most == MESSAGES_IN_FLIGHT_MAX
    assert max(sizes) <= MESSAGE_BYTES + BATCH_BYTES // 4
