"""Deletions over the real driver and journal on a disk that loses power: what was told to be gone
stays gone, what is left is where it was, from snapshots with tables whose front has gone too."""

from __future__ import annotations

import asyncio
import random

import pytest

from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.disk import Tear
from tests.unit.partition_leader.fakes import FIRST, FakeCall
from tests.unit.partition_leader.messages import batch, fetch, partition_of, plain, send, values_of
from tests.unit.partition_leader.test_over_the_journal import Process, story
from tests.unit.partition_leader.test_reads import decoded

CALL = FakeCall()
# Small enough for several segments.
FILLING = b"." * 3_000


async def values_from(process: Process, offset: int) -> list[bytes]:
    """All pages from there on; what a batch has below is left out."""
    read: list[bytes] = []
    while True:
        request = fetch(offset, max_bytes=20_000)
        (page,) = decoded(await process.service.fetch(request, CALL)).partitions
        assert not page.HasField("error"), page.error
        if not page.batches:
            return read
        skipped = offset - page.batches[0].first_offset
        read += values_of(page)[max(skipped, 0) :]
        offset = page.batches[-1].first_offset + page.batches[-1].record_count


async def require_points(process: Process, start: int, end: int) -> None:
    """Of each offset, within what is left of the journal."""
    request = pb.ListOffsetsRequest(with_journal_points=True)
    for offset in range(start, end + 1):
        request.queries.add(partition=partition_of(FIRST), offset=offset)
    for listed in (await process.service.list_offsets(request, CALL)).offsets:
        assert process.driver.log_start <= listed.journal_point.earliest


async def truncate(process: Process, before: int) -> int:
    request = pb.TruncatePartitionRequest(partition=partition_of(FIRST), offset=before)
    return (await process.service.truncate_partition(request, CALL)).start_after


@pytest.mark.parametrize("tear", list(Tear))
@pytest.mark.parametrize("snapshot_every_bytes", [40_000, 1])
@pytest.mark.parametrize("seed", [1, 2])
def test_i05_i14_i32_i35_deletions_survive_a_loss_of_power(
    seed: int, tear: Tear, snapshot_every_bytes: int
) -> None:
    chance = random.Random(seed)

    async def tell(process: Process) -> None:
        expected: list[bytes] = []
        open_: list[int] = []
        trimmed: list[int] = []
        start = sequence = 0
        for epoch in range(1, 6):
            await process.lead(2 * epoch)
            for n in range(25):
                value = b"%d.%d" % (epoch, n)
                match chance.choice(["plain", "plain", "send", "commit", "truncate"]):
                    case "plain":
                        await process.produce(plain(batch([value, FILLING], sequence=sequence)))
                        sequence += 2
                        expected += [value, FILLING]
                    case "send":
                        # TxIds grow, as a coordinator gives them.
                        open_.append(epoch * 100 + n)
                        await process.produce(send(open_[-1], batch([b"%d" % open_[-1], FILLING])))
                    case "commit" if open_:
                        tx_id = open_.pop(0)
                        await process.commit(tx_id, 2)
                        expected += [b"%d" % tx_id, FILLING]
                    case "truncate" if n % 3 == 0:
                        start = await truncate(process, chance.randint(start, len(expected)))
                await asyncio.sleep(0.3)
                if n % 5 == 0:
                    assert await values_from(process, start) == expected[start:]
            process = process.lose_power(tear)
            await process.lead(2 * epoch + 1)
            assert await values_from(process, start) == expected[start:]
            assert await truncate(process, 0) == start
            # What was open is written on, and readable, whatever went in front of it.
            while open_:
                tx_id = open_.pop(0)
                await process.commit(tx_id, 2)
                expected += [b"%d" % tx_id, FILLING]
            process.driver.report()
            await asyncio.sleep(1)
            trimmed.append(process.driver.log_start)
            await require_points(process, start, len(expected))
            process = process.lose_power(tear)
        assert trimmed[-1] > 0, "the log went in front"

    story(tell, snapshot_every_bytes)
