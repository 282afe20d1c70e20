"""The ports of `core`, with the coordinator's machine in them. PURE."""

from __future__ import annotations

from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.core.ports import Replica
from oncelog_server.core.role import RoleEnv

CoordinatorReplica = Replica[CoordinatorMachine]
CoordinatorEnv = RoleEnv[CoordinatorMachine]
