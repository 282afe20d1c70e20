"""What a role and the composition give each other. ARCHITECTURE.md, "How a role plugs in"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.machine import Codec, Machine, Projection
from oncelog_server.core.needs import Tables
from oncelog_server.core.ports import (
    Clock,
    ClusterMetadata,
    Outbox,
    Peers,
    Replica,
    Replicas,
    Reporter,
    Slots,
    TopicStore,
)
from oncelog_server.core.settling import Settler

M = TypeVar("M", bound=Machine[Any, Any, Any])
M_co = TypeVar("M_co", covariant=True)


async def at_once(work: Callable[[], None]) -> None:
    """The `offload` of a simulation, and of tests: on the loop."""
    work()


@dataclass(frozen=True, slots=True)
class RoleEnv(Generic[M_co]):
    """The outside, as handed to a role's service and outbox. M_co: the role's machine."""

    clock: Clock
    metadata: ClusterMetadata
    topics: TopicStore
    peers: Peers
    # Of this role only.
    replicas: Replicas[M_co]
    reporter: Reporter
    # Bytes nobody can guess: `random_bytes(n)`. Seeded in the simulator.
    random_bytes: Callable[[int], bytes]
    # Runs a blocking function off the loop: what decompresses or converts records.
    offload: Callable[[Callable[[], None]], Awaitable[None]] = at_once


class Role(Protocol[M]):
    """One role with its machine M, as `runtime/node` runs it."""

    # "coordinator", "partition_leader" or "offset_manager".
    name: str
    # The control topic whose partitions it leads; None: the partitions of users' topics.
    control_topic: TopicId | None
    codec: Codec[Any]

    def machine(self, partition: PartitionId) -> M:
        """A fresh, empty machine."""
        ...

    def projection(
        self, partition: PartitionId, slots: Callable[[str, int], Slots]
    ) -> Projection[Any] | None:
        """`slots(name, slot_bytes)` opens the partition's slot file of that name."""
        ...

    def settler(self) -> Settler | None:
        """None: its partitions have no committed log that could be settled."""
        ...

    def outbox(self, replica: Replica[M], env: RoleEnv[M]) -> Outbox: ...

    def checkpoint(self, machine: M) -> int | None:
        """Journal offset of the oldest open transaction, which goes to etcd as a hint for tools;
        never a place to recover from. None: nothing to tell."""
        ...

    def services(self, env: RoleEnv[M]) -> Mapping[str, object]:
        """Handler objects by the name of their gRPC service, e.g. {"Coordinator": ...}."""
        ...

    def access(self, env: RoleEnv[M]) -> Tables:
        """What each RPC of these services needs of its caller."""
        ...
