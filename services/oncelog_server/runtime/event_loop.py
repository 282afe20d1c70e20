"""The event loop of a service: uvloop's (docs/adr/0006).

Not the client's: its loop runs in a thread beside the user's, takes the interpreter anew for each
callback, and is slower with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class ServiceLoop(uvloop.Loop):
    """uvloop's own clock counts milliseconds and stands still within a turn; a sync takes 0.1 ms,
    and is measured by this one."""

    def time(self) -> float:
        return time.monotonic()


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run."""
    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        return runner.run(main)
