"""A role stands in every table that goes by role (ARCHITECTURE.md, "How to add a role"): each
failure names the table or the file that lacks one.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable
from pathlib import Path

import pytest

from oncelog import testing
from oncelogpb import rpcs
from services.cli import compose, folder, limits, settings
from services.core.roles import ROLES
from services.runtime import node_config
from services.runtime.observe import catalogue

ROOT = Path(__file__).parents[2]
FILES = (
    "README.md", "__main__.py", "commands.py", "config.py", "machine.py", "outbox.py", "records.py",
    "role.py", "service.py", "wire.py",
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
        ("services/cli/settings.py SECTIONS", set(settings.SECTIONS) - {"node"}),
        ("services/cli/compose.py ROLE_CLASSES", compose.ROLE_CLASSES),
        ("services/cli/folder.py Ports", folder.Ports.__struct_fields__),
        ("services/cli/limits.py SECTIONS", {one.title for one in limits.SECTIONS}),
        ("services/runtime/node_config.py PORTS", node_config.PORTS),
        ("services/runtime/observe/catalogue.py ROLES", catalogue.ROLES),
        ("clients/python/src/oncelog/testing.py ROLES", testing.ROLES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_table_has_every_role(table: str, names: Iterable[str]) -> None:
    assert set(ROLES) <= set(names), f"{table} lacks a role"


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_the_same_files_and_a_driver_of_its_stories(role: str) -> None:
    wanted = [ROOT / "services" / role / name for name in FILES]
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
    assert {f"services.{role}" for role in ROLES} <= set(named)
