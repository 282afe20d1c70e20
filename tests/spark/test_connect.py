"""The format on Spark Connect: a server of its own, and a client that talks gRPC with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyspark
import pytest

from tests.spark.conftest import Lab, numbers
from tests.spark.packages import python_packages

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Bounds that only end a test that would hang.
PATIENCE_S = 900
POLL_S = 0.2


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of what `pyspark[connect]` asks for, from the index (or from pip's cache of it)."""
    wanted = HERE / "connect_requirements.txt"
    return python_packages(tmp_path / "packages", "--requirement", wanted)


@pytest.fixture
def remote(lab: Lab, packages: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a running server. `lab` has seen to a Java."""
    with closing(socket.create_server(("127.0.0.1", 0))) as reserved:
        port = reserved.getsockname()[1]
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--class", SERVER, "--master", "local[2,4]", *given],
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            # A function of foreachBatch runs in the server's Python, as a client of its own.
            env={**os.environ, "PYTHONPATH": str(packages), "PYSPARK_PYTHON": sys.executable},
        )
    try:
        give_up = time.monotonic() + PATIENCE_S
        while not listens(port):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < give_up, "the server does not listen"
            time.sleep(POLL_S)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_i34_a_client_of_spark_connect(lab: Lab, remote: str, packages: Path) -> None:
    source, sink, other = lab.topic(), lab.topic(), lab.topic()
    done = subprocess.run(
        [
            *(sys.executable, HERE / "connect_job.py", remote, lab.bootstrap),
            *(source, sink, other, lab.folder),
        ],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (lab.folder / "server.log").read_text()
    assert done.stdout.splitlines()[-1] == "read 100 pyspark.sql.connect.session"
    assert sorted(lab.values(sink)) == numbers(100)
    assert lab.positions(sink, source) == lab.ends(source)
    # Each save() of foreachBatch was called twice.
    assert sorted(lab.values(other)) == numbers(100)
    assert lab.open_transactions(sink) == lab.open_transactions(other) == 0
