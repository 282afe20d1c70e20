"""How many seeds of the simulator it takes to find a planted bug: what its days are good for.

    python -m tests.planted.hunt [--seeds 200] [--from 1] [--without hopper,slots] [name ...]

Without names: the bugs of PROTOCOL. Each is planted in a process of its own. A seed that fails
without the bug, too, says nothing, and is passed over.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = 200
WRONG_SHOWN: Final = 90
# Bugs that clients could see, some day, over any number of steps of several processes.
PROTOCOL: Final = (
    "replaced-generation-goes-on",
    "open-work-not-decided-first",
    "request-id-ignored",
    "commit-seq-not-stored",
    "two-write-markers-in-flight",
    "marker-before-its-prepare-is-durable",
    "refused-markers-taken-for-applied",
    "what-was-decided-is-not-owed-after-a-failover",
    "question-answered-above-the-high-watermark",
    "one-shots-decided-out-of-order",
    "one-shot-offsets-only-in-the-marker",
    "one-shot-executed-again",
    "one-shot-payload-appended-again",
    "batch-accepted-after-its-marker",
    "question-asked-once",
    "marker-applied-twice",
    "aborted-marker-moves-the-prepare-offset",
    "ended-by-the-highest-txid",
    "repeat-appended",
    "sequences-run-on-over-transactions",
    "transaction-shown-in-halves",
    "pending-ignored",
    "from-not-checked-when-pending",
    "chained-on-whatever-is-pending",
    "aborted-offset-committed",
    "committed-offsets-not-in-the-snapshot",
    "reply-before-the-high-watermark",
    "snapshot-ahead-of-the-high-watermark",
    "failed-sync-goes-on",
    "write-without-sync",
    "retry-takes-a-new-sequence",
    "doubtful-batch-under-a-new-id",
    "own-late-commit-called-stale",
    "abort-keeps-what-was-read-ahead",
    "commit-counts-what-came-so-far",
    "lost-commit-keeps-its-positions",
    "session-begins-its-numbers-again",
)


def hunt(
    name: str, seeds: Sequence[int], without: Sequence[str], known: Collection[int]
) -> dict[str, object]:
    """In this process, which has not imported what is to be planted."""
    from tests.planted import table
    from tests.planted.planting import plant

    plant(table.BY_NAME[name])
    from tests.simulation.seeds import outcome_of

    begun_s = time.process_time()
    tried = 0
    for seed in seeds:
        if seed in known:
            continue
        tried += 1
        wrong = outcome_of(seed, without).wrong
        if wrong:
            break
    else:
        seed, wrong = 0, ""
    used_s = round(time.process_time() - begun_s, 1)
    return {"name": name, "seed": seed, "seeds": tried, "cpu_s": used_s, "wrong": wrong}


def main() -> None:
    options = _options()
    without = [name for name in options.without.split(",") if name]
    seeds = range(options.first, options.first + options.seeds)
    if options.known is not None:
        known = [int(seed) for seed in options.known.split(",") if seed]
        print(json.dumps(hunt(options.names[0], seeds, without, known)))
        return
    from tests.simulation.seeds import run_all

    failing = [str(one.seed) for one in run_all(seeds, options.jobs, without) if one.wrong]
    print(f"without any bug {len(failing)} of {len(seeds)} seeds fail", flush=True)
    print("| bug | seeds | CPU s | what it shows |\n| --- | ---: | ---: | --- |", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for told in pool.map(
            lambda name: _in_a_process(name, options, ",".join(failing)),
            options.names or PROTOCOL,
        ):
            count = told["seeds"] if told["seed"] else f"not in {told['seeds']}"
            shown = str(told["wrong"])[:WRONG_SHOWN].replace("|", "/")
            print(f"| `{told['name']}` | {count} | {told['cpu_s']} | {shown} |", flush=True)


def _in_a_process(name: str, options: argparse.Namespace, known: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.planted.hunt", name, "--known", known]
    command += ["--seeds", str(options.seeds), "--from", str(options.first)]
    command += ["--without", options.without]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        shown = ended.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return {"name": name, "seed": 0, "seeds": 0, "cpu_s": 0, "wrong": shown[0]}
    told: dict[str, object] = json.loads(lines[-1])
    return told


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--without", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    # Seeds that fail by themselves: given by this program to its processes.
    parser.add_argument("--known", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
