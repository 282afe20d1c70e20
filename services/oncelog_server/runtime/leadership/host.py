"""What elections ask of the process that holds the replicas."""

from __future__ import annotations

from typing import Protocol

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.target import Candidate, Isr, Target


class ReplicaHost(Protocol):
    """The process that holds the replicas (runtime/hosting)."""

    def aim(self, partition: PartitionId, target: Target) -> None:
        """Where the replica should be from this turn on. On the loop; must not block; an exception
        out of it ends the process."""
        ...

    def isr_seen(self, partition: PartitionId, epoch: int, isr: Isr) -> None:
        """Who is in sync, in an epoch that this process leads. The same may be said twice, and what
        is older after what is newer: revisions tell."""
        ...

    def candidate(self, partition: PartitionId) -> Candidate | None:
        """None while the replica may not stand: it is being opened, or cannot be. `look_again` is
        called when that has changed."""
        ...

    async def opened(self, partition: PartitionId) -> Candidate:
        """Waits for it. Raises what kept it from being opened."""
        ...
