"""The wheels, built once, and the environments of users who installed some of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.wheels.building import build
from tests.wheels.environments import Environment, install


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the four wheels and the four source distributions."""
    folder = tmp_path_factory.mktemp("wheels")
    try:
        build(folder)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stdout)
    return folder


@pytest.fixture(scope="session")
def client(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install oncelog`."""
    return install(tmp_path_factory.mktemp("client"), wheels, ["oncelog", "oncelog-proto"])


@pytest.fixture(scope="session")
def testing(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'oncelog[testing]'`, which brings the server."""
    return install(
        tmp_path_factory.mktemp("testing"),
        wheels,
        ["oncelog[testing]", "oncelog-proto", "oncelog-server"],
    )
