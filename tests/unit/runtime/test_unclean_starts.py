"""A log that begins later than it did, and an unclean election that takes back why it could."""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY
from oncelog_server.runtime.storage.epochs import EpochEntry
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.target import StandBy
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add, CounterMachine, CounterRole
from tests.unit.runtime.test_followers import Trio
from tests.unit.runtime.test_trimming import Forgetful, add, alone, live, played, three

BEGINS_AT: Final = 50
EPOCHS: Final = (EpochEntry(1, 0, 0), EpochEntry(3, 40, 40))
ALLOWED: Final = Allowance(70, 3)
LACKS: Final = "log lacks frames that can be asked for"


async def one_stays_behind(trio: Trio) -> None:
    """One and two let go of their front because of what the last one lacks."""
    one, two, last = trio.benches
    await trio.elect(one, 1)
    await add(one, 100, two, last)
    last.driver.aim(StandBy())
    await asyncio.sleep(1)
    await add(one, 14, two)
    await live(one, two, seconds=60)
    two.driver.aim(StandBy())
    one.depose()
    await asyncio.sleep(1)


def test_i25_a_start_does_not_outlive_the_state_that_allowed_it() -> None:
    """Its log starts below the end of the leader that an operator forced, so the logs agree once it
    is cut. But what the record let go of that was cut is needed again."""

    async def tell(trio: Trio) -> None:
        one, two, last = trio.benches
        await one_stays_behind(trio)
        begins_at, allowed = one.journal.log_start, one.journal.allowed
        assert begins_at < last.journal.log_end < allowed.at, "else this tests nothing"
        await trio.elect(last, 2)
        needed_from = last.driver.machine.needed_from()
        assert last.journal.log_start <= needed_from < begins_at
        await live(*trio.benches, seconds=10)
        assert await last.driver.submit(Add(1)) > 0
        for bench in (one, two):
            assert bench.journal.log_start <= needed_from, "it lacks what may be asked for"
            assert bench.disk.list(ORPHANS_DIRECTORY), "its log is kept for whoever wants to look"
            assert bench.journal.log_end == last.journal.log_end
        last.depose()
        await trio.elect(one, 3, two, last)
        assert one.driver.is_ready, "it is in sync"
        assert one.driver.machine.needed_from() >= one.journal.log_start

    three(tell, Forgetful)


class NeedsNoFront(CounterRole):
    def machine(self, partition: PartitionId) -> CounterMachine:
        machine = CounterMachine()
        machine.needs_from = BEGINS_AT
        return machine


def begin_as_copy(bench: Bench) -> None:
    """It has its leader's snapshot, and nothing behind it yet."""
    machine = CounterMachine()
    machine.next_offset = BEGINS_AT
    bench.journal.begin_at(BEGINS_AT, machine.snapshot(), EPOCHS, time_ms=0, allowed=ALLOWED)


def test_i25_a_copy_that_is_elected_before_it_was_whole_says_what_it_lacks() -> None:
    """By an operator, who has nothing else left. Those who follow it begin where it does."""

    async def tell(trio: Trio) -> None:
        one, two, last = trio.benches
        begin_as_copy(one)
        assert one.journal.allowed == ALLOWED
        await trio.elect(one, 5)
        assert LACKS in one.reporter.events
        assert not one.journal.may_lack_front, "who leads says what was"
        await asyncio.sleep(5)
        assert await one.driver.submit(Add(1)) == 1
        for bench in (two, last):
            assert bench.journal.log_start == BEGINS_AT
            assert bench.journal.allowed == one.journal.allowed
        one.depose()
        await trio.elect(two, 6, one, last)
        assert LACKS not in two.reporter.events, "that is known by now"
        await asyncio.sleep(1)
        assert one.journal.log_end == two.journal.log_end
        assert not one.disk.list(ORPHANS_DIRECTORY)

    three(tell, CounterRole)


def test_a_copy_that_lacks_nothing_that_is_asked_for_is_a_leader_like_any_other() -> None:
    async def tell(bench: Bench) -> None:
        played(bench, NeedsNoFront())
        begin_as_copy(bench)
        await bench.lead(5)
        assert await bench.driver.submit(Add(1)) == 1
        assert LACKS not in bench.reporter.events

    alone(tell)


def test_i25_a_copy_of_which_nothing_is_cut_is_given_up_with_what_allowed_its_start() -> None:
    """The one that is elected ends where the copy does: nothing is cut of that, and it is given up
    all the same."""

    async def tell(trio: Trio) -> None:
        one, two, last = trio.benches
        await one_stays_behind(trio)
        begins_at, allowed = one.journal.log_start, one.journal.allowed
        assert begins_at < last.journal.log_end < allowed.at
        copied = await last.journal.copies(begins_at, 1 << 20)
        snapshot = one.journal.load_snapshot()
        assert snapshot is not None
        taken = CounterMachine()
        taken.restore(*snapshot[1:])
        two = trio.benches[1] = Bench(
            two.loop, node_id="n2", min_insync_replicas=2, segment_bytes=two.segment_bytes
        )
        two.follow = functools.partial(trio._wire, two)
        played(two, Forgetful())
        two.journal.begin_at(
            begins_at, taken.snapshot(), one.journal._epochs.entries, time_ms=0, allowed=allowed
        )
        two.journal.append_copied(bytes(copied.frames), epoch=1)
        await trio.elect(last, 2)
        await live(*trio.benches, seconds=10)
        assert two.disk.list(ORPHANS_DIRECTORY), "it lacks what may be asked for"
        assert two.journal.log_start < begins_at
        assert two.journal.log_end == last.journal.log_end

    three(tell, Forgetful)
