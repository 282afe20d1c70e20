"""`python3 benchmarks/quickest_python.py`: the path of the quickest Python of this version on PATH.

Builds of one version differ by a third: distributions, and the images of Docker, compile Python
with a profile of what it does and across its files (--enable-optimizations --with-lto); who builds
it by hand, as pyenv does unless told otherwise, gets neither. Small transactions are Python by more
than half, so that is a sixth of their CPU (docs/adr/0100). What `sysconfig` says of a build does
not tell which it is, so they are measured: a short loop, each in a process of its own, in turns.

The one that runs this is kept unless another one is clearly quicker and can make virtual
environments. Only one of the same version is looked at, for which the same wheels are installed.
Runs before anything is installed: standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

# Another one is taken where it needs less than this share of the time.
CLEARLY_QUICKER: Final = 0.9
ROUNDS: Final = 5
SECONDS_MAX: Final = 60.0
# What it is: only where it could stand in for another one, it makes virtual environments.
LOOK: Final = """
import json, os, sys
import ensurepip, venv
where = os.path.realpath(sys.executable)
print(json.dumps([where, sys.implementation.name, *sys.version_info[:2]]))
"""
# Calls of methods, attributes, a dictionary, tuples: what the hot paths consist of.
MEASURE: Final = """
import time
class Counter:
    def __init__(self):
        self.count = 0
    def add(self, more):
        self.count += more
        return self.count
def work(steps):
    counter, kept = Counter(), {}
    for step in range(steps):
        kept[step & 255] = (step, counter.add(len(kept)))
began = time.perf_counter()
work(200_000)
print(time.perf_counter() - began)
"""


def main() -> int:
    own = sys.executable
    times = measured(interpreters(own, os.get_exec_path()))
    found = quickest(own, times)
    if found != own:
        ratio = times[own] / times[found]
        print(f"using {found}: {ratio:.1f} times as quick as {own}", file=sys.stderr)
    print(found)
    return 0


def interpreters(own: str, folders: Iterable[str]) -> list[str]:
    """`own`, and all others of its version in these folders, each once."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    expected, found = _look(own), [own]
    if expected is None:
        # It cannot make a virtual environment itself: `venv` will say what is missing.
        return found
    known = {expected[0]}
    for folder in folders:
        path = str(Path(folder) / name)
        seen = _look(path) if os.access(path, os.X_OK) else None
        if seen is not None and seen[1:] == expected[1:] and seen[0] not in known:
            known.add(seen[0])
            found.append(path)
    return found


def measured(paths: Sequence[str]) -> dict[str, float]:
    """Seconds that each takes at best; of a single one nothing is measured."""
    times = dict.fromkeys(paths, float("inf"))
    for _ in range(ROUNDS if len(paths) > 1 else 0):
        for path in paths:
            printed = _printed(path, MEASURE)
            if printed is not None:
                times[path] = min(times[path], float(printed))
    return times


def quickest(own: str, times: dict[str, float]) -> str:
    best = min(times, key=lambda path: times[path])
    return best if times[best] < CLEARLY_QUICKER * times[own] else own


def _look(path: str) -> list[Any] | None:
    """Where it really is, and what; None where it does not run, or makes no environments."""
    printed = _printed(path, LOOK)
    return None if printed is None else list(json.loads(printed))


def _printed(path: str, program: str) -> str | None:
    try:
        done = subprocess.run(
            [path, "-I", "-c", program],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
