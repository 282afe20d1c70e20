"""Environments that have some of the wheels and nothing else of this repository.

A *home* is a user's folder, far from the checkout, where programs are run. Beside them lie folders
with names that are also ours, or nearly so: Python looks there first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.wheels.building import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
# A first `oncelog up` may build etcd.
SECONDS_MAX = 600
# Modules of the user's own, each of which says so if somebody imports it in error.
NEIGHBOURS = ("services", "oncelog_server_x", "spark", "clients", "protos", "tests")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a user's folder to run programs in."""

    folder: Path
    home: Path
    # Further variables of what is run here.
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where packages are installed."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def environ(self) -> dict[str, str]:
        """Of a user who has not activated anything, and for whom this repository does not exist."""
        kept = ("PATH", "HOME", "JAVA_HOME", "XDG_CACHE_HOME", "GOPROXY", "GOFLAGS", "GOCACHE")
        values = {name: os.environ[name] for name in kept if name in os.environ}
        inside = str(Path(sys.executable).parent)
        path = [each for each in values["PATH"].split(os.pathsep) if each != inside]
        return {**values, "PATH": os.pathsep.join(path), **dict(self.variables)}

    def run(self, *command: str | Path, given: str = "") -> str:
        """What it prints. A word without a folder is a command of the environment."""
        first, *rest = map(str, command)
        program = first if "/" in first else str(self.folder / "bin" / first)
        done = subprocess.run(
            [program, *rest],
            cwd=self.home,
            env=self.environ(),
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command} ends with {done.returncode}:\n{done.stderr}"
        return done.stdout

    def program(self, name: str, text: str) -> str:
        """Writes a program into the user's folder, runs it, and gives what it prints."""
        (self.home / name).write_text(text)
        return self.run(self.python, name)


def install(folder: Path, wheels: Path, distributions: Sequence[str]) -> Environment:
    """A new environment with these, each with what it says it needs from the index (or from pip's
    cache of it), and with nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    home = folder / "home"
    for name in NEIGHBOURS:
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text(f'raise ImportError("this {name} is mine")\n')
    environment = Environment(folder / "env", home)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(environment.python), "install"),
            *("--quiet", "--no-compile", "--disable-pip-version-check"),
            *("--constraint", str(CONSTRAINTS)),
            *(wheel_of(wheels, each) for each in distributions),
        ],
        check=True,
        cwd=home,
    )
    return environment


def wheel_of(wheels: Path, distribution: str) -> str:
    """The file, with the extra that `distribution` may name in brackets."""
    name, bracket, extra = distribution.partition("[")
    [wheel] = wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return f"{wheel}{bracket}{extra}"
