"""Runs the quick rooms of the tests on the wheels with the oldest dependencies that they allow.

    make floors            (about four minutes)

A floor is a claim, and nothing else tries it: every other environment takes the newest. `floors`
gives the claims, as constraints for pip; an older release than any claim is never installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.wheels.building import FOLDERS, ROOT, build

# Those that need neither Spark nor a process.
ROOMS: Final = ("tests/unit", "tests/golden", "tests/checker")
LEFT_OUT: Final = ("tests/unit/spark",)
# What the rooms need beside the wheels.
TOOLS: Final = ("pytest", "hypothesis", "pyyaml", "cryptography")
INSTALLED: Final = ("oncelog_proto", "oncelog", "oncelog_server")


def floors() -> list[str]:
    """The lowest allowed version of each dependency, the highest floor where two differ."""
    lowest: dict[str, str] = {}
    for folder in FOLDERS.values():
        with (ROOT / folder / "pyproject.toml").open("rb") as file:
            wanted = map(Requirement, tomllib.load(file)["project"]["dependencies"])
        for each in wanted:
            for specifier in each.specifier:
                if specifier.operator == ">=":
                    lowest[each.name] = max(
                        lowest.get(each.name, "0"), specifier.version, key=_as_numbers
                    )
    return [f"{name}=={version}" for name, version in sorted(lowest.items())]


def run(folder: Path) -> int:
    """Makes the environment in `folder`, runs the rooms there, and gives pytest's exit code."""
    wheels, constraints = folder / "wheels", folder / "floors.txt"
    build(wheels)
    constraints.write_text("\n".join(floors()) + "\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = str(folder / "env" / "bin" / "python")
    files = [str(next(wheels.glob(f"{name}-[0-9]*.whl"))) for name in INSTALLED]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
            *("--no-compile", "--constraint", str(constraints), *files, *TOOLS),
        ],
        check=True,
    )
    ignored = [f"--ignore={room}" for room in LEFT_OUT]
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *ROOMS, *ignored]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="oncelog-floors-") as made:
        sys.exit(run(Path(made)))
