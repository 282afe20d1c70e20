"""Loopback ports for services that shall keep them over restarts.

Invariant: a port that is found here is not one that the system gives to connections, where it says
which those are. A service that is down must not lose its port to somebody's connection.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import socket
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


def free_ports(
    count: int, *, among: range | None = None, promised: Collection[int] = ()
) -> list[int]:
    """So many that nobody listens on now, drawn by lot: who else looks for some finds others. None
    that is `promised`: somebody will listen there, and does not yet.
    Raises OSError where there are not so many."""
    among = for_listeners(given_to_connections()) if among is None else among
    drawn = random.sample(among, len(among))
    free = (port for port in drawn if port not in promised and is_free(port))
    found = list(itertools.islice(free, count))
    if len(found) == count:
        return found
    raise OSError(
        errno.EADDRNOTAVAIL, f"no {count} free ports among {among.start} to {among.stop - 1}"
    )


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
