"""One connection to a cluster per process and address.

Spark forks its workers and reuses them over tasks, batches and queries; gRPC must not cross a fork.
So connections are kept by process id, and a forked child makes its own.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

_lock = threading.Lock()
_open: dict[tuple[int, str], Protocol] = {}


def connection(bootstrap: str) -> Protocol:
    """This process's connection to the cluster at `bootstrap`; made when first asked for."""
    from oncelog.protocol import Protocol

    key = (os.getpid(), bootstrap)
    with _lock:
        if key not in _open:
            _open[key] = Protocol(bootstrap)
        return _open[key]


def _unlock() -> None:
    """In a forked child: the parent's lock may be held. Its connections stay where they are, under
    its process id: to end them here would call into gRPC."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
