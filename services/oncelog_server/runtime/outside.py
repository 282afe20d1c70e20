"""What a process is given: the world outside (`Outside`), and its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from oncelog_server.core.ports import Clock, Peers, Reporter
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.etcd.port import Etcd
from oncelog_server.runtime.leadership.lease import BlockingRenewals
from oncelog_server.runtime.replica.env import COMPACTION_MAP_BYTES
from oncelog_server.runtime.replication.links import Streams
from oncelog_server.runtime.storage.port import Disk


class Listener(Protocol):
    """Where the node's handlers are served."""

    async def start(self, handlers: Mapping[str, object]) -> tuple[str, int]:
        """The host and port to advertise."""
        ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """What a node is given of the world."""

    disk: Disk
    etcd: Etcd
    clock: Clock
    peers: Peers
    # Streams to leaders.
    streams: Streams
    listener: Listener
    # Of the process, and of each of its roles.
    reporter: Reporter
    role_reporter: Callable[[str], Reporter]
    random_bytes: Callable[[int], bytes]
    # Runs a blocking function off the loop (in the simulator: at once).
    offload: Callable[[Callable[[], None]], Awaitable[None]]
    # None: the lease is renewed by a task (in-memory etcd).
    renewals: Callable[[], BlockingRenewals] | None = None
    # Whom the listener asks who may make which call; fed from here. None: nobody is asked.
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What the node needs of its configuration."""

    lease_ms: int
    min_insync_replicas: int
    control_replication_factor: int
    # A replica that did not catch up for so long is not in sync.
    replica_lag_ms: int
    # What another node should lead is handed over when that one was in sync for so long; 0: never.
    balance_after_ms: int
    # How long a process that stops waits for others.
    hand_over_max_ms: int
    disk_free_floor_bytes: int
    segment_bytes: int
    snapshot_every_bytes: int
    tick_ms: int
    tail_bytes_max: int
    # Where so many bytes wait, they are written beside a sync.
    commit_ahead_bytes: int = 512 << 10
    # Of a journal that nothing needs and that is worth keeping.
    control_journal_bytes_max: int = 4 << 30
    # For the keys of a pass of compaction.
    compaction_map_bytes: int = COMPACTION_MAP_BYTES
    rack: str = ""
    # What callers from outside connect to, if they can.
    external: tuple[str, int] | None = None
