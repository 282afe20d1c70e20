"""The examples of other languages, built as their READMEs say and run against real services: on a
quiet day, with every first answer lost, while services restart, and with messages that a stock
client does not take."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncelog
import oncelog.testing
from oncelog_server.core import failpoints
from oncelogpb.errors import UnknownOutcome
from tests.interop.examples import TOOLS, Built, built
from tests.interop.toolchain import CannotFetch

ROOT = Path(__file__).parents[2]
# Ends a test that hangs; nothing is asserted about it.
HANG_S = 120
LINES_MAX = 40
# Of each service in turn, while an example runs.
RESTARTS = 3
PROGRAMS = {
    "go": "main.go",
    "java": "src/main/java/Main.java",
    "node": "main.js",
}
ORDERS = [[b"2 apples", b"1 pear"], [b"5 plums"]]
# The calls of the examples whose answers are lost.
LOST = (
    "partition_leader.create_topic",
    "coordinator.init_producer",
    "coordinator.begin_transaction",
    "partition_leader.produce",
    "offset_manager.fetch_offsets",
    "offset_manager.commit_transaction_offsets",
    "coordinator.commit_transaction",
    "coordinator.abort_transaction",
)


@pytest.fixture(params=sorted(TOOLS))
def example(request: pytest.FixtureRequest) -> Built:
    language: str = request.param
    try:
        return built(language)
    except CannotFetch as error:
        pytest.skip(f"NOT TESTED: the example in {language} cannot be built here: {error}")


def test_a_program_has_at_most_so_many_lines() -> None:
    for language, program in PROGRAMS.items():
        lines = (ROOT / "examples" / language / program).read_text().splitlines()
        assert len(lines) <= LINES_MAX, language


def test_i21_an_example_transacts_consumes_aborts_and_reads(example: Built) -> None:
    with oncelog.testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as log:
        assert _run(example, cluster.bootstrap) == ["bill for 2 apples", "bill for 1 pear"]
        # Again: the topics are there, the producer of the first run is fenced, its input consumed.
        assert _run(example, cluster.bootstrap) == ["bill for 2 apples", "bill for 1 pear"] * 2
        _expect(log, runs=2)


def test_i6_i21_an_example_loses_every_first_answer(example: Built) -> None:
    with (
        _losing_first_answers() as passed,
        oncelog.testing.cluster() as cluster,
        oncelog.connect(cluster.bootstrap) as log,
    ):
        assert _run(example, cluster.bootstrap) == ["bill for 2 apples", "bill for 1 pear"]
        assert set(passed) == set(LOST)
        _expect(log, runs=1)


def test_i6_i21_an_example_goes_on_over_restarts(example: Built) -> None:
    with oncelog.testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as log:
        for role in ("coordinator", "partition_leader", "offset_manager"):
            with subprocess.Popen(
                example.command(cluster.bootstrap), cwd=example.folder, stderr=subprocess.PIPE
            ) as running:
                for _ in range(RESTARTS):
                    cluster.restart(role)
                _, told = running.communicate(timeout=HANG_S)
                assert running.returncode == 0, told.decode()
        _expect(log, runs=3)


@pytest.mark.parametrize("state", ["nobody listens", "it says nothing"])
def test_an_example_ends_with_one_line_where_no_process_answers(example: Built, state: str) -> None:
    with socket.socket() as service:
        service.bind(("127.0.0.1", 0))
        if state == "it says nothing":
            # As a process that is stopped, not dead: its system still takes connections.
            service.listen()
        address = f"127.0.0.1:{service.getsockname()[1]}"
        done = subprocess.run(
            example.command(address),
            cwd=example.folder,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    (told,) = done.stderr.splitlines()
    assert f"no process of Oncelog answers at {address}" in told
    assert "check" in told


def test_an_example_takes_messages_of_more_than_4_mib(example: Built) -> None:
    large = b"x" * (6 << 20)
    with oncelog.testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as log:
        log.admin.create_topic("orders", partitions=2)
        with log.producer() as producer:
            producer.send("orders", large, partition=0)
        bills = [f"bill for {large.decode()}", "bill for 2 apples", "bill for 1 pear"]
        assert _run(example, cluster.bootstrap) == bills


def test_a_go_client_meets_one_shots_reasons_and_services_that_misbehave() -> None:
    try:
        folder = built("go").folder
    except CannotFetch as error:
        pytest.skip(f"NOT TESTED: the example in go cannot be built here: {error}")
    with oncelog.testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as log:
        log.admin.create_topic("from-python", partitions=1)
        # Some as rows, some as Arrow: Go reads all of them as rows.
        written = [b"lonely", *(b"packed %d" % number for number in range(100))]
        with log.producer() as producer:
            producer.send("from-python", written[0])
            producer.flush()
            for value in written[1:]:
                producer.send("from-python", value)
        more = {"ONCELOG_BOOTSTRAP": cluster.bootstrap, "READ_TOPIC": "from-python"}
        done = subprocess.run(
            [folder / "checks", "-test.v"],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SKIP" not in done.stdout
        lines = done.stdout.splitlines()
        read = [line.removeprefix("value ") for line in lines if line.startswith("value ")]
        assert read == [value.decode() for value in written]


# ------------------------------------------------------------------------------------------- pieces


def _run(example: Built, bootstrap: str) -> list[str]:
    done = subprocess.run(
        example.command(bootstrap),
        cwd=example.folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _expect(log: oncelog.Log, *, runs: int) -> None:
    """What so many runs leave behind, and nothing of what they aborted."""
    orders = [value for partition in ORDERS for value in partition]
    assert Counter(_values(log, "orders")) == Counter(orders * runs)
    bills = [b"bill for " + value for value in ORDERS[0]]
    assert _values(log, "bills") == bills * runs
    positions = {one.partition: one.offset for one in log.admin.group_offsets("billing")}
    assert positions == {0: len(ORDERS[0]) * runs, 1: None}


def _values(log: oncelog.Log, topic: str) -> list[bytes | None]:
    """Everything that is committed."""
    found: list[bytes | None] = []
    ends = log.admin.offsets(topic, "latest")
    with log.consumer([topic]) as consumer:
        while len(found) < sum(ends):
            batch = consumer.poll(10.0)
            assert batch is not None, f"{len(found)} of {ends} records came"
            found += [record.value for record in batch]
    return found


@contextlib.contextmanager
def _losing_first_answers() -> Iterator[Counter[str]]:
    """Each call of LOST is done, and its caller is told nothing of it, once. Counts them."""
    passed: Counter[str] = Counter()

    def hook(name: str) -> None:
        call = name.removeprefix("serve.").removesuffix(".after")
        if name.endswith(".after") and call in LOST:
            passed[call] += 1
            if passed[call] == 1:
                raise UnknownOutcome("the answer is lost")

    failpoints.arm(hook)
    try:
        yield passed
    finally:
        failpoints.disarm()
