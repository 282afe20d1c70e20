"""When a snapshot is taken, and that each is whole with the rows of those before it."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

from oncelog_server.runtime.replica.snapshots import SNAPSHOT_RETRY_MS
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add


def test_i35_a_snapshot_that_failed_leaves_no_gap_in_the_next_one() -> None:
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, snapshot_every_bytes=1)
        await bench.lead()
        bench.disk.fail_files(".rows", ENOSPC)
        await asyncio.gather(*(bench.driver.submit(Add(number)) for number in (1, 2, 3)))
        await asyncio.sleep(1)
        assert "snapshot failed" in bench.reporter.events
        bench.disk.fail_files("no file", 0)
        await asyncio.sleep(SNAPSHOT_RETRY_MS / 1000)
        await bench.driver.submit(Add(4))
        await asyncio.sleep(1)
        sums = bench.driver.machine.sums
        after = bench.lose_power()
        saved = after.journal.load_snapshot()
        assert saved is not None, "no snapshot is whole"
        assert saved[0] == 5
        await after.lead(2)
        assert after.driver.machine.sums == sums

    run(tell(), loop)


def test_i28_a_quiet_partition_writes_another_snapshot_for_one_that_failed() -> None:
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, snapshot_every_bytes=1)
        await bench.lead()
        bench.disk.fail_files(".rows", ENOSPC)
        await bench.driver.submit(Add(1))
        await asyncio.sleep(1)
        bench.disk.fail_files("no file", 0)
        # Nothing is appended any more.
        await asyncio.sleep(SNAPSHOT_RETRY_MS / 1000)
        bench.driver.report()
        await asyncio.sleep(1)
        saved = bench.driver.journal.load_snapshot()
        assert saved is not None, "only an append brings the next one"
        assert saved[0] == bench.driver.log_end

    run(tell(), loop)
