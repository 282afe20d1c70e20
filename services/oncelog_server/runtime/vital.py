"""Work that a process must not outlive: it runs until it is cancelled, and if it fails instead, the
process ends with its error. Were it only logged, the process would stand there and do half of what
it is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

# Ends the process with this error.
Fatal = Callable[[BaseException], None]


def spawn(work: Coroutine[Any, Any, None], fatal: Fatal) -> asyncio.Task[None]:
    """Runs it as a task of the running loop. The caller keeps it, and cancels it at the end."""
    task = asyncio.get_running_loop().create_task(work)
    watch(task, fatal)
    return task


def watch(task: asyncio.Task[None], fatal: Fatal) -> None:
    """The same for a task that stands."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            fatal(error)

    task.add_done_callback(ended)


def complain(error: BaseException) -> None:
    """Where no process is there to end: the loop's own handler logs it."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a task that should run for ever failed", "exception": error}
    )
