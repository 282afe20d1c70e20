"""Whoever ends a benchmark ends what it has started."""

from __future__ import annotations

import signal


def end_as_by_ctrl_c() -> None:
    """SIGTERM ends this process as Ctrl-C does, which unwinds, so that services are stopped and
    folders are removed. Ctrl-C counts also where a shell has its background ignore it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
