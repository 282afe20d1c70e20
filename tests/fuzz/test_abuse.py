"""Very much of everything, and connections that are no clients. The services go on, a client beside
notices nothing, and what was held for it is given back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from oncelogpb import calls
from oncelogpb.errors import LimitExceeded, from_status
from oncelogpb.v1 import coordinator_pb2 as tx_pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.hand import Hand, rows, story

MIB = 1024 * 1024
PRODUCERS = 10_000
STREAMS = 1_000
STREAM = "/oncelogpb.v1.PartitionLeader/Stream"


async def until(holds: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it never came to be that {what}") from None


def held(hand: Hand, role: str) -> dict[str, int]:
    """What a process holds for its callers now."""
    return hand.target.held(role)


async def freed(hand: Hand, role: str) -> None:
    """Nothing of a request is held any more."""
    await until(lambda: held(hand, role)["inflight_bytes"] == 0, "all is freed")


# --------------------------------------------------------------------------------------- very many


def test_ten_thousand_producers_each_with_an_open_transaction(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        stream = calls.CallStream(hand.target.channels["coordinator"], "coordinator")

        async def ask(method: str, requests: list[Any]) -> list[Any]:
            return await asyncio.gather(*(stream.begin(method, one, 60_000) for one in requests))

        async def in_parts(method: str, requests: list[Any]) -> list[Any]:
            replies: list[Any] = []
            for start in range(0, len(requests), 2_000):
                replies += await ask(method, requests[start : start + 2_000])
            return replies

        granted = await in_parts(
            "init_producer",
            [
                tx_pb.InitProducerRequest(name=f"many-{number}", instance_id=os.urandom(16))
                for number in range(PRODUCERS)
            ],
        )
        producers = [reply.producer for reply in granted]
        assert len({producer.producer_id for producer in producers}) == PRODUCERS
        begun = await in_parts(
            "begin_transaction",
            [tx_pb.BeginTransactionRequest(producer=one, request_id=1) for one in producers],
        )
        listed = await hand.call(
            "coordinator.list_transactions",
            tx_pb.ListTransactionsRequest(limit=(1 << 32) - 1, name="many-7"),
        )
        assert len(listed.transactions) == 1
        listed = await hand.call(
            "coordinator.list_transactions", tx_pb.ListTransactionsRequest(limit=(1 << 32) - 1)
        )
        assert listed.more
        hand.target.check()
        await in_parts(
            "abort_transaction",
            [
                tx_pb.AbortTransactionRequest(tx_id=reply.tx_id, producer=producer)
                for reply, producer in zip(begun, producers, strict=True)
            ],
        )
        await stream.close()
        assert await hand.open_transactions("many-") == 0

    story(tmp_path, tell)


def test_limits_on_what_is_held_open_are_told_by_name(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("narrow")
        opened = []
        limits = set()
        for number in range(200):
            try:
                producer = await hand.named_producer(f"p{number}")
                opened.append((producer, await hand.begin(producer)))
            except LimitExceeded as full:
                limits.add(full.metadata["limit"])
        assert limits == {"open_transactions_max", "producers_max"}
        for number in range(6):
            refused = hand.produce(where, b"x", producer=hand.plain_producer())
            if number >= 4:
                error = await hand.refusal(refused)
                assert (error.reason, error.metadata["limit"]) == (
                    "LIMIT_EXCEEDED",
                    "producers_max",
                )
            else:
                await refused
        for producer, tx_id in opened:
            await hand.abort(producer, tx_id)
        producer, _ = opened[0]
        await hand.abort(producer, await hand.begin(producer))

    settings = (
        "coordinator.producers_max=6",
        "coordinator.open_transactions_max=4",
        "partition_leader.producers_max=4",
    )
    # No witness: it would meet these limits as well.
    story(tmp_path, tell, *settings, witnessed=False)


def test_what_one_transaction_or_group_may_hold_is_limited_by_name(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("wide", partitions=4)
        producer = await hand.named_producer("p")
        tx_id = await hand.begin(producer)

        async def write(writer: int) -> None:
            request = log_pb.ProduceRequest(
                tx_id=tx_id, producer=producer, writer=writer, batches=[rows(where, b"x")]
            )
            reply = await hand.call("partition_leader.produce", request)
            if reply.results[0].HasField("error"):
                raise from_status(reply.results[0].error)

        def commit(number: int, tx_id: int = 0, producer_id: int = 0) -> Awaitable[Any]:
            place = pb.Partition(topic_id=where.topic_id, number=number)
            step = offsets_pb.OffsetCommit(partition=place, from_any=True, to_offset=1)
            offsets = offsets_pb.GroupOffsets(group="g", offsets=[step])
            if not tx_id:
                request = offsets_pb.CommitOffsetsRequest(offsets=offsets)
                return hand.call("offset_manager.commit_offsets", request)
            who = pb.Producer(producer_id=producer_id, generation=1)
            return hand.call(
                "offset_manager.commit_transaction_offsets",
                offsets_pb.CommitTransactionOffsetsRequest(
                    tx_id=tx_id, producer=who, offsets=offsets
                ),
            )

        async def limit_of(call: Awaitable[Any]) -> str:
            error = await hand.refusal(call)
            assert error.reason == "LIMIT_EXCEEDED"
            return error.metadata["limit"]

        await write(1)
        await write(2)
        assert await limit_of(write(3)) == "writers_per_transaction_max"
        await commit(0)
        await commit(1)
        assert await limit_of(commit(2)) == "offsets_per_group_max"
        # What it has may go on.
        await commit(1)
        await commit(0, tx_id=5, producer_id=101)
        await commit(1, tx_id=6, producer_id=102)
        assert await limit_of(commit(1, tx_id=7, producer_id=103)) == "producers_max"

    settings = (
        "partition_leader.writers_per_transaction_max=2",
        "offset_manager.offsets_per_group_max=2",
        "offset_manager.producers_max=2",
    )
    story(tmp_path, tell, *settings, witnessed=False)


def test_a_session_that_is_asked_for_again_is_held_once(tmp_path: Path) -> None:
    """And questions about an open transaction add no more partitions than a manifest may name."""

    async def tell(hand: Hand) -> None:
        channel = hand.target.channels["coordinator"]
        stream = calls.CallStream(channel, "coordinator")
        request = tx_pb.InitProducerRequest(name="held", instance_id=bytes(16), session=True)
        for _ in range(50):
            granted = await stream.call("init_producer", request)
        tx_id = await hand.begin(granted.producer)
        asking = tx_pb.AskTransactionsRequest(journal_partition=tx_id >> 48)
        for number in range(20):
            question = asking.questions.add(tx_id=tx_id, producer=granted.producer)
            question.partition.topic_id = bytes(15) + bytes((number,))
        await hand.call("coordinator.ask_transactions", asking)
        described = await hand.call(
            "coordinator.get_transaction", tx_pb.GetTransactionRequest(tx_id=tx_id)
        )
        assert len(described.transaction.parts.topics) == 5
        await stream.close()
        # Its session is over: after the grace, the transaction is too.
        async with asyncio.timeout(20):
            while await hand.open_transactions(""):
                await asyncio.sleep(0.05)

    settings = ("coordinator.parts_max=5", "coordinator.session_grace_ms=100")
    story(tmp_path, tell, *settings, witnessed=False)


def test_a_thousand_idle_streams_and_one_too_many(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        role = "offset_manager"
        before = held(hand, role)["streams"]
        channel: Any = hand.target.channels[role]
        method = channel.stream_stream("/oncelogpb.v1.OffsetManager/Stream")
        streams = [method() for _ in range(STREAMS - before)]
        await asyncio.gather(*(stream.initial_metadata() for stream in streams))
        assert held(hand, role)["streams"] == STREAMS
        refused = method()
        await refused.initial_metadata()
        error = await hand.refusal(_status_of(refused))
        assert (error.reason, error.metadata["limit"]) == ("THROTTLED", "streams_max")
        for stream in streams:
            stream.cancel()
        await until(lambda: held(hand, role)["streams"] == before, "the streams are let go")

    # The witness holds some as well, which come later than these: it needs none here.
    story(tmp_path, tell, f"node.streams_max={STREAMS}", witnessed=False)


async def _status_of(stream: Any) -> None:
    try:
        await stream.read()
    except grpc.aio.AioRpcError as failure:
        raise calls.from_rpc_error(failure) from None


# ------------------------------------------------------------------------------- who does not read


def test_a_subscriber_that_does_not_read_holds_back_only_itself(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("fast")
        channel: Any = hand.target.channels["partition_leader"]
        request = log_pb.SubscribeRequest(partitions=[log_pb.FetchPartition(partition=where)])
        slow = channel.unary_stream("/oncelogpb.v1.PartitionLeader/Subscribe")(
            request.SerializeToString()
        )
        producer = hand.plain_producer()
        for number in range(24):
            await hand.produce(where, b"x" * MIB, producer=producer, sequence=number)
        first = log_pb.FetchReply.FromString(await slow.read())
        assert first.partitions[0].batches[0].first_offset == 0
        seen = sum(len(one.batches) for one in first.partitions)
        while seen < 24:
            reply = log_pb.FetchReply.FromString(await slow.read())
            seen += sum(len(one.batches) for one in reply.partitions)
        assert seen == 24
        slow.cancel()
        await freed(hand, "partition_leader")

    story(tmp_path, tell)


def test_a_client_that_never_reads_its_answers_is_not_read_either(tmp_path: Path) -> None:
    """Its answers are large, and its calls too many: the service stops to read it, and holds a
    bounded number of answers."""

    async def tell(hand: Hand) -> None:
        where = await hand.topic("deaf")
        await hand.produce(where, b"x" * MIB)
        channel: Any = hand.target.channels["partition_leader"]
        deaf = channel.stream_stream(STREAM)()
        await deaf.initial_metadata()
        fetch = log_pb.FetchRequest(partitions=[log_pb.FetchPartition(partition=where)])
        written = 0
        try:
            async with asyncio.timeout(2):
                for number in range(1, 200_000, 50):
                    numbers = range(number, number + 50)
                    packed = log_pb.PartitionLeaderCalls(
                        calls=[
                            log_pb.PartitionLeaderCall(number=one, fetch=fetch) for one in numbers
                        ]
                    )
                    # More padding than the transport holds for a reader that does not read.
                    await deaf.write(
                        packed.SerializeToString() + b"\xfa\x7c\x80\x80\x04" + bytes(65_536)
                    )
                    written += 1
        except TimeoutError:
            pass
        assert written < 4_000, "the writer was held back"
        assert await hand.values(where) == [b"x" * MIB]
        deaf.cancel()
        await freed(hand, "partition_leader")

    story(tmp_path, tell)


# --------------------------------------------------------------------------------- who is no client


def test_garbage_on_the_port_harms_nobody(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for data in (
            b"",
            os.urandom(10_000),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01" + os.urandom(500),
            preface + os.urandom(10_000),
            # A frame that says that it is 16 MiB long, and a HEADERS frame of garbage.
            preface + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(1_000),
            preface
            + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x40\x01\x05\x00\x00\x00\x01"
            + os.urandom(64),
        ):
            for address in hand.target.addresses.values():
                await _send_raw(address, data)
        for role in hand.target.addresses:
            await freed(hand, role)

    story(tmp_path, tell)


async def _send_raw(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(0.1):
            await reader.read(1)
    except (OSError, TimeoutError):
        pass
    writer.transport.abort()


def test_a_stream_that_is_cut_in_the_middle_of_a_message(tmp_path: Path) -> None:
    """By a proxy, after so many bytes. Nothing of the message is written, all else is."""

    async def tell(hand: Hand) -> None:
        where = await hand.topic("cut")
        producer = hand.plain_producer()
        await hand.produce(where, b"before", producer=producer)
        large = rows(where, b"x" * (4 * MIB))
        large.base_sequence = 1
        request = log_pb.ProduceRequest(producer=producer, batches=[large])
        for cut_after in (100, 20_000, 2 * MIB):
            proxy, address = await _cutting_proxy(
                hand.target.addresses["partition_leader"], cut_after
            )
            channel = grpc.aio.insecure_channel(address, options=calls.CHANNEL_OPTIONS)
            stream = calls.CallStream(channel, "partition_leader")
            error = await hand.refusal(stream.call("produce", request, 5_000))
            assert error.reason in ("UNAVAILABLE", "UNKNOWN_OUTCOME")
            await stream.close()
            await channel.close(None)
            proxy.close()
        assert await hand.values(where) == [b"before"]
        await hand.produce(where, b"after", producer=producer, sequence=1)
        await freed(hand, "partition_leader")

    story(tmp_path, tell)


async def _cutting_proxy(target: str, bytes_max: int) -> tuple[asyncio.Server, str]:
    host, _, port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        back = asyncio.create_task(_pipe(there_reader, writer, None))
        await _pipe(reader, there_writer, bytes_max)
        back.cancel()
        there_writer.transport.abort()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _pipe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_max: int | None
) -> None:
    passed = 0
    try:
        while bytes_max is None or passed < bytes_max:
            data = await reader.read(4_096)
            if not data:
                return
            writer.write(data)
            await writer.drain()
            passed += len(data)
    except OSError:
        return


# -------------------------------------------------------------------------------------------- bombs


def test_messages_that_become_large_are_refused_before_they_do(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        target = hand.target
        await hand.named_producer("p")
        # Two bytes each, a hundred in memory.
        empty_batches = b"\x22\x00" * (15 * MIB)
        assert await _limit_of(hand, "Produce", empty_batches) == "message_fields_max"
        assert await _limit_of(hand, "Produce", bytes(33 * MIB)) == "message_bytes_max"
        # Far above it the transport refuses, without a name.
        assert await _limit_of(hand, "Produce", bytes(80 * MIB)) == "(RESOURCE_EXHAUSTED)"
        zipped = await _limit_of(
            hand, "Produce", bytes(300 * MIB), compression=grpc.Compression.Gzip
        )
        assert zipped == "(RESOURCE_EXHAUSTED)"
        for role in target.addresses:
            await freed(hand, role)

    story(tmp_path, tell)


async def _limit_of(hand: Hand, method: str, data: bytes, **options: Any) -> str:
    channel: Any = hand.target.channels["partition_leader"]
    call: Awaitable[Any] = channel.unary_unary(f"/oncelogpb.v1.PartitionLeader/{method}")(
        data, timeout=20, **options
    )
    try:
        await call
    except grpc.aio.AioRpcError as failure:
        error = calls.from_rpc_error(failure)
        return error.metadata.get("limit", f"({failure.code().name})")
    raise AssertionError("was not refused")


def test_repeated_names_do_not_make_a_reply_that_nobody_can_send(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("named", partitions=4)
        names = log_pb.DescribeTopicsRequest(names=["named"] * 50_000)
        error = await hand.refusal(hand.call("partition_leader.describe_topics", names))
        assert (error.reason, error.metadata["limit"]) == ("TOO_LARGE", "items_per_call_max")
        queries = [log_pb.OffsetQuery(partition=where, latest=True)] * 50_000
        error = await hand.refusal(
            hand.call("partition_leader.list_offsets", log_pb.ListOffsetsRequest(queries=queries))
        )
        assert (error.reason, error.metadata["limit"]) == ("TOO_LARGE", "items_per_call_max")
        batches = [pb.Batch(partition=where)] * 50_000
        request = log_pb.ProduceRequest(producer=hand.plain_producer(), batches=batches)
        error = await hand.refusal(hand.call("partition_leader.produce", request))
        assert (error.reason, error.metadata["limit"]) == ("TOO_LARGE", "items_per_call_max")
        journals = log_pb.DescribeJournalsRequest(partitions=[where] * 50_000)
        error = await hand.refusal(hand.call("partition_leader.describe_journals", journals))
        assert (error.reason, error.metadata["limit"]) == ("TOO_LARGE", "items_per_call_max")

    story(tmp_path, tell)
