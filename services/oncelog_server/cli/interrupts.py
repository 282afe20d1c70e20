"""Ctrl-C while modules are imported (half a second): the system's own way to end, so that nobody
sees the traceback of an import. From then on Python's: a command ends in good order.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
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
