"""The ports of `core`, with the partition leader's machine in them. PURE."""

from __future__ import annotations

from oncelog_server.core.ports import Replica
from oncelog_server.core.role import RoleEnv
from oncelog_server.partition_leader.machine import PartitionMachine

PartitionReplica = Replica[PartitionMachine]
PartitionEnv = RoleEnv[PartitionMachine]
