"""SIGSTOP in virtual time: who is stopped does nothing, the others go on, nothing is lost."""

from __future__ import annotations

import asyncio
import contextvars

from tests.simulation.virtual_time import VirtualTimeLoop, run

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="world")


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
