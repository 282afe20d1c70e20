"""What `send` returns: where each record stands, or why it does not, and takes no other along."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import oncelog
from oncelog import aio
from oncelog._loop import LoopThread
from oncelog.aio.producer import Producer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import Chunk
from oncelog.errors import Closed, DeliveryFailed
from oncelog.options import ProducerOptions
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import (
    ScriptedTransport,
    on_virtual_time,
    place,
    produced,
    protocol_over,
)
from tests.unit.client.test_transactions import BIG, Services, transacting


class Leaders:
    """Append what they are sent, by partition; their logs begin at offset 100. `refusals` are
    answered first, one for each batch."""

    def __init__(self, transport: ScriptedTransport) -> None:
        self.logs: dict[int, list[bytes | None]] = {}
        self.refusals: list[errors.OncelogError] = []
        transport.handlers["partition_leader.produce"] = self.receive

    def receive(self, to: Any, request: Any) -> Any:
        reply = leader.ProduceReply()
        for batch in produced(request).batches:
            result = reply.results.add(partition=batch.partition)
            if self.refusals:
                result.error.CopyFrom(errors.to_status(self.refusals.pop(0)))
                continue
            log = self.logs.setdefault(batch.partition.number, [])
            result.offset = 100 + len(log)
            chunk = Chunk(
                "a",
                0,
                first_offset=0,
                encoding=batch.encoding,
                payload=batch.payload,
                skip=0,
                count=batch.record_count,
            )
            log.extend(record.value for record in chunk.records())
        return reply

    def at(self, delivery: oncelog.Delivery) -> bytes | None:
        assert delivery.partition is not None
        assert delivery.offset is not None
        return self.logs[delivery.partition][delivery.offset - 100]


def producing(work: Any, **options: Any) -> Any:
    on_delivery = options.pop("on_delivery", None)

    async def main() -> Any:
        transport = ScriptedTransport(5, 6, 5)
        leaders = Leaders(transport)
        settings = ProducerOptions(**options)
        producer = Producer(protocol_over(transport), settings, on_delivery)
        result = await work(producer, leaders)
        await producer.close()
        return result

    return on_virtual_time(main)[0]


def test_a_receipt_is_awaited_for_the_place_of_its_record() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        receipts = {}
        for number in range(300):
            value = b"%d" % number
            key = b"k%d" % (number % 7) if number % 3 else None
            receipts[value] = await producer.send("a", value, key, timestamp_us=number)
        for value, receipt in receipts.items():
            delivery = await receipt
            assert leaders.at(delivery) == value
            assert (delivery.topic, delivery.index) == ("a", int(value))
            assert (delivery.timestamp_us, delivery.error) == (int(value), None)
            assert receipt.done()
            assert receipt.result() == delivery, "it is known: nobody waits"

    producing(work)


def test_a_receipt_that_is_not_known_is_not_waited_for_on_the_loop_and_says_so() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        receipt = await producer.send("a", b"v")
        assert not receipt.done()
        with pytest.raises(errors.InvalidArgument, match="await"):
            receipt.result()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receipt, 0.001)
        assert (await receipt).offset == 100

    producing(work, linger_ms=50)


def test_one_bad_record_takes_no_good_one_along() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        receipts = [await producer.send("a", b"%d" % n) for n in range(1_000)]
        bad = await producer.send("a", b"bad", partition=99)
        receipts += [await producer.send("a", b"%d" % n) for n in range(1_000, 2_000)]
        with pytest.raises(DeliveryFailed) as told:
            await producer.flush()
        assert isinstance(told.value, errors.UnknownPartition)
        assert (told.value.count, told.value.may_have_applied) == (1, False)
        (failure,) = told.value.failures
        assert (failure.topic, failure.index, failure.partition) == ("a", 1_000, None)
        assert "record 1000 of topic 'a'" in str(told.value)
        with pytest.raises(errors.UnknownPartition):
            await bad
        for number, receipt in enumerate(receipts):
            assert leaders.at(await receipt) == b"%d" % number
        assert sum(map(len, leaders.logs.values())) == 2_000
        await producer.flush()

    producing(work)


def test_the_batch_that_is_refused_fails_and_the_others_stand() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        leaders.refusals = [errors.CorruptBatch("a bit flipped")]
        lost = [await producer.send("a", b"lost", partition=0) for _ in range(3)]
        kept = [await producer.send("a", b"kept", partition=1) for _ in range(3)]
        with pytest.raises(DeliveryFailed) as told:
            await producer.flush()
        assert [failure.index for failure in told.value.failures] == [0, 1, 2]
        assert {failure.partition for failure in told.value.failures} == {0}
        for receipt in lost:
            with pytest.raises(errors.CorruptBatch):
                await receipt
        assert [(await receipt).offset for receipt in kept] == [100, 101, 102]

    producing(work)


def test_failures_beyond_the_first_are_counted_and_doubt_among_them_is_told() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        for number in range(150):
            await producer.send("a", b"%d" % number, partition=99)
        leaders.refusals = [errors.UnknownOutcome("lost")] * 50
        await producer.send("a", b"v", partition=0)
        with pytest.raises(DeliveryFailed) as told:
            await producer.flush()
        assert (told.value.count, len(told.value.failures)) == (151, 100)
        assert told.value.may_have_applied, "of one nobody knows"
        assert "151 records were not delivered" in str(told.value)

    producing(work, delivery_timeout_ms=1_000)


def test_failures_that_nobody_asks_for_end_the_sending_by_name() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        for _ in range(10_001):
            await producer.send("nowhere", b"v" * 100)
        await asyncio.sleep(2)
        with pytest.raises(errors.LimitExceeded, match="untold_failures_max"):
            await producer.send("a", b"v")
        with pytest.raises(errors.UnknownTopic):
            await producer.flush()
        await producer.send("a", b"v")
        await producer.flush()

    producing(work, batch_bytes=64 * 1024)


def test_on_delivery_is_told_of_each_record_once() -> None:
    told: list[oncelog.Delivery] = []

    def on_delivery(delivery: oncelog.Delivery) -> None:
        told.append(delivery)
        if delivery.index == 1:
            raise ZeroDivisionError("a fault of the user's")

    async def work(producer: Producer, leaders: Leaders) -> None:
        shown: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context))
        for number in range(5):
            await producer.send("a", b"%d" % number, partition=99 if number == 3 else 0)
        with pytest.raises(DeliveryFailed):
            await producer.flush()
        assert sorted(delivery.index for delivery in told) == [0, 1, 2, 3, 4]
        assert [delivery.index for delivery in told if delivery.error] == [3]
        assert [str(context["exception"]) for context in shown] == ["a fault of the user's"]

    producing(work, on_delivery=on_delivery)


def test_what_was_not_sent_when_a_producer_is_closed_in_the_middle_is_told_so() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        receipt = await producer.send("a", b"v")
        producer.recorder.stop()
        with pytest.raises(Closed):
            await receipt
        with pytest.raises(Closed):
            await producer.send("a", b"w")
        with pytest.raises(DeliveryFailed):
            await producer.close()

    producing(work, linger_ms=60_000)


@pytest.mark.parametrize("bad", [False, True])
def test_a_table_has_a_receipt_for_each_row(bad: bool) -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        count = 50
        partitions = [99 if bad and n == 7 else n % 3 for n in range(count)]
        table = pa.table(
            {
                "value": [b"%d" % n for n in range(count)],
                "partition": pa.array(partitions, pa.int32()),
            }
        )
        table = pa.concat_tables([table.slice(0, 20), table.slice(20)])
        receipt = await producer.send_arrow("a", table)
        assert len(receipt) == count
        if bad:
            with pytest.raises(DeliveryFailed) as told:
                await receipt
            assert [failure.index for failure in told.value.failures] == [7]
            with pytest.raises(errors.UnknownPartition):
                await producer.flush()
        else:
            assert [delivery.index for delivery in await receipt] == list(range(count))
        for row in (0, 19, 20, 49):
            assert leaders.at(await receipt[row]) == b"%d" % row
        with pytest.raises(IndexError):
            receipt[count]

    producing(work)


# ---------------------------------------------------------------------------------- transactions


@pytest.mark.parametrize("large", [False, True], ids=["one message", "opened"])
@pytest.mark.parametrize("wait", ["visible", "prepared"])
def test_a_record_of_a_transaction_is_known_with_its_commit(large: bool, wait: str) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        visible = wait == "visible"
        exposed = [
            types.ExposedPart(partition=place(n), first_offset=1_000 * (n + 1), record_count=3)
            for n in range(2)
            if visible
        ]
        services.script = {
            "transact": [pb.TransactReply(tx_id=101, visible=visible, exposed=exposed)],
            "commit_transaction": [pb.CommitTransactionReply(visible=visible, exposed=exposed)],
        }
        async with producer.transaction(wait=wait) as tx:
            receipts = [await tx.send("a", b"v", partition=number % 2) for number in range(3)]
            if large:
                await tx.flush()
            receipts += [await tx.send("a", b"v", partition=number % 2) for number in range(3, 6)]
            with pytest.raises(errors.InvalidArgument, match="after the `with` block"):
                await receipts[0]
            with pytest.raises(errors.InvalidArgument, match="after the `with` block"):
                receipts[0].result()
        told = [await receipt for receipt in receipts]
        assert [delivery.partition for delivery in told] == [0, 1, 0, 1, 0, 1]
        expected = [1_000, 2_000, 1_001, 2_001, 1_002, 2_002] if visible else [None] * 6
        assert [delivery.offset for delivery in told] == expected

    transacting(work)


@pytest.mark.parametrize("large", [False, True], ids=["one message", "opened"])
def test_a_record_of_an_aborted_transaction_says_so(large: bool) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as tx:
                receipt = await tx.send("a", b"v")
                if large:
                    await tx.flush()
                later = await tx.send("a", b"w")
                raise ZeroDivisionError
        for one in (receipt, later):
            with pytest.raises(errors.TransactionEnded, match="aborted") as told:
                await one
            assert told.value.metadata["outcome"] == "ABORTED"

    transacting(work)


def test_a_record_is_in_doubt_with_its_commit_and_knows_what_was_committed_before() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["transact"] = [errors.UnknownOutcome("lost")] * 200
        services.state = types.TRANSACTION_STATE_ONGOING
        with pytest.raises(errors.UnknownOutcome):
            async with producer.transaction() as tx:
                receipt = await tx.send("a", b"v")
        with pytest.raises(errors.UnknownOutcome):
            await receipt
        services.script["transact"] = [pb.TransactReply(already_committed=True)]
        async with producer.transaction(commit_seq=("s", 1)) as tx:
            receipt = await tx.send("a", b"v")
        with pytest.raises(errors.TransactionEnded, match="earlier run"):
            await receipt

    transacting(work, timeout_ms=2_000)


def test_on_delivery_hears_of_a_transaction_when_it_has_ended() -> None:
    told: list[oncelog.Delivery] = []

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        for large in (False, True):
            async with producer.transaction() as tx:
                for number in range(4):
                    await tx.send("a", BIG if large else b"v", partition=number % 2)
                await asyncio.sleep(1)
                assert told == []
            assert [one.index for one in sorted(told, key=lambda one: one.index)] == [0, 1, 2, 3]
            told.clear()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
                raise ZeroDivisionError
        assert [type(one.error) for one in told] == [errors.TransactionEnded] or told == []

    async def main() -> None:
        services, transport = Services(), ScriptedTransport(5, 5)
        for name in ("init_producer", "begin_transaction", "commit_transaction"):
            transport.handlers[f"coordinator.{name}"] = services.handler(f"coordinator.{name}")
        for name in ("abort_transaction", "transact"):
            transport.handlers[f"coordinator.{name}"] = services.handler(f"coordinator.{name}")
        transport.handlers["partition_leader.produce"] = services.handler("x.produce")
        producer = TransactionalProducer(
            protocol_over(transport),
            ProducerOptions(),
            name="n",
            group=None,
            on_delivery=told.append,
        )
        await work(producer, services, transport)

    on_virtual_time(main)


# --------------------------------------------------------------------------------- the plain face


@contextmanager
def plain_producer(**options: Any) -> Iterator[tuple[oncelog.Producer, Leaders]]:
    """Over scripted leaders, on a loop of its own."""
    loop = LoopThread("a test")

    async def make() -> tuple[aio.Producer, Leaders]:
        transport = ScriptedTransport(5, 6, 5)
        transport.delay_s = 0.0
        leaders = Leaders(transport)
        return aio.Producer(protocol_over(transport), ProducerOptions(**options)), leaders

    try:
        twin, leaders = loop.run(make())
        producer = oncelog.Producer(loop, twin)
        yield producer, leaders
        producer.close()
    finally:
        loop.close()


def test_the_plain_face_asks_a_receipt_for_its_result() -> None:
    with plain_producer() as (producer, leaders):
        receipt = producer.send("a", b"v", key=b"k")
        assert leaders.at(receipt.result(30)) == b"v"
        bad = producer.send("a", b"v", partition=99)
        with pytest.raises(errors.UnknownPartition):
            bad.result()
        with pytest.raises(DeliveryFailed):
            producer.flush()
        table = producer.send_arrow("a", pa.table({"value": [b"1", b"2"]}))
        assert [leaders.at(delivery) for delivery in table.result()] == [b"1", b"2"]


def test_the_plain_face_waits_for_the_loop_with_a_large_table_and_not_with_a_small_one() -> None:
    small, large = (pa.table({"value": [b"x" * size]}) for size in (10, 3_000))
    with plain_producer(batch_bytes=2_048) as (producer, leaders):
        producer.send_arrow("a", small).result()
        may_go_on, went_on = threading.Event(), threading.Event()

        def stand_still() -> None:
            may_go_on.wait(5)
            went_on.set()

        producer._loop.loop.call_soon_threadsafe(stand_still)
        receipts = [producer.send_arrow("a", small) for _ in range(3)]
        assert not went_on.is_set(), "the loop stands still, and nobody waited for it"
        waiter = threading.Thread(
            target=lambda: receipts.append(producer.send_arrow("a", large)), daemon=True
        )
        waiter.start()
        waiter.join(0.2)
        assert waiter.is_alive(), "it waits until its table is on its way"
        may_go_on.set()
        waiter.join(30)
        assert len(receipts) == 4
        places = [delivery for receipt in receipts for delivery in receipt.result()]
        assert [leaders.at(place) for place in places] == [b"x" * 10] * 3 + [b"x" * 3_000]


def test_a_receipt_that_takes_too_long_says_so() -> None:
    with plain_producer(linger_ms=60_000) as (producer, _):
        receipt = producer.send("a", b"v")
        with pytest.raises(TimeoutError):
            receipt.result(0.01)
        producer.flush()
        assert receipt.result(0).offset == 100


def test_i6_records_of_many_threads_stand_where_their_receipts_say() -> None:
    """Threads change as often as they can, and cells are taken under their hands."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with plain_producer(linger_ms=0, batch_bytes=1_024) as (producer, leaders):
            found: dict[bytes, oncelog.Receipt] = {}

            def send(name: int) -> None:
                for number in range(3_000):
                    value = b"%d-%d" % (name, number)
                    key = b"k" if number % 500 == 499 else None
                    found[value] = producer.send("a", value, key)

            threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            assert len(found) == 12_000
            assert sorted(v for log in leaders.logs.values() for v in log if v) == sorted(found)
            for value, receipt in found.items():
                assert leaders.at(receipt.result()) == value
    finally:
        sys.setswitchinterval(interval)


