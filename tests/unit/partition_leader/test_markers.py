"""WriteMarkers, for the partitions of topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.partition_leader.role import PartitionLeaderRole
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import errors
from oncelogpb.v1 import participant_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2
from tests.unit.partition_leader.fakes import FIRST, SECOND, FakeCall, World
from tests.unit.partition_leader.messages import NAMED, batch, commit, group, send


def write(world: World, *requests: Any) -> list[Any]:
    """Produce and WriteMarkers requests in order."""

    async def main() -> list[Any]:
        service = PartitionLeaderService(world.env, world.config)
        participant: Any = PartitionLeaderRole(world.config).services(world.env)["Participant"]
        replies: list[Any] = []
        for request in requests:
            if isinstance(request, pb.WriteMarkersRequest):
                replies.append(await participant.write_markers(request, FakeCall()))
            else:
                replies.append(await service.produce(request, FakeCall()))
        return replies

    return asyncio.run(main())


def marker(tx_id: int, prepare_offset: int, **fields: Any) -> pb.Marker:
    fields.setdefault("kind", pb.MARKER_KIND_COMMITTED)
    return pb.Marker(tx_id=tx_id, prepare_offset=prepare_offset, producer=NAMED, **fields)


PART = [pb.WriterPart(writer=0, record_count=1)]


def test_says_where_the_parts_became_readable() -> None:
    _, reply = write(World(), send(5, batch([b"a", b"b"])), commit(5, 9, 2))
    (result,) = reply.groups[0].results
    assert result.status == pb.MarkerResult.STATUS_APPLIED
    (exposed,) = result.exposed
    assert (exposed.first_offset, exposed.record_count, exposed.partition.number) == (0, 2, 0)


@pytest.mark.parametrize("counts", [(1,), (2,)], ids=["exposed", "damaged"])
def test_i20_another_producer_cannot_write_under_a_txid_that_has_ended(counts: Any) -> None:
    world = World()
    stranger = send(5, batch([b"b"]))
    stranger.producer.producer_id = NAMED.producer_id + 1
    _, _, reply = write(world, send(5, batch([b"a"])), commit(5, 9, *counts), stranger)
    assert errors.from_status(reply.results[0].error).reason == "TRANSACTION_ENDED"
    world.first.machine.check()


def test_an_epoch_that_etcd_granted_to_nobody_is_not_believed() -> None:
    """Else no real coordinator could write here again."""
    world = World()
    forged = commit(5, 8, 1)
    forged.groups[0].coordinator_epoch = (1 << 64) - 1
    _, refused, applied = write(world, send(5, batch([b"a"])), forged, commit(5, 9, 1))
    assert errors.from_status(refused.groups[0].error).reason == "NOT_LEADER"
    assert applied.groups[0].results[0].status == pb.MarkerResult.STATUS_APPLIED


@pytest.mark.parametrize(
    "spoil",
    [{"record_count": 0}, {"encoding": 99}, {"encoding": 0}, {"crc32c": 1}, {"payload": b"?"}],
)
def test_a_one_shot_that_cannot_stand_in_the_journal_is_refused(spoil: dict[str, Any]) -> None:
    one_shot = batch([b"a"])
    for name, value in spoil.items():
        setattr(one_shot, name, value)
    (reply,) = write(World(), commit(5, 9, one_shot=one_shot))
    assert errors.from_status(reply.groups[0].error).reason == "INVALID_ARGUMENT"


def test_damage_is_told_counted_and_logged() -> None:
    world = World()
    _, reply = write(world, send(5, batch([b"a"])), commit(5, 9, 2))
    assert reply.groups[0].results[0].status == pb.MarkerResult.STATUS_DAMAGED
    assert world.reporter.counted["transactions_damaged"] == 1
    assert world.reporter.events == ["damaged part"]


def test_i5_a_surplus_is_told_counted_and_logged() -> None:
    world = World()
    late = batch([b"b", b"c"], sequence=1)
    replies = write(world, send(5, batch([b"a"]), late), *[commit(5, 9, 1)] * 2)
    for reply in replies[1:]:
        (exposed,) = reply.groups[0].results[0].exposed
        assert (exposed.record_count, exposed.surplus_records) == (1, 2)
    # Once, however often the marker comes.
    assert world.reporter.counted["surplus_records"] == 2
    assert world.reporter.counted["transactions_exposed"] == 1
    assert world.reporter.events == ["surplus dropped"]


def test_groups_fail_alone() -> None:
    world = World()
    del world.replicas.replicas[SECOND]
    request = pb.WriteMarkersRequest(
        groups=[
            group(marker(5, 9, parts=PART), partition=SECOND),
            group(marker(5, 9, parts=PART)),
            group(marker(6, 10, kind=0)),
            group(marker(6, 10), boot_id=b"x" * 16),
        ]
    )
    _, reply = write(world, send(5, batch([b"a"])), request)
    reasons = [
        errors.from_status(g.error).reason if g.HasField("error") else "" for g in reply.groups
    ]
    assert reasons == ["NOT_LEADER", "", "INVALID_ARGUMENT", "NOT_LEADER"]
    assert len(reply.groups[1].results) == 1


def test_a_deleted_topic_is_done_only_when_etcd_says_so() -> None:
    world = World()
    unknown = PartitionId(TopicId(b"g" * 16), 0)
    request = pb.WriteMarkersRequest(groups=[group(marker(5, 9), marker(6, 10), partition=unknown)])
    (reply,) = write(world, request)
    assert errors.from_status(reply.groups[0].error).reason == "UNKNOWN_TOPIC"
    world.metadata.gone_ids.add(unknown.topic_id)
    world.metadata.etcd_reachable = False
    (reply,) = write(world, request)
    assert errors.from_status(reply.groups[0].error).reason == "UNKNOWN_TOPIC"
    world.metadata.etcd_reachable = True
    (reply,) = write(world, request)
    assert [r.status for r in reply.groups[0].results] == [pb.MarkerResult.STATUS_GONE] * 2
    assert [r.tx_id for r in reply.groups[0].results] == [5, 6]


def test_nobody_waits_for_what_etcd_says_of_a_topic_of_others() -> None:
    """While etcd was down, one deleted topic kept back the acknowledgements of all."""

    async def frozen(topic_id: TopicId) -> bool:
        await asyncio.sleep(3_600)
        return True

    world = World()
    world.metadata.etcd_reachable = False
    world.metadata.is_gone = frozen  # type: ignore[method-assign]
    unknown = PartitionId(TopicId(b"g" * 16), 0)
    request = pb.WriteMarkersRequest(
        groups=[group(marker(5, 9), partition=unknown), group(marker(6, 10, parts=PART))]
    )
    _, reply = write(world, send(6, batch([b"a"])), request)
    assert errors.from_status(reply.groups[0].error).reason == "UNKNOWN_TOPIC", "ask again"
    assert len(reply.groups[1].results) == 1


def test_one_shot_keeps_its_payload_and_header() -> None:
    world = World()
    sent = batch([b"one", b"two"])
    (reply,) = write(world, commit(9, 12, one_shot=sent))
    assert reply.groups[0].results[0].exposed[0].record_count == 2
    frame = world.first.frames[-1].frame
    assert (frame.payload, frame.encoding, frame.client_crc) == (
        sent.payload,
        sent.encoding,
        sent.crc32c,
    )
    assert frame.max_timestamp_us == sent.max_timestamp_us


def test_on_a_full_disk_markers_with_records_wait_and_those_behind_them() -> None:
    """Bare markers use the reserve; order holds."""
    world = World()
    one_shot = marker(9, 11, batch=batch([b"one"]))
    request = pb.WriteMarkersRequest(
        groups=[
            group(marker(5, 10, parts=PART), one_shot, marker(6, 12, parts=PART)),
            group(marker(7, 13, parts=PART), partition=SECOND),
        ]
    )
    sends = [
        send(5, batch([b"a"])),
        send(6, batch([b"b"])),
        send(7, batch([b"c"], partition=SECOND)),
    ]
    write(world, *sends)
    world.first.full = world.second.full = True
    (reply,) = write(world, request)
    assert [r.tx_id for r in reply.groups[0].results] == [5]
    assert errors.from_status(reply.groups[0].error).reason == "DISK_FULL"
    assert not reply.groups[1].HasField("error")
    world.first.full = False
    (reply,) = write(world, request)
    assert [r.tx_id for r in reply.groups[0].results] == [5, 9, 6]
    assert world.first.machine.committed.end_offset == 3


def test_resolve_transaction() -> None:
    world = World()
    write(world, send(5, batch([b"a", b"b"])), commit(5, 9, 3))
    resolve = partition_leader_pb2.ResolveTransactionRequest(
        tx_id=5, partition=group(partition=FIRST).partition
    )

    async def main() -> int:
        service = PartitionLeaderService(world.env, world.config)
        with pytest.raises(errors.InvalidArgument):
            await service.resolve_transaction(resolve, FakeCall())
        resolve.action = partition_leader_pb2.ResolveTransactionRequest.ACTION_EXPOSE
        reply = await service.resolve_transaction(resolve, FakeCall())
        return reply.record_count

    assert asyncio.run(main()) == 2
    assert world.first.machine.committed.end_offset == 2


def test_describe_journals() -> None:
    world = World()
    write(world, send(5, batch([b"a", b"b"])), send(6, batch([b"c"])), commit(6, 9, 9))

    async def main() -> list[partition_leader_pb2.JournalDescription]:
        service = PartitionLeaderService(world.env, world.config)
        request = partition_leader_pb2.DescribeJournalsRequest()
        return list((await service.describe_journals(request, FakeCall())).journals)

    first, second = asyncio.run(main())
    assert (first.log_end_offset, first.high_watermark, first.committed_end_offset) == (5, 5, 0)
    assert (first.first_open_position, first.open_transactions, list(first.damaged)) == (1, 1, [6])
    assert not second.HasField("first_open_position")
