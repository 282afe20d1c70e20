"""When a data log is compacted: how dirty it must be, whose turn it is, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from oncelog_server.core import failpoints
from oncelog_server.core.cleaning import SLOT_BYTES, Cleanness
from oncelog_server.core.machine import Compaction, Settled
from oncelog_server.core.role import at_once
from oncelog_server.runtime.replica.compacting import (
    COMPACT_AT_LAST_MS,
    DIRTY_WORTH_BYTES,
    LOOK_EVERY_MS,
    Compacting,
    Turns,
)
from oncelog_server.runtime.replica.settling import AGAIN_MS, DAMAGED_AGAIN_MS, Settling
from oncelog_server.runtime.storage.data_cleaning import DataCleaning, dirty_bytes
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import PARTITION, Bench
from tests.unit.storage.cleaned_logs import SETTLER, Kept, held, must_be, unit_of

Given = list[tuple[bytes | None, bytes | None]]
# Journal offset of the snapshot that asks for it.
SAID_AT = 600
WANTED = Compaction(wanted=True)
SMALL: Given = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)]


class Says:
    """What the newest snapshot that stands says."""

    def __init__(self) -> None:
        self.compaction = WANTED
        self.end = 0
        self.is_due = self.is_waiting = False
        self.steps = 0

    @property
    def counted(self) -> Settled:
        return Settled(end=self.end, wanted=True, compaction=self.compaction)

    @property
    def counted_at(self) -> int:
        return SAID_AT

    async def step(self) -> bool:
        self.steps += 1
        return False

    def drop(self) -> None: ...


class Replica:
    """One that is compacted, over a disk of its own."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.bench = Bench(loop, FakeDisk(seed=1), segment_bytes=4 << 20)
        self.data = self.bench.journal.data
        self.says = Says()
        self.found_damage: list[CorruptLog] = []
        self.has_readers = False
        self.compacting = self.anew()

    def anew(self) -> Compacting:
        settling = cast(Settling, self.says)
        around, journal = self.bench.around, self.bench.journal
        return Compacting(
            PARTITION,
            SETTLER,
            journal,
            around,
            settling,
            found_damage=self.found_damage.append,
            has_readers=self.has_readers,
        )

    def beside(self, *, has_readers: bool) -> Replica:
        """Another one of the same process."""
        other = Replica(self.bench.loop)
        other.bench.around, other.has_readers = self.bench.around, has_readers
        other.compacting = other.anew()
        return other

    def waits(self) -> bool:
        return self.compacting.is_waiting

    def is_due(self) -> bool:
        return self.compacting.is_due

    def settle(self, given: Given) -> None:
        at = self.data.settled_end
        self.data.append([unit_of(at + number, [it]) for number, it in enumerate(given)])
        self.data.sync_and_note(2 * self.data._end)

    async def until(self, done: Callable[[], bool], *, within_ms: int = 4 * 3_600_000) -> int:
        """Turns, one a second; how many milliseconds it took."""
        for second in range(within_ms // 1_000):
            while await self.compacting.step():
                pass
            if done():
                return 1_000 * second
            await asyncio.sleep(1)
        raise AssertionError("it was not compacted within that time")

    async def compacted(self, to: int, **within: int) -> int:
        return await self.until(lambda: self.data.compacted_to >= to, **within)

    async def goes_on(self, *, for_ms: int) -> None:
        """That nothing is compacted."""
        was = self.data.compacted_to
        for _ in range(for_ms // 1_000):
            while await self.compacting.step():
                pass
            await asyncio.sleep(1)
        assert self.data.compacted_to == was, "it waits"


def story(tell: Callable[[Replica], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Replica(loop))

    run(main(), loop)


def large(count: int, of: int = 10) -> Given:
    """Records of 110 KB, of so many keys."""
    return [(b"%d" % (number % of), bytes([number]) * 110_000) for number in range(count)]


def test_a_log_that_is_half_dirty_is_compacted_at_once() -> None:
    async def tell(replica: Replica) -> None:
        given = large(20)
        replica.settle(given)
        assert await replica.compacted(20, within_ms=LOOK_EVERY_MS) == 0
        assert held(replica.data) == must_be(given, 20, 0)
        clean, _ = dirty_bytes(replica.data)
        assert clean == 0
        # Ten are left, and nine are less than half of all.
        replica.settle(large(9))
        await replica.goes_on(for_ms=20 * LOOK_EVERY_MS)
        replica.settle(large(1))
        assert await replica.compacted(30, within_ms=2 * LOOK_EVERY_MS) <= LOOK_EVERY_MS
        assert held(replica.data) == must_be([*given, *large(9), *large(1)], 30, 0)

    story(tell)


def test_what_is_little_is_compacted_in_the_end() -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(SMALL)
        assert dirty_bytes(replica.data)[0] < DIRTY_WORTH_BYTES
        assert replica.compacting.is_waiting, "whoever is quiet goes on being asked"
        await replica.goes_on(for_ms=COMPACT_AT_LAST_MS - LOOK_EVERY_MS)
        await replica.compacted(4, within_ms=3 * LOOK_EVERY_MS)
        assert held(replica.data) == must_be(SMALL, 4, 0)
        assert not replica.compacting.is_waiting, "it may rest"

    story(tell)


def test_where_it_is_not_wanted_nothing_is_compacted() -> None:
    async def tell(replica: Replica) -> None:
        replica.says.compaction = Compaction()
        replica.settle(large(20))
        assert not replica.compacting.is_due
        assert not replica.compacting.is_waiting
        await replica.goes_on(for_ms=2 * COMPACT_AT_LAST_MS)
        assert replica.data.cleanness == Cleanness()

    story(tell)


@pytest.mark.parametrize("wanted", [True, False])
def test_i33_who_is_behind_the_point_begins_at_once(wanted: bool) -> None:
    """Who leads serves nothing below it before; whatever the lag is by now, and is wanted."""

    async def tell(replica: Replica) -> None:
        wall_ms = replica.bench.around.clock.now().wall_ms
        units = [unit_of(number, [it]) for number, it in enumerate(SMALL)]
        replica.data.append([unit._replace(time_ms=wall_ms) for unit in units])
        replica.data.sync_and_note(8)
        replica.says.compaction = Compaction(wanted, 10 * COMPACT_AT_LAST_MS, compacted_below=3)
        await replica.compacted(3, within_ms=1_000)
        assert held(replica.data) == must_be(SMALL, 3, 0)

    story(tell)


def test_who_is_behind_the_point_compacts_once_all_below_it_is_settled() -> None:
    """Each pass writes all anew: one is enough."""

    async def tell(replica: Replica) -> None:
        replica.says.compaction, replica.says.end = Compaction(False, 0, compacted_below=30), 40
        for _ in range(2):
            replica.settle(large(10))
            await replica.goes_on(for_ms=LOOK_EVERY_MS)
        replica.settle(large(10))
        await replica.compacted(30, within_ms=1_000)
        assert held(replica.data) == must_be([*large(10), *large(10), *large(10)], 30, 0)

    story(tell)


def test_what_became_readable_just_now_is_not_compacted_yet() -> None:
    async def tell(replica: Replica) -> None:
        wall_ms = replica.bench.around.clock.now().wall_ms
        lag_ms = COMPACT_AT_LAST_MS
        replica.says.compaction = Compaction(True, lag_ms)
        blocks = [
            unit_of(number, [it])._replace(time_ms=wall_ms - lag_ms if number < 12 else wall_ms)
            for number, it in enumerate(large(20))
        ]
        replica.data.append(blocks)
        replica.data.sync_and_note(40)
        await replica.compacted(12, within_ms=LOOK_EVERY_MS)
        assert held(replica.data) == must_be(large(20), 12, 0)
        await replica.goes_on(for_ms=lag_ms // 2)

    story(tell)


def test_i33_a_pass_that_ended_before_a_hole_was_superseded_is_followed_by_one() -> None:
    """The hole came with a part of another replica's, for something that was not settled here."""

    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        replica.says.compaction = Compaction(True)
        await replica.compacted(20)
        said = replica.data.cleanness
        replica.data.note_cleanness(said._replace(holes_below=22))
        await replica.goes_on(for_ms=LOOK_EVERY_MS)
        replica.settle(large(4))
        await replica.compacted(22, within_ms=LOOK_EVERY_MS)

    story(tell)


def test_a_log_of_which_all_is_too_young_is_not_gone_through_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time it would take the memory for its keys, and read a piece."""
    passes: list[DataCleaning] = []
    anew = Compacting._new_pass

    def count(self: Compacting) -> DataCleaning:
        passes.append(anew(self))
        return passes[-1]

    monkeypatch.setattr(Compacting, "_new_pass", count)

    async def tell(replica: Replica) -> None:
        lag_ms = COMPACT_AT_LAST_MS
        replica.says.compaction = Compaction(True, lag_ms)
        wall_ms = replica.bench.around.clock.now().wall_ms
        units = [unit_of(number, [it]) for number, it in enumerate(large(20))]
        replica.data.append([unit._replace(time_ms=wall_ms) for unit in units])
        replica.data.sync_and_note(40)
        await replica.goes_on(for_ms=lag_ms // 2)
        replica.settle(large(1))
        await replica.goes_on(for_ms=lag_ms // 4)
        assert len(passes) == 1, "passes that find nothing to do"
        await replica.compacted(20, within_ms=lag_ms)
        assert held(replica.data) == must_be([*large(20), *large(1)], 21, 0)

    story(tell)


def test_without_a_lag_no_clock_is_asked() -> None:
    """One that was ahead wrote the blocks, and was put right."""

    async def tell(replica: Replica) -> None:
        ahead_ms = replica.bench.around.clock.now().wall_ms + COMPACT_AT_LAST_MS
        units = [unit_of(number, [it]) for number, it in enumerate(large(20))]
        replica.data.append([unit._replace(time_ms=ahead_ms) for unit in units])
        replica.data.sync_and_note(40)
        await replica.compacted(20, within_ms=LOOK_EVERY_MS)
        assert held(replica.data) == must_be(large(20), 20, 0)

    story(tell)


def test_tombstones_go_once_the_point_lets_them() -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(SMALL)
        replica.says.compaction = Compaction(True, 0, compacted_below=4)
        await replica.compacted(4, within_ms=1_000)
        assert held(replica.data)[-1] == Kept(3, b"b", None)
        assert not replica.waits()
        replica.says.compaction = Compaction(True, 0, compacted_below=4, tombstones_below=4)
        assert replica.waits()
        assert replica.data.dropped_at == 0
        await replica.until(lambda: replica.data.cleanness.tombstones_to == 4)
        assert replica.data.dropped_at == SAID_AT
        assert held(replica.data) == [Kept(2, b"a", b"2")]

    story(tell)


def test_i33_tombstones_that_came_of_a_part_go_though_the_note_says_that_they_may_be_gone() -> None:
    """Whoever sends a part says what a pass of his may have dropped, or has still to drop."""

    async def tell(replica: Replica) -> None:
        replica.settle(SMALL)
        replica.says.compaction = Compaction(True, 0, compacted_below=4)
        await replica.compacted(4, within_ms=1_000)
        replica.data.note_cleanness(Cleanness(4, 4, 4), dropped_at=SAID_AT)
        assert held(replica.data)[-1] == Kept(3, b"b", None)
        assert not replica.waits(), "its own snapshot does not say so yet"
        replica.says.compaction = Compaction(True, 0, compacted_below=4, tombstones_below=4)
        assert replica.waits()
        await replica.until(lambda: replica.data.cleanness == Cleanness(4, 4, 4, 4))
        assert held(replica.data) == [Kept(2, b"a", b"2")]
        assert not replica.waits()

    story(tell)


def test_one_pass_runs_at_a_time_in_a_process() -> None:
    """For each has a map of keys in memory."""

    async def tell(replica: Replica) -> None:
        other = replica.beside(has_readers=False)
        for one in (replica, other):
            one.settle(large(20))
        assert await replica.compacting.step(), "it is in the middle of a pass"
        assert not other.compacting.is_due, "it waits for its turn"
        assert other.waits()
        await replica.compacted(20)
        await other.compacted(20)

    story(tell)


def test_i33_a_leader_that_holds_up_readers_goes_before_every_other_pass() -> None:
    """A pass over another log may take an hour, and readers below the point would be refused so
    long."""

    async def tell(replica: Replica) -> None:
        leader, third = (replica.beside(has_readers=has) for has in (True, False))
        for one in (replica, leader, third):
            one.settle(large(20))
        assert await replica.compacting.step(), "it is in the middle of a pass"
        assert not leader.is_due(), "nobody waits for it"
        leader.says.compaction = Compaction(True, 0, compacted_below=20)
        assert leader.is_due(), "now readers do"
        assert not await leader.compacting.step()
        assert not leader.is_due(), "it has asked for its turn"
        assert not await replica.compacting.step(), "the other one lets go of it"
        assert not third.is_due(), "nobody goes before it"
        assert leader.is_due()
        assert await leader.compacting.step()
        replica.says.compaction = Compaction(True, 0, compacted_below=20)
        assert not replica.is_due(), "nobody reads from a follower"
        await leader.compacted(20)
        await replica.compacted(20)
        await third.compacted(20)

    story(tell)


@pytest.mark.parametrize("how", ["its epoch ends", "its disk fails"])
def test_who_holds_up_readers_no_more_is_waited_for_by_nobody(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> DataCleaning:
        raise OSError("the disk fails")

    async def tell(replica: Replica) -> None:
        leader = replica.beside(has_readers=True)
        for one in (replica, leader):
            one.settle(large(20))
        leader.says.compaction = Compaction(True, 0, compacted_below=20)
        await replica.compacting.step()
        await leader.compacting.step()
        if how == "its epoch ends":
            leader.compacting.drop()
        else:
            assert not await replica.compacting.step(), "it lets go of its turn"
            assert not replica.is_due()
            monkeypatch.setattr(leader.compacting, "_new_pass", fail)
            await leader.compacting.step()
            assert leader.compacting.why_waits == "the disk fails"
        await replica.compacted(20)

    story(tell)


@pytest.mark.parametrize("how", ["give_way", "drop"])
def test_who_gives_way_leaves_the_turn_to_others(how: str) -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        await replica.compacting.step()
        assert replica.bench.around.compacting.locked()
        getattr(replica.compacting, how)()
        assert not replica.bench.around.compacting.locked()
        if how == "drop":
            assert not await replica.compacting.step(), "its epoch is over"
            assert not replica.compacting.is_waiting
            replica.compacting = replica.anew()
        await replica.compacted(20)
        assert held(replica.data) == must_be(large(20), 20, 0)

    story(tell)


def test_a_piece_that_fails_while_it_gives_way_takes_nothing_from_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[DataCleaning] = []
    anew = Compacting._new_pass

    def count(self: Compacting) -> DataCleaning:
        passes.append(anew(self))
        return passes[-1]

    monkeypatch.setattr(Compacting, "_new_pass", count)

    async def tell(replica: Replica) -> None:
        replica.settle(large(20))

        async def fail(work: Callable[[], None]) -> None:
            if passes:
                replica.compacting.give_way()
                raise OSError("the disk fails")
            work()

        replica.bench.offload = fail
        await replica.goes_on(for_ms=AGAIN_MS // 2)
        assert len(passes) == 1
        replica.bench.offload = at_once
        await replica.compacted(20, within_ms=2 * AGAIN_MS)
        assert len(passes) == 2, "the first piece of a pass that nobody stopped"

    story(tell)


def test_a_log_that_was_cut_in_the_middle_of_a_pass_is_compacted_as_it_is_then() -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        await replica.compacting.step()
        replica.data.cut(2 * 15, journal_start=0)
        await replica.compacted(15)
        assert held(replica.data) == must_be(large(20)[:15], 15, 0)
        assert replica.bench.around.compacting.locked() is False

    story(tell)


def test_a_disk_that_is_nearly_full_makes_it_wait_and_it_says_so() -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        replica.bench.may_settle = False
        await replica.goes_on(for_ms=3 * AGAIN_MS)
        assert "disk_free_floor" in replica.compacting.why_waits
        assert not replica.bench.around.compacting.locked(), "others have the turn"
        replica.bench.may_settle = True
        await replica.compacted(20, within_ms=2 * AGAIN_MS)
        assert not replica.compacting.why_waits

    story(tell)


def test_i26_damage_makes_it_wait_and_nothing_is_taken_out() -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        [(file, _)] = replica.data.spans()

        def rot(content: bytearray) -> None:
            content[1_000] ^= 1

        replica.bench.disk.damage(file.path, rot)
        await replica.goes_on(for_ms=2 * DAMAGED_AGAIN_MS)
        assert "is damaged at byte" in replica.compacting.why_waits
        replica.data.replace([unit_of(0, [large(1)[0]])])
        await replica.compacted(20, within_ms=2 * DAMAGED_AGAIN_MS)
        assert held(replica.data) == must_be(large(20), 20, 0)

    story(tell)


def test_damage_below_the_point_is_handed_on_for_no_reader_comes_to_it() -> None:
    """Reads below are refused until it is compacted so far: who waits there waits for a mend."""

    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        [(file, _)] = replica.data.spans()

        def rot(content: bytearray) -> None:
            content[1_000] ^= 1

        replica.bench.disk.damage(file.path, rot)
        await replica.goes_on(for_ms=DAMAGED_AGAIN_MS // 2)
        assert replica.compacting.why_waits
        assert not replica.found_damage, "who reads it meets it"
        replica.says.compaction = Compaction(True, 0, compacted_below=20)
        await replica.goes_on(for_ms=DAMAGED_AGAIN_MS)
        assert [file.path in str(error) for error in replica.found_damage] == [True], (
            "nobody is told"
        )

    story(tell)


def test_memory_is_bounded_by_name_and_more_passes_follow() -> None:
    async def tell(replica: Replica) -> None:
        around = replica.bench.around
        object.__setattr__(around, "compaction_map_bytes", 8 * SLOT_BYTES)
        given = large(40, of=15)
        replica.settle(given)
        replica.says.compaction = Compaction(True, 0, compacted_below=40)
        ends: set[int] = set()
        while replica.data.compacted_to < 40:
            await replica.compacting.step()
            ends.add(replica.data.compacted_to)
        assert len(ends) > 3, "six keys at a time"
        assert held(replica.data) == must_be(given, 40, 0)

    story(tell)


def test_a_pass_whose_memory_was_full_is_followed_by_the_next_one() -> None:
    """What is left of what was worth a pass is less than half of the log in the end, and would
    wait for an hour."""

    async def tell(replica: Replica) -> None:
        object.__setattr__(replica.bench.around, "compaction_map_bytes", 8 * SLOT_BYTES)
        given = large(40, of=15)
        replica.settle(given)
        await replica.compacted(40, within_ms=LOOK_EVERY_MS)
        assert held(replica.data) == must_be(given, 40, 0)
        replica.settle(SMALL)
        await replica.goes_on(for_ms=COMPACT_AT_LAST_MS // 2)

    story(tell)


def test_settling_and_compacting_take_turns() -> None:
    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        turns = Turns(cast(Settling, replica.says), replica.compacting)
        assert turns.is_due
        steps = 0
        while await turns.step():
            steps += 1
        assert steps > 3
        assert replica.says.steps == steps + 1, "one of each"
        assert replica.data.compacted_to == 20

    story(tell)


def test_each_durable_step_is_a_place_where_a_test_may_strike() -> None:
    passed: list[str] = []
    failpoints.arm(lambda name: passed.append(name))

    async def tell(replica: Replica) -> None:
        replica.settle(large(20))
        await replica.compacted(20)

    try:
        story(tell)
    finally:
        failpoints.disarm()
    steps = ("compact_holes", "compact_write", "compact_join", "compact_note")
    assert passed == [f"driver.{step}.{side}" for step in steps for side in ("before", "after")]
