"""Shows what the services said when a test fails."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.integration.cluster import OF_THIS_TEST, ROLES

LOG_LINES_MAX = 25
# Said so often, and of so little interest, that the rest would be lost among them.
NOISE = ('"event": "elected"', '"event": "leading"', '"event": "deposed"')


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
