"""A real cluster for each module that asks for one; what its services said when a test fails."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator

import pytest

import oncelog
from tests.integration.cluster import OF_THIS_TEST, ROLES, Cluster, running

LOG_LINES_MAX = 25
# Said so often, and of so little interest, that the rest would be lost among them.
NOISE = ('"event": "elected"', '"event": "leading"', '"event": "deposed"')

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by the tests of a module: each leaves it whole."""
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def log(cluster: Cluster) -> Iterator[oncelog.Log]:
    with cluster.connect() as made:
        yield made


@pytest.fixture
def topic(log: oncelog.Log) -> str:
    """A new one, with two partitions."""
    return log.admin.create_topic(f"topic-{next(_names)}", partitions=2).name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for cluster in OF_THIS_TEST:
            for role in ROLES:
                lines = [line for line in cluster.log_of(role).splitlines() if not_noise(line)]
                shown = "\n".join(lines[-LOG_LINES_MAX:])
                report.sections.append((f"log of the {role}", shown))
    if report.when == "teardown":
        OF_THIS_TEST[:] = [cluster for cluster in OF_THIS_TEST if not cluster.is_over]
    return report


def not_noise(line: str) -> bool:
    return not any(said in line for said in NOISE)
