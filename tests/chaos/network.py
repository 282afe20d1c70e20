"""The network between three machines and the clients.

    clients (10.77.0.254) ── bridge ──┬── machine-1 (10.77.0.1)
                                      ├── machine-2 (10.77.0.2)
                                      └── machine-3 (10.77.0.3)

Each machine is a network namespace. A direction is cut by a false hardware address for the target
in the source's neighbour table: its packets leave, and reach nobody. Nobody is told, connections
stay open, and the other direction works. That needs `ip` alone, no firewall.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

MACHINES: Final = (1, 2, 3)
# In place of a machine's number.
CLIENTS: Final = 254

_BRIDGE: Final = "chaos0"
_NOBODY: Final = "02:00:00:00:00:01"


class Network(Protocol):
    """Between `MACHINES` and `CLIENTS`."""

    # Whether directions can be cut.
    can_cut: bool

    def address(self, machine: int) -> str: ...

    def within(self, machine: int) -> Sequence[str]:
        """What to put before a command so that it runs on the machine."""
        ...

    def cut(self, source: int, target: int) -> None:
        """Nothing that the source sends reaches the target."""
        ...

    def heal(self) -> None:
        """Of everything that was cut."""
        ...


class Loopback:
    """All of them on this machine: nothing can be cut."""

    can_cut = False

    def __init__(self, net: int = 77) -> None:
        """`net`: another one for each kind of run that may go on beside others."""
        self._net = net

    def address(self, machine: int) -> str:
        return f"127.{self._net}.0.{machine}"

    def within(self, machine: int) -> Sequence[str]:
        return ()

    def cut(self, source: int, target: int) -> None:
        raise AssertionError("nothing can be cut on loopback")

    def heal(self) -> None:
        pass


class Namespaces:
    """Made inside of a sandbox, which takes them away."""

    can_cut = True

    def __init__(self) -> None:
        self._cuts: set[tuple[int, int]] = set()
        _ip("link", "add", "name", _BRIDGE, "type", "bridge")
        _ip("link", "set", _BRIDGE, "up")
        _ip("addr", "add", f"{self.address(CLIENTS)}/24", "dev", _BRIDGE)
        for machine in MACHINES:
            self._make(machine)

    def _make(self, machine: int) -> None:
        name, port = _name(machine), f"port{machine}"
        _ip("netns", "add", name)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", port, "master", _BRIDGE, "up")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", name, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")

    def address(self, machine: int) -> str:
        return f"10.77.0.{machine}"

    def within(self, machine: int) -> Sequence[str]:
        return ("ip", "netns", "exec", _name(machine))

    def cut(self, source: int, target: int) -> None:
        self._cuts.add((source, target))
        false = ("lladdr", _NOBODY, "nud", "permanent")
        self._neighbour(source, "replace", self.address(target), *false)

    def heal(self) -> None:
        for source, target in sorted(self._cuts):
            self._neighbour(source, "del", self.address(target))
        self._cuts.clear()

    def _neighbour(self, source: int, verb: str, address: str, *what: str) -> None:
        if source == CLIENTS:
            _ip("neigh", verb, address, *what, "dev", _BRIDGE)
        else:
            _ip("-n", _name(source), "neigh", verb, address, *what, "dev", "eth0")


def _name(machine: int) -> str:
    return f"machine-{machine}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
