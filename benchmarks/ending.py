"""Whoever ends a benchmark ends what it has started."""

from __future__ import annotations

import signal
import time
from typing import Final

# timeout(1) tells the process, and then its group: that is one interrupt, not two.
ONE_INTERRUPT_S: Final = 1.0


def end_as_by_ctrl_c() -> None:
    """SIGTERM ends this process as Ctrl-C does, which unwinds, so that services are stopped and
    folders are removed. Ctrl-C counts also where a shell has its background ignore it."""
    last_s = float("-inf")

    def interrupted(*_: object) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s > ONE_INTERRUPT_S:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
