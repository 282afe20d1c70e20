"""Builds the four distributions: a source distribution of each, and from it the wheel.

    make wheels            (python -m tests.wheels.building dist)

Built from what git knows, or would take, alone: what lies about in a working tree (a `build/lib`
with a file that is no more, an old `*.egg-info` that lists it) else finds its way into wheels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# Distribution -> the folder of its pyproject.toml. In the order of their dependencies.
FOLDERS: Final = {
    "oncelog-proto": "protos",
    "oncelog": "clients/python",
    "oncelog-server": ".",
    "oncelog-spark": "spark",
}


def build(into: Path) -> None:
    """Writes four source distributions and four wheels. Raises CalledProcessError, whose output
    says why."""
    into = into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oncelog-wheels-") as made:
        for path in files():
            target = Path(made, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, target)
        for folder in FOLDERS.values():
            # The setuptools of this environment, which constraints.txt pins.
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into)]
            subprocess.run(
                [*command, folder],
                cwd=made,
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )


def files() -> list[str]:
    """What git knows of, or would take, and is there; below the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for path in sorted(set(listed.stdout.split("\0"))) if (ROOT / path).is_file()]


if __name__ == "__main__":
    try:
        build(Path(*sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.stdout}\n{error}")
