"""Produce: batches fail alone, streams keep their order, nothing unsound is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from oncelog_server.core.ids import CONTROL_TOPIC_IDS, LeaderEpoch, PartitionId, TopicId
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.partition_leader.fakes import SECOND, TOPIC, FakeCall, World
from tests.unit.partition_leader.messages import (
    NAMED,
    PLAIN_ID,
    batch,
    fetch,
    partition_of,
    plain,
    send,
)


def produce(world: World, *requests: pb.ProduceRequest) -> list[pb.ProduceReply]:
    async def main() -> list[pb.ProduceReply]:
        service = PartitionLeaderService(world.env, world.config)
        return [await service.produce(request, FakeCall()) for request in requests]

    return asyncio.run(main())


def reasons(reply: pb.ProduceReply) -> list[str]:
    return [
        errors.from_status(result.error).reason if result.HasField("error") else "ok"
        for result in reply.results
    ]


def test_positions_of_plain_and_transactional_batches() -> None:
    (plain_reply, sent_reply) = produce(
        World(),
        plain(batch([b"a", b"b"]), batch([b"c"], sequence=2)),
        send(5, batch([b"d"])),
    )
    positions = [(r.journal_offset, r.offset, r.duplicate) for r in plain_reply.results]
    assert positions == [(1, 0, False), (3, 2, False)]
    (sent,) = sent_reply.results
    assert sent.journal_offset == 4
    assert not sent.HasField("offset"), "the marker decides"


def test_i18_an_acknowledgement_says_in_which_epoch_it_was_decided() -> None:
    world = World()
    world.first.epoch = LeaderEpoch(7)
    world.replicas.replicas[SECOND].epoch = LeaderEpoch(8)
    refused = batch([b"c"], partition=PartitionId(TopicId(b"?" * 16), 0))
    request = plain(batch([b"a"]), batch([b"b"], partition=SECOND), refused)
    (reply,) = produce(world, request)
    assert [result.leader_epoch for result in reply.results] == [7, 8, 0]


def test_the_payload_is_stored_as_sent() -> None:
    world = World()
    arrow, rows = batch([b"%d" % i for i in range(20)]), batch([b"x"], sequence=20)
    produce(world, plain(arrow, rows))
    frames = [stored.frame for stored in world.first.frames[1:]]
    assert [frame.payload for frame in frames] == [arrow.payload, rows.payload]
    assert [frame.encoding for frame in frames] == [records.ARROW_V1, records.ROWS]
    assert [frame.client_crc for frame in frames] == [arrow.crc32c, rows.crc32c]


def test_a_partition_that_is_refused_fails_alone() -> None:
    world = World()
    del world.replicas.replicas[SECOND]
    unknown = PartitionId(TopicId(b"?" * 16), 0)
    no_partition = PartitionId(TOPIC.topic_id, 9)
    (reply,) = produce(
        world,
        plain(
            batch([b"a"]),
            batch([b"b"], partition=SECOND),
            batch([b"c"], partition=unknown),
            batch([b"d"], partition=no_partition),
        ),
    )
    assert reasons(reply) == ["ok", "NOT_LEADER", "UNKNOWN_TOPIC", "UNKNOWN_PARTITION"]
    elsewhere = errors.from_status(reply.results[1].error)
    assert elsewhere.metadata["leader_host"] == "10.0.0.9"
    assert [result.partition.number for result in reply.results] == [0, 1, 0, 9]
    assert world.reporter.counted["refused_writes/NOT_LEADER"] == 1


@pytest.mark.parametrize("topic_id", CONTROL_TOPIC_IDS.values())
def test_the_cluster_s_own_topics_are_nobody_s_to_write_or_read(topic_id: TopicId) -> None:
    world = World()
    own = PartitionId(topic_id, 0)
    (reply,) = produce(world, plain(batch([b"a"], partition=own), batch([b"b"])))
    assert reasons(reply) == ["INVALID_ARGUMENT", "ok"]
    service = PartitionLeaderService(world.env, world.config)
    with pytest.raises(errors.InvalidArgument, match="cluster's own"):
        asyncio.run(service.fetch(fetch(partition=own), FakeCall()))
    query = pb.OffsetQuery(partition=partition_of(own), earliest=True)
    listed = asyncio.run(service.list_offsets(pb.ListOffsetsRequest(queries=[query]), FakeCall()))
    assert errors.from_status(listed.offsets[0].error).reason == "INVALID_ARGUMENT"


def _with(change: Callable[[types_pb2.Batch], object]) -> types_pb2.Batch:
    one = batch([b"a", b"b"])
    change(one)
    return one


UNSOUND = [
    (lambda one: setattr(one, "crc32c", 1), "CORRUPT_BATCH"),
    (lambda one: setattr(one, "record_count", 3), "CORRUPT_BATCH"),
    (lambda one: setattr(one, "record_count", 0), "INVALID_ARGUMENT"),
    (lambda one: setattr(one, "max_timestamp_us", 5), "CORRUPT_BATCH"),
    (lambda one: setattr(one, "encoding", 0), "INVALID_ARGUMENT"),
    (lambda one: setattr(one.partition, "topic_id", b"short"), "INVALID_ARGUMENT"),
]


@pytest.mark.parametrize(("change", "reason"), UNSOUND)
def test_an_unsound_batch_is_refused_and_not_appended(
    change: Callable[[types_pb2.Batch], object], reason: str
) -> None:
    world = World()
    (reply,) = produce(world, plain(_with(change), batch([b"c"])))
    assert reasons(reply) == [reason, "ok"]
    assert len(world.first.frames) == 2


def test_the_limit_of_the_topic_is_named() -> None:
    world = World()
    limited = TOPIC._replace(configs={"max.batch.bytes": "1024"})
    world.metadata.by_name[TOPIC.name] = limited
    (reply,) = produce(world, plain(batch([b"x" * 2000])))
    refusal = errors.from_status(reply.results[0].error)
    assert refusal.reason == "TOO_LARGE"
    assert refusal.metadata == {"limit": "max.batch.bytes", "maximum": "1024"}


def test_i28_a_full_disk_refuses_data_and_says_so() -> None:
    world = World()
    world.first.full = True
    (reply,) = produce(world, plain(batch([b"a"]), batch([b"b"], partition=SECOND)))
    assert reasons(reply) == ["DISK_FULL", "ok"]
    assert world.first.log_end == 1, "refused before decide: nothing but EPOCH_START stands there"


def the_disk_is_full(world: World) -> None:
    world.first.full = True


def its_topic_takes_less(world: World) -> None:
    limited = TOPIC._replace(configs={"max.batch.bytes": "1"})
    world.metadata.by_name[TOPIC.name] = limited


def a_later_generation_was_here(world: World) -> None:
    newer = send(6, batch([b"n"]))
    newer.producer.generation += 1
    assert reasons(produce(world, newer)[0]) == ["ok"]


def it_is_at_its_limits(world: World) -> None:
    limits = dict.fromkeys(("open_transactions_max", "producers_max", "damaged_max"), 1)
    world.first.machine.config = replace(world.config, **limits)


@pytest.mark.parametrize(
    "happens",
    [the_disk_is_full, its_topic_takes_less, a_later_generation_was_here, it_is_at_its_limits],
)
def test_i6_a_batch_that_stands_is_acknowledged_again_whatever_has_happened_since(
    happens: Callable[[World], None],
) -> None:
    world = World()
    requests = plain(batch([b"a", b"b"])), send(5, batch([b"d"]))
    first = produce(world, *requests)
    happens(world)
    end = world.first.log_end
    again = produce(world, *requests)
    for was, now in zip(first, again, strict=True):
        assert [r.journal_offset for r in now.results] == [r.journal_offset for r in was.results]
        assert [r.duplicate for r in now.results] == [True]
    assert world.first.log_end == end


CONTRADICTIONS = [
    pb.ProduceRequest(producer=types_pb2.Producer(producer_id=PLAIN_ID)),
    pb.ProduceRequest(producer=NAMED, batches=[batch([b"a"])]),
    pb.ProduceRequest(producer=types_pb2.Producer(), tx_id=5, batches=[batch([b"a"])]),
    pb.ProduceRequest(
        producer=types_pb2.Producer(producer_id=PLAIN_ID, generation=1), batches=[batch([b"a"])]
    ),
    pb.ProduceRequest(
        producer=types_pb2.Producer(producer_id=PLAIN_ID), writer=3, batches=[batch([b"a"])]
    ),
    pb.ProduceRequest(
        tx_id=5, producer=types_pb2.Producer(producer_id=PLAIN_ID), batches=[batch([b"a"])]
    ),
    pb.ProduceRequest(tx_id=16 << 48 | 5, producer=NAMED, batches=[batch([b"a"])]),
    pb.ProduceRequest(tx_id=3 << 48, producer=NAMED, batches=[batch([b"a"])]),
]


@pytest.mark.parametrize("request_", CONTRADICTIONS)
def test_a_head_that_contradicts_itself_is_refused_whole(request_: pb.ProduceRequest) -> None:
    with pytest.raises(errors.InvalidArgument):
        produce(World(), request_)


def test_what_is_lost_at_a_step_down_is_told_per_batch() -> None:
    world = World()

    async def main() -> pb.ProduceReply:
        service = PartitionLeaderService(world.env, world.config)
        world.first.hold = True
        call = asyncio.create_task(
            service.produce(plain(batch([b"a"]), batch([b"b"], partition=SECOND)), FakeCall())
        )
        await asyncio.sleep(0.01)
        (_, future, _) = world.first._parked[0]
        future.set_exception(errors.UnknownOutcome("stepped down"))
        return await call

    assert reasons(asyncio.run(main())) == ["UNKNOWN_OUTCOME", "ok"]


class SlowOffload:
    """An offload whose works end when they are let go, in any order."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []

    async def __call__(self, work: Callable[[], None]) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        work()


