"""The wheels, built once, and the environments of users who installed some of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from oncelog_spark.jobs.java import JavaMissing, provide_java
from tests.wheels.building import build
from tests.wheels.environments import SECONDS_MAX, Environment, install

STOP_SECONDS_MAX = 30


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


@pytest.fixture(scope="session")
def up(testing: Environment) -> Iterator[str]:
    """`oncelog up` in the user's folder; the addresses that it announces."""
    running = testing.home / ".oncelog" / "running.json"
    with (testing.home / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [str(testing.folder / "bin" / "oncelog"), "up", "--free-ports"],
            cwd=testing.home,
            env=testing.environ(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        give_up = time.monotonic() + SECONDS_MAX
        while not running.exists():
            said = (testing.home / "up.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < give_up, said
            time.sleep(0.1)
        yield str(json.loads(running.read_text())["bootstrap"])
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def spark(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install oncelog-spark`, and PySpark, which is the user's own: the one of this
    repository, for it is half a gigabyte."""
    environment = install(
        tmp_path_factory.mktemp("spark"), wheels, ["oncelog-spark", "oncelog", "oncelog-proto"]
    )
    theirs = Path(pyspark.__file__).parents[1]
    for name in ("pyspark", "py4j"):
        (environment.packages / name).symlink_to(theirs / name)
    variables = dict(os.environ)
    try:
        provide_java(variables, environment.folder / "java")
    except JavaMissing as error:
        pytest.fail(str(error))
    kept = {name: variables[name] for name in ("JAVA_HOME",) if name in variables}
    return replace(environment, variables=tuple(kept.items()))
