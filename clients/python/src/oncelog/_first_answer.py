"""One question to several processes: the first answer that will do.

    ask a ──silent for NEXT_AFTER_MS──► ask b, too ──► ... ──► b answers: a is not waited for

Who refuses, or is not there, gives way at once. A machine that is gone refuses nothing: its
processes stand one after the other in the list, and each would be waited for.

Left out: what is asked, and what is done with what nobody answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from oncelog._core.routing import Endpoint
from oncelogpb import errors

# A process that lives answers a question about metadata within milliseconds.
NEXT_AFTER_MS: Final = 250


class Answers(NamedTuple):
    """What came of it."""

    # (who, what) of the first answer that will do.
    good: tuple[Endpoint, Any] | None
    # Of the first one that will not, where there was none that will.
    poor: Any | None
    failures: dict[Endpoint, errors.OncelogError]


async def first_answer(
    processes: Sequence[Endpoint],
    ask: Callable[[Endpoint], Coroutine[Any, Any, Any]],
    will_do: Callable[[Any], bool],
) -> Answers:
    """Asks them in order. Raises what `ask` raises, but for OncelogError."""
    left = list(reversed(processes))
    asked: dict[asyncio.Task[Any], Endpoint] = {}
    poor: Any | None = None
    failures: dict[Endpoint, errors.OncelogError] = {}
    try:
        while left or asked:
            if left:
                endpoint = left.pop()
                asked[asyncio.create_task(ask(endpoint))] = endpoint
            done, _ = await asyncio.wait(
                asked,
                timeout=NEXT_AFTER_MS / 1000 if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in [task for task in asked if task in done]:
                endpoint = asked.pop(task)
                try:
                    reply = task.result()
                except errors.OncelogError as error:
                    failures[endpoint] = error
                    continue
                if will_do(reply):
                    return Answers((endpoint, reply), poor, failures)
                poor = poor or reply
        return Answers(None, poor, failures)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
