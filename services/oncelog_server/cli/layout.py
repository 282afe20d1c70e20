"""What an embedded cluster is made of: its nodes, their processes, their ports. It stays the same
over restarts, and is kept in the folder (`folder`).

A node is one process of each role, or with `--one-process` one of all. The processes of node 1 have
the plain names; those of others the node's number behind it:

    node 1    coordinator     partition_leader     offset_manager      7400 7401 7402
    node 2    coordinator-2   partition_leader-2   offset_manager-2    7410 7411 7412
    node 3    coordinator-3   ...                                      7420 ...

Invariant: a node that once ran keeps its name, its data and its ports, also while fewer are
started. It is *away* then, and so are the partitions whose only replica it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import click
import msgspec

from oncelog_server.cli.failures import CommandFailed
from oncelog_server.core.roles import PORTS, ROLES
from oncelog_server.runtime.loopback_ports import PORT_LAST, free_ports, is_free

# Name of the process that runs all roles.
ONE_PROCESS: Final = "services"
# More than a machine for development should bear: fifteen processes.
NODES_MAX: Final = 5
# Between the ports of one node and those of the next.
NODE_STEP: Final = 10


class Ports(msgspec.Struct, frozen=True):
    """Where the processes of one node listen, on loopback. etcd keeps its own."""

    coordinator: int
    partition_leader: int
    offset_manager: int

    @classmethod
    def consecutive(cls, first: int, node: int = 1) -> Ports:
        """Of a node, where those of node 1 begin at `first`."""
        first += NODE_STEP * (node - 1)
        return cls(first, first + 1, first + 2)

    @classmethod
    def free(cls) -> Ports:
        """That nobody listens on now, and no connection will take while a service is down."""
        return cls(*free_ports(len(cls.__struct_fields__)))

    def of(self, process: str) -> int:
        """Of a role's process; ONE_PROCESS listens where the coordinator would."""
        return int(getattr(self, "coordinator" if process == ONE_PROCESS else process))

    def all(self) -> tuple[int, ...]:
        return (self.coordinator, self.partition_leader, self.offset_manager)


class Process(NamedTuple):
    """One of the cluster's."""

    # Its folder and its log are named so.
    name: str
    node: int
    port: int
    roles: Sequence[str]


class Layout(msgspec.Struct, frozen=True):
    """What must stay the same over restarts."""

    # Of node 1.
    ports: Ports
    # Names of a node's processes; each has its own data.
    processes: tuple[str, ...]
    # Of nodes 2, 3, ...: of each that ever ran.
    further: tuple[Ports, ...] = ()
    # How many of them are started.
    nodes: int = 1

    def started(self) -> list[Process]:
        return [process for process in self.known() if process.node <= self.nodes]

    def away(self) -> list[Process]:
        """They have data, and are not started."""
        return [process for process in self.known() if process.node > self.nodes]

    def known(self) -> list[Process]:
        """All that ever ran, node by node."""
        return [
            Process(
                name if node == 1 else f"{name}-{node}",
                node,
                ports.of(name),
                ROLES if name == ONE_PROCESS else (name,),
            )
            for node, ports in enumerate((self.ports, *self.further), start=1)
            for name in self.processes
        ]


def choose(
    kept: Layout | None,
    where: str,
    *,
    nodes: int | None,
    ports_from: int | None,
    free: bool,
    one_process: bool,
) -> Layout:
    """`kept` is what the folder says, None where it is new; `nodes` None: as many as ran last.
    Raises CommandFailed where that contradicts, or a port is taken."""
    processes = (ONE_PROCESS,) if one_process else tuple(PORTS)
    if kept is not None and kept.processes != processes:
        option = "without --one-process" if one_process else "with --one-process"
        raise CommandFailed(
            f"the data in {where} is of {len(kept.processes)} process(es), each with its own "
            f"journals: run it {option}, or choose another folder with --data"
        )
    nodes = nodes or (1 if kept is None else kept.nodes)
    known = max(nodes, 0 if kept is None else 1 + len(kept.further))
    first, *further = _ports(kept, known, ports_from, free=free)
    layout = Layout(first, processes, tuple(further), nodes)
    busy = [process.port for process in layout.started() if not is_free(process.port)]
    if busy:
        raise CommandFailed(
            f"port {busy[0]} is in use, perhaps by another `oncelog up`; stop that one, or choose "
            "others with --ports-from N (in a new folder also --free-ports)"
        )
    return layout


def _ports(
    kept: Layout | None, known: int, ports_from: int | None, *, free: bool
) -> Sequence[Ports]:
    """Of each node: those that it had, unless others are asked for; of a new one those beside."""
    if ports_from:
        return [_consecutive(ports_from, node) for node in range(1, known + 1)]
    had = [] if kept is None else [kept.ports, *kept.further]
    first = had[0].coordinator if had else PORTS["coordinator"]
    if (free and not had) or (had and had[0] != Ports.consecutive(first)):
        return [*had, *_free(known - len(had), had)]
    return [*had, *(_consecutive(first, node) for node in range(len(had) + 1, known + 1))]


def _consecutive(first: int, node: int) -> Ports:
    """Raises UsageError."""
    ports = Ports.consecutive(first, node)
    if max(ports.all()) > PORT_LAST:
        raise click.UsageError(
            f"The ports of node {node} would end at {max(ports.all())}, above {PORT_LAST}: choose "
            f"a lower --ports-from; each further node takes ports {NODE_STEP} above the last."
        )
    return ports


def _free(nodes: int, had: Sequence[Ports]) -> Iterator[Ports]:
    """Not those of a node that is away, either."""
    taken = {port for ports in had for port in ports.all()}
    size = len(Ports.__struct_fields__)
    drawn = free_ports(size * nodes, promised=taken)
    for start in range(0, size * nodes, size):
        yield Ports(*drawn[start : start + size])
