"""Many seeds of the simulator: `make sim SEEDS=N FROM=n`, or

    python -m tests.simulation --seeds 1000 --from 1 --without hopper,slots

Says how many runs a minute, what no run reached, and one line per failing seed with the command
that repeats it. Ends with 1 where a seed failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.simulation.marks import everything
from tests.simulation.seeds import Sum, run_all
from tests.simulation.swarm import plan_of

ROOT: Final = Path(__file__).parents[2]
DEFAULT_SEEDS: Final = 200
# Seeds of a commit lie in a range of their own: its hash's first digits.
FRESH_DIGITS: Final = 7
WITHOUT_GIT: Final = 20_130_101
# What is shown of a failure, characters; and of what nobody reached, names.
SHOWN: Final = 150
NAMES_SHOWN: Final = 12
PROGRESS_EVERY_S: Final = 15.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    seeds = range(options.first, options.first + options.seeds)
    print(f"seeds {seeds[0]} to {seeds[-1]} on {options.jobs} cores", flush=True)
    total = Sum()
    begun_s = said_s = time.monotonic()
    try:
        for outcome in run_all(seeds, options.jobs, options.left_out):
            total.add(outcome)
            if outcome.wrong:
                print(line_of(outcome.seed, outcome.wrong, options.without), flush=True)
            if time.monotonic() - said_s > PROGRESS_EVERY_S:
                said_s = time.monotonic()
                print(f"... {total.seeds} of {len(seeds)}, {len(total.wrong)} fail", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted")
    print("\n".join(summary(total, time.monotonic() - begun_s)))
    if options.never:
        lines = [f"{kind} {name}\n" for kind, names in missing(total) for name in names]
        Path(options.never).write_text("".join(lines))
    return 1 if total.wrong or total.seeds < len(seeds) else 0


def fresh_seed() -> int:
    """Where the seeds of this commit begin: others with each commit, the same ones wherever it is
    checked out."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return WITHOUT_GIT
    found = re.fullmatch(r"[0-9a-f]{40,}", asked.stdout.strip())
    return int(found.group()[:FRESH_DIGITS], 16) if found else WITHOUT_GIT


def line_of(seed: int, wrong: str, without: str = "") -> str:
    """What is wrong with a seed, and how to see it again."""
    left_out = f" --without '{without}'" if without else ""
    again = f".venv/bin/python -m tests.simulation.workload {seed}{left_out}"
    return f"seed {seed}: {wrong[:SHOWN]}\n    {again}"


def summary(total: Sum, real_s: float) -> list[str]:
    """Of a run of seeds, in lines."""
    minutes = max(real_s, 1e-9) / 60
    lines = [
        f"{total.seeds} seeds, {len(total.wrong)} fail; {total.seeds / minutes:.0f} runs a minute, "
        f"{total.cpu_s / max(total.seeds, 1):.2f} s of CPU and "
        f"{total.transactions / max(total.seeds, 1):.0f} transactions each"
    ]
    for kind, never in missing(total):
        known = len(everything()[kind])
        said = f"{kind}: {known - len(never)} of {known} reached"
        if never:
            more = f" and {len(never) - NAMES_SHOWN} more" if len(never) > NAMES_SHOWN else ""
            said += f"; never {', '.join(never[:NAMES_SHOWN])}{more}"
        lines.append(said)
    lines += _uninformative(total)
    if total.wrong:
        kinds = Counter(kind_of(wrong) for wrong in total.wrong.values())
        lines += ["what is wrong, by kind:"]
        lines += [f"  {count:4d}  {kind[:SHOWN]}" for kind, count in kinds.most_common()]
    return lines


def _uninformative(total: Sum) -> list[str]:
    """Runs that never reached what their plans promised, by promise."""
    if not total.uninformative:
        return []
    lines = [f"uninformative: {total.uninformative} runs did not reach all that they planned:"]
    return lines + [f"  {count:4d}  {broken}" for broken, count in total.broken.most_common()]


def missing(total: Sum) -> list[tuple[str, list[str]]]:
    """By kind, the marks that no seed reached."""
    return [
        (kind, sorted(names - total.reached.get(kind, set()), key=_by_line))
        for kind, names in everything().items()
        if names
    ]


def _by_line(name: str) -> tuple[str, int]:
    file, _, line = name.partition(":")
    return file, int(line) if line.isdigit() else 0


def kind_of(wrong: str) -> str:
    """Without what differs from seed to seed."""
    return re.sub(r"\b(?:[a-z]+\.c\.)?\d+\b|\b[0-9a-f]{16,}\b", "#", wrong)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS)
    parser.add_argument("--from", dest="first", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--never", help="a file for all that was never reached")
    parser.add_argument("--without", default="", help="applications and faults, with commas")
    options = parser.parse_args(arguments)
    if options.first is None:
        options.first = fresh_seed()
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    options.left_out = [name for name in options.without.split(",") if name]
    try:
        plan_of(options.first, options.left_out)
    except ValueError as error:
        parser.error(str(error))
    return options