class Meanwhile(list[Any]):
    """A cell's items; something happens right before the next record is put."""

    def __init__(self, items: list[Any], happen: Callable[[], object]) -> None:
        super().__init__(items)
        self.happen: Callable[[], object] | None = happen

    def append(self, value: Any) -> None:
        happen, self.happen = self.happen, None
        if happen is not None:
            happen()
        super().append(value)


def test_i6_a_record_whose_cell_is_taken_under_its_hands_goes_into_the_next() -> None:
    async def work(producer: Producer, leaders: Leaders) -> None:
        early = await producer.send("a", b"early")
        recorder = producer.recorder
        buffer = recorder.open_buffers["a"]

        def taken() -> None:
            with recorder._lock:
                recorder._seal(buffer)

        buffer.cell.items = Meanwhile(buffer.cell.items, taken)
        late = await producer.send("a", b"late")
        assert leaders.at(await early) == b"early"
        assert leaders.at(await late) == b"late"

    producing(work)


def test_i6_a_record_that_is_put_while_another_is_being_put_has_a_place_of_its_own() -> None:
    """By a signal handler, or another thread."""

    async def work(producer: Producer, leaders: Leaders) -> None:
        first = await producer.send("a", b"first")
        buffer = producer.recorder.open_buffers["a"]
        between: list[oncelog.Receipt] = []
        buffer.cell.items = Meanwhile(
            buffer.cell.items, lambda: between.append(producer._put("a", b"between"))
        )
        last = await producer.send("a", b"last")
        for receipt, value in ((first, b"first"), (between[0], b"between"), (last, b"last")):
            assert leaders.at(await receipt) == value

    producing(work)
