"""A leader that is behind the point of compaction, over the real driver and journal: it refuses
reads below the point until it is compacted so far, and comes there within seconds."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.partition_leader.commands import Cleaned
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.disk import Tear
from tests.unit.partition_leader.fakes import FIRST, TOPIC
from tests.unit.partition_leader.messages import fetch, partition_of, plain
from tests.unit.partition_leader.test_keys import keyed
from tests.unit.partition_leader.test_over_the_journal import CALL, Process, story
from tests.unit.partition_leader.test_reads import decoded

RECORDS = 200
POINT = 150
BY_REFERENCE = {"materialization": "reference"}


def configure(process: Process, version: int, configs: dict[str, str]) -> None:
    """As etcd shows the topic from now on."""
    process.world.metadata.by_name[TOPIC.name] = TOPIC._replace(configs=configs, version=version)


async def turns(process: Process, seconds: int, *, snapshots: bool = True) -> None:
    """As the process gives them, about every second. `snapshots`: it may make some, and settle."""
    for _ in range(seconds):
        process.driver.tick()
        if snapshots:
            process.driver.report()
        await asyncio.sleep(1)


async def write(process: Process, begin: int = 0, end: int = RECORDS) -> None:
    for number in range(begin, end):
        await process.produce(plain(keyed([b"%d" % (number % 10)], sequence=number)))


async def point_of_another(process: Process) -> None:
    """Journaled by who led before, and was compacted so far."""
    process.driver.signal(Cleaned(POINT))
    await turns(process, 3, snapshots=False)
    assert process.driver.journal.data.compacted_to < POINT


async def answer(process: Process, offset: int) -> pb.FetchedPartition:
    request = fetch(offset, max_bytes=1 << 20)
    (page,) = decoded(await process.service.fetch(request, CALL)).partitions
    return page


@pytest.mark.parametrize("later", [{"cleanup.policy": "compact"}, {}, BY_REFERENCE])
def test_i33_a_leader_behind_the_point_comes_to_it_within_seconds(later: dict[str, str]) -> None:
    """Whatever the topic's settings are by now, and without a snapshot that counts any of it."""

    async def tell(process: Process) -> None:
        configure(process, 1, {"cleanup.policy": "compact"})
        await process.lead(1)
        await turns(process, 2)
        await write(process)
        await point_of_another(process)
        configure(process, 2, later)
        await turns(process, 1, snapshots=False)
        again = process.lose_power(Tear.NOTHING)
        configure(again, 2, later)
        await again.lead(2)
        assert again.driver.journal.data.compacted_to < POINT
        refused = errors.from_status((await answer(again, 0)).error)
        assert isinstance(refused, errors.Loading)
        await turns(again, 15)
        assert again.driver.journal.data.compacted_to >= POINT, "its readers wait"
        assert again.reporter.counted["snapshots"] <= 2, "one says so, and one is for the front"
        found = await answer(again, 0)
        assert not found.HasField("error")
        assert found.batches
        below = sum(batch.record_count for batch in found.batches if batch.first_offset < POINT)
        assert below < POINT // 2, "what is superseded is gone"

    story(tell, 1 << 30)


def test_i33_what_was_deleted_below_the_point_is_passed_over_on_the_way_to_it() -> None:
    """By a replica which has settled less than was deleted, of a topic that is settled no more."""

    async def tell(process: Process) -> None:
        configure(process, 1, {"cleanup.policy": "compact"})
        await process.lead(1)
        await turns(process, 2)
        await write(process, 0, 50)
        leadership = process.driver._epochs.led
        assert leadership is not None
        leadership.capture_snapshot()
        await turns(process, 3)
        assert process.driver.journal.data.settled_end == 50
        await write(process, 50)
        request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), offset=100)
        await process.service.truncate_partition(request, CALL)
        await point_of_another(process)
        configure(process, 2, BY_REFERENCE)
        await turns(process, 1, snapshots=False)
        again = process.lose_power(Tear.NOTHING)
        configure(again, 2, BY_REFERENCE)
        await again.lead(2)
        assert again.driver.journal.data.settled_end == 50
        await turns(again, 15)
        assert again.driver.journal.data.compacted_to >= POINT, "its readers wait"
        assert (await answer(again, 100)).batches

    story(tell, 1 << 30)
