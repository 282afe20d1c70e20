"""A replica that gets what its leader has settled and compacted: nothing comes back that was
deleted, and it knows how clean it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.machine import Compaction, Settled
from oncelog_server.runtime.replica import receiving_data
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.sending import read_part
from oncelog_server.runtime.storage import snapshot_parts
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.test_followers import Trio
from tests.unit.runtime.test_receiving import begin_in_the_middle, follow
from tests.unit.runtime.test_receiving_data import (
    SETTLED_AT,
    Settles,
    after_a_kill,
    asked_for,
    read_all,
)
from tests.unit.runtime.test_trimming import live
from tests.unit.storage.cleaned_logs import SETTLER, clean, held, must_be, unit_of

# `a` is deleted at 15, `b` is written again and again.
GIVEN: Final = [
    (
        b"a" if at in (3, 15) else b"b" if at % 4 == 0 else b"%d" % at,
        None if at == 15 else b"%d" % at,
    )
    for at in range(40)
]


# Journal offset of the snapshot by which the leader has dropped the tombstones that it may drop.
DROPPED_AT: Final = 95


def settle(
    log: DataLog, start: int, end: int, *, units_each: int, settled_at: int = SETTLED_AT
) -> None:
    units = [unit_of(at, [GIVEN[at]]) for at in range(start, end)]
    for number in range(0, len(units), units_each):
        log.append([SETTLER.joined(units[number : number + units_each])])
    log.sync_and_note(settled_at)


def story(
    monkeypatch: pytest.MonkeyPatch,
    tombstones_below: int,
    tell: Callable[[Trio], Coroutine[Any, Any, None]],
) -> None:
    """The leader's log begins in the middle, and what was before is settled, and compacted."""
    loop = VirtualTimeLoop()
    says = Settled(compaction=Compaction(True, 0, 30, tombstones_below))
    monkeypatch.setattr(Driver, "readable", property(lambda self: says))

    async def main() -> None:
        trio = Trio(loop)
        for bench in trio.benches:
            bench.role = Settles()
            bench.driver = bench._open()
        begin_in_the_middle(trio.benches[0])
        data = trio.benches[0].journal.data
        settle(data, 0, 30, units_each=5)
        clean(data, 30, tombstones_below, said_at=DROPPED_AT)
        settle(data, 30, 40, units_each=5)
        await tell(trio)

    run(main(), loop)


def test_i33_who_gets_all_of_it_is_as_clean_as_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_parts, "PART_BYTES_MAX", 64)

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        assert held(two.journal.data) == held(one.journal.data) == must_be(GIVEN, 30, 20)
        assert two.journal.data.cleanness == Cleanness(30, 20, 30, 20)
        assert two.journal.data.dropped_at == DROPPED_AT
        assert two.journal.allowed.at >= DROPPED_AT, "who lacks that state is not followed with it"
        two = await after_a_kill(trio, 1)
        assert two.journal.data.cleanness == Cleanness(30, 20, 30, 20)
        assert two.journal.data.dropped_at == DROPPED_AT, "a cut knows of it"

    story(monkeypatch, 20, tell)


def test_i33_who_has_a_record_whose_tombstone_is_gone_there_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        settle(two.journal.data, 0, 10, units_each=3)
        assert b"a" in {it.key for it in held(two.journal.data)}
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        assert b"a" not in {it.key for it in held(two.journal.data)}, "it was deleted"
        assert held(two.journal.data) == held(one.journal.data)
        assert two.reporter.events.count("settled records do not fit the leader's") == 1

    story(monkeypatch, 20, tell)


@pytest.mark.parametrize("had", [10, 13])
def test_i33_who_has_what_every_tombstone_there_is_for_keeps_it(
    monkeypatch: pytest.MonkeyPatch, had: int
) -> None:
    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        settle(two.journal.data, 0, had, units_each=3)
        clean(two.journal.data, 8)
        await trio.elect(one, 3)
        await live(*trio.benches, seconds=15)
        data = two.journal.data
        assert min(asked_for(trio, two)) == had
        mine = [it for it in must_be(GIVEN, 8, 0) if it.offset < had]
        theirs = [it for it in must_be(GIVEN, 30, 0) if it.offset >= had]
        assert held(data) == [*mine, *theirs]
        assert data.cleanness == Cleanness(8, 0, 30), "what it has of its own is as clean as it was"
        clean(data, 40, 20)
        assert held(data) == must_be(GIVEN, 40, 20)

    story(monkeypatch, 0, tell)


@pytest.mark.parametrize("sync_every", [1, 1 << 20])
def test_i33_what_lacks_in_a_part_is_noted_before_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, sync_every: int
) -> None:
    """A kill in the middle, of the process: blocks that were not synced are there. Who cuts what
    came, knows."""
    monkeypatch.setattr(snapshot_parts, "PART_BYTES_MAX", 64)
    monkeypatch.setattr(receiving_data, "SYNC_EVERY_BYTES", sync_every)

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        # As a pass to 40 does before it takes anything out.
        one.journal.data.note_cleanness(Cleanness(30, 0, 40))
        settle(two.journal.data, 0, 4, units_each=3, settled_at=20)
        await trio.elect(one, 3, followers=0)
        two.driver.aim(follow(one))
        for _ in range(3_000):
            if two.journal.data._end > 4:
                break
            two.driver.report()
            await asyncio.sleep(0.001)
        two = await after_a_kill(trio, 1, keeps_page_cache=True)
        data = two.journal.data
        assert 4 < data.settled_end < 40, "a start goes on with what came"
        assert (data.cleanness.holes_below, data.settled_at) == (40, SETTLED_AT)
        end = SETTLED_AT - 1
        assert all(block.exposed_below <= end for block in read_all(data)), "each became readable"
        data.cut(end, journal_start=0)
        assert data.settled_end == 0, "what superseded it is nowhere here"

    story(monkeypatch, 0, tell)


def test_i33_a_part_is_no_cleaner_than_before_and_after_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass ends, or something is healed, while it is read."""

    async def tell(trio: Trio) -> None:
        journal = trio.benches[0].journal
        data, wanted = journal.data, PartOf(Content.BLOCKS, position=0)

        async def said_when(meanwhile: Cleanness) -> Cleanness:
            async def offload(work: Callable[[], None]) -> None:
                work()
                data.note_cleanness(meanwhile)

            part = await read_part(journal, offload, wanted, tombstones_below=20)
            return part.settled.cleanness

        data.note_cleanness(Cleanness(30, 10, 30, 10))
        assert await said_when(Cleanness(40, 20, 40, 20)) == Cleanness(30, 20, 40, 10)
        assert await said_when(Cleanness(5, 20, 40, 5)) == Cleanness(5, 20, 40, 5)

    story(monkeypatch, 20, tell)
