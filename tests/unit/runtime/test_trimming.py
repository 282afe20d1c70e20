"""When the front of a replica's log goes: leading, following, in quiet times, and never under a
follower that still reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from errno import EIO
from typing import Any, Final

import pytest

from oncelog_server.core.frame import At
from oncelog_server.core.ids import BootId, JournalOffset, PartitionId
from oncelog_server.core.machine import EpochStart, Needs
from oncelog_server.core.ports import Address
from oncelog_server.runtime.replica.followers import HOLDS_MS_MAX
from oncelog_server.runtime.replica.trimming import TRIM_EVERY_MS, Trimming
from oncelog_server.runtime.target import Follow
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import DIRECTORY, PARTITION, Bench
from tests.unit.runtime.counter import Add, Added, CounterMachine, CounterRole
from tests.unit.runtime.test_followers import Trio

SEGMENT_BYTES: Final = 2_000
EVERY_BYTES: Final = 1_500
# Frames that the machine says are read again.
NEEDED: Final = 10


class ForgetfulMachine(CounterMachine):
    """Needs the last few frames only."""

    def apply(self, record: Added | EpochStart, at: At) -> None:
        super().apply(record, at)
        self.needs_from = self.wants_from = max(0, self.next_offset - NEEDED)


class NeedsNothing(CounterMachine):
    def apply(self, record: Added | EpochStart, at: At) -> None:
        super().apply(record, at)
        self.needs_from = self.wants_from = self.next_offset


class Forgetful(CounterRole):
    made: type[CounterMachine] = ForgetfulMachine

    def machine(self, partition: PartitionId) -> CounterMachine:
        return self.made()


class Forgets(Forgetful):
    made = NeedsNothing


def played(bench: Bench, role: CounterRole) -> Bench:
    bench.role = role
    bench.driver = bench._open()
    return bench


async def live(*benches: Bench, seconds: int) -> None:
    """As housekeeping does."""
    for _ in range(seconds):
        for bench in benches:
            bench.driver.tick()
            bench.driver.report()
        await asyncio.sleep(1)


async def add(leader: Bench, count: int, *others: Bench) -> None:
    for number in range(count):
        await leader.driver.submit(Add(1))
        if number % 5 == 4:
            await live(leader, *others, seconds=1)


def alone(tell: Callable[[Bench], Coroutine[Any, Any, None]], **options: Any) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Bench(loop, segment_bytes=SEGMENT_BYTES, **options))

    run(main(), loop)


def three(tell: Callable[[Trio], Coroutine[Any, Any, None]], role: type[CounterRole]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        trio = Trio(loop, snapshot_every_bytes=EVERY_BYTES, segment_bytes=SEGMENT_BYTES)
        for bench in trio.benches:
            played(bench, role())
        await tell(trio)

    run(main(), loop)


def test_i25_a_leader_lets_go_of_what_its_machine_needs_no_more() -> None:
    async def tell(bench: Bench) -> None:
        played(bench, Forgetful())
        await bench.lead()
        await add(bench, 100)
        journal = bench.journal
        assert 40 < journal.log_start <= bench.driver.high_watermark - NEEDED
        assert journal.bytes_between(journal.log_start, journal.log_end) < 4 * SEGMENT_BYTES
        logs = [name for name in bench.disk.list(DIRECTORY) if name.endswith(".log")]
        assert len(logs) < 5, "files went"
        after = played(bench.lose_power(), Forgetful())
        assert after.journal.log_start == journal.log_start
        await after.lead(2)
        assert await after.driver.submit(Add(1)) == 101
        assert after.driver.machine.sums == list(range(1, 102))

    alone(tell, snapshot_every_bytes=EVERY_BYTES)


def test_a_machine_that_needs_all_keeps_all() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        await add(bench, 60)
        await live(bench, seconds=60)
        assert bench.journal.log_start == 0
        assert bench.disk.exists(f"{DIRECTORY}/{0:020d}.log")

    alone(tell, snapshot_every_bytes=EVERY_BYTES)


def test_i27_what_is_not_durable_lets_nothing_go() -> None:
    """A marker that is appended and lost must not have let go of what it ended."""

    async def tell(bench: Bench) -> None:
        played(bench, Forgets())
        await bench.lead()
        trimming = bench.leadership.trimming
        await bench.driver.submit(Add(1))
        await live(bench, seconds=3)
        was = trimming.needs.needed_from
        bench.disk.hold_commits()
        waiting = bench.driver.submit(Add(1))
        await live(bench, seconds=3)
        assert bench.driver.log_end > bench.driver.high_watermark
        assert trimming.needs.needed_from == was, "of a state that is below the high watermark"
        bench.disk.let_commits()
        await waiting
        await live(bench, seconds=3)
        assert trimming.needs.needed_from == bench.driver.high_watermark

    alone(tell)


def test_a_quiet_log_goes_too() -> None:
    """All that it has is in one file, and nothing is appended any more."""

    async def tell(bench: Bench) -> None:
        played(bench, Forgets())
        await bench.lead()
        await asyncio.gather(*(bench.driver.submit(Add(1)) for _ in range(12)))
        assert len(bench.journal._segments.bases) == 1
        await live(bench, seconds=TRIM_EVERY_MS // 1_000 * 3)
        journal = bench.journal
        assert journal.log_start == journal.log_end, "no snapshot, and no new file, for its own end"
        assert bench.driver.rests_ms or not bench.leadership.trimming.is_waiting
        after = played(bench.lose_power(), Forgets())
        await after.lead(2)
        assert await after.driver.submit(Add(1)) == 13

    alone(tell)


def test_i29_what_a_disk_refuses_is_tried_again_and_costs_no_leadership() -> None:
    async def tell(bench: Bench) -> None:
        played(bench, Forgetful())
        await bench.lead()
        real, refused = bench.journal.remove_front, 3

        def remove_front() -> None:
            nonlocal refused
            refused -= 1
            if refused >= 0:
                raise OSError(EIO, "not now")
            real()

        bench.journal.remove_front = remove_front  # type: ignore[method-assign]
        await add(bench, 50)
        assert "log not trimmed, trying again" in bench.reporter.events
        await live(bench, seconds=TRIM_EVERY_MS // 1_000 * 5)
        assert bench.driver.is_ready
        assert not bench.journal.has_old_front
        assert not bench.disk.exists(f"{DIRECTORY}/{0:020d}.log")

    alone(tell, snapshot_every_bytes=EVERY_BYTES)


def test_i25_followers_let_go_by_themselves_and_can_lead() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        await add(one, 120, two, three)
        await live(*trio.benches, seconds=30)
        for bench in trio.benches:
            assert 0 < bench.journal.log_start <= one.driver.high_watermark - NEEDED
            assert not bench.disk.exists(f"{DIRECTORY}/{0:020d}.log")
        one.depose()
        await trio.elect(two, 2, one, three)
        assert await two.driver.submit(Add(1)) == 121
        assert two.driver.machine.sums == list(range(1, 122))

    three(tell, Forgetful)


def follow(leader: Bench) -> Follow:
    return Follow(Address(leader.node_id, BootId(b"l" * 16), "h", 1, leader.driver.epoch))


def test_i35_who_is_too_far_behind_gets_the_snapshot_of_the_log_start_and_all_frames_since() -> (
    None
):
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1, two, followers=1)
        await add(one, 100, two)
        await live(one, two, seconds=30)
        start = one.journal.log_start
        assert start > 0
        three.driver.aim(follow(one))
        await live(one, two, seconds=15)
        assert three.journal.log_start == start
        assert list(three.journal.replay(start)) == list(one.journal.replay(start))
        await add(one, 60, two, three)
        await live(*trio.benches, seconds=30)
        assert min(bench.journal.log_start for bench in trio.benches) > start
        one.depose()
        await trio.elect(three, 2, one, two)
        assert await three.driver.submit(Add(1)) == 161
        assert three.driver.machine.sums == list(range(1, 162))

    three(tell, Forgetful)


class Reading:
    """A follower that is that far."""

    def __init__(self, node: str, reads_from: int | None) -> None:
        self.node = node
        self.reads_from = reads_from

    def wake(self) -> None: ...

    def high_watermark_moved(self) -> None: ...


def test_a_follower_that_reads_what_could_go_holds_it_for_a_while() -> None:
    async def tell(bench: Bench) -> None:
        await bench.lead()
        followers = bench.leadership.followers
        slow = Reading("n2", 40)
        followers._supplies[slow] = None  # type: ignore[index]
        followers._supplies[Reading("n3", None)] = None  # type: ignore[index]
        assert followers.held_by(40) == ""
        assert followers.held_by(41) == "n2"
        await asyncio.sleep(HOLDS_MS_MAX / 1000 - 1)
        assert followers.held_by(41) == "n2"
        await asyncio.sleep(2)
        assert followers.held_by(41) == "", "it begins anew, behind the next snapshot"
        slow.reads_from = 50
        assert followers.held_by(41) == ""
        assert followers.held_by(51) == "n2", "it went on, and has its time again"
        followers._supplies.clear()

    alone(tell)


def test_a_follower_that_took_too_long_has_its_time_again_with_the_next_start() -> None:
    """Its log start moved under it: it fetches another snapshot, for as long as the first."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        followers, journal = bench.leadership.followers, bench.journal
        slow = Reading("n2", 0)
        followers._supplies[slow] = None  # type: ignore[index]
        assert followers.held_by(1_000) == "n2"
        await asyncio.sleep(HOLDS_MS_MAX / 1000)
        for _ in range(3):
            assert followers.held_by(1_000) == "", "while it did not move, none has it twice"
            await asyncio.sleep(20)
        for start in (1_000, 2_000):
            journal.log_start = start
            assert followers.held_by(start + 1_000) == "n2", "what it fetches now is waited for"
            await asyncio.sleep(HOLDS_MS_MAX / 1000 - 1)
            assert followers.held_by(start + 1_000) == "n2"
            await asyncio.sleep(1)
            assert followers.held_by(start + 1_000) == "", "the disk has its turn, too"
        followers._supplies.clear()

    alone(tell)


