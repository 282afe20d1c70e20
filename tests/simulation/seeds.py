"""Many seeds of the workload, each judged: `run_all` on several cores, in processes that live long,
for starting Python takes longer than a run. `sim` is the command."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Final, NamedTuple

from tests.simulation import branches
from tests.simulation.marks import Reached, merge
from tests.simulation.plan import Plan

# A run that takes longer is one that never ends, seconds.
RUN_S_MAX: Final = 300


class Outcome(NamedTuple):
    """Of one seed. `wrong` is empty where it is clean."""

    seed: int
    wrong: str
    transactions: int = 0
    cpu_s: float = 0.0
    reached: Reached = {}
    # What its plan says and it never reached: it shows less than it says.
    broken: Sequence[str] = ()


@dataclass
class Sum:
    """Of many seeds. `wrong` says of each failing one what is wrong."""

    seeds: int = 0
    transactions: int = 0
    cpu_s: float = 0.0
    wrong: dict[int, str] = field(default_factory=dict)
    reached: Reached = field(default_factory=dict)
    # By promise, how many runs did not keep it; and how many runs kept not all of theirs.
    broken: Counter[str] = field(default_factory=Counter)
    uninformative: int = 0

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.transactions += outcome.transactions
        self.cpu_s += outcome.cpu_s
        merge(self.reached, outcome.reached)
        self.broken.update(outcome.broken)
        self.uninformative += bool(outcome.broken)
        if outcome.wrong:
            self.wrong[outcome.seed] = outcome.wrong


def outcome_of(seed: int, without: Sequence[str] = ()) -> Outcome:
    """Runs it, here and now. `without`: applications and faults that are left out."""
    from tests.simulation.swarm import plan_of

    return outcome_of_plan(plan_of(seed, without), seed)


def outcome_of_plan(plan: Plan, seed: int) -> Outcome:
    """The same, of a plan that may be another than the seed's."""
    from tests.simulation.moments import broken_promises
    from tests.simulation.workload import run_plan

    begun_s = time.process_time()
    transactions, wrong = 0, ""
    broken: Sequence[str] = ()
    reached: Reached = {}
    branches.REACHED.clear()
    # Garbage is collected between runs: quicker, and no finalizer runs in the middle of one.
    gc.disable()
    try:
        # Of a failure it prints the trace: who repeats it sees it.
        with contextlib.redirect_stderr(io.StringIO()), _at_most(RUN_S_MAX):
            told = run_plan(plan, seed)
        transactions = told.report.size.transactions
        reached = {**told.reached, "branch": set(branches.REACHED)}
        broken = broken_promises(plan, reached)
        if not told.report.clean:
            wrong = str(told.report.violations[0])
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        gc.enable()
    gc.collect()
    wrong = " ".join(wrong.split())
    cpu_s = time.process_time() - begun_s
    return Outcome(seed, wrong, transactions, cpu_s, reached, broken)


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raises TimeoutError, in real time."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the run takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ------------------------------------------------------------------------------- several processes


def run_all(seeds: Iterable[int], jobs: int, without: Sequence[str] = ()) -> Iterator[Outcome]:
    """As they end; each is asked for when a process is free for it. A process that dies takes its
    seed with it: that is its outcome."""
    left = iter(seeds)
    with contextlib.ExitStack() as stack:
        workers = _Workers(without)
        stack.callback(workers.end)
        for seed in itertools.islice(left, jobs):
            workers.give(workers.start(), seed)
        while workers.running:
            for outcome, worker in workers.outcomes():
                for seed in itertools.islice(left, 1):
                    workers.give(worker or workers.start(), seed)
                yield outcome


class _Workers:
    """Forks of this process, each with a pipe."""

    def __init__(self, without: Sequence[str]) -> None:
        self._without = without
        self._context = multiprocessing.get_context("fork")
        self._processes: dict[Connection, multiprocessing.Process] = {}
        # The seed that each runs.
        self.running: dict[Connection, int] = {}
        import tests.simulation.workload  # noqa: F401  (once, for all of them)

        gc.collect()
        gc.freeze()

    def start(self) -> Connection:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, self._without), daemon=True)
        process.start()
        there.close()
        self._processes[here] = process  # type: ignore[assignment]
        return here

    def give(self, worker: Connection, seed: int) -> None:
        worker.send(seed)
        self.running[worker] = seed

    def outcomes(self) -> list[tuple[Outcome, Connection | None]]:
        """Those that have ended, and who is free for the next seed: None where it died."""
        ended: list[tuple[Outcome, Connection | None]] = []
        for worker in wait(list(self.running)):
            assert isinstance(worker, Connection)
            seed = self.running.pop(worker)
            try:
                ended.append((worker.recv(), worker))
            except EOFError:
                process = self._processes.pop(worker)
                process.join()
                ended.append((Outcome(seed, f"its process ended with {process.exitcode}"), None))
        return ended

    def end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()


def _work(orders: Connection, without: Sequence[str]) -> None:
    # Ctrl-C is the parent's: it ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    while True:
        try:
            seed = orders.recv()
        except EOFError:
            return
        orders.send(outcome_of(seed, without))
