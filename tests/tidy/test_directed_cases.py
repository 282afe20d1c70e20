"""The page on testing names each directed case, and the bug that is planted against it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.planted.bugs import directed, directed_losses

ROOT: Final = Path(__file__).parents[2]
ROOM: Final = "tests/simulation/directed"
ROW: Final = re.compile(r"^\| .+ \| `(test_\w+\.py)::(test_\w+)[^|]* \| `([\w-]+)` \|$", re.M)


def test_each_directed_case_stands_in_the_table_beside_a_bug_that_it_catches() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    rows = ROW.findall(page)
    bugs = {bug.name: bug for bug in (*directed.BUGS, *directed_losses.BUGS)}
    assert {bug for _, _, bug in rows} == set(bugs), "each bug has its case, each case its bug"
    for file, test, name in rows:
        caught = [node.partition("[")[0] for node in bugs[name].caught_by]
        assert f"{ROOM}/{file}::{test}" in caught, f"{name} names no {test}"
    told = {(file, test) for file, test, _ in rows}
    for path in sorted((ROOT / ROOM).glob("test_*.py")):
        for test in re.findall(r"^def (test_\w+)", path.read_text(), re.M):
            assert (path.name, test) in told or path.name == "test_stage.py", f"{test} has no row"
