"""What is in the wheels: every file of the packages, the licence, the words for users, no more."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import oncelog
from tests.wheels.building import FOLDERS, ROOT, files

# Distribution -> where its packages lie, and their names: all that may stand in site-packages.
PACKAGES = {
    "oncelog-proto": ("protos/src", {"oncelogpb"}),
    "oncelog": ("clients/python/src", {"oncelog"}),
    "oncelog-server": ("services", {"oncelog_server"}),
    "oncelog-spark": ("spark/src", {"oncelog_spark", "pyspark_oncelog"}),
}
EVERY = sorted(PACKAGES)


def opened(wheels: Path, distribution: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheels / f"{stem(distribution)}-py3-none-any.whl")


def stem(distribution: str) -> str:
    return f"{distribution.replace('-', '_')}-{oncelog.__version__}"


def metadata(wheels: Path, distribution: str) -> Message:
    with opened(wheels, distribution) as wheel:
        return email.message_from_bytes(wheel.read(f"{stem(distribution)}.dist-info/METADATA"))


def in_repository(distribution: str) -> set[str]:
    """The files of its packages, as they stand in site-packages."""
    source, packages = PACKAGES[distribution]
    below = {path.removeprefix(f"{source}/") for path in files() if path.startswith(f"{source}/")}
    return {path for path in below if path.split("/")[0] in packages and "/" in path}


@pytest.mark.parametrize("distribution", EVERY)
def test_a_wheel_has_every_file_of_its_packages_and_nothing_else(
    wheels: Path, distribution: str
) -> None:
    with opened(wheels, distribution) as wheel:
        names = set(wheel.namelist())
    information = {name for name in names if name.startswith(f"{stem(distribution)}.dist-info/")}
    assert names - information == in_repository(distribution)


def test_nothing_but_five_names_is_importable(wheels: Path) -> None:
    tops: set[str] = set()
    for distribution in EVERY:
        with opened(wheels, distribution) as wheel:
            tops |= {name.split("/")[0] for name in wheel.namelist()}
    packages = {name for name in tops if not name.endswith(".dist-info")}
    assert packages == {
        "oncelog",
        "oncelogpb",
        "oncelog_server",
        "oncelog_spark",
        "pyspark_oncelog",
    }


@pytest.mark.parametrize("distribution", EVERY)
def test_a_wheel_says_what_it_is(wheels: Path, distribution: str) -> None:
    said = metadata(wheels, distribution)
    assert (said["Name"], said["Version"]) == (distribution, oncelog.__version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert said.get_all("License-File") == ["LICENSE"]
    assert said["Requires-Python"] == ">=3.11"
    assert said["Summary"]
    assert said["Description-Content-Type"] == "text/markdown"
    body = said.get_payload()
    assert isinstance(body, str)
    assert body.startswith("# ")
    assert f"pip install {distribution}" in body or f"pip install '{distribution}" in body


@pytest.mark.parametrize("distribution", EVERY)
def test_a_wheel_brings_its_licence(wheels: Path, distribution: str) -> None:
    with opened(wheels, distribution) as wheel:
        text = wheel.read(f"{stem(distribution)}.dist-info/licenses/LICENSE").decode()
    assert text == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("distribution", EVERY)
def test_a_wheel_wants_its_sisters_of_the_same_version(wheels: Path, distribution: str) -> None:
    wanted = metadata(wheels, distribution).get_all("Requires-Dist") or []
    ours = [line for line in wanted if line.split("=")[0] in PACKAGES]
    version = oncelog.__version__
    assert all(line.split(";")[0].strip().endswith(f"=={version}") for line in ours), ours
    assert bool(ours) == (distribution != "oncelog-proto")


@pytest.mark.parametrize("distribution", EVERY)
def test_a_source_distribution_has_what_its_wheel_is_made_of(
    wheels: Path, distribution: str
) -> None:
    source, _ = PACKAGES[distribution]
    folder = "" if FOLDERS[distribution] == "." else f"{FOLDERS[distribution]}/"
    with tarfile.open(wheels / f"{stem(distribution)}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    packages = {f"{source}/{path}".removeprefix(folder) for path in in_repository(distribution)}
    assert packages | {"LICENSE", "README.md", "pyproject.toml"} <= names
    known = {path.removeprefix(folder) for path in files() if path.startswith(folder)}
    # What setuptools adds, beside the folders themselves.
    added = {name for name in names - known if not name.endswith((".egg-info", "PKG-INFO"))}
    written = {"setup.cfg", "SOURCES.txt", "dependency_links.txt", "requires.txt", "top_level.txt"}
    written |= {"entry_points.txt"}
    folders = {"/".join(path.split("/")[:depth]) for path in names for depth in range(9)}
    assert {Path(name).name for name in added - folders} <= written
    assert not {name for name in names if name.startswith("tests/")}


def test_stubs_of_other_languages_can_be_made_from_the_source_distribution(wheels: Path) -> None:
    protos = {Path(path).name for path in files() if re.fullmatch(r"protos/.+\.proto", path)}
    with tarfile.open(wheels / f"{stem('oncelog-proto')}.tar.gz") as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert protos <= names
