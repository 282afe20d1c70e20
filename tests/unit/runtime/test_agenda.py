"""The one queue of a process: who is busy is ticked, who rests is looked at when it said, and who
is stirred is never forgotten."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.runtime.agenda import BUSY_AT_ONCE, REPORTS_AT_ONCE, RESTING_AT_ONCE, Agenda
from tests.simulation.virtual_time import VirtualTimeLoop, run

TICK_MS = 100


class Replica:
    def __init__(self, number: int, rests_ms: int) -> None:
        self.partition = PartitionId(TopicId(bytes(16)), number)
        self.rests_ms = rests_ms
        self.ticks = self.looks = self.reports = self.woken = 0

    def tick(self) -> None:
        self.ticks += 1

    def look(self) -> None:
        self.looks += 1

    def report(self) -> None:
        self.reports += 1

    def wake(self) -> None:
        self.woken += 1


class Clock:
    now_ms = 1_000


def turns(agenda: Agenda, count: int) -> None:
    for _ in range(count):
        Clock.now_ms += TICK_MS
        agenda.turn()
        agenda.check()


def shelf(*replicas: Replica) -> Agenda:
    agenda = Agenda(lambda: Clock.now_ms)
    for replica in replicas:
        agenda.stir(replica)
    return agenda


def test_who_rests_is_looked_at_when_it_said_and_costs_nothing_else() -> None:
    busy, resting = Replica(0, 0), Replica(1, 10 * TICK_MS)
    agenda = shelf(busy, resting)
    turns(agenda, 100)
    assert (busy.ticks, busy.looks) == (100, 0)
    assert (resting.ticks, resting.looks) == (1, 9)
    asyncio.run(agenda.report())
    agenda.wake()
    assert (busy.reports, busy.woken) == (1, 1)
    assert (resting.reports, resting.woken) == (0, 0)


def test_i30_who_is_stirred_is_ticked_at_the_next_turn() -> None:
    one = Replica(0, 60_000)
    agenda = shelf(one)
    turns(agenda, 5)
    one.rests_ms = 0
    agenda.stir(one)
    turns(agenda, 3)
    assert one.ticks == 1 + 3


def test_i30_a_look_that_finds_work_ends_the_rest() -> None:
    one = Replica(0, 2 * TICK_MS)
    agenda = shelf(one)
    turns(agenda, 1)
    one.rests_ms = 0
    turns(agenda, 10)
    assert (one.looks, one.ticks) == (1, 1 + 8)


def test_a_look_that_finds_something_is_followed_by_another_when_that_is_due() -> None:
    """It said before that it rests for long."""
    replica = Replica(0, 10 * TICK_MS)
    agenda = shelf(replica)
    turns(agenda, 10)
    replica.rests_ms = 1_000 * TICK_MS

    def finds() -> None:
        replica.looks += 1
        replica.rests_ms = 2 * TICK_MS

    replica.look = finds  # type: ignore[method-assign]
    turns(agenda, 10)
    assert replica.looks == 5


def test_thousands_whose_time_comes_together_hold_up_nobody() -> None:
    many = [Replica(number, 10 * TICK_MS) for number in range(4 * RESTING_AT_ONCE)]
    agenda = shelf(*many)
    turns(agenda, 10)
    for expected in range(1, 5):
        turns(agenda, 1)
        assert sum(one.looks for one in many) == expected * RESTING_AT_ONCE
    turns(agenda, 1)
    assert sum(one.looks for one in many) == 4 * RESTING_AT_ONCE


def test_thousands_that_are_busy_are_ticked_in_turns_and_who_is_stirred_at_once() -> None:
    many = [Replica(number, 0) for number in range(4 * BUSY_AT_ONCE)]
    agenda = shelf(*many)
    turns(agenda, 1)
    assert {one.ticks for one in many} == {1}
    for expected in range(1, 5):
        turns(agenda, 1)
        assert sum(one.ticks - 1 for one in many) == expected * BUSY_AT_ONCE
    assert {one.ticks for one in many} == {2}, "who waited longest comes first"
    late = Replica(len(many), 0)
    agenda.stir(late)
    turns(agenda, 1)
    assert late.ticks == 1


def test_who_is_dropped_by_the_tick_of_another_is_gone() -> None:
    one, other = Replica(0, 0), Replica(1, 0)
    agenda = shelf(one, other)
    one.tick = lambda: agenda.drop(other.partition)  # type: ignore[method-assign]
    turns(agenda, 2)
    assert agenda.busy == [one]
    assert other.ticks == 0


def test_a_report_of_many_gives_the_loop_turns() -> None:
    many = [Replica(number, 0) for number in range(3 * REPORTS_AT_ONCE)]
    agenda = shelf(*many)

    async def story() -> None:
        reporting = asyncio.ensure_future(agenda.report())
        await asyncio.sleep(0)
        assert 0 < sum(one.reports for one in many) < REPORTS_AT_ONCE
        agenda.drop(many[-1].partition)
        await reporting

    asyncio.run(story())
    assert sum(one.reports for one in many) == len(many) - 1, "who was dropped meanwhile"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["turn", "stir", "drop", "rest", "work"]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_nobody_is_forgotten(steps: list[tuple[str, int]]) -> None:
    replicas = {number: Replica(number, 0) for number in range(4)}
    agenda = shelf(*replicas.values())
    there = set(replicas)
    for step, number in steps:
        one = replicas[number]
        match step:
            case "turn":
                turns(agenda, 1)
            case "stir":
                agenda.stir(one)
                there.add(number)
            case "drop":
                agenda.drop(one.partition)
                there.discard(number)
            case "rest":
                one.rests_ms = 5 * TICK_MS
            case "work":
                one.rests_ms = 0
        agenda.check()
    before = {number: (one.ticks, one.looks) for number, one in replicas.items()}
    turns(agenda, 6)
    for number, one in replicas.items():
        assert ((one.ticks, one.looks) != before[number]) == (number in there)


def test_a_turn_comes_each_tick_while_somebody_is_busy_and_seldom_while_all_rest() -> None:
    loop = VirtualTimeLoop()
    replicas = [Replica(number, 0) for number in range(100)]

    async def main() -> None:
        agenda = Agenda(lambda: round(loop.time() * 1000))
        times: list[float] = []
        for replica in replicas:
            agenda.stir(replica)

        async def serve() -> None:
            while True:
                await agenda.next_turn(TICK_MS)
                times.append(loop.time())
                agenda.turn()
                agenda.check()

        serving = asyncio.ensure_future(serve())
        await asyncio.sleep(1.05)
        assert len(times) == 10, "somebody is busy"
        for number, replica in enumerate(replicas):
            replica.rests_ms = 20_000 + 100 * number
        await asyncio.sleep(120)
        assert all(4 <= replica.looks <= 6 for replica in replicas)
        # Looks of a second come in one turn; where that is due a tick later than a whole second,
        # in two.
        assert len(times) < 10 + 2 * 120, "all rest"
        began, ticks = loop.time(), replicas[7].ticks
        replicas[7].rests_ms = 0
        agenda.stir(replicas[7])
        await asyncio.sleep(TICK_MS / 1000 + 0.001)
        assert replicas[7].ticks == ticks + 1, "stirred: a tick later"
        assert times[-1] - began <= TICK_MS / 1000 + 0.001
        serving.cancel()

    run(main(), loop)


def test_i30_who_is_stirred_while_nobody_is_busy_waits_for_no_look() -> None:
    loop = VirtualTimeLoop()
    waited: list[float] = []

    async def main() -> None:
        agenda, sleeper = Agenda(lambda: round(loop.time() * 1000)), Replica(0, 60_000)
        agenda.stir(sleeper)
        agenda.turn()
        for pause_s in (0.0, 0.05, 0.35, 7.77, 59.0):
            turned = asyncio.ensure_future(agenda.next_turn(TICK_MS))
            await asyncio.sleep(pause_s)
            began = loop.time()
            agenda.stir(sleeper)
            await turned
            waited.append(loop.time() - began)
            agenda.turn()

    run(main(), loop)
    assert all(wait_s <= TICK_MS / 1000 + 0.001 for wait_s in waited), waited
