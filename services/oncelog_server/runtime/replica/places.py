"""Work of which a process does so much at once, in the background: whoever finds no place is woken
when one is free, those first who have waited longest.

Left out: what becomes of who is woken and has nothing to do any more. The next one is woken by
whoever has a place then, or asks again by itself, as each does about once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Places:
    """`async with` takes one where none is `locked`."""

    def __init__(self, count: int) -> None:
        assert count > 0, "else nothing is ever done"
        self._free = count
        # In the order in which they came.
        self._waiting: dict[Callable[[], None], None] = {}

    def locked(self) -> bool:
        """None is free."""
        return self._free == 0

    def wait(self, wake: Callable[[], None]) -> None:
        """`wake` is called once, in a turn of its own, when a place is free."""
        self._waiting[wake] = None

    def leave(self, wake: Callable[[], None]) -> None:
        """It waits no more; no error where it did not."""
        self._waiting.pop(wake, None)

    async def __aenter__(self) -> None:
        assert self._free, "a place is taken in the turn in which one was seen"
        self._free -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free += 1
        if self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            asyncio.get_running_loop().call_soon(first)
