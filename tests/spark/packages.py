"""What a test of Spark needs beside what is installed: packages of Maven and of the index of
Python, fetched into the test's own folder (or copied from where Maven and pip keep them)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

# Seconds: only ends what would hang.
FETCH_SECONDS_MAX: Final = 600


def jars(folder: Path, *artifacts: str) -> list[Path]:
    """Of Maven, each as group:name:version; without what they need in turn. Skips the test where
    there is no Maven."""
    if shutil.which("mvn") is None:
        pytest.skip("this needs packages of Maven, and there is no mvn")
    for artifact in artifacts:
        copy = ("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}")
        subprocess.run(
            [*copy, f"-DoutputDirectory={folder}"],
            check=True,
            cwd=folder,
            timeout=FETCH_SECONDS_MAX,
        )
    found = sorted(folder.glob("*.jar"))
    assert len(found) == len(artifacts), found
    return found


def python_packages(folder: Path, *wanted: str | Path) -> Path:
    """As pip's arguments name them; without what they need in turn. For PYTHONPATH."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"),
            *("--disable-pip-version-check", "--target", folder, *wanted),
        ],
        check=True,
        timeout=FETCH_SECONDS_MAX,
    )
    return folder
