"""New partitions over the nodes that live now, as the view shows them (the rules: `placement`)."""

from __future__ import annotations

from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.etcd.placement import Holder, spread


def holders(view: ClusterView, role: str) -> list[Holder]:
    """The living nodes that run it."""
    return [Holder(node.node_id, node.rack) for node in view.nodes() if role in node.roles]


def placed(
    view: ClusterView, role: str, partitions: int, replication_factor: int
) -> list[PartitionState]:
    """New partitions over the living nodes of their role. Raises TooFewNodes."""
    spread_over = spread(partitions, replication_factor, holders(view, role), view.replica_counts())
    return [PartitionState(replicas=replicas) for replicas in spread_over]