def test_who_is_held_waits_and_says_by_whom() -> None:
    async def tell(bench: Bench) -> None:
        played(bench, Forgetful())
        await bench.lead()
        followers = bench.leadership.followers
        slow = Reading("n2", 3)
        followers._supplies[slow] = None  # type: ignore[index]
        for number in range(60):
            bench.driver.submit(Add(number + 1))
            await live(bench, seconds=number % 5 == 4)
        assert bench.journal.log_start == 0
        assert bench.leadership.trimming.held_by == "n2"
        slow.reads_from = bench.journal.log_end
        await live(bench, seconds=30)
        assert bench.journal.log_start > 0
        assert bench.leadership.trimming.held_by == ""
        followers._supplies.clear()

    alone(tell, snapshot_every_bytes=EVERY_BYTES)


@pytest.mark.parametrize(("limit", "start"), [(1 << 30, 0), (3_000, 30)])
def test_what_is_only_wanted_gives_way_where_there_is_too_much_of_it(
    limit: int, start: int
) -> None:
    class Wants(ForgetfulMachine):
        def wanted_from(self) -> JournalOffset:
            return JournalOffset(0)

    class Historian(Forgetful):
        made = Wants

    async def tell(bench: Bench) -> None:
        object.__setattr__(bench.around, "control_journal_bytes_max", limit)
        played(bench, Historian())
        await bench.lead()
        await add(bench, 100)
        await live(bench, seconds=30)
        assert bench.journal.log_start >= start
        assert (bench.journal.log_start > 0) == (start > 0)
        kept = bench.journal.bytes_between(bench.journal.log_start, bench.journal.log_end)
        assert kept < limit + 3 * SEGMENT_BYTES

    alone(tell, snapshot_every_bytes=EVERY_BYTES)


