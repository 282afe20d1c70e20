"""Chaos for a Spark job: its driver, workers and executors die and freeze, its query is stopped,
its checkpoint is lost, a second driver comes, and its services fail, while it reads, transforms and
writes transactionally.

    python -m tests.spark.chaos [--seconds 3600] [--records 100000] [--seed N] [--only KIND ...]

Ends with 1 where a promise was broken, and keeps logs and data of a run that failed. Prints for how
long the job stood still, by kind of fault.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from oncelog_server.runtime.etcd.embedded import find_or_build
from tests.chaos import sandbox
from tests.chaos.network import Loopback, Namespaces
from tests.spark.chaos.run import Run, by_kind

# Of loopback addresses, where there are no namespaces: not those of tests/chaos.
NET = 78


def main(arguments: Sequence[str]) -> int:
    chosen = parsed(arguments)
    if sandbox.is_inside():
        sandbox.furnish()
        return run(chosen, Namespaces())
    way = sandbox.command()
    if way is not None:
        return sandbox.run_inside(way, arguments, module="tests.spark.chaos")
    print("no namespaces here: nothing is cut off and no disk is filled", flush=True)
    return run(chosen, Loopback(NET))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.spark.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of trouble")
    parser.add_argument("--records", type=int, default=100_000, help="that come in so many seconds")
    parser.add_argument("--seed", type=int, default=None, help="of the story")
    parser.add_argument("--only", action="append", help="kinds of faults; repeatable")
    parser.add_argument("--once", action="store_true", help="each kind once, and no more")
    parser.add_argument(
        "--long",
        type=float,
        nargs=2,
        default=(10.0, 60.0),
        metavar=("MIN", "MAX"),
        help="seconds for which etcd is lost, and a disk full",
    )
    parser.add_argument("--keep", action="store_true", help="logs and data, whatever the verdict")
    return parser.parse_args(arguments)


def run(chosen: argparse.Namespace, network: Loopback | Namespaces) -> int:
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="oncelog-spark-chaos-"))
    one = Run(
        folder,
        network,
        find_or_build(print),
        random.Random(seed),
        seconds=chosen.seconds,
        pace=chosen.records / chosen.seconds,
        only=chosen.only,
        once=chosen.once,
        long_s=tuple(chosen.long),
    )
    try:
        one.whole()
    except BaseException as error:
        one.kill_all()
        if isinstance(error, KeyboardInterrupt):
            shutil.rmtree(folder, ignore_errors=True)
            return 130
        traceback.print_exc()
        print(summary(one), f"FAILED: its logs and data are in {folder}", sep="\n", flush=True)
        return 1
    one.kill_all()
    print(summary(one), "all promises held", sep="\n", flush=True)
    if chosen.keep:
        print(f"its logs and data are in {folder}", flush=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def summary(one: Run) -> str:
    """What happened, and for how long the job stood still."""
    lines = [
        f"{len(one.stood)} faults, {one.keeper.drivers} drivers; queries failed of "
        f"{dict(one.keeper.failures())}",
        f"{'fault':34} {'times':>5} {'median':>7} {'max':>7} {'median':>7} {'max':>7}",
        f"{'':40} {'s since the fault':>15} {'s since it healed':>15}",
    ]
    for kind, stood in by_kind(one.stood).items():
        since = [each.since_fault_s for each in stood]
        after = [each.since_healed_s for each in stood]
        lines.append(
            f"{kind:34} {len(stood):5} {statistics.median(since):7.1f} {max(since):7.1f} "
            f"{statistics.median(after):7.1f} {max(after):7.1f}"
        )
    if one.counted is not None:
        lines.append(str(one.counted))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
