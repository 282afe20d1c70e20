"""A thousand partitions that nobody uses cost next to nothing, and stop at once: what is at rest is
ticked seldom, noted once, and leaves no snapshot that no start would be quicker for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncelog_server.runtime.replica.leading import REST_AFTER_TICKS
from oncelog_server.runtime.replicas import CHECKPOINTS_AT_ONCE, RESTING_TICKS
from oncelog_server.runtime.target import Lead
from tests.unit.runtime.counter import Add
from tests.unit.runtime.test_replicas import PARTITION, Shelf, story


def turn(shelf: Shelf, ticks: int) -> int:
    """So many ticks, and a look as each second has; how often the machine saw one."""
    machine = shelf.replicas.lead(PARTITION).machine
    before = machine.ticks
    for number in range(ticks):
        shelf.replicas.tick()
        if number % 10 == 0:
            shelf.replicas.note_synced_ends()
    seen: int = machine.ticks - before
    return seen


def test_who_is_at_rest_is_ticked_seldom_and_again_when_there_is_work() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        turn(shelf, 2 * REST_AFTER_TICKS)
        assert turn(shelf, 10 * RESTING_TICKS) == 10, "seldom, and for ever"
        await driver.submit(Add(1))
        assert turn(shelf, REST_AFTER_TICKS // 2) == REST_AFTER_TICKS // 2
        turn(shelf, 2 * REST_AFTER_TICKS)
        assert turn(shelf, 10 * RESTING_TICKS) == 10
        driver.signal("a look, as outboxes take")
        assert turn(shelf, RESTING_TICKS) == 1
        driver.machine.rests = False
        driver.signal("something that starts a timer")
        assert turn(shelf, 3) == 3

    story(tell)


def test_who_has_a_timer_is_ticked_each_time() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        shelf.replicas.lead(PARTITION).machine.rests = False
        assert turn(shelf, 5 * RESTING_TICKS) == 5 * RESTING_TICKS

    story(tell)


def test_nobody_rests_before_others_can_count_on_what_it_synced() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await driver.submit(Add(1))
        for _ in range(5 * REST_AFTER_TICKS):
            shelf.replicas.tick()
        assert not driver.is_at_rest, "its synced end is not noted"
        shelf.replicas.note_synced_ends()
        assert driver.journal.is_noted
        turn(shelf, 2 * REST_AFTER_TICKS)
        assert driver.is_at_rest

    story(tell)


def test_who_rests_shows_what_it_showed_and_wakes_nobody() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await driver.submit(Add(1))
        turn(shelf, 2 * REST_AFTER_TICKS)
        assert driver.is_at_rest
        shown = dict(shelf.reporter.gauges)
        assert shown["high_watermark", str(PARTITION)] == driver.high_watermark
        turn(shelf, 100)
        assert shelf.reporter.gauges == shown

    story(tell)


def test_a_stop_snapshots_only_what_makes_the_next_start_quicker() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await driver.submit(Add(1))
        await shelf.replicas.checkpoint()
        assert driver.journal.load_snapshot() is None, "two frames are quicker replayed"
        for number in range(1, 300):
            await driver.submit(Add(number))
        await shelf.replicas.checkpoint()
        assert driver.journal.load_snapshot() is not None

    story(tell)


def test_replicas_are_saved_and_closed_beside_each_other_but_not_all_at_once() -> None:
    async def tell(shelf: Shelf) -> None:
        count = 4 * CHECKPOINTS_AT_ONCE
        partitions = [PARTITION._replace(number=number) for number in range(count)]
        for partition in partitions:
            await shelf.aimed(Lead(1), partition)
        await asyncio.sleep(1)
        for partition in partitions:
            driver = shelf.replicas.lead(partition)
            await asyncio.gather(*(driver.submit(Add(1)) for _ in range(300)))
        at_once, most = 0, 0

        async def slowly(work: Callable[[], None]) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            work()
            at_once -= 1

        shelf.offload = slowly
        begun = shelf.loop.time()
        await shelf.replicas.checkpoint()
        await shelf.replicas.close()
        assert most == CHECKPOINTS_AT_ONCE
        assert shelf.loop.time() - begun < 2 * count / CHECKPOINTS_AT_ONCE + 1

    story(tell)
