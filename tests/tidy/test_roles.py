"""A role stands in every table that goes by role (ARCHITECTURE.md, "How to add a role"): each
failure names the table or the file that lacks one.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable
from pathlib import Path

import pytest

from oncelog import testing
from oncelog_server.cli import compose, layout, limits, settings
from oncelog_server.core.roles import PORTS, ROLES
from oncelog_server.runtime.observe import catalogue
from oncelogpb import rpcs

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "oncelog_server"
FILES = (
    "README.md", "access.py", "__main__.py", "commands.py", "config.py", "machine.py", "outbox.py",
    "records.py", "role.py", "service.py", "wire.py",
)  # fmt: skip
# Contracts of .importlinter that name every role.
CONTRACTS = {
    "roles": "modules",
    "roles-know-core": "source_modules",
    "runtime": "forbidden_modules",
    "participant": "forbidden_modules",
    "no-grpc": "source_modules",
}


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("services/oncelog_server/cli/settings.py SECTIONS", set(settings.SECTIONS) - {"node"}),
        ("services/oncelog_server/cli/compose.py ROLE_CLASSES", compose.ROLE_CLASSES),
        ("services/oncelog_server/cli/layout.py Ports", layout.Ports.__struct_fields__),
        ("services/oncelog_server/cli/limits.py SECTIONS", {one.title for one in limits.SECTIONS}),
        ("services/oncelog_server/core/roles.py PORTS", PORTS),
        ("services/oncelog_server/runtime/observe/catalogue.py ROLES", catalogue.ROLES),
        ("clients/python/src/oncelog/testing.py ROLES", testing.ROLES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_table_has_every_role(table: str, names: Iterable[str]) -> None:
    assert set(ROLES) <= set(names), f"{table} lacks a role"


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_the_same_files_and_a_driver_of_its_stories(role: str) -> None:
    wanted = [SERVICES / role / name for name in FILES]
    wanted.append(ROOT / "tests" / "golden" / role / "driver.py")
    assert not [str(file.relative_to(ROOT)) for file in wanted if not file.exists()]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_a_service_in_the_protos(role: str) -> None:
    assert rpcs.find(role)


@pytest.mark.parametrize(("contract", "option"), CONTRACTS.items())
def test_import_contracts_name_every_role(contract: str, option: str) -> None:
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / ".importlinter")
    named = parsed[f"importlinter:contract:{contract}"][option].split()
    assert {f"oncelog_server.{role}" for role in ROLES} <= set(named)
