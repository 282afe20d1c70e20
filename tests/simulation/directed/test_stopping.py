"""A process that is told to stop, while others go on."""

from __future__ import annotations

import asyncio
import itertools

from tests.simulation.directed.stage import Stage, play

WRITERS = 8
# A process stops within this, however many records come.
STOPS_S = 5.0


def test_i31_a_follower_that_stops_copies_no_more() -> None:
    """Its disk is slow, and frames come while it writes the last ones. It waits until nothing is on
    its way to the disk."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        leader, [follower, _] = stage.leader(stage.data), stage.others(stage.data)
        stage.disk(follower).takes_ms(100)
        numbers = itertools.count()

        async def write() -> None:
            while True:
                await asyncio.wait([stage.write(b"%d" % next(numbers), at=leader).task])

        writing = []
        for _ in range(WRITERS):
            writing.append(asyncio.create_task(write()))
            await asyncio.sleep(0.03)
        await asyncio.sleep(1)
        stopping = asyncio.create_task(stage.stop(follower))
        await asyncio.wait([stopping], timeout=STOPS_S)
        assert stopping.done(), "it copies on"
        for task in writing:
            task.cancel()
        stage.reopened(follower).takes_ms(1)
        await stage.end()

    play(story)
