"""What every RPC needs of its caller stands in a table: an RPC without an entry is refused to
everybody, also to who should be let in. That the entries are right is held by tests/access."""

from __future__ import annotations

from typing import Any

from oncelog_server.cli.compose import ROLE_CLASSES
from oncelog_server.cli.settings import ServeSettings
from oncelog_server.core.role import RoleEnv
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.rpc import cluster_access
from oncelogpb import rpcs


def tables() -> dict[str, set[str]]:
    """RPCs by service, of all roles. Nothing is looked up before a call comes."""
    nothing: Any = None
    env = RoleEnv(*[nothing] * 7)
    settings = ServeSettings.make(ROLES).loaded
    found = {
        "Cluster": set(cluster_access.entries(nothing)),
        "Replication": set(cluster_access.REPLICATION),
    }
    for make in ROLE_CLASSES.values():
        role: Any = make(settings)
        services = set(role.services(env))
        table = role.access(env)
        assert set(table) == services, f"{role.name}: a table for each service that it serves"
        for service, entries in table.items():
            found.setdefault(service, set()).update(entries)
    return found


def test_every_rpc_says_what_it_needs() -> None:
    wanted = {name: set(rpcs.methods(service)) for name, service in rpcs.ALL.items()}
    assert tables() == wanted, "add it to <role>/access.py, and to tests/access/cases.py"
