"""The loop that services run on."""

from __future__ import annotations

import asyncio

import uvloop

from oncelog_server.runtime import event_loop


def test_services_run_on_uvloop_with_a_clock_that_goes_on_within_a_turn() -> None:
    async def main() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        return isinstance(loop, uvloop.Loop), all(loop.time() > before for _ in range(3))

    assert event_loop.run(main()) == (True, True)


def test_a_timeout_ends_by_that_clock() -> None:
    """Within the millisecond that the loop's timers round by, which may be before the time."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return loop.time() - before
        raise AssertionError("it did not end")

    assert event_loop.run(main()) >= 0.01 - 0.002
