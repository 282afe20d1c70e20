"""Deadlines of many calls with one timer."""

from __future__ import annotations

import asyncio
from typing import Any

from oncelogpb.deadlines import Deadlines
from tests.simulation.virtual_time import VirtualTimeLoop


def run(story: Any) -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(story)
    finally:
        loop.close()


def test_i31_each_call_expires_once_at_its_own_time() -> None:
    async def story() -> None:
        loop, over = asyncio.get_running_loop(), list[tuple[int, int]]()
        began = loop.time()

        def expire(number: int) -> None:
            over.append((number, round((loop.time() - began) * 1000)))

        deadlines = Deadlines(expire)
        for number, timeout_ms in enumerate((300, 100, 200, 100)):
            deadlines.add(number, timeout_ms)
        await asyncio.sleep(1)
        assert over == [(1, 100), (3, 100), (2, 200), (0, 300)]
        assert deadlines.count == 0

    run(story())


def test_what_has_ended_does_not_expire_and_leaves_the_others() -> None:
    async def story() -> None:
        over: list[int] = []
        deadlines = Deadlines(over.append)
        for number in range(5):
            deadlines.add(number, 100 + number)
        for number in (0, 1, 3):
            deadlines.remove(number)
        deadlines.remove(3)
        await asyncio.sleep(1)
        assert over == [2, 4]
        deadlines.add(9, 100)
        deadlines.clear()
        await asyncio.sleep(1)
        assert over == [2, 4]

    run(story())


def test_an_earlier_deadline_is_not_kept_waiting_by_a_later_one() -> None:
    async def story() -> None:
        over: list[int] = []
        deadlines = Deadlines(over.append)
        deadlines.add(1, 30_000)
        deadlines.add(2, 10)
        await asyncio.sleep(0.02)
        assert over == [2]

    run(story())


def test_who_expires_may_begin_another_call() -> None:
    async def story() -> None:
        over: list[int] = []

        def expire(number: int) -> None:
            over.append(number)
            if number < 3:
                deadlines.add(number + 1, 10)

        deadlines = Deadlines(expire)
        deadlines.add(1, 10)
        await asyncio.sleep(1)
        assert over == [1, 2, 3]

    run(story())


def test_a_thousand_calls_have_one_timer() -> None:
    async def story() -> None:
        loop: Any = asyncio.get_running_loop()
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *arguments: Any, **options: Any) -> Any:
            timers.append(when)
            return call_at(when, *arguments, **options)

        loop.call_at = counted
        deadlines = Deadlines(lambda number: None)
        for number in range(1_000):
            deadlines.add(number, 30_000)
            deadlines.remove(number)
        assert len(timers) == 1

    run(story())