def test_needs_never_go_back() -> None:
    async def tell(bench: Bench) -> None:
        trimming = Trimming(PARTITION, bench.journal, bench.around)
        trimming.snapshot_stood(9, Needs(9, 5, 7))
        trimming.sampled(20, Needs(8, 6, 6))
        trimming.covered(19)
        assert trimming.needs == Needs(9, 5, 7)
        trimming.covered(20)
        assert trimming.needs == Needs(9, 6, 7)

    alone(tell)


def test_a_log_without_frames_goes_on_from_the_time_of_its_last_one() -> None:
    """The clock of whoever leads next is behind: what has that time would age twice."""

    async def tell(bench: Bench) -> None:
        played(bench, Forgets())
        await bench.lead()
        await asyncio.gather(*(bench.driver.submit(Add(1)) for _ in range(12)))
        await live(bench, seconds=TRIM_EVERY_MS // 1_000 * 3)
        journal = bench.journal
        assert journal.log_start == journal.log_end
        was = journal.last_time_ms
        assert was > 0
        after = played(bench.lose_power(), Forgets())
        assert after.journal.last_time_ms == was, "times never go back"

    alone(tell)


def test_who_begins_at_its_leaders_snapshot_has_the_time_of_what_was_before() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1, two, followers=1)
        await add(one, 100, two)
        await live(one, two, seconds=TRIM_EVERY_MS // 1_000 * 10)
        assert one.journal.log_start == one.journal.log_end
        three.driver.aim(follow(one))
        await live(one, two, seconds=15)
        assert three.journal.log_start == one.journal.log_start
        assert three.journal.last_time_ms == one.journal.last_time_ms > 0, "it has no frame either"
        was = three.journal.last_time_ms
        after = played(three.lose_power(), Forgets())
        assert after.journal.last_time_ms == was, "its snapshot says it, too"

    three(tell, Forgets)


def test_each_snapshot_says_the_time_of_the_last_frame_below_it() -> None:
    async def tell(trio: Trio) -> None:
        one, two, three = trio.benches
        await trio.elect(one, 1)
        await add(one, 100, two, three)
        for bench in trio.benches:
            journal = bench.journal
            times: dict[int, int] = {
                it.end: it.at.time_ms for it in journal.replay(journal.log_start)
            }
            offsets = [it for it in journal._snapshots.offsets if it > journal.log_start]
            read = {offset: journal._snapshots.read(offset) for offset in offsets}
            said = {offset: None if it is None else it.time_ms for offset, it in read.items()}
            assert said == {offset: times[offset] for offset in offsets} != {}, "leader or not"

    three(tell, Forgetful)


def test_i32_a_start_that_rests_on_blocks_is_not_allowed_before_the_log_has_come_so_far() -> None:
    """Blocks of its leader came, settled from a snapshot that lies behind what is here."""

    async def tell(bench: Bench) -> None:
        await bench.lead()
        await asyncio.gather(*(bench.driver.submit(Add(1)) for _ in range(12)))
        trimming = Trimming(PARTITION, bench.journal, bench.around)
        trimming.snapshot_stood(9, Needs(5, 5, 0))
        trimming.settled(bench.journal.synced_end + 1, 8)
        assert trimming.needs == Needs(5, 5, 0)
        await bench.driver.submit(Add(1))
        assert trimming.needs == Needs(8, 8, 0)

    alone(tell)
