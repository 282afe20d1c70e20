"""The four distributions, as their folders say it; what is built from them is `tests/wheels`."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import oncelog
import oncelog_server
import oncelog_spark
import oncelogpb
from oncelog_server.runtime import node
from tests.tidy.version import FORM, PLACES, ROOT, Place, found

# Distribution -> its folder, where its packages lie, and the packages.
DISTRIBUTIONS = {
    "oncelog-proto": ("protos", "protos/src", ["oncelogpb"]),
    "oncelog": ("clients/python", "clients/python/src", ["oncelog"]),
    "oncelog-server": (".", "services", ["oncelog_server"]),
    "oncelog-spark": ("spark", "spark/src", ["oncelog_spark", "pyspark_oncelog"]),
}
EVERY = sorted(DISTRIBUTIONS)
# PySpark is the user's own, and so is the server behind `oncelog.testing`.
NOT_DECLARED = {("oncelog-spark", "pyspark"), ("oncelog", "oncelog-server")}
# The first line of the text, so that nobody cuts it short.
LICENSE_LINES = 202


def project(distribution: str) -> dict[str, Any]:
    folder, _, _ = DISTRIBUTIONS[distribution]
    with (ROOT / folder / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"])


# ------------------------------------------------------------------------------------ the version


@pytest.mark.parametrize("place", PLACES, ids=[place.path for place in PLACES])
def test_the_version_is_one(place: Place) -> None:
    assert found(place) == [oncelogpb.__version__] * place.times, "make version TO=..."


def test_every_package_tells_it() -> None:
    assert FORM.fullmatch(oncelog.__version__)
    told = {oncelogpb.__version__, oncelog_server.__version__, oncelog_spark.__version__}
    assert told == {oncelog.__version__}
    # What a process writes into etcd and `oncelog cluster nodes` shows.
    assert oncelog.__version__ == node.VERSION


@pytest.mark.parametrize("distribution", EVERY)
def test_a_distribution_takes_the_version_of_its_package(distribution: str) -> None:
    folder, _, packages = DISTRIBUTIONS[distribution]
    with (ROOT / folder / "pyproject.toml").open("rb") as file:
        whole = tomllib.load(file)
    assert "version" not in whole["project"], "it stands in the package: [tool.setuptools.dynamic]"
    assert whole["project"]["dynamic"] == ["version"]
    attribute = whole["tool"]["setuptools"]["dynamic"]["version"]
    assert attribute == {"attr": f"{packages[0]}.__version__"}


# ------------------------------------------------------------------- what users see of it, and get


@pytest.mark.parametrize("distribution", EVERY)
def test_a_distribution_says_what_it_is(distribution: str) -> None:
    said = project(distribution)
    assert said["name"] == distribution
    assert said["license"] == "Apache-2.0"
    assert said["license-files"] == ["LICENSE"]
    assert said["keywords"]
    assert "Typing :: Typed" in said["classifiers"]
    assert not any(line.startswith("License ::") for line in said["classifiers"]), (
        "the licence is said by `license`, once"
    )


@pytest.mark.parametrize("distribution", EVERY)
def test_its_readme_reads_alone(distribution: str) -> None:
    """A package index shows it far from the repository: a relative link would lead nowhere."""
    folder, _, _ = DISTRIBUTIONS[distribution]
    readme = ROOT / folder / project(distribution)["readme"]
    assert readme.suffix == ".md", "the content type is taken from the name"
    text = readme.read_text()
    assert text.startswith("# ")
    assert f"pip install {distribution}" in text or f"pip install '{distribution}" in text
    relative = re.findall(r"\]\((?!https?://|#)([^)]+)\)", text)
    assert not relative, f"name the page in words: {relative}"


@pytest.mark.parametrize("distribution", EVERY)
def test_its_licence_is_the_whole_text(distribution: str) -> None:
    folder, _, _ = DISTRIBUTIONS[distribution]
    text = (ROOT / folder / "LICENSE").read_text()
    assert text == (ROOT / "LICENSE").read_text()
    assert len(text.splitlines()) == LICENSE_LINES
    assert "Apache License\n" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize("distribution", EVERY)
def test_its_packages_are_typed(distribution: str) -> None:
    _, source, packages = DISTRIBUTIONS[distribution]
    for package in packages:
        assert (ROOT / source / package / "py.typed").exists(), package


# ----------------------------------------------------------------------------------- dependencies


@pytest.mark.parametrize("distribution", EVERY)
def test_what_it_imports_it_declares(distribution: str) -> None:
    """Itself, not by way of a dependency's dependency, which may go."""
    said = project(distribution)
    declared = {Requirement(line).name.lower() for line in said["dependencies"]}
    for extra in said.get("optional-dependencies", {}).values():
        declared |= {Requirement(line).name.lower() for line in extra}
    imported = {
        name for name in _imported(distribution) if (distribution, name) not in NOT_DECLARED
    }
    assert imported <= declared | {distribution}, "add it to `dependencies`, with its floor"


@pytest.mark.parametrize("distribution", EVERY)
def test_every_dependency_has_a_floor_or_is_pinned(distribution: str) -> None:
    for line in project(distribution)["dependencies"]:
        wanted = Requirement(line)
        operators = {each.operator for each in wanted.specifier}
        ours = wanted.name in DISTRIBUTIONS
        assert operators == ({"=="} if ours else {">="}), line


def _imported(distribution: str) -> set[str]:
    _, source, packages = DISTRIBUTIONS[distribution]
    files = [file for package in packages for file in (ROOT / source / package).rglob("*.py")]
    return {_distribution_of(name) for file in files for name in _modules(file)} - {""}


def _modules(file: Path) -> Iterator[str]:
    for statement in ast.walk(ast.parse(file.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            yield statement.module


# Namespaces that several distributions share.
SHARED = {"google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos"}


@functools.cache
def _installed() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _distribution_of(module: str) -> str:
    """Its distribution as the index spells it; "" for the standard library."""
    top = module.split(".")[0]
    if top in sys.stdlib_module_names:
        return ""
    shared = SHARED.get(".".join(module.split(".")[:2]))
    if shared is not None:
        return shared
    names = _installed()[top]
    return names[0].lower().replace("_", "-")
