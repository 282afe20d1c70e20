"""Chaos: three machines of real processes, with one thing going wrong at a time.

    python -m tests.chaos [--seconds 180] [--records 100000] [--seed N] [--only KIND ...] [--keep]

Ends with 1 where a promise was broken, and keeps logs, histories and data of a run that failed; of
one that did not, too, with --keep. Prints how long each kind of fault kept the service from
committing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from oncelog_server.runtime.etcd.embedded import find_or_build
from tests.chaos import sandbox
from tests.chaos.network import Loopback, Namespaces
from tests.chaos.run import Run
from tests.chaos.times import table

ROUNDS_OF_READING = 2


def main(arguments: Sequence[str]) -> int:
    chosen = parsed(arguments)
    if sandbox.is_inside():
        sandbox.furnish()
        return run(chosen, Namespaces())
    way = sandbox.command()
    if way is not None:
        return sandbox.run_inside(way, arguments)
    print("no namespaces here: nothing is cut off and no disk is filled", flush=True)
    return run(chosen, Loopback())


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="of trouble")
    parser.add_argument("--records", type=int, default=100_000, help="that are copied")
    parser.add_argument("--seed", type=int, default=None, help="of the order of faults")
    parser.add_argument("--only", action="append", help="kinds of faults; repeatable")
    parser.add_argument("--keep", action="store_true", help="logs and data, whatever the verdict")
    return parser.parse_args(arguments)


def run(chosen: argparse.Namespace, network: Loopback | Namespaces) -> int:
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="oncelog-chaos-"))
    one = Run(
        folder,
        network,
        find_or_build(print),
        random.Random(seed),
        records=chosen.records,
        seconds=chosen.seconds,
        only=chosen.only,
    )
    try:
        asyncio.run(one.whole(ROUNDS_OF_READING))
    except BaseException as error:
        one.kill_all()
        if isinstance(error, KeyboardInterrupt):
            shutil.rmtree(folder, ignore_errors=True)
            return 130
        traceback.print_exc()
        print(table(one.times), f"FAILED: its logs and data are in {folder}", sep="\n", flush=True)
        return 1
    one.kill_all()
    print(table(one.times), "all promises held", sep="\n", flush=True)
    if chosen.keep:
        print(f"its logs and data are in {folder}", flush=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
