"""The wheels at work where nothing of this repository is: in clean environments, in a user's folder
with folders beside the programs that have our folders' names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import oncelog
from tests.wheels.building import ROOT
from tests.wheels.environments import Environment

pytestmark = pytest.mark.integration

ENRICHER = """
import sys

import oncelog

with oncelog.connect(sys.argv[1]) as log:
    log.admin.create_topic("in", partitions=1)
    log.admin.create_topic("out", partitions=1)
    with log.producer() as plain:
        plain.send("in", b"hello")
    producer = log.transactional_producer("enricher")
    consumer = log.consumer(["in"], group="enricher")
    batch = consumer.poll(20.0)
    with producer.transaction(consumer, wait="visible") as tx:
        for record in batch.records():
            tx.send("out", value=record.value.upper())
    reader = log.consumer(["out"])
    print([record.value for record in reader.poll(20.0).records()])
"""

TYPED = """
import oncelog

with oncelog.connect("localhost:7400") as log:
    producer = log.transactional_producer("enricher")
    consumer = log.consumer(["payments"], group="enricher")
    for batch in consumer:
        with producer.transaction(consumer) as tx:
            for record in batch.records():
                reveal_type(record.key)
                tx.send("enriched", value=record.value, key=record.key)
"""

WRONG = """
import oncelog

with oncelog.connect("localhost:7400") as log:
    log.admin.create_topic("payments", partitions="three")
    log.producer().sent("payments", b"1")
"""


def our_packages(environment: Environment) -> set[str]:
    """What the environment can import that is ours, or was made by us."""
    listed = environment.run(
        environment.python,
        "-c",
        "import importlib.metadata as m, json; "
        "print(json.dumps({k: v for k, v in m.packages_distributions().items()}))",
    )
    found: dict[str, list[str]] = json.loads(listed)
    return {name for name, of in found.items() if any(each.startswith("oncelog") for each in of)}


def tells_its_version(environment: Environment, package: str) -> bool:
    printed = environment.run(
        environment.python, "-c", f"import {package} as p; print(p.__version__, p.__file__)"
    )
    version, file = printed.split()
    assert Path(file).is_relative_to(environment.packages), "it is the checkout's"
    return version == oncelog.__version__


# --------------------------------------------------------------------------------- the client alone


def test_the_client_comes_without_the_server(client: Environment) -> None:
    assert our_packages(client) == {"oncelog", "oncelogpb"}
    assert tells_its_version(client, "oncelog")
    assert tells_its_version(client, "oncelogpb")
    said = client.program(
        "tries.py",
        "import oncelog.testing\n"
        "try:\n    oncelog.testing.cluster().__enter__()\n"
        "except ImportError as error:\n    print(error)\n",
    )
    assert "pip install 'oncelog[testing]'" in said


def test_the_client_alone_speaks_with_a_cluster(client: Environment, up: str) -> None:
    (client.home / "enricher.py").write_text(ENRICHER)
    assert client.run(client.python, "enricher.py", up).strip() == "[b'HELLO']"


# ---------------------------------------------------------------------------------- with the server


def test_the_server_comes_with_the_client(testing: Environment) -> None:
    assert our_packages(testing) == {"oncelog", "oncelogpb", "oncelog_server"}
    assert tells_its_version(testing, "oncelog_server")
    assert testing.run("oncelog", "--version") == f"oncelog, version {oncelog.__version__}\n"


@pytest.mark.usefixtures("up")
def test_the_command_runs_a_cluster_and_uses_it(testing: Environment) -> None:
    testing.run("oncelog", "topic", "create", "payments", "--partitions", "2")
    testing.run(
        *("oncelog", "produce", "payments", "--key-separator", ":", "--transactional"),
        given="alice:10\nbob:20\n",
    )
    read = testing.run("oncelog", "consume", "payments", "--from", "earliest", "--max", "2")
    assert sorted(re.findall(r"\b(10|20)\b", read)) == ["10", "20"]


def test_a_testing_cluster_serves_a_program(testing: Environment) -> None:
    program = (
        "import runpy, sys\nimport oncelog.testing\n"
        "with oncelog.testing.cluster() as cluster:\n"
        "    sys.argv = ['enricher.py', cluster.bootstrap]\n"
        "    runpy.run_path('enricher.py')\n"
    )
    (testing.home / "enricher.py").write_text(ENRICHER)
    assert testing.program("tests_it.py", program).strip() == "[b'HELLO']"


def test_what_is_not_python_came_along(testing: Environment) -> None:
    """etcd's module is built from there, on machines that have none."""
    installed = testing.packages / "oncelog_server" / "runtime" / "etcd" / "embedded_src"
    source = ROOT / "services" / "oncelog_server" / "runtime" / "etcd" / "embedded_src"
    assert {file.name for file in installed.iterdir()} == {file.name for file in source.iterdir()}


# -------------------------------------------------------------------------------------------- types


def mypy(environment: Environment, name: str, text: str) -> str:
    """What mypy --strict says of a user's program, by the types of what is installed."""
    (environment.home / name).write_text(text)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-color-output", name),
            *("--cache-dir", str(environment.folder / "mypy")),
            *("--python-executable", str(environment.python)),
        ],
        cwd=environment.home,
        env=environment.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_users_program_is_checked_by_our_types(client: Environment) -> None:
    said = mypy(client, "typed.py", TYPED)
    assert "error" not in said
    assert 'Revealed type is "bytes | None"' in said
    said = mypy(client, "wrong.py", WRONG)
    assert 'Argument "partitions" to "create_topic"' in said
    assert 'has no attribute "sent"' in said
    assert "Found 2 errors in 1 file" in said
