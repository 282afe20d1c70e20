"""What is readable of a topic with materialization `copy` is settled, over the real driver and
journal on a disk that loses power."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.disk import Tear
from tests.unit.partition_leader.fakes import TOPIC
from tests.unit.partition_leader.messages import batch, plain, send
from tests.unit.partition_leader.settled import records_of
from tests.unit.partition_leader.test_over_the_journal import Process, story

FILLING = b"." * 3_000


def configure(process: Process, version: int, **configs: str) -> None:
    """As etcd shows the topic from now on."""
    process.world.metadata.by_name[TOPIC.name] = TOPIC._replace(configs=configs, version=version)


async def values_settled(process: Process, offset: int = 0) -> list[bytes | None]:
    """All that stands in the data log from there on."""
    data = process.driver.journal.data
    read: list[bytes | None] = []
    while offset < data.settled_end:
        for block in await data.read(offset, 10_000):
            read += [it.value for it in records_of(block.encoding, block.payload)]
            offset = block.end_offset
    return read


@pytest.mark.parametrize("tear", list(Tear))
@pytest.mark.parametrize("seed", [1, 2])
def test_i09_i14_what_is_settled_is_the_committed_log(seed: int, tear: Tear) -> None:
    chance = random.Random(seed)

    async def tell(process: Process) -> None:
        expected: list[bytes] = []
        open_: list[int] = []
        sequence = settled_end = 0
        for epoch in range(1, 5):
            configure(process, 1, materialization="copy")
            await process.lead(epoch)
            data = process.driver.journal.data
            assert data.settled_end >= settled_end, "what was noted is durable"
            assert await values_settled(process) == expected[: data.settled_end]
            for n in range(40):
                value = b"%d.%d" % (epoch, n)
                match chance.choice(["plain", "plain", "send", "commit"]):
                    case "plain":
                        await process.produce(plain(batch([value, FILLING], sequence=sequence)))
                        sequence += 2
                        expected += [value, FILLING]
                    case "send":
                        open_.append(epoch * 100 + n)
                        await process.produce(send(open_[-1], batch([b"%d" % open_[-1], FILLING])))
                    case "commit" if open_:
                        tx_id = open_.pop(0)
                        await process.commit(tx_id, 2)
                        expected += [b"%d" % tx_id, FILLING]
                process.driver.report()
                await asyncio.sleep(0.3)
            settled = await values_settled(process)
            assert settled == expected[: len(settled)]
            assert len(settled) > len(expected) // 2, "it keeps up"
            assert await process.values() == expected
            settled_end = len(settled)
            process = process.lose_power(tear)

    story(tell, 20_000)
