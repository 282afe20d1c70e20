"""Who may send markers here, and whom they were meant for. PURE: reads this process's view of etcd.

Both protect what a marker leaves behind: an epoch that was never granted, remembered as the
highest, would shut every real coordinator out.
"""

from __future__ import annotations

from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId
from oncelog_server.core.ports import ClusterMetadata
from oncelogpb.errors import NotLeader


def require_boot(metadata: ClusterMetadata, partition: PartitionId, boot_id: bytes) -> None:
    """Raises NotLeader where the markers were meant for another run of this process: its epoch is
    over. An empty `boot_id` means any run."""
    leader = metadata.leader_of(partition)
    if boot_id and leader is not None and leader.boot_id != boot_id:
        raise NotLeader(
            f"partition {partition} is led by another run of this process; ask for the leader",
            leader_node=leader.node_id,
            leader_host=leader.host,
            leader_port=leader.port,
            epoch=leader.epoch,
        )


def require_granted(
    metadata: ClusterMetadata, journal_partition: int, coordinator_epoch: int
) -> None:
    """Raises NotLeader for a coordinator epoch that etcd granted to nobody, as far as this process
    knows. Where it lags behind etcd, it is asked again."""
    journal = PartitionId(TRANSACTION_CONTROL_ID, journal_partition)
    known = metadata.partition(journal)
    if known is not None and coordinator_epoch > known.epoch:
        raise NotLeader(
            f"epoch {coordinator_epoch} of {journal} is not known here, only "
            f"{known.epoch}; try again",
            epoch=known.epoch,
        )
