"""Work that many events call for: at once, and then once in a while at most."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.runtime.pace import Pace
from tests.simulation.virtual_time import VirtualTimeLoop, run

EVERY_MS = 20


def test_what_is_called_for_seldom_is_done_at_once() -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        done: list[float] = []
        pace = Pace(lambda: done.append(loop.time()), every_ms=EVERY_MS)
        for _ in range(3):
            await asyncio.sleep(1)
            pace.call()
            assert done[-1] == loop.time(), "nothing was done before, so it need not wait"
        await asyncio.sleep(1)
        assert len(done) == 3

    run(main(), loop)


def test_what_is_called_for_often_is_done_seldom_and_after_the_last_call() -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        done: list[float] = []
        pace = Pace(lambda: done.append(loop.time()), every_ms=EVERY_MS)
        for _ in range(1_000):
            pace.call()
            called = loop.time()
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert len(done) == pytest.approx(1_000 / EVERY_MS, abs=3), "each call has all done anew"
        assert called <= done[-1] <= called + EVERY_MS / 1000, "the last call was forgotten"

    run(main(), loop)


def test_who_stops_does_nothing_any_more() -> None:
    async def main() -> None:
        done: list[int] = []
        pace = Pace(lambda: done.append(1), every_ms=EVERY_MS)
        pace.stop()
        pace.call()
        pace.call()
        pace.stop()
        await asyncio.sleep(1)
        assert done == [1]

    run(main(), VirtualTimeLoop())
