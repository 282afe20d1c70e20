"""A program in Go, made from the protos alone, speaks with the services (design §9)."""

from __future__ import annotations

import shutil
import subprocess

import pytest

import oncelog
import oncelog.testing
from tests.interop.go_program import CannotFetch, built

PROGRAM_TIMEOUT_S = 60
STEPS = [
    "topics created",
    "transaction committed and read",
    "one-shot committed and read",
    "errors have their reasons",
]


def test_a_go_client_transacts_reads_and_is_told_reasons() -> None:
    if shutil.which("go") is None:
        pytest.skip("NOT TESTED: no `go` on PATH, so no client in another language was tried")
    try:
        program = built()
    except CannotFetch as error:
        pytest.skip(f"NOT TESTED: the Go modules of the client cannot be downloaded: {error}")
    with (
        oncelog.testing.cluster() as cluster,
        oncelog.connect(cluster.bootstrap) as log,
    ):
        log.admin.create_topic("from-python", partitions=1)
        # Some as rows, some as Arrow: Go reads all of them as rows.
        written = [b"lonely", *(b"packed %d" % number for number in range(100))]
        with log.producer() as producer:
            producer.send("from-python", written[0])
            producer.flush()
            for value in written[1:]:
                producer.send("from-python", value)
        done = subprocess.run(
            [program, cluster.bootstrap, "from-python"],
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        values = [f"value {value.decode()}" for value in written]
        assert done.stdout.splitlines() == [*STEPS, *values]
        assert _values(log, "go-orders", 3) == [b"first", b"second", b"third"]
        assert _values(log, "go-audit", 2) == [b"two orders", b"one order"]


def _values(log: oncelog.Log, topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with log.consumer([topic]) as consumer:
        while len(found) < count:
            batch = consumer.poll(10.0)
            assert batch is not None, f"{len(found)} of {count} records came"
            found += [record.value for record in batch]
    return found
