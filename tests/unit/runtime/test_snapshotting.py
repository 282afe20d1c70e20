"""When a snapshot is taken, and that each is whole with the rows of those before it."""

from __future__ import annotations

import asyncio

from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add


def test_what_was_captured_is_written_before_the_next_is_taken() -> None:
    """It hands over rows of a table once: were it replaced, none after it would be whole."""
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, snapshot_every_bytes=1)
        await bench.lead()
        await asyncio.gather(*(bench.driver.submit(Add(number)) for number in (1, 2, 3)))
        await asyncio.sleep(1)
        await bench.driver.submit(Add(4))
        await asyncio.sleep(1)
        saved = bench.lose_power().journal.load_snapshot()
        assert saved is not None, "no snapshot is whole"
        assert saved[0] == 5

    run(tell(), loop)