@pytest.mark.parametrize("give_up", [False, True])
def test_batches_of_a_stream_are_submitted_in_the_order_they_came(give_up: bool) -> None:
    """The first two are decompressed in a thread, the second is done first, the third needs none.
    If the second gives up, the third still waits for the first."""
    world = World()
    values = [b"x" * 100] * 20
    slow = [
        plain(batch(values, sequence=20 * n, compression=records.Compression.ZSTD))
        for n in range(2)
    ]
    third = plain(batch([b"c"], sequence=20 if give_up else 40))

    async def main() -> list[str]:
        offload = SlowOffload()
        service = PartitionLeaderService(replace(world.env, offload=offload), world.config)
        call = FakeCall(stream_id=3)
        calls = [asyncio.create_task(service.produce(one, call)) for one in (*slow, third)]
        other_stream = asyncio.create_task(
            service.produce(send(5, batch([b"o"])), FakeCall(stream_id=4))
        )
        await other_stream
        assert len(world.first.frames) == 2, "only the other stream has submitted"
        if give_up:
            calls[1].cancel()
        else:
            offload.gates[1].set()
        await asyncio.sleep(0.01)
        assert len(world.first.frames) == 2, "nobody overtakes the first"
        offload.gates[0].set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [
            reason
            for reply in done
            if isinstance(reply, pb.ProduceReply)
            for reason in reasons(reply)
        ]

    assert asyncio.run(main()) == (["ok"] * 2 if give_up else ["ok"] * 3)
    sequences = [stored.frame.base_sequence for stored in world.first.frames[2:]]
    assert sequences == ([0, 20] if give_up else [0, 20, 40])


def test_a_stream_leaves_nothing_behind() -> None:
    world = World()

    async def main() -> None:
        service = PartitionLeaderService(world.env, world.config)
        for n in range(3):
            await service.produce(plain(batch([b"a"], sequence=n)), FakeCall(stream_id=9))
        lanes = service.produce.__self__._lanes  # type: ignore[attr-defined]
        assert lanes._last == {}

    asyncio.run(main())


def test_what_came_in_is_counted_once() -> None:
    world = World()
    request = plain(batch([b"a", b"b"]))
    produce(world, request, request)
    counted = world.reporter.counted
    assert (counted["records_in"], counted["batches_in"]) == (2, 1)
    assert counted["duplicate_batches"] == 1
    assert counted["bytes_in"] == len(request.batches[0].payload)


def test_config_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="question_after_ms"):
        PartitionLeaderConfig(question_after_ms=0).validate()
    with pytest.raises(ValueError, match="fits in no reply"):
        PartitionLeaderConfig(max_batch_bytes=32 << 20).validate()
    PartitionLeaderConfig().validate()
