"""Stops a program's loop in good order when it is told to (SIGTERM): what is under way is finished.

Only in the main thread, where Python delivers signals, and only for signals that the program does
not handle itself: those that end a process, or, as Ctrl-C, raise KeyboardInterrupt. The first one
asks; a second one does what it did before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping(signals: Iterable[int], stop: Callable[[], object]) -> Iterator[None]:
    """Calls `stop` at the first of these signals, in the main thread, between two of its steps."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = {
        number: before
        for number in signals
        if (before := signal.getsignal(number)) in (signal.SIG_DFL, signal.default_int_handler)
    }

    def told(number: int, frame: FrameType | None) -> None:
        give_back()
        stop()

    def give_back() -> None:
        for number, before in ours.items():
            if signal.getsignal(number) is told:
                signal.signal(number, before)

    for number in ours:
        signal.signal(number, told)
    try:
        yield
    finally:
        give_back()
