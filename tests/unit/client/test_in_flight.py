"""Several transactions of one producer on their way: in order, chained, taken back from the first
that is refused on (ADR 79). In virtual time, against a coordinator that decides when it is told
to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from oncelog._core.open_transactions import OpenTransactions
from oncelog._core.routing import PartitionKey
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.options import ProducerOptions
from oncelogpb import errors
from tests.unit.client.chain_world import (
    ChainServices,
    fails,
    filled,
    given,
    in_flight,
    opened,
    reader,
    require_over,
    sent_back,
    settled,
    stands,
)
from tests.unit.client.scripted import TOPIC_ID

BIG = b"x" * 100_000
STALE = errors.StalePosition("it stands elsewhere")


def steps(services: ChainServices) -> list[tuple[int, int, int]]:
    """(request number, from, to) of what was accepted."""
    return [
        (number, offset.from_offset, offset.to_offset)
        for number, request in sorted(services.accepted.items())
        for offset in request.offsets.offsets
    ]


def test_each_begins_where_the_one_before_it_ends_and_as_many_as_allowed_are_on_their_way() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        made = [await filled(producer, consumer) for _ in range(4)]
        await settled()
        assert steps(services) == [(1, 7, 10), (2, 10, 13), (3, 13, 16), (4, 16, 19), (5, 19, 22)]
        assert [r.chain_first for r in services.accepted.values()] == [1] * 5
        after = [o.after_tx_id for r in services.accepted.values() for o in r.offsets.offsets]
        assert after == [0, 101, 0, 0, 0], "its coordinator knows the TxIds of what is on its way"
        assert not any(tx.ended for tx in made)
        fifth = asyncio.ensure_future(filled(producer, consumer))
        await settled()
        assert not fifth.done()
        assert 6 not in services.accepted, "there is no room"
        services.decide(2)
        await fifth
        await settled()
        assert steps(services)[-1] == (6, 22, 25)
        for number in (3, 4, 5, 6):
            services.decide(number)
        await producer.flush()
        assert [tx.state for tx in made] == ["committed"] * 4
        assert stands(consumer) == 25

    in_flight(work)


def test_the_first_of_a_chain_goes_alone() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        first = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert not first.done(), "it waits for its answer"
        services.decide(1)
        await first
        await filled(producer, None)
        await settled()
        assert 2 in services.accepted
        services.decide(2)
        await producer.flush()

    in_flight(work)


def test_with_one_in_flight_each_is_waited_for_and_says_nothing_of_chains() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        services.decides_at_once = True
        for _ in range(3):
            tx = await filled(producer, None)
            assert tx.state == "committed"
        assert [r.chain_first for r in services.accepted.values()] == [0, 0, 0]
        await producer.flush()

    in_flight(work, in_flight=1)


@pytest.mark.parametrize("refusal", [STALE, errors.UnknownTopic("gone")], ids=["rewind", "fatal"])
def test_i21_a_refusal_takes_back_all_behind_it(refusal: errors.OncelogError) -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0, 1)
        await opened(producer, services, consumer)
        kept = await filled(producer, consumer, 3)
        made = [
            await filled(producer, consumer, 3),
            await filled(producer, consumer, 2, number=1),
            await filled(producer, consumer, 3),
        ]
        await settled()
        services.decide(2)
        services.decide(3, refusal)
        await settled()
        assert kept.state == "committed"
        assert [tx.state for tx in made] == ["aborted"] * 3
        for tx in made[1:]:
            with pytest.raises(errors.TransactionEnded, match="an earlier transaction"):
                await tx.decided()
        with pytest.raises(type(refusal), match="2 that came behind it"):
            await producer.flush()
        await producer.flush()
        if isinstance(refusal, errors.GroupMoved):
            assert consumer._positions.unknown(), "its group is asked"
        else:
            assert (stands(consumer, 0), stands(consumer, 1)) == (13, 7), "where the first began"
            given(consumer, 3)
            services.decides_at_once = True
            again = await filled(producer, consumer, 1)
            assert again.state == "committed", "it begins a chain, alone"
            assert steps(services)[-1] == (6, 13, 17)
            assert services.accepted[6].chain_first == 6

    in_flight(work)


class Begins:
    """A transaction. Another thread begins `one` where the loop comes to this one."""

    def __init__(self, begin: Callable[[object], None]) -> None:
        self.begin = begin
        self.one: object = None

    def __hash__(self) -> int:
        one, self.one = self.one, None
        if one is not None:
            self.begin(one)
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def test_one_that_a_thread_begins_while_others_are_taken_back_disturbs_nothing() -> None:
    begun = OpenTransactions()
    made = [Begins(lambda one: begun.begin(one, 1)) for _ in range(3)]
    for one in made:
        begun.begin(one, 1)
        begun.sent(one)
    late = object()
    made[0].one = late
    try:
        begun.drop(STALE)
    except RuntimeError as error:
        pytest.fail(f"{error}")
    for one in made:
        with pytest.raises(errors.StalePosition):
            begun.require(one)
    begun.require(late)


def test_whatever_fails_while_they_are_taken_back_nobody_waits_for_ever() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        made = [await filled(producer, consumer) for _ in range(3)]
        await settled()
        consumer.feeding._open.drop = fails  # type: ignore[method-assign, assignment]
        services.decide(2, errors.UnknownTopic("gone"))
        ended = await require_over(*[tx.decided() for tx in made], producer.flush())
        assert all(isinstance(one, errors.OncelogError) for one in ended)

    in_flight(work)


def test_i21_what_was_given_before_the_refusal_is_not_made_a_transaction_of() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = await sent_back(producer, services)
        with pytest.raises(errors.TransactionEnded, match="in flight was not committed"):
            async with producer.transaction(consumer):
                raise AssertionError("it holds what is given again")
        assert stands(consumer) == 10
        # Whoever was told by flush still holds that batch.
        given(consumer, 3)
        services.decides_at_once = True
        await filled(producer, consumer, 0)
        services.decides_at_once = False
        await filled(producer, consumer)
        given(consumer, 3)
        await settled()
        services.decide(max(services.accepted), errors.TransactionEnded("no"))
        await settled()
        with pytest.raises(errors.TransactionEnded):
            await producer.flush()
        with pytest.raises(errors.TransactionEnded):
            async with producer.transaction(consumer):
                raise AssertionError("it holds what is given again")

    in_flight(work)


def test_i21_one_that_is_being_filled_is_spoiled() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        await filled(producer, consumer)
        given(consumer, 3)
        tx = producer.transaction(consumer)
        with pytest.raises(errors.OncelogError) as told:
            async with tx:
                await tx.send("a", b"v", partition=0)
                await settled()
                services.decide(2, errors.TransactionEnded("no"))
                await settled()
                await tx.send("a", b"w", partition=0)
        assert isinstance(told.value, errors.TransactionEnded), "it is told why"
        assert "in flight was not committed" in told.value.message
        assert tx.state == "aborted"
        assert stands(consumer) == 10
        await producer.flush()
        assert 3 not in services.accepted

    in_flight(work)


def test_i04_a_later_one_that_is_committed_says_that_an_earlier_one_is() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        services.loses, services.forgets = {2}, {2}
        made = [await filled(producer, consumer)]
        await asyncio.sleep(8)
        made.append(await filled(producer, consumer))
        services.decide(2)
        await asyncio.sleep(7)
        assert made[0].state == "one shot", "nobody can say, but perhaps the next one"
        services.decide(3)
        await producer.flush()
        assert [tx.state for tx in made] == ["committed", "committed"]
        assert stands(consumer) == 16
        assert len(services.instances) == 1, "nothing is in doubt"

    in_flight(work, timeout_ms=10_000)


def test_i21_where_nobody_can_say_the_group_is_asked_and_the_producer_registers_anew() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        services.loses, services.forgets = {2, 3}, {2, 3}
        made = [await filled(producer, consumer) for _ in range(2)]
        with pytest.raises(errors.UnknownOutcome):
            await producer.flush()
        assert [tx.state for tx in made] == ["in doubt", "in doubt"]
        assert consumer._positions.unknown() == [PartitionKey(TOPIC_ID, 0)]
        services.decides_at_once = True
        await filled(producer, None)
        assert len(services.instances) == 2
        assert services.accepted[1].chain_first == 1

    in_flight(work, timeout_ms=5_000)


def test_one_that_came_before_its_turn_comes_again_under_its_own_number() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        services.refuses_arrival[2] = [errors.Throttled("later", retry_after_ms=500)]
        made = [await filled(producer, consumer) for _ in range(2)]
        await asyncio.sleep(1)
        assert sorted(services.accepted) == [1, 2], "3 waits for 2"
        services.decide(2)
        await settled()
        assert 3 in services.accepted, "it came again"
        services.decide(3)
        await producer.flush()
        assert [tx.state for tx in made] == ["committed"] * 2
        assert steps(services) == [(1, 7, 10), (2, 10, 13), (3, 13, 16)]

    in_flight(work)


def test_i31_one_of_which_nobody_knows_whether_it_arrived_holds_up_nobody_for_ever() -> None:
    """The one behind it is out of order, and asks again: else each would wait for the other."""

    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        services.refuses_arrival[2] = [errors.UnknownOutcome("lost on its way")] * 1_000
        made = [await filled(producer, consumer) for _ in range(3)]
        flushing = asyncio.ensure_future(producer.flush())
        done, _ = await asyncio.wait([flushing], timeout=60)
        assert done, "each waits for the other"
        assert isinstance(flushing.exception(), errors.UnknownOutcome)
        assert [tx.state for tx in made] == ["in doubt"] * 3
        assert sorted(services.accepted) == [1]

    in_flight(work, timeout_ms=5_000)


def test_behind_one_that_never_got_its_number_nothing_is_sent_again() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        services.refuses_arrival[2] = [errors.UnknownTopic("gone")]
        made = [await filled(producer, consumer) for _ in range(3)]
        with pytest.raises(errors.UnknownTopic):
            await producer.flush()
        assert [tx.state for tx in made] == ["aborted"] * 3
        services.decides_at_once = True
        given(consumer, 2)
        await filled(producer, consumer, 0)
        assert steps(services)[-1] == (2, 10, 12)
        assert services.accepted[2].chain_first == 2

    in_flight(work)


def test_what_does_not_fit_into_one_message_begins_when_all_before_it_are_decided() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        await opened(producer, services, None)
        await filled(producer, None)
        await settled()
        large = producer.transaction()

        async def fill() -> None:
            async with large:
                for _ in range(12):
                    await large.send("a", BIG, partition=0)

        filling = asyncio.ensure_future(fill())
        await settled()
        assert "begin_transaction" not in services.names()
        services.decide(2)
        await filling
        await producer.flush()
        assert large.state == "committed"
        assert services.names()[-1] == "commit_transaction"

    in_flight(work)


def test_more_is_one_message_where_several_may_be_on_their_way() -> None:
    """Alone it would go to its leaders, and spare the coordinator. In flight can only be what is
    one message."""

    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        await opened(producer, services, None)
        async with producer.transaction() as large:
            for _ in range(5):
                await large.send("a", BIG, partition=0)
        assert large.is_in_flight
        await settled()
        services.decide(2)
        await large.decided()
        assert "begin_transaction" not in services.names()

    in_flight(work)


def test_what_a_coordinator_finds_too_large_is_not_shown_to_it_again() -> None:
    """One of an earlier version takes a quarter."""

    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        async def fill() -> None:
            async with producer.transaction() as tx:
                for _ in range(5):
                    await tx.send("a", BIG, partition=0)

        await opened(producer, services, None)
        await fill()
        await settled()
        services.decide(2, errors.TooLarge("x", limit="one_shot_bytes_max"))
        with pytest.raises(errors.TransactionEnded, match="they go one by one"):
            await producer.flush()
        services.decides_at_once = True
        asked = services.names().count("transact")
        await fill()
        assert services.names().count("transact") == asked
        assert services.names()[-1] == "commit_transaction"

    in_flight(work)


@pytest.mark.parametrize("how", ["commit_seq", "send_offsets"])
def test_those_that_cannot_be_chained_go_alone(how: str) -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, None)
        await filled(producer, None)
        await settled()
        tx = producer.transaction(commit_seq=("s", 1) if how == "commit_seq" else None)

        async def fill() -> None:
            async with tx:
                await tx.send("a", b"v", partition=0)
                if how == "send_offsets":
                    given(consumer, 2)
                    await tx.send_offsets({("a", 0): 9}, consumer.group_metadata())

        filling = asyncio.ensure_future(fill())
        await settled()
        assert sorted(services.accepted) == [1, 2]
        services.decide(2)
        await settled()
        services.decide(3)
        await filling
        assert tx.state == "committed"

    in_flight(work)


def test_i21_close_waits_for_all_and_says_what_was_refused() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        made = [await filled(producer, consumer) for _ in range(3)]
        closing = asyncio.ensure_future(producer.close())
        await settled()
        assert not closing.done()
        services.decide(2)
        services.decide(3, STALE)
        with pytest.raises(errors.StalePosition):
            await closing
        assert [tx.state for tx in made] == ["committed", "aborted", "aborted"]

    in_flight(work)


def test_i21_a_consumer_of_what_is_in_flight_is_moved_by_nothing_else() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        await filled(producer, consumer)
        with pytest.raises(errors.InvalidArgument, match="where it is in flight"):
            given(consumer, 1)
            await consumer.commit()
        other = TransactionalProducer(
            producer.protocol, ProducerOptions(in_flight=2), name=None, group=None
        )
        with pytest.raises(errors.InvalidArgument, match="another producer"):
            async with other.transaction(consumer):
                pass
        await settled()
        services.decide(2)
        await producer.flush()

    in_flight(work)


def test_an_abort_comes_too_late_for_what_is_on_its_way() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        tx = await filled(producer, consumer)
        await tx.abort()
        await settled()
        services.decide(2)
        await tx.decided()
        assert tx.state == "committed"
        assert stands(consumer) == 13

    in_flight(work)


def test_i21_an_abort_goes_back_to_what_is_on_its_way() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        await filled(producer, consumer)
        given(consumer, 5)
        with pytest.raises(ValueError):
            async with producer.transaction(consumer):
                raise ValueError
        assert stands(consumer) == 13
        await settled()
        services.decide(2, errors.TransactionEnded("no"))
        await settled()
        assert stands(consumer) == 10

    in_flight(work)


def test_a_table_of_many_chunks_is_one_message() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        services.decides_at_once = True
        parts = [pa.table({"value": [b"v"] * 3, "partition": [n, n, 1 - n]}) for n in (0, 1, 0)]
        tx = producer.transaction()
        async with tx:
            await tx.send_arrow("a", pa.concat_tables(parts))
        (request,) = services.of("transact")
        assert [(b.partition.number, b.record_count) for b in request.batches] == [(0, 5), (1, 4)]
        assert tx.state == "committed"

    in_flight(work)


@pytest.mark.parametrize("number", [0, 17, True, "4", 1.5])
def test_out_of_range_names_the_limit(number: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="one_shots_in_flight_max = 16"):
        ProducerOptions(in_flight=number).validate()
