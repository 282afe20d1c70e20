"""One job that is bounced: feed, trouble, drain, verdict.

    feeder ──► in (9) ──► workers 1..n, bounced ──► out (9) ──► watcher
                            services, bounced beside them

What must hold (I14, I21, I23): each partition of the output has the numbers of that partition of
the input, all of them, once, in order, for who watched and for who reads from the front; the group
has committed all of its input; nobody ended who was not told to.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import oncelog
from benchmarks.standstill import Event, Standstill, standstills
from tests.chaos.groups.members import Members
from tests.chaos.groups.plan import Bounce, What, bounces
from tests.chaos.groups.services import Services
from tests.chaos.groups.traffic import BY, CALL_MS, Feeder, Watcher
from tests.chaos.groups.workers import Slot
from tests.integration.cluster import until
from tests.integration.reading import read_all
from tests.integration.up import Up

LOOK_EVERY_S: Final = 0.05
SAY_EVERY_S: Final = 10.0
# A bound that only ends what would hang.
PATIENCE_S: Final = 300.0
# Of a service, by default, and what its clocks and elections need.
LEASE_S: Final = 4.0
# A worker that is stopped sleeps for so many of its sessions.
STOPPED_SESSIONS: Final = 1.3


@dataclass(frozen=True)
class Job:
    """One variant."""

    name: str
    # Of the workers, by turns.
    modes: Sequence[str]
    workers: int
    # From the middle on there are so many.
    workers_later: int
    # Beside these: members that come and go each second.
    passers_by: int
    partitions: int
    replicas: int
    records: int
    seconds: float
    session_ms: int
    services: bool = True


class Bouncing:
    """The run of one job."""

    def __init__(self, job: Job, up: Up, folder: Path, data: Path, seed: int) -> None:
        self.job = job
        self.counts: Counter[str] = Counter()
        self.found: list[Standstill] = []
        self.took_s = 0.0
        self.membership_changes = 0
        self._bootstrap = up.bootstrap
        self._log = oncelog.connect(up.bootstrap, timeout_ms=CALL_MS, connect_timeout_ms=CALL_MS)
        self._services = Services(up, data, self._log)
        self._plan: Iterator[Bounce] = bounces(seed, static="static" in job.modes)
        self._folder = folder
        self._begun_s = time.monotonic()
        self._slots: list[Slot] = []
        self._events: list[Event] = []
        # What is still to be done: when, and what.
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # Services that are stopped.
        self._stopped: set[int] = set()

    def whole(self) -> None:
        """Raises AssertionError where a promise was broken."""
        job = self.job
        for topic in (f"{job.name}-in", f"{job.name}-out"):
            self._log.admin.create_topic(
                topic, partitions=job.partitions, replication_factor=job.replicas
            )
        watcher = Watcher(self._bootstrap, f"{job.name}-out")
        members = Members(self._bootstrap, job.name)
        feeder: Feeder | None = None
        try:
            self._start_workers(job.workers)
            for number in range(job.passers_by):
                self._start(f"passer-{number}", "passer-by")
            first = self._slots[: job.workers]
            until(lambda: all(slot.worker.has_begun() for slot in first), "all have a share")
            self._begun_s = time.monotonic()
            feeder = Feeder(
                self._bootstrap,
                f"{job.name}-in",
                partitions=job.partitions,
                records=job.records,
                seconds=job.seconds,
            )
            self._trouble(feeder, watcher)
            self._drain(feeder, watcher)
            self.took_s = time.monotonic() - self._begun_s
            self._end_workers()
        finally:
            for slot in self._slots:
                slot.end_all()
            for thread in (feeder, watcher, members):
                if thread is not None:
                    thread.end()
            for pid in list(self._stopped):
                self._go_on(pid)
        self.membership_changes = members.changes
        self._judge(watcher)
        self.found = standstills(watcher.arrivals, self._events)
        self._log.close()

    # ------------------------------------------------------------------------------------- workers

    def _start_workers(self, count: int) -> None:
        for number in range(len(self._slots), count):
            self._start(f"w{number}", self.job.modes[number % len(self.job.modes)])

    def _start(self, name: str, mode: str) -> None:
        slot = Slot(
            self._folder,
            self._bootstrap,
            self.job.name,
            name,
            mode=mode,
            session_ms=self.job.session_ms,
        )
        slot.start()
        self._slots.append(slot)

    def _end_workers(self) -> None:
        """SIGTERM: each finishes and ends well."""
        workers = [slot.worker for slot in self._slots if slot.worker.is_alive]
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.wait()
            worker.require_ended_well()

    # ------------------------------------------------------------------------------------- trouble

    def _trouble(self, feeder: Feeder, watcher: Watcher) -> None:
        bounce = next(self._plan)
        due_s = time.monotonic() + bounce.wait_s
        said_s = time.monotonic()
        while not feeder.is_over:
            self._look(feeder, watcher)
            now = time.monotonic()
            if now >= due_s:
                self._do(bounce)
                bounce = next(self._plan)
                due_s = now + bounce.wait_s
            if self._is_later(feeder) and len(self._slots) < self.job.workers_later:
                self._happened("more join")
                self._start_workers(self.job.workers_later)
            if now - said_s > SAY_EVERY_S:
                said_s = now
                self._say(f"{feeder.fed} fed, {watcher.seen} copied, {sum(self.counts.values())} x")

    def _is_later(self, feeder: Feeder) -> bool:
        return feeder.fed * 2 >= self.job.records and not self.job.passers_by

    def _look(self, feeder: Feeder, watcher: Watcher) -> None:
        feeder.check()
        watcher.check()
        for slot in self._slots:
            slot.check()
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()
        time.sleep(LOOK_EVERY_S)

    def _drain(self, feeder: Feeder, watcher: Watcher) -> None:
        """Those that are stopped go on, and all is copied."""
        end = time.monotonic() + PATIENCE_S
        while watcher.seen < self.job.records or self._later:
            self._look(feeder, watcher)
            assert time.monotonic() < end, (
                f"{feeder.fed} were fed, {watcher.seen} came: "
                f"{ {p: len(n) for p, n in sorted(watcher.numbers.items())} }"
            )
        feeder.check()
        self._say("all is copied")

    def _do(self, bounce: Bounce) -> None:
        if bounce.role:
            if self.job.services:
                self._bounce_service(bounce)
            return
        working = [slot for slot in self._slots if slot.works and slot.mode != "passer-by"]
        if len(working) < 2:
            # One works on.
            return
        if bounce.what is What.REPLACE:
            # Of two that join, whoever comes later is the one that stays: it must be a member.
            working = [slot for slot in working if slot.worker.has_begun()]
            if not working:
                return
        self._happened(bounce.kind)
        slot = working[bounce.victim % len(working)]
        slot.doomed.add(slot.worker)
        away_s = bounce.away_s
        if bounce.what is What.KILL:
            slot.worker.kill()
            self._after(away_s, slot.start)
        elif bounce.what is What.END:
            slot.worker.ask_to_end()
            self._after(away_s, lambda: self._when_ended(slot))
        else:
            self._stop(slot, bounce)

    def _stop(self, slot: Slot, bounce: Bounce) -> None:
        """SIGSTOP for longer than its session; where it is replaced, it must end by itself."""
        stopped = slot.worker
        stopped.stop()
        session_s = self.job.session_ms / 1000
        if bounce.what is What.REPLACE:
            self._after(bounce.away_s, slot.start)
        else:
            slot.doomed.discard(stopped)
        self._after(session_s * STOPPED_SESSIONS + bounce.away_s, stopped.go_on)

    def _when_ended(self, slot: Slot) -> None:
        """Starts its successor once it has ended, well."""
        if slot.worker.is_alive:
            self._after(LOOK_EVERY_S, lambda: self._when_ended(slot))
            return
        slot.worker.require_ended_well()
        slot.start()

    def _bounce_service(self, bounce: Bounce) -> None:
        what = {
            What.KILL_SERVICE: signal.SIGKILL,
            What.END_SERVICE: signal.SIGTERM,
            What.STOP_SERVICE: signal.SIGSTOP,
        }[bounce.what]
        pid = self._services.signal_leader(
            bounce.role,
            what,
            topic=f"{self.job.name}-in",
            group=self.job.name,
            number=bounce.victim % self.job.partitions,
        )
        if pid is None:
            return
        # While a service is away nobody gets further, whatever else happens.
        self._happened(bounce.kind, weight=1)
        if bounce.what is What.STOP_SERVICE:
            self._stopped.add(pid)
            self._after(LEASE_S * 1.5 + bounce.away_s, lambda: self._go_on(pid))

    def _happened(self, kind: str, weight: int = 0) -> None:
        self.counts[kind] += 1
        self._events.append(Event(time.monotonic(), kind, weight))

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), what))

    def _go_on(self, pid: int) -> None:
        if pid in self._stopped:
            self._stopped.discard(pid)
            self._services.go_on(pid)

    # ------------------------------------------------------------------------------------- verdict

    def _judge(self, watcher: Watcher) -> None:
        job = self.job
        read: dict[int, list[int]] = defaultdict(list)
        for record in read_all(self._log, f"{job.name}-out"):
            read[record.partition].append(int((record.value or b"").partition(BY)[0]))
        for partition in range(job.partitions):
            fed = list(range(partition, job.records, job.partitions))
            for who, numbers in (("watched", watcher.numbers), ("read", read)):
                assert numbers[partition] == fed, differs(who, partition, numbers[partition], fed)
        ends = dict(enumerate(self._log.admin.offsets(f"{job.name}-in")))
        # The offsets of a transaction may be there a moment after its output.
        until(lambda: self._stands() == ends, f"the group stands where its input ends: {ends}")

    def _stands(self) -> dict[int, int | None]:
        return {at.partition: at.offset for at in self._log.admin.group_offsets(self.job.name)}

    def _say(self, what: str) -> None:
        at = time.monotonic() - self._begun_s
        print(f"{self.job.name:10} {at:6.1f} s  {what}", flush=True)


def differs(who: str, partition: int, numbers: Sequence[int], fed: Sequence[int]) -> str:
    """How, in a few words."""
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    lost = sorted(set(fed) - set(numbers))
    first = next((n for n, (a, b) in enumerate(zip(numbers, fed, strict=False)) if a != b), None)
    return (
        f"{who}, partition {partition}: {len(lost)} lost ({lost[:5]}), {len(twice)} twice "
        f"({twice[:5]}), other from place {first} on"
    )
