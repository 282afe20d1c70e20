"""The pytest plugin of a run with a planted bug:

    ONCELOG_PLANT=request-id-ignored pytest -p tests.planted.plugin tests/golden

Without the variable it plants nothing. With ONCELOG_PLANT_REPORT=<file> it writes there what became
of each test, one JSON object per line, so that the runner need not read prose.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.planted import table
from tests.planted.planting import TargetGone, plant
from tests.planted.runs import PLANT_VARIABLE, REPORT_VARIABLE

# By name, for importing the class would import what is to be edited.
REFUSALS: Final = frozenset({"OncelogError", "JournalDamaged"})


def _plant_what_is_named() -> None:
    """Raises UsageError, which ends the run."""
    name = os.environ.get(PLANT_VARIABLE)
    if not name:
        return
    bug = table.BY_NAME.get(name)
    if bug is None:
        raise pytest.UsageError(f"{PLANT_VARIABLE}={name}: no such bug in tests/planted/bugs")
    try:
        plant(bug)
    except TargetGone as gone:
        raise pytest.UsageError(f"planted bug {name}: its target is gone: {gone}") from gone


# When pytest loads `-p` plugins, and before any conftest can import what is to be edited.
_plant_what_is_named()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report: pytest.TestReport = yield
    path = os.environ.get(REPORT_VARIABLE)
    if path and (report.when == "call" or report.outcome != "passed"):
        error = None if call.excinfo is None else call.excinfo.value
        line = {
            "test": item.nodeid,
            "passed": report.passed,
            "judged": report.when == "call" and _is_judgement(error),
            "text": report.longreprtext,
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report


def _is_judgement(error: BaseException | None) -> bool:
    """A comparison that failed, `pytest.raises` that saw nothing raised, or a refusal by the code
    under test that the test did not expect; of several failures of one property, all. Whatever else
    is a fault of the plant."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_judgement(part) for part in error.exceptions)
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return True
    return any(kind.__name__ in REFUSALS for kind in type(error).__mro__)
