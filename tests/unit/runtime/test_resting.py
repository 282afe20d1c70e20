"""A thousand partitions that nobody uses cost next to nothing, and stop at once: what is at rest is
looked at seldom, noted once, and leaves no snapshot that no start would be quicker for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog_server.core.machine import REST_MS_MAX
from oncelog_server.runtime.replica.leading import LOOK_AT_WORK_MS, REST_AFTER_MS
from oncelog_server.runtime.replicas import CHECKPOINTS_AT_ONCE
from oncelog_server.runtime.target import Lead, Leave
from tests.unit.runtime.counter import Add, Quiet
from tests.unit.runtime.test_replicas import PARTITION, Shelf, story

TICK_MS = 100
REST_AFTER_TICKS = REST_AFTER_MS // TICK_MS
# Ticks from one look to the next one, at rest.
LOOK_TICKS = REST_MS_MAX // TICK_MS


async def turn(shelf: Shelf, ticks: int, *, reports: bool = True) -> int:
    """So many ticks, and a report as each second has; how often the machine saw one."""
    machine = shelf.replicas.lead(PARTITION).machine
    before = machine.ticks
    for number in range(ticks):
        await asyncio.sleep(TICK_MS / 1000)
        shelf.agenda.turn()
        if number % 10 == 0 and reports:
            await shelf.agenda.report()
        shelf.agenda.check()
    seen: int = machine.ticks - before
    return seen


def test_who_is_at_rest_is_looked_at_seldom_and_ticked_again_when_there_is_work() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await turn(shelf, 4 * REST_AFTER_TICKS)
        assert await turn(shelf, 10 * LOOK_TICKS) == 10, "seldom, and for ever"
        await driver.submit(Add(1))
        assert await turn(shelf, REST_AFTER_TICKS) == REST_AFTER_TICKS
        await turn(shelf, 4 * REST_AFTER_TICKS)
        assert await turn(shelf, 10 * LOOK_TICKS) == 10
        driver.signal("a look, as outboxes take")
        assert await turn(shelf, LOOK_TICKS) == 1
        driver.machine.rests = False
        driver.signal("something that starts a timer")
        assert await turn(shelf, 3) == 3

    story(tell)


def test_who_has_a_timer_is_ticked_each_time() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        shelf.replicas.lead(PARTITION).machine.rests = False
        assert await turn(shelf, 200) == 200

    story(tell)


def test_a_machine_says_when_it_wants_the_next_tick() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        await turn(shelf, 4 * REST_AFTER_TICKS)
        machine = shelf.replicas.lead(PARTITION).machine
        await turn(shelf, LOOK_TICKS)
        machine.rests_at_most_ms = 2_000
        await turn(shelf, LOOK_TICKS)
        assert await turn(shelf, 1_000) == 1_000 * TICK_MS // 2_000

    story(tell)


def test_i29_a_change_of_the_topics_settings_ends_a_rest() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        await turn(shelf, 4 * REST_AFTER_TICKS)
        assert shelf.agenda.resting_count == 1
        shelf.replicas.topics_changed({PARTITION.topic_id})
        assert shelf.agenda.resting_count == 0
        assert await turn(shelf, 1) == 1, "its outbox tells the machine"

    story(tell)


def test_i30_what_changes_in_etcd_wakes_those_that_owe_something_and_nobody_else() -> None:
    async def tell(shelf: Shelf) -> None:
        outbox = Quiet()
        shelf.make_outbox = lambda: outbox
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await asyncio.sleep(1)
        before = outbox.wakes
        shelf.agenda.wake()
        assert outbox.wakes == before, "at a start thousands are busy, and owe nothing"
        driver.machine.rests = False
        shelf.agenda.wake()
        assert outbox.wakes == before + 1

    story(tell)


def test_who_is_put_aside_is_looked_at_no_more() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        await turn(shelf, 4 * REST_AFTER_TICKS)
        await shelf.aimed(Leave())
        shelf.agenda.check()
        assert not shelf.agenda.busy
        assert not shelf.agenda.resting_count

    story(tell)


def test_nobody_rests_for_long_before_others_can_count_on_what_it_synced() -> None:
    """It is not ticked meanwhile, and each look brings a note."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await turn(shelf, 4 * REST_AFTER_TICKS)
        await driver.submit(Add(1))
        await turn(shelf, REST_AFTER_TICKS + 1, reports=False)
        assert (driver.journal.is_noted, driver.rests_ms) == (False, LOOK_AT_WORK_MS)
        looks = 4 * REST_AFTER_MS // LOOK_AT_WORK_MS
        assert await turn(shelf, looks * LOOK_AT_WORK_MS // TICK_MS, reports=False) <= looks
        shown = shelf.reporter.gauges.get(("high_watermark", str(PARTITION)))
        assert shown == driver.high_watermark
        assert (driver.journal.is_noted, driver.rests_ms) == (True, REST_MS_MAX)

    story(tell)


def test_a_look_brings_along_what_is_owed_and_scrubs_only_where_nothing_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of a scrub would take the place of a snapshot, a step of settling, a mend."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        assert driver._epochs.led is not None
        rests: list[int] = []
        monkeypatch.setattr(driver._epochs.led, "scrub", lambda: rests.append(driver.rests_ms))
        await driver.submit(Add(1))
        await turn(shelf, 4 * REST_AFTER_TICKS, reports=False)
        await turn(shelf, 2 * LOOK_TICKS)
        assert set(rests) == {REST_MS_MAX}, "who owes something does that first"

    story(tell)


def test_who_has_appended_nothing_since_it_leads_is_not_ticked_until_it_rests() -> None:
    """Thousands are such at a start."""

    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        looks = 0
        while driver.rests_ms < REST_MS_MAX:
            looks += await turn(shelf, 1)
        assert driver.journal.is_noted
        assert shelf.reporter.gauges["high_watermark", str(PARTITION)] == driver.high_watermark
        assert looks <= 3 + 2 * REST_AFTER_MS // LOOK_AT_WORK_MS

    story(tell)


def test_who_rests_shows_what_it_showed_and_wakes_nobody() -> None:
    async def tell(shelf: Shelf) -> None:
        await shelf.granted(1)
        driver = shelf.replicas.lead(PARTITION)
        await driver.submit(Add(1))
        await turn(shelf, 4 * REST_AFTER_TICKS)
        assert driver.rests_ms == REST_MS_MAX
        shown = dict(shelf.reporter.gauges)
        assert shown["high_watermark", str(PARTITION)] == driver.high_watermark
        await turn(shelf, 100)
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
