"""Ctrl-C while modules are imported (half a second): the system's own way to end, so that nobody
sees the traceback of an import. From then on Python's: a command ends in good order. What runs
until it is stopped asks `stop_signals`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What stood before, while imports go on.
_before: Any = None


def end_at_once() -> None:
    """Where nobody else handles interrupts, or has them ignored (a shell's background)."""
    global _before
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _before = signal.signal(signal.SIGINT, signal.SIG_DFL)


def hear_again() -> None:
    """What was imported runs."""
    global _before
    if _before is not None:
        signal.signal(signal.SIGINT, _before)
        _before = None


@contextmanager
def importing() -> Iterator[None]:
    """For what a command imports once it runs, because its help does not need it."""
    end_at_once()
    try:
        yield
    finally:
        hear_again()


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came, also in a shell's background, where Ctrl-C is ignored. They
    interrupt nothing: the loop looks often enough."""
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
