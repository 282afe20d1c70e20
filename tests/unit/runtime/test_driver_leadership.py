"""One replica from one leadership to the next: what the earlier one left behind (its machine, its
snapshot, what it had not projected, its writes still on their way) is not taken for the later
one's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog_server.core.machine import Decision
from oncelog_server.runtime.replica import replaying
from oncelog_server.runtime.replica.leading import CLOCK_BEHIND_MS
from oncelog_server.runtime.replica.snapshots import FRAME_BYTES_GUESS
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.storage.identity import SyncedEnd
from oncelog_server.runtime.target import StandBy
from oncelogpb.errors import NotLeader, UnknownOutcome
from tests.simulation.disk import FakeDisk
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench, story
from tests.unit.runtime.counter import Add, Added, Quiet

SLOW_MS = (1_000, 1_000)


async def fail_a_write(bench: Bench, number: int) -> None:
    """The leader loses what it was told last, and stands by."""
    bench.disk.fail_next()
    with pytest.raises(UnknownOutcome):
        await bench.driver.submit(Add(number))
    await bench.driver.settled()


def test_i29_a_write_of_the_last_epoch_that_fails_in_the_next_one_ends_that_too() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        bench.disk._delay_ms = SLOW_MS
        bench.disk.fail_next()
        doubtful = bench.driver.submit(Add(1))
        await asyncio.sleep(0.1)
        bench.depose()
        with pytest.raises(UnknownOutcome):
            await doubtful
        bench.grant(2)
        await asyncio.sleep(0.1)
        assert bench.driver.leads
        await asyncio.sleep(10)
        # Its EPOCH_START stood behind bytes in doubt, so nothing of it is ever written.
        assert bench.driver.stage is Stage.STANDBY, "it would load for ever"
        assert len(bench.failures) == 1
        assert bench.journal.last_epoch == 1
        await bench.lead(3)
        assert await bench.driver.submit(Add(5)) == 5

    story(tell)


def test_i29_what_fails_of_the_last_epoch_is_abandoned_before_the_next_one_is_read() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        bench.disk.fail_next()
        doubtful = bench.driver.submit(Add(1))
        await asyncio.sleep(0)
        bench.depose()
        with pytest.raises(UnknownOutcome):
            await doubtful
        assert bench.driver.candidate is not None, "nothing has failed yet"
        bench.driver.aim(StandBy())
        await asyncio.sleep(1)
        assert len(bench.failures) == 1
        await bench.lead(2)
        assert bench.journal.end_of_epoch(1) == (1, 1), "it goes on from the last good sync"
        assert await bench.driver.submit(Add(5)) == 5

    story(tell)


def test_i4_what_was_lost_is_never_projected() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        await bench.driver.submit(Add(1))
        await fail_a_write(bench, 10)
        await bench.lead(2)
        await bench.driver.submit(Add(2))
        await bench.driver.submit(Add(3))
        assert {number for _, number in bench.role.projected} == {1, 2, 3}

    story(tell)


def test_i4_what_is_on_its_way_to_the_disk_is_not_projected_by_the_next_leadership_either() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        await bench.driver.submit(Add(1))
        bench.disk._delay_ms = SLOW_MS
        bench.disk.fail_next()
        doubtful = bench.driver.submit(Add(10))
        await asyncio.sleep(0.1)
        bench.depose()
        with pytest.raises(UnknownOutcome):
            await doubtful
        await bench.lead(2)
        assert (2, 10) not in bench.role.projected, "it was not durable, and never will be"
        await asyncio.sleep(10)
        await bench.driver.settled()
        await bench.lead(3)
        await bench.driver.submit(Add(2))
        assert {number for _, number in bench.role.projected} == {1, 2}

    story(tell)


def test_i4_what_becomes_durable_while_the_next_leadership_loads_is_projected_by_it() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        await bench.driver.submit(Add(1))
        bench.disk._delay_ms = SLOW_MS
        bench.driver.submit(Add(10))
        await asyncio.sleep(0.1)
        bench.depose()
        await bench.lead(2)
        assert bench.role.projected[-1] == (2, 10)
        assert await bench.driver.submit(Add(0)) == 11

    story(tell)


def test_i35_a_snapshot_of_what_was_lost_is_never_written() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        await bench.driver.submit(Add(1))
        doubtful = bench.driver.submit(Add(10))
        bench.leadership.capture_snapshot()
        bench.disk.fail_next()
        with pytest.raises(UnknownOutcome):
            await doubtful
        await bench.driver.settled()
        await bench.lead(2)
        for number in (2, 3, 4):
            await bench.driver.submit(Add(number))
        await asyncio.sleep(1)
        after = bench.lose_power()
        await after.lead(3)
        assert after.driver.machine.total == 1 + 2 + 3 + 4

    story(tell)


def test_who_waits_for_the_next_advance_hears_of_the_step_down() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        waits = asyncio.Event()
        bench.driver.watch(waits.set)
        bench.depose()
        assert waits.is_set(), "a long poll would wait at who leads no more"
        # And who comes only now.
        waits.clear()
        bench.driver.watch(waits.set)
        await asyncio.sleep(0)
        assert waits.is_set()

    story(tell)


def test_a_later_leadership_begins_when_nothing_of_the_last_one_runs() -> None:
    async def tell(bench: Bench) -> None:
        slow = Slow()
        bench.driver._make_outbox = lambda of: slow
        await bench.lead(1)
        bench.depose()
        bench.grant(2)
        await asyncio.sleep(0.5)
        assert bench.driver.stage is Stage.CLOSING
        await bench.lead(2)
        assert slow.stopped
        assert bench.driver.machine.epoch == 2

    story(tell)


class Slow(Quiet):
    """Takes a second to stop."""

    async def stop(self) -> None:
        await asyncio.sleep(1)
        self.stopped = True


def test_i18_who_is_deposed_before_it_began_to_lead_does_not_lead() -> None:
    async def tell(bench: Bench) -> None:
        bench.driver._make_outbox = lambda of: Slow()
        await bench.lead(1)
        bench.depose()
        leading = asyncio.ensure_future(bench.lead(2))
        await asyncio.sleep(0.5)
        bench.depose()
        await leading
        await asyncio.sleep(5)
        assert bench.driver.stage is Stage.STANDBY, "it was told to step down"
        assert bench.driver.journal.last_epoch == 1

    story(tell)


def test_i18_of_two_epochs_that_wait_for_the_end_of_a_third_the_later_is_led() -> None:
    async def tell(bench: Bench) -> None:
        bench.driver._make_outbox = lambda of: Slow()
        await bench.lead(1)
        bench.depose()
        earlier = asyncio.ensure_future(bench.lead(2))
        await asyncio.sleep(0.2)
        bench.depose()
        later = asyncio.ensure_future(bench.lead(3))
        await asyncio.sleep(5)
        await asyncio.gather(earlier, later)
        assert bench.driver.stage is Stage.READY
        assert bench.driver.epoch == bench.driver.machine.epoch == 3
        assert bench.driver.journal.end_of_epoch(2)[0] == 1, "nobody led 2"

    story(tell)


def test_who_waits_for_the_end_of_a_leadership_takes_nothing_from_the_next() -> None:
    async def tell(bench: Bench) -> None:
        bench.driver._make_outbox = lambda of: Slow()
        await bench.lead(1)
        bench.depose()
        leading = asyncio.ensure_future(bench.lead(2))
        await asyncio.sleep(0)
        await bench.driver.settled()
        await leading
        await asyncio.sleep(5)
        assert bench.driver.machine is not None
        assert await bench.driver.submit(Add(1)) == 1

    story(tell)


def test_who_gives_up_waiting_for_the_end_of_a_leadership_does_not_stop_it_from_ending() -> None:
    async def tell(bench: Bench) -> None:
        slow = Slow()
        bench.driver._make_outbox = lambda of: slow
        await bench.lead(1)
        bench.depose()
        leading = asyncio.ensure_future(bench.lead(2))
        await asyncio.sleep(0.5)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await bench.driver.settled()
        assert slow.stopped

    story(tell)


def test_a_leadership_that_cannot_end_ends_the_process() -> None:
    class Broken(Quiet):
        async def stop(self) -> None:
            raise ZeroDivisionError("a bug")

    async def tell(bench: Bench) -> None:
        bench.driver._make_outbox = lambda of: Broken()
        await bench.lead(1)
        bench.depose()
        await asyncio.sleep(1)
        assert [type(error) for error in bench.fatal] == [ZeroDivisionError]

    story(tell)


def test_a_snapshot_that_is_being_written_is_waited_for() -> None:
    async def tell(bench: Bench) -> None:
        written: list[bool] = []

        async def slowly(work: Callable[[], None]) -> None:
            await asyncio.sleep(1)
            work()
            written.append(True)

        await bench.lead(1)
        bench.offload = slowly
        await bench.driver.submit(Add(1))
        bench.leadership.capture_snapshot()
        await bench.driver.submit(Add(2))
        bench.depose()
        await bench.driver.settled()
        assert written, "the journal may be cut, or closed, from here on"

    story(tell)


def test_the_machine_of_an_ended_leadership_is_dropped() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        bench.depose()
        await bench.driver.settled()
        assert bench.driver.machine is None

    story(tell)


def test_a_clock_that_is_behind_the_journal_is_told() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        assert "clock is behind the journal" not in bench.reporter.events
        bench.driver.journal.last_time_ms += 10 * CLOCK_BEHIND_MS
        bench.depose()
        await bench.lead(2)
        assert "clock is behind the journal" in bench.reporter.events
        assert await bench.driver.submit(Add(1)) == 1, "time stands still, and work goes on"

    story(tell)


def test_a_later_leadership_takes_snapshots_again() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        bench.driver.journal.slots.open("outcomes", 8).write(1, b"outcome!")
        await bench.driver.submit(Add(1))
        bench.disk.fail_next()
        await bench.driver.checkpoint()
        assert bench.driver.journal.load_snapshot() is None, "its slots are not on the disk"
        bench.depose()
        await bench.lead(2)
        await bench.driver.checkpoint()
        assert bench.driver.journal.load_snapshot() is not None

    story(tell)


def test_who_never_lives_long_enough_for_a_snapshot_takes_one_all_the_same() -> None:
    """Else each start replays more than the one before."""

    async def tell(bench: Bench) -> None:
        bench = Bench(bench.loop, snapshot_every_bytes=10 * FRAME_BYTES_GUESS)
        for life in range(1, 10):
            await bench.lead(life)
            assert await bench.driver.submit(Add(1)) == life
            await asyncio.sleep(1)
            bench = bench.lose_power()
        assert bench.journal.load_snapshot() is not None

    story(tell)


@pytest.mark.parametrize("next_epoch", [None, 3])
def test_i18_a_replay_that_is_overtaken_writes_no_epoch_start(
    next_epoch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "SLICE_FRAMES", 2)

    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        for number in range(1, 10):
            await bench.driver.submit(Add(number))
        bench.depose()
        await bench.driver.settled()
        overtaken = asyncio.ensure_future(bench.lead(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bench.depose()
        if next_epoch is not None:
            await bench.lead(next_epoch)
        await overtaken
        await asyncio.sleep(1)
        # It was granted to this process, and left: who left an epoch never leads it again.
        assert bench.driver.journal.last_epoch == (next_epoch or 1)
        assert bench.driver.journal.end_of_epoch(2)[0] == 1
        assert (bench.driver.stage is Stage.READY) == (next_epoch is not None)

    story(tell)


def test_i18_no_tick_appends_past_the_lease() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        bench.driver.machine.decide = lambda command, now: Decision((Added(1),))
        end = bench.driver.log_end
        bench.lease_valid = False
        bench.driver.tick()
        assert bench.driver.log_end == end
        bench.lease_valid = True
        bench.driver.tick()
        assert bench.driver.log_end == end + 1

    story(tell)


def test_i27_no_read_gives_what_is_above_the_high_watermark() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await bench.driver.submit(Add(1))
        bench.driver.submit(Add(2)).add_done_callback(lambda done: done.exception())
        end = bench.driver.log_end
        assert bench.driver.high_watermark == end - 1
        found = await bench.driver.read(0, 1 << 20, below=end)
        assert found[-1].end == end - 1
        before = bench.driver.high_watermark
        bench.depose()
        bench.grant(2)
        await bench.driver.settled()
        assert bench.driver.stage is Stage.LOADING
        assert bench.driver.high_watermark >= before, "it never goes back"

    story(tell)


def test_i35_a_checkpoint_takes_no_state_that_is_not_durable() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await bench.driver.submit(Add(1))
        last = bench.driver.submit(Add(2))
        await bench.driver.checkpoint()
        assert bench.driver.journal.load_snapshot() is None
        await last

    story(tell)


def test_projections_see_nothing_that_is_on_its_way_to_the_disk() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        first = bench.driver.submit(Add(4))
        await asyncio.sleep(0)
        # While the first is being synced.
        second = bench.driver.submit(Add(5))
        await first
        assert bench.role.projected == [(1, 4)]
        await second
        assert bench.role.projected == [(1, 4), (2, 5)]

    story(tell)


def test_i18_a_refusal_is_not_told_past_the_lease() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        recorded = bench.driver.submit(Add(1))
        refused = bench.driver.submit(Add(-1))
        bench.lease_valid = False
        with pytest.raises(NotLeader):
            await refused
        with pytest.raises(UnknownOutcome):
            await recorded

    story(tell)


def test_of_a_partition_that_is_led_no_more_nothing_is_shown_but_that() -> None:
    async def tell(bench: Bench) -> None:
        name = str(bench.driver.partition)

        class Late(Quiet):
            """Looks once more while it is stopped."""

            async def stop(self) -> None:
                await asyncio.sleep(0.1)
                bench.reporter.gauge("open_transactions", 1, partition=name)

        bench.driver._make_outbox = lambda driver: Late()
        await bench.lead(1)
        bench.driver.report()
        assert ("high_watermark", name) in bench.reporter.gauges
        bench.depose()
        assert bench.reporter.gauges["leading", name] == 0, "at once"
        await bench.driver.settled()
        assert bench.reporter.gauges == {("leading", name): 0}
        await bench.lead(2)
        assert bench.reporter.gauges["leading", name] == 1

    story(tell)


def test_i26_the_note_of_what_is_synced_outlives_the_power_though_nothing_is_appended() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead(1)
        assert await bench.driver.submit(Add(5)) == 5
        bench.driver.report()
        await bench.around.commit.flush()
        synced_end = bench.journal.synced_end
        bench.disk.crash()
        noted = SyncedEnd(bench.disk.reopen(), bench.journal.directory).noted
        assert noted is not None
        assert noted.synced_end == synced_end, "a bad frame below it would be cut as a torn tail"

    story(tell)


def test_i29_what_is_noted_while_a_log_is_loaded_ends_no_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "SLICE_FRAMES", 10)
    loop = VirtualTimeLoop()

    async def tell() -> None:
        bench = Bench(loop, FakeDisk(delay_ms=(0, 0)))
        await bench.lead(1)
        for number in range(1, 1_000):
            bench.driver.submit(Add(number))
        await bench.around.commit.flush()
        bench.depose()
        await bench.driver.settled()
        bench.grant(2)
        while bench.driver.stage is not Stage.LOADING:
            await asyncio.sleep(0)
        # About every second, of all replicas: it notes what is synced, in a commit.
        bench.driver.report()
        await bench.around.commit.flush()
        assert bench.driver.stage is Stage.LOADING, "it has not replayed all of it"
        await asyncio.sleep(1)
        assert bench.failures == []
        assert bench.driver.is_ready

    run(tell(), loop)
