"""Handlers: routing by the group's name, and what they refuse before the machine is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    compose_tx_id,
    partition_of_name,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.role import OffsetManagerRole
from oncelog_server.offset_manager.service import OffsetManagerService
from oncelogpb.errors import DiskFull, NotLeader, PendingTransaction, from_status
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import participant_pb2, types_pb2
from tests.unit.offset_manager.fakes import BOOT, Outside

GROUP = "billing"
HERE = partition_of_name(GROUP)
TX = compose_tx_id(3, 5)
P0 = types_pb2.Partition(topic_id=b"orders..........", number=0)
PRODUCER = types_pb2.Producer(producer_id=7, generation=1)


class _Caller:
    """As much of the Call port as is asked here."""

    peer = "ipv4:10.0.0.7:51234"

    def sees(self, need: object) -> bool:
        return True


CALL: Any = _Caller()


def _participant(outside: Outside) -> Any:
    return OffsetManagerRole(OffsetManagerConfig()).services(outside.env)["Participant"]


def _offsets(to: int, *, start: int | None = None, group: str = GROUP) -> pb.GroupOffsets:
    commit = pb.OffsetCommit(partition=P0, to_offset=to, from_none=start is None)
    if start is not None:
        commit.from_offset = start
    return pb.GroupOffsets(group=group, offsets=[commit])


def test_i28_what_was_taken_is_told_again_on_a_full_disk() -> None:
    """The answer was lost, and the disk filled up meanwhile: "nothing happened" would be a lie."""

    async def story() -> None:
        outside = Outside(HERE)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        plain = pb.CommitOffsetsRequest(offsets=_offsets(3))
        pending = pb.CommitTransactionOffsetsRequest(
            tx_id=TX, producer=PRODUCER, offsets=_offsets(10, start=3)
        )
        await service.commit_offsets(plain, CALL)
        outside.replicas.by_number[HERE].full = DiskFull("full")
        await service.commit_offsets(plain, CALL)
        with pytest.raises(DiskFull):
            await service.commit_transaction_offsets(pending, CALL)
        outside.replicas.by_number[HERE].full = None
        await service.commit_transaction_offsets(pending, CALL)
        outside.replicas.by_number[HERE].full = DiskFull("full")
        reply = await service.commit_transaction_offsets(pending, CALL)
        assert reply.participant.number == HERE
        # The plain one stands behind what is pending now.
        await service.commit_offsets(plain, CALL)

    asyncio.run(story())


def _markers(*groups: participant_pb2.MarkerGroup) -> participant_pb2.WriteMarkersRequest:
    return participant_pb2.WriteMarkersRequest(groups=groups)


def _group(
    number: int = HERE, *, boot_id: bytes = BOOT, topic_id: bytes = CONSUMER_OFFSETS_ID
) -> participant_pb2.MarkerGroup:
    return participant_pb2.MarkerGroup(
        journal_partition=3,
        coordinator_epoch=1,
        partition=types_pb2.Partition(topic_id=topic_id, number=number),
        leader_boot_id=boot_id,
        markers=[
            participant_pb2.Marker(
                tx_id=TX,
                prepare_offset=9,
                kind=participant_pb2.MARKER_KIND_COMMITTED,
                producer=PRODUCER,
            )
        ],
    )


def test_i22_the_life_of_an_offset_over_the_wire() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        service, participant = (
            OffsetManagerService(outside.env, OffsetManagerConfig()),
            _participant(outside),
        )
        reply = await service.commit_transaction_offsets(
            pb.CommitTransactionOffsetsRequest(tx_id=TX, producer=PRODUCER, offsets=_offsets(10)),
            CALL,
        )
        assert (reply.participant.topic_id, reply.participant.number) == (CONSUMER_OFFSETS_ID, HERE)
        fetch = pb.FetchOffsetsRequest(group=GROUP, partitions=[P0], stable=True)
        with pytest.raises(PendingTransaction):
            await service.fetch_offsets(fetch, CALL)
        written = await participant.write_markers(_markers(_group()), CALL)
        assert [result.tx_id for result in written.groups[0].results] == [TX]
        fetched = await service.fetch_offsets(fetch, CALL)
        assert fetched.offsets[0].offset == 10
        # There may be one for every producer that ever was: only who asks gets them.
        assert not fetched.last_commits
        fetch.with_last_commits = True
        fetched = await service.fetch_offsets(fetch, CALL)
        assert fetched.last_commits[0].tx_id == TX

    asyncio.run(story())


def test_another_leaders_group_is_refused_before_anything() -> None:
    async def story() -> None:
        service = OffsetManagerService(Outside((HERE + 1) % 16).env, OffsetManagerConfig())
        with pytest.raises(NotLeader) as refusal:
            await service.commit_offsets(pb.CommitOffsetsRequest(offsets=_offsets(1)), CALL)
        assert refusal.value.metadata["leader_host"] == "elsewhere"

    asyncio.run(story())


def test_i28_a_full_disk_refuses_commits_and_answers_reads() -> None:
    async def story() -> None:
        outside = Outside(HERE)
        service = OffsetManagerService(outside.env, OffsetManagerConfig())
        await service.commit_offsets(pb.CommitOffsetsRequest(offsets=_offsets(5)), CALL)
        outside.replicas.by_number[HERE].full = DiskFull("full")
        with pytest.raises(DiskFull):
            await service.commit_offsets(
                pb.CommitOffsetsRequest(offsets=_offsets(6, start=5)), CALL
            )
        step = pb.CommitTransactionOffsetsRequest(
            tx_id=TX, producer=PRODUCER, offsets=_offsets(6, start=5)
        )
        with pytest.raises(DiskFull):
            await service.commit_transaction_offsets(step, CALL)
        fetched = await service.fetch_offsets(pb.FetchOffsetsRequest(group=GROUP), CALL)
        assert fetched.offsets[0].offset == 5
        await service.delete_group(pb.DeleteGroupRequest(group=GROUP), CALL)

    asyncio.run(story())


def test_groups_of_all_partitions_are_listed_by_name() -> None:
    async def story() -> None:
        service = OffsetManagerService(Outside(*range(16)).env, OffsetManagerConfig())
        for group in ("b", "a", "c", "ab"):
            await service.commit_offsets(
                pb.CommitOffsetsRequest(offsets=_offsets(1, group=group)), CALL
            )
        listed = await service.list_groups(pb.ListGroupsRequest(), CALL)
        assert [group.group for group in listed.groups] == ["a", "ab", "b", "c"]
        listed = await service.list_groups(pb.ListGroupsRequest(prefix="a"), CALL)
        assert [group.group for group in listed.groups] == ["a", "ab"]

    asyncio.run(story())


def test_marker_groups_are_answered_one_by_one() -> None:
    async def story() -> None:
        participant = _participant(Outside(HERE))
        reply = await participant.write_markers(
            _markers(
                _group((HERE + 1) % 16),
                _group(boot_id=b"an older run....."[:16]),
                _group(topic_id=TRANSACTION_CONTROL_ID),
                _group(),
            ),
            CALL,
        )
        refused = [group for group in reply.groups if group.HasField("error")]
        assert [from_status(group.error).reason for group in refused] == ["NOT_LEADER"] * 3
        assert [result.tx_id for result in reply.groups[3].results] == [TX]

    asyncio.run(story())


@pytest.mark.parametrize("field", list(OffsetManagerConfig.__dataclass_fields__))
def test_a_setting_that_cannot_be_is_refused_by_name(field: str) -> None:
    # 0: the lag is never measured.
    for value in (-1,) if field == "lag_every_ms" else (-1, 0):
        with pytest.raises(ValueError, match=field):
            OffsetManagerRole(OffsetManagerConfig(**{field: value}))
