"""When elections look at which partitions, and what they leave to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.leadership import held
from oncelog_server.runtime.leadership.rounds import (
    REST_MS_MAX,
    ROUND_REST,
    ROUND_RETRY_MS,
    Rounds,
)
from oncelog_server.runtime.leadership.rules import Ruling, judge
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.etcd.world import LEASE_MS, World
from tests.unit.leadership.test_election import TOPIC, put_state, put_topic, state_of

P0: Final = PartitionId(TOPIC, 0)
P1: Final = PartitionId(TOPIC, 1)


def test_i18_rounds_leave_most_of_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand partitions change one after the other, and each change calls for a round."""
    loop = VirtualTimeLoop()

    def moments() -> Iterator[float]:
        """A round takes 10 ms."""
        while True:
            yield from (0.0, 0.010)

    async def main() -> int:
        rounds, clock = Rounds(), moments()
        monkeypatch.setattr(rounds, "_now", lambda: next(clock))
        count, end = 0, loop.time() + 4.0
        while loop.time() < end:
            rounds.begin()
            rounds.looked()
            rounds.call([P0])
            count += 1
            assert count < 1_000, "rounds take the whole loop"
            await rounds.next()
        return count

    assert run(main(), loop) == pytest.approx(4.0 / (ROUND_REST * 0.010), abs=2)


def test_a_change_is_looked_at_at_once_where_there_is_little_to_look_at() -> None:
    loop = VirtualTimeLoop()

    async def main() -> float:
        rounds, began = Rounds(), loop.time()
        rounds.begin()
        rounds.looked()
        asyncio.get_running_loop().call_later(1.0, rounds.call, [P0])
        await rounds.next()
        rounds.begin()
        rounds.call([P0])
        rounds.looked()
        await rounds.next()
        rounds.begin()
        rounds.looked()
        rounds.again([P0])
        await rounds.next()
        return loop.time() - began

    assert run(main(), loop) == pytest.approx(1.0 + ROUND_RETRY_MS / 1000)


def test_what_is_called_for_is_due_and_nothing_else() -> None:
    async def main() -> None:
        rounds = Rounds()
        assert rounds.begin() is None, "nothing was looked at yet"
        rounds.call([P0])
        rounds.call([])
        await rounds.next()
        assert rounds.begin() == frozenset({P0})
        rounds.call([P1])
        rounds.call_all()
        await rounds.next()
        assert rounds.begin() is None
        rounds.call([P1])
        await rounds.next()
        assert rounds.begin() == frozenset({P1})

    run(main(), VirtualTimeLoop())


def test_what_is_not_done_is_due_after_a_moment_and_not_with_every_other() -> None:
    """A third of a thousand partitions wait for their turn in an election, while others change."""
    loop = VirtualTimeLoop()

    async def main() -> None:
        rounds = Rounds()
        rounds.begin()
        rounds.again([P0])
        began = loop.time()
        rounds.call([P1])
        await rounds.next()
        assert rounds.begin() == frozenset({P1}), "what waits is not looked at with every other"
        await rounds.next()
        assert loop.time() - began == pytest.approx(ROUND_RETRY_MS / 1000)
        assert rounds.begin() == frozenset({P0})
        rounds.again([P0, P1])
        rounds.call([P0])
        await rounds.next()
        assert rounds.begin() == frozenset({P0})
        await rounds.next()
        assert rounds.begin() == frozenset({P1}), "who was called for was looked at"

    run(main(), loop)


class Early(VirtualTimeLoop):
    """Its timers fire a little before their time, as those of any loop may."""

    def call_at(  # type: ignore[override]
        self, when: float, *args: Any, **options: Any
    ) -> asyncio.TimerHandle:
        return super().call_at(when - 0.001, *args, **options)


def test_a_timer_that_fires_early_is_no_reason_to_look_without_a_pause() -> None:
    """Seed 9100008 of the simulator spent a minute in rounds that had nothing to look at."""
    loop = Early()

    async def main() -> None:
        rounds, count, end = Rounds(), 0, loop.time() + 2.0
        while loop.time() < end:
            rounds.begin()
            rounds.again([P0])
            count += 1
            assert count < 2 * 2_000 / ROUND_RETRY_MS, "it looks without a pause"
            await rounds.next()

    run(main(), loop)


def test_a_change_of_one_partition_has_no_other_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thousand partitions that change one after the other are looked at a million times."""
    looks: list[PartitionState] = []

    def counted(state: PartitionState, *seen: Any, **others: Any) -> Ruling:
        looks.append(state)
        return judge(state, *seen, **others)

    async def story() -> None:
        one = await world.node("n1").start()
        put_topic(world, "n1", partitions=100)
        await World.until(lambda: len(one.elections.led()) == 100)
        await asyncio.sleep(1)
        monkeypatch.setattr(held, "judge", counted)
        for number in range(50):
            state = state_of(world, PartitionId(TOPIC, number))
            put_state(world, msgspec.structs.replace(state, isr=(*state.isr, "ff" * 16)), number)
            await asyncio.sleep(0.1)
        assert len(looks) <= 50 * 3, "each change of one has all looked at"

    world.run(story)


def test_i29_who_could_lead_looks_again_when_a_leader_is_gone(world: World) -> None:
    """What says so is the leader's own key, and no partition's."""

    async def story() -> None:
        one, two = world.node("n1"), world.node("n2")
        await one.start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: one.leads(P0) == 1)
        await two.start()
        members = (one.host.default.incarnation.hex(), two.host.default.incarnation.hex())
        put_state(world, msgspec.structs.replace(state_of(world), isr=members))
        await asyncio.sleep(1)
        await one.crash()
        await asyncio.sleep(3 * LEASE_MS / 1000)
        assert two.leads(P0) == 2, "nobody leads"

    world.run(story)


def test_i29_who_was_stopped_in_the_middle_of_a_round_stands_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP for twice a lease: that was no work of the round."""
    loop = VirtualTimeLoop()
    stopped_s = 8.0

    async def main() -> float:
        rounds, clock = Rounds(), iter((0.0, stopped_s))
        monkeypatch.setattr(rounds, "_now", lambda: next(clock))
        rounds.begin()
        rounds.looked()
        rounds.call([P0])
        began = loop.time()
        await rounds.next()
        return loop.time() - began

    assert run(main(), loop) <= REST_MS_MAX / 1000, "it rests for what others did to it"
