"""Users' functions that are called when something has become known: in a thread of their own, so
that they may wait, or call the connection again, and never on the event loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

# How long the end waits for functions that are slow, seconds.
DRAIN_SECONDS_MAX: Final = 30.0


class Calls:
    """One function, called with one thing after the other. Its thread begins with the first."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, what: Any) -> None:
        """Has it called soon. From one thread: the loop's."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oncelog calls", daemon=True)
            self._thread.start()
        self._waiting.put(what)

    def drain(self) -> None:
        """Returns when it was called for all that was added; at the latest after a while. Does
        nothing where the function itself asks for it."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        drained = threading.Event()
        self._waiting.put(drained)
        drained.wait(DRAIN_SECONDS_MAX)

    def close(self) -> None:
        """Drains, and ends the thread. Safe to repeat."""
        self.drain()
        if self._thread is not None:
            self._waiting.put(_END)
            self._thread = None

    def _run(self) -> None:
        while (what := self._waiting.get()) is not _END:
            if isinstance(what, threading.Event):
                what.set()
                continue
            try:
                self._function(what)
            except Exception as error:
                # Shown as that of any thread; the next ones are called all the same.
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, None))
                )


_END: Final = object()


def drain(calls: Calls | None) -> None:
    if calls is not None:
        calls.drain()


def close_calls(calls: Calls | None) -> None:
    if calls is not None:
        calls.close()
