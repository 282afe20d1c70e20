"""The ports of `core`, with the offset manager's machine in them. PURE."""

from __future__ import annotations

from oncelog_server.core.ports import Replica
from oncelog_server.core.role import RoleEnv
from oncelog_server.offset_manager.machine import OffsetManagerMachine

OffsetManagerReplica = Replica[OffsetManagerMachine]
OffsetManagerEnv = RoleEnv[OffsetManagerMachine]
