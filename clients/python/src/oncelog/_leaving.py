"""What the plain face does with records that were sent and not flushed when nobody can flush them
any more: the program ends, or lets go of its connection. It says so, loudly, and flushes what it
can within a few seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import weakref
from typing import Final

from oncelog._loop import LoopThread
from oncelog._warning import warn_of_no_line
from oncelog.aio.log import Log
from oncelog.aio.unsent import UnsentRecordsWarning, warn_of_failed
from oncelog.errors import OncelogError

# How long the end of a program waits for records to be acknowledged, seconds.
FLUSH_SECONDS_MAX: Final = 5.0


def flush_at_the_end(loop: LoopThread, log: Log) -> None:
    """From now on, of this connection. It holds neither of them."""
    _OPEN[loop] = weakref.ref(log)
    loop.last_words.append(lambda: _flush(log))


async def _flush(log: Log) -> None:
    """What is not settled even then is told by the recorder, when it goes."""
    count = log.unsent
    if count:
        warn_of_no_line(
            f"{count} records were sent and neither flushed nor closed before their end: "
            f"flushing for up to {FLUSH_SECONDS_MAX:.0f} s. Use `with`, or call close()",
            UnsentRecordsWarning,
        )
    with contextlib.suppress(OncelogError, TimeoutError):
        for failed in await asyncio.wait_for(log.settle(), FLUSH_SECONDS_MAX):
            warn_of_failed(failed)


# Connections that were not closed.
_OPEN: Final[weakref.WeakKeyDictionary[LoopThread, weakref.ref[Log]]] = weakref.WeakKeyDictionary()


@atexit.register
def _flush_all() -> None:
    for loop, held in list(_OPEN.items()):
        log = held()
        if log is not None:
            with contextlib.suppress(OncelogError):
                loop.run(_flush(log))
