"""Open files of this process: connections, journals and their indexes share them.

A process that gets no more of them cannot open a segment, and resigns what it leads; so connections
may take half of them at most, and files of logs that have nothing to do a quarter: the others are
opened again when they are used (`storage/real_file`).
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

_OF_THIS_PROCESS: Final = Path("/proc/self/fd")


def raise_limit() -> int:
    """Lets this process have as many as it may give itself; the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def for_connections(wanted: int, files: int) -> int:
    """How many connections may be open where so many are wanted and so many files allowed."""
    return max(1, min(wanted, files // 2)) if files != resource.RLIM_INFINITY else wanted


def for_disk(files: int) -> int:
    """How many files of logs may be open with nothing to do, where so many are allowed."""
    return max(1, files // 4) if files != resource.RLIM_INFINITY else sys.maxsize


def count() -> int:
    """Open now; 0 where the system does not say."""
    return len(os.listdir(_OF_THIS_PROCESS)) if _OF_THIS_PROCESS.exists() else 0
