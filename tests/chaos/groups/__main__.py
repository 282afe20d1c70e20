"""Bounces the members of a consumer group, and the services beside them, under load.

    python -m tests.chaos.groups [--records 100000] [--seconds 180] [--variant NAME ...] [--seed N]

Ends with 1 where a promise was broken, and keeps logs and data of a run that failed. Prints for how
long partitions got no further at each bounce.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.standstill import table
from tests.chaos.groups.bounce import Bouncing, Job
from tests.integration.up import up_over

PARTITIONS: Final = 9
# What makes one differ from the others.
VARIANTS: Final[dict[str, dict[str, object]]] = {
    "members": {},
    "static": {"modes": ("static",), "workers_later": 0},
    "passing": {"passers_by": 2, "workers_later": 0},
}


def main(arguments: Sequence[str]) -> int:
    chosen = parsed(arguments)
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="oncelog-bounces-"))
    try:
        with up_over(folder / "data", f"--nodes={chosen.nodes}") as up:
            for name in chosen.variant or VARIANTS:
                of_it = folder / name
                of_it.mkdir()
                run = Bouncing(job_of(name, chosen), up, of_it, folder / "data", seed)
                run.whole()
                report(run)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            shutil.rmtree(folder, ignore_errors=True)
            return 130
        traceback.print_exc()
        print(f"FAILED: logs and data are in {folder}", flush=True)
        return 1
    print("all promises held", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos.groups", description=__doc__.split("\n")[0])
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="repeatable")
    parser.add_argument("--records", type=int, default=100_000, help="of each variant")
    parser.add_argument("--seconds", type=float, default=180.0, help="in which these come")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--later", type=int, default=12, help="workers from the middle on")
    parser.add_argument("--session-ms", type=int, default=5_000)
    parser.add_argument("--nodes", type=int, default=1, help="processes of each role")
    parser.add_argument("--seed", type=int, default=None, help="of the story")
    return parser.parse_args(arguments)


def job_of(name: str, chosen: argparse.Namespace) -> Job:
    job = Job(
        name=name,
        # Both ways to write it.
        modes=("run", "by-hand"),
        workers=chosen.workers,
        workers_later=chosen.later,
        passers_by=0,
        partitions=PARTITIONS,
        replicas=min(3, chosen.nodes),
        records=chosen.records,
        seconds=chosen.seconds,
        session_ms=chosen.session_ms,
    )
    return replace(job, **VARIANTS[name])  # type: ignore[arg-type]


def report(run: Bouncing) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(run.counts.items()))
    print(
        f"{run.job.name}: {run.job.records} records in {run.took_s:.0f} s, none lost, none twice, "
        f"in order; {sum(run.counts.values())} bounces ({kinds}); "
        f"members came or went {run.membership_changes} times",
        table(run.found),
        sep="\n",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
