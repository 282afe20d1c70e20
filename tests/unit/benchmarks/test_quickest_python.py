"""Which Python the Makefile installs for: the quickest of its version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import quickest_python
from benchmarks.quickest_python import interpreters, measured, quickest

NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def program(folder: Path, text: str) -> str:
    folder.mkdir()
    path = folder / NAME
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_another_one_is_taken_only_where_it_is_clearly_quicker() -> None:
    assert quickest("own", {"own": 1.0, "other": 0.8}) == "other"
    assert quickest("own", {"own": 1.0, "other": 0.95}) == "own"
    assert quickest("own", {"own": 1.0, "other": 0.8, "third": 0.7}) == "third"
    assert quickest("own", {"own": float("inf")}) == "own"


def test_who_does_not_run_or_is_of_another_version_or_makes_no_environments_is_none(
    tmp_path: Path,
) -> None:
    own = sys.executable
    fails = program(tmp_path / "fails", "exit 1")
    old = program(tmp_path / "old", """echo '["/old", "cpython", 3, 1]'""")
    other = program(tmp_path / "other", f"""echo '["/else", "pypy", 3, {sys.version_info[1]}]'""")
    good = program(
        tmp_path / "good",
        f"""echo '["/good", "cpython", {sys.version_info[0]}, {sys.version_info[1]}]'""",
    )
    twin = program(tmp_path / "twin", f'exec "{own}" "$@"')
    folders = [os.path.dirname(path) for path in (fails, old, other, good, twin)]
    assert interpreters(own, [*folders, str(tmp_path / "missing")]) == [own, good]


def test_who_does_not_finish_the_loop_is_never_the_quickest(tmp_path: Path) -> None:
    fails = program(tmp_path / "fails", "exit 1")
    times = measured([sys.executable, fails])
    assert 0 < times[sys.executable] < times[fails]
    assert quickest(sys.executable, times) == sys.executable


def test_it_runs_before_anything_is_installed_and_prints_one_path() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", quickest_python.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    (path,) = done.stdout.splitlines()
    assert os.access(path, os.X_OK)
