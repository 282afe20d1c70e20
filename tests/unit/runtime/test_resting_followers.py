"""Replicas of which nobody uses the partition: leader and followers rest, all of them, and none of
them is late for what happens then (docs/adr/0082)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.agenda import Agenda
from oncelog_server.runtime.replica import snapshots
from oncelog_server.runtime.replica.dialog import Told
from oncelog_server.runtime.replica.following import Answer
from oncelog_server.runtime.replica.in_sync import REPLICA_SILENT_MS, Why
from oncelog_server.runtime.target import Follow
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add
from tests.unit.runtime.test_followers import Trio

TICK_MS = 100
# `replica_lag_ms` of the bench.
LAG_S = 1
# Longer than anything takes that keeps a replica busy.
LONG_S = 40


class Resting(Trio):
    """Each with the agenda of its process."""

    def __init__(self, loop: VirtualTimeLoop, **options: Any) -> None:
        super().__init__(loop, **options)
        self.agendas: dict[str, Agenda] = {}
        self.looks = 0
        for bench in self.benches:
            agenda = Agenda(lambda: loop.now().monotonic_ms)
            self.agendas[bench.node_id] = agenda
            bench.stirred = agenda.stir

    async def live(self, *, seconds: float) -> None:
        """As processes do: ticks, and reports."""
        for number in range(round(seconds * 1000 / TICK_MS)):
            await asyncio.sleep(TICK_MS / 1000)
            for agenda in self.agendas.values():
                agenda.turn()
                agenda.check()
                if number % 10 == 0:
                    await agenda.report()

    @property
    def resting(self) -> list[str]:
        return [name for name, agenda in self.agendas.items() if agenda.resting_count]


def story(tell: Callable[[Resting], Coroutine[Any, Any, None]], **options: Any) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Resting(loop, **options))

    run(main(), loop)


async def at_rest(trio: Resting) -> tuple[Bench, Bench, Bench]:
    one, two, three = trio.benches
    await trio.elect(one, 1)
    await one.driver.submit(Add(1))
    await trio.live(seconds=LONG_S)
    assert trio.resting == ["n1", "n2", "n3"]
    return one, two, three


def test_i29_all_replicas_rest_and_say_nothing_and_stay_in_sync() -> None:
    async def tell(trio: Resting) -> None:
        one, two, _ = await at_rest(trio)
        said = [0]

        def count(wire: Any, real: Any, what: object) -> None:
            said[0] += 1
            real(what)

        for wire in trio.wires:
            wire.say = functools.partial(count, wire, wire.say)  # type: ignore[method-assign]
        changes = len(one.changes)
        await trio.live(seconds=10 * LONG_S)
        assert said == [0], "nobody has anything to say"
        assert len(one.changes) == changes
        assert one.driver.keeping_up() == {"n2", "n3"}
        assert await one.driver.submit(Add(2)) == 3, "at once, as if nobody had rested"
        assert two.journal.synced_end >= one.driver.high_watermark
        assert said[0] > 0
        await trio.live(seconds=LONG_S)
        assert trio.resting == ["n1", "n2", "n3"], "they rest again"

    story(tell)


def test_i29_who_follows_a_leader_of_an_earlier_version_goes_on_acknowledging() -> None:
    async def tell(trio: Resting) -> None:
        one, two, three = trio.benches
        wires = trio.wires

        def as_before(wire: Any, real: Any, told: Told) -> None:
            if isinstance(told.what, Answer):
                told = told._replace(what=told.what._replace(may_rest=False))
            real(told)

        await trio.elect(one, 1, followers=0)
        address = Address(one.node_id, BootId(b"l" * 16), "h", 1, 1)
        for bench in (two, three):
            bench.driver.aim(Follow(address))
            while not wires or wires[-1].follower is not bench:
                await asyncio.sleep(0)
            wire = wires[-1]
            wire._tell = functools.partial(as_before, wire, wire._tell)  # type: ignore[method-assign]
        await trio.live(seconds=LONG_S)
        assert "n2" not in trio.resting
        assert "n3" not in trio.resting
        assert one.journal.synced_end == two.journal.synced_end == three.journal.synced_end

    story(tell)


def test_i29_who_dies_while_all_rest_is_dropped_as_soon_as_ever() -> None:
    async def tell(trio: Resting) -> None:
        one, _, three = await at_rest(trio)
        gone = next(wire for wire in trio.wires if wire.follower is three)
        gone.is_cut = True
        assert gone.supply is not None
        gone.supply.end()
        await trio.live(seconds=REPLICA_SILENT_MS / 1000 + 2 * TICK_MS / 1000)
        assert one.changes[-1][0].why is Why.LAGS
        assert one.changes[-1][0].who == three.journal.incarnation

    story(tell)


def test_i29_who_syncs_nothing_any_more_is_dropped_once_there_is_more() -> None:
    async def tell(trio: Resting) -> None:
        one, _, three = await at_rest(trio)
        stuck = next(wire for wire in trio.wires if wire.follower is three)
        # Its stream stands, and nothing comes of what it is sent.
        stuck.is_cut = True
        answer = one.driver.submit(Add(5))
        await trio.live(seconds=LAG_S - 2 * TICK_MS / 1000)
        assert not answer.done(), "it counts, and does not acknowledge"
        await trio.live(seconds=4 * TICK_MS / 1000)
        assert await answer == 6
        assert one.changes[-1][0].who == three.journal.incarnation

    story(tell)


def test_i5_who_rested_makes_its_snapshots_when_there_is_more() -> None:
    async def tell(trio: Resting) -> None:
        one, two, three = await at_rest(trio)
        for number in range(300):
            await one.driver.submit(Add(number))
        await trio.live(seconds=LONG_S)
        ends = {bench.journal.snapshot_offset for bench in (two, three)}
        assert min(ends) > 100, "a failover would replay all of it"
        assert trio.resting == ["n1", "n2", "n3"]

    story(tell, snapshot_every_bytes=100 * snapshots.FRAME_BYTES_GUESS)


def test_i18_who_rested_and_is_deposed_rests_no_more() -> None:
    async def tell(trio: Resting) -> None:
        one, two, three = await at_rest(trio)
        one.depose()
        assert "n1" not in trio.resting
        await trio.elect(two, 2, one, three)
        assert await two.driver.submit(Add(1)) == 2
        await trio.live(seconds=LONG_S)
        assert trio.resting == ["n1", "n2", "n3"]

    story(tell)
