"""Loopback ports for services that shall keep them over restarts.

Invariant: a port that is found here is not one that the system gives to connections, where it says
which those are. A service that is down must not lose its port to somebody's connection.

Between the draw and the moment when somebody listens there, a port looks free. So who draws one
claims it: no other draw gets it as long as this process runs. The claim is a lock on one byte of a
file that the processes of one user share; the kernel ends it with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import random
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
# Below it are the ports of well-known services.
PORT_FIRST: Final = 10_000
PORT_LAST: Final = 65_535
# With fewer than so many on one side of those that connections get, the other side is taken.
PORTS_MIN: Final = 1_000
# Linux's answer to where connections get theirs from: the first and the last.
RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
# What other systems do (IANA's recommendation).
DYNAMIC_PORTS: Final = range(49_152, PORT_LAST + 1)

# What this process drew.
_CLAIMED: Final[set[int]] = set()


def free_ports(
    count: int, *, among: range | None = None, promised: Collection[int] = ()
) -> list[int]:
    """So many that nobody listens on now, drawn by lot: who else looks for some finds others. None
    that is `promised`: somebody will listen there, and does not yet.
    Raises OSError where there are not so many."""
    among = for_listeners(given_to_connections()) if among is None else among
    drawn = random.sample(among, len(among))
    free = (port for port in drawn if port not in promised and is_free(port))
    found: list[int] = []
    claimed: list[int] = []
    while len(found) < count and (port := next(free, None)) is not None:
        (found if _claim(port) else claimed).append(port)
    # Better those than none: most of who drew them listen by now, or never will.
    found += claimed[: count - len(found)]
    if len(found) == count:
        return found
    raise OSError(
        errno.EADDRNOTAVAIL, f"no {count} free ports among {among.start} to {among.stop - 1}"
    )


def _claim(port: int) -> bool:
    """False where it was drawn before, by this process or by another one that runs yet."""
    if port in _CLAIMED:
        return False
    file = _claims_file()
    if file is not None:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError as error:
            # Else it is a file system without locks: then chance alone keeps runs apart.
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
    _CLAIMED.add(port)
    return True


@functools.cache
def _claims_file() -> int | None:
    """Never closed: with it all claims would go. It is empty, and may be removed at any time."""
    path = Path(tempfile.gettempdir()) / f"oncelog-ports-{os.getuid()}"
    with contextlib.suppress(OSError):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return None


def is_free(port: int) -> bool:
    """Nobody listens there. A connection of an earlier run in TIME_WAIT is no hindrance."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def given_to_connections() -> range:
    """The ports that the system gives to connections."""
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, RANGE_FILE.read_text().split())
        return range(first, last + 1)
    return DYNAMIC_PORTS


def for_listeners(given: range) -> range:
    """Those below the ports that connections get, else those above them, else all."""
    below = range(PORT_FIRST, max(PORT_FIRST, given.start))
    above = range(max(PORT_FIRST, given.stop), PORT_LAST + 1)
    for side in (below, above):
        if len(side) >= PORTS_MIN:
            return side
    return range(PORT_FIRST, PORT_LAST + 1)
