"""When a snapshot is taken, and that each is whole with the rows of those before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import ENOSPC

import pytest

from oncelog_server.runtime.replica.snapshots import (
    FRAME_BYTES_GUESS,
    LOOK_EVERY_MS,
    SNAPSHOT_RETRY_MS,
)
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add

STEP_MS = 1_000


class Endless:
    """Something to settle, compact or heal that takes days, as Snapshots sees it."""

    def __init__(self, bench: Bench) -> None:
        self.settling = bench.leadership.settling
        self.is_due = self.is_waiting = True
        self.steps = 0

    async def step(self) -> bool:
        await asyncio.sleep(STEP_MS / 1000)
        self.steps += 1
        return True

    def drop(self) -> None: ...


def takes_turns(bench: Bench, work: object, what: str = "_turns") -> None:
    setattr(bench.leadership._snapshots, what, work)


async def goes_on_for_days(bench: Bench, what: str) -> Endless:
    """Returns in the middle of the first step."""
    endless = Endless(bench)
    takes_turns(bench, endless, what)
    bench.driver.report()
    await asyncio.sleep(0.1)
    return endless


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


@pytest.mark.parametrize("what", ["_turns", "_healing"])
def test_i35_what_goes_on_for_days_keeps_no_snapshot_from_being_taken(what: str) -> None:
    """While a topic is settled that was altered, say, or compacted: a replay would take as long."""
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, snapshot_every_bytes=100 * FRAME_BYTES_GUESS)
        await bench.lead()
        endless = await goes_on_for_days(bench, what)
        for number in range(300):
            await bench.driver.submit(Add(number))
            await asyncio.sleep(0.1)
            if number % 10 == 0:
                bench.driver.report()
        behind = bench.driver.log_end - bench.driver.journal.snapshot_offset
        assert behind < 130, "all of that would be replayed"
        assert endless.steps > 20, "it goes on by turns with them"

    run(tell(), loop)


def test_i35_nothing_else_is_begun_where_a_snapshot_is_due() -> None:
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, snapshot_every_bytes=100 * FRAME_BYTES_GUESS)
        await bench.lead()
        endless = await goes_on_for_days(bench, "_turns")
        await asyncio.gather(*(bench.driver.submit(Add(number)) for number in range(200)))
        await asyncio.sleep(STEP_MS / 1000)
        assert endless.steps == 1
        # As where the HW moves: what was appended before found it busy, and so would what comes.
        bench.leadership._save()
        assert bench.leadership._snapshots._saving is None, "the next append finds it busy again"
        bench.driver.report()
        await asyncio.sleep(0.1)
        assert bench.driver.journal.snapshot_offset == bench.driver.log_end

    run(tell(), loop)


class Asked:
    """It has nothing to do; counts how often it is asked."""

    is_waiting = False
    count = 0

    @property
    def is_due(self) -> bool:
        self.count += 1
        return False

    def drop(self) -> None: ...


def test_after_commits_other_work_is_looked_for_now_and_then() -> None:
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop)
        await bench.lead()
        asked = Asked()
        takes_turns(bench, asked)
        for number in range(100):
            await bench.driver.submit(Add(number))
            await asyncio.sleep(LOOK_EVERY_MS / 1000 / 10)
        assert 9 <= asked.count <= 11
        # Who looks for another reason looks at once.
        before = asked.count
        bench.driver.report()
        bench.leadership._save()
        assert asked.count == before + 2
        # With the next commit, too, where something has ended.
        await bench.leadership._snapshots._flush_slots()
        await bench.driver.submit(Add(100))
        await asyncio.sleep(LOOK_EVERY_MS / 1000 / 10)
        assert asked.count == before + 3
        # And what came to be done meanwhile is found while commits go on.
        takes_turns(bench, Endless(bench))
        for number in range(11):
            await bench.driver.submit(Add(number))
            await asyncio.sleep(LOOK_EVERY_MS / 1000 / 10)
        assert bench.leadership._snapshots._saving is not None

    run(tell(), loop)


def test_i35_a_snapshot_that_was_due_comes_though_nothing_more_is_appended() -> None:
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, snapshot_every_bytes=100 * FRAME_BYTES_GUESS)
        await bench.lead()

        async def slow(work: Callable[[], None]) -> None:
            await asyncio.sleep(1)
            work()

        bench.offload = slow
        for _ in range(2):
            await asyncio.gather(*(bench.driver.submit(Add(number)) for number in range(120)))
        assert bench.driver.journal.snapshot_offset == 0, "the first one is being written"
        for _ in range(5):
            await asyncio.sleep(1)
            bench.driver.report()
        assert bench.driver.journal.snapshot_offset == bench.driver.log_end, "it was given up"

    run(tell(), loop)


@pytest.mark.parametrize("what", ["_turns", "_healing"])
def test_i29_a_clean_stop_waits_for_one_step_of_what_goes_on_for_days(what: str) -> None:
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop)
        await bench.lead()
        await bench.driver.submit(Add(1))
        await goes_on_for_days(bench, what)
        began_ms = loop.now().monotonic_ms
        stopping = asyncio.create_task(bench.driver.checkpoint())
        await asyncio.wait([stopping], timeout=10)
        assert stopping.done(), "it stops when all is done, or when it is killed"
        assert loop.now().monotonic_ms - began_ms <= STEP_MS
        bench.driver.report()
        await asyncio.sleep(0.1)
        assert bench.driver.journal.snapshot_offset == bench.driver.log_end
        assert bench.leadership._snapshots._saving is None, "nothing more is begun"

    run(tell(), loop)
