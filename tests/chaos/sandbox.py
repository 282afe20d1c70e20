"""A run's own namespaces: of the network, of mounts, of processes.

What a run makes there (a bridge, volumes, processes) is seen by nobody else, and is gone with the
run, however it ends. Root is not needed where the system lets users make namespaces.

Left out: systems without namespaces. A run there is on plain loopback: nothing can be cut off and
no disk can be filled, and the run says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_INSIDE: Final = "ONCELOG_CHAOS_INSIDE"
_UNSHARE: Final = (
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_AS_USER: Final = ("--user", "--map-root-user")
# What must be possible inside: a namespace of the network for each machine, and their bridge.
_TRY: Final = " && ".join(
    (
        "mount -t tmpfs none /run",
        "ip netns add a",
        "ip link add name b type bridge",
        "ip link set lo up",
    )
)


def command() -> tuple[str, ...] | None:
    """What to put before a command so that it runs inside; None where the system has no way."""
    for way in (_UNSHARE, (*_UNSHARE, *_AS_USER)):
        try:
            tried = subprocess.run([*way, "sh", "-c", _TRY], capture_output=True, check=False)
        except FileNotFoundError:
            return None
        if tried.returncode == 0:
            return way
    return None


def is_inside() -> bool:
    return _INSIDE in os.environ


def run_inside(way: Sequence[str], arguments: Sequence[str], *, module: str = "tests.chaos") -> int:
    """The same program again, inside. Its exit code."""
    environment = {**os.environ, _INSIDE: "1"}
    program = [*way, sys.executable, "-m", module, *arguments]
    with subprocess.Popen(program, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal told the run as well; it ends by itself.
                continue


def furnish() -> None:
    """Inside, once: a place for the names of network namespaces, and a loopback."""
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
