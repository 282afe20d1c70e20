"""SIGSTOP in virtual time: who is stopped does nothing, the others go on, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars

from tests.simulation.virtual_time import VirtualTimeLoop, run

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="world")


def test_who_is_stopped_and_resumed_while_a_step_pauses_goes_on_when_that_step_has_ended() -> None:
    """As a process that loses power, or is thawed, in the middle of a paused step. What ran inside
    of that step was lost without a word: its context was in use."""
    loop = VirtualTimeLoop()
    loop.owner_of = lambda context: context.get(OWNER, "world")
    said: list[tuple[float, str]] = []

    def say(words: str) -> None:
        said.append((round(loop.time(), 3), words))

    async def other() -> None:
        await asyncio.sleep(2)
        say("other")

    async def pauses() -> None:
        await asyncio.sleep(1)
        loop.pause("a", 4.0)
        say("after")

    async def main() -> None:
        as_a = contextvars.copy_context()
        as_a.run(OWNER.set, "a")
        tasks = [asyncio.create_task(work(), context=as_a) for work in (pauses, other)]
        await asyncio.sleep(3)
        loop.stop_owner("a")
        loop.resume_owner("a")
        await asyncio.gather(*tasks)

    run(main(), loop)
    assert said == [(5.0, "after"), (5.0, "other")]


def test_a_pause_in_the_middle_of_a_step_stops_its_owner_and_nobody_else() -> None:
    loop = VirtualTimeLoop()
    loop.owner_of = lambda context: context.get(OWNER, "world")
    said: list[tuple[float, str]] = []

    def say(words: str) -> None:
        said.append((round(loop.time(), 3), words))

    async def ticks(name: str, every_s: float, count: int) -> None:
        for number in range(count):
            await asyncio.sleep(every_s)
            say(f"{name} {number}")

    async def pauses() -> None:
        await asyncio.sleep(1.5)
        say("before")
        loop.pause("a", 4.0)
        say("after")
        await asyncio.sleep(1)
        say("later")

    async def main() -> None:
        as_a = contextvars.copy_context()
        as_a.run(OWNER.set, "a")
        tasks = [
            asyncio.create_task(ticks("a", 1, 3), context=as_a.copy()),
            asyncio.create_task(pauses(), context=as_a.copy()),
            asyncio.create_task(ticks("b", 2, 3)),
        ]
        await asyncio.gather(*tasks)

    run(main(), loop)
    assert said == [
        (1.0, "a 0"),
        (1.5, "before"),
        (2.0, "b 0"),
        (4.0, "b 1"),
        (5.5, "after"),
        # Its timer was due at 2.0, and rings when it goes on.
        (5.5, "a 1"),
        (6.0, "b 2"),
        (6.5, "later"),
        (6.5, "a 2"),
    ]


def test_a_clock_that_runs_fast_shortens_its_owners_sleeps_and_nobody_elses() -> None:
    loop = VirtualTimeLoop()
    loop.owner_of = lambda context: context.get(OWNER, "world")
    loop.current_owner = OWNER.get
    loop.set_pace("fast", 2.0)
    loop.set_pace("slow", 0.5)
    said: list[tuple[str, float, float]] = []

    async def sleeps(name: str) -> None:
        OWNER.set(name)
        await asyncio.sleep(2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await loop.create_future()
        said.append((name, loop.time(), loop.now_s))

    async def main() -> None:
        await asyncio.gather(*(sleeps(name) for name in ("fast", "slow", "world")))

    run(main(), loop)
    assert said == [("fast", 4.0, 2.0), ("world", 4.0, 4.0), ("slow", 4.0, 8.0)]
