"""Shows what the services said when a test fails."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.integration.cluster import ROLES, RUNNING

LOG_LINES_MAX = 25


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for cluster in RUNNING:
            for role in ROLES:
                lines = cluster.log_of(role).splitlines()[-LOG_LINES_MAX:]
                report.sections.append((f"log of the {role}", "\n".join(lines)))
    return report
