"""One run: start, trouble, healing, verdict."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import oncelog
from oncelog.protocol import Protocol
from oncelog_server.core.roles import PORTS, ROLES
from oncelog_spark.jobs.java import provide_java
from oncelogpb.errors import OncelogError
from tests.chaos.faults import Leads, is_etcd_whole, is_whole, leads_of
from tests.chaos.groups.traffic import CALL_MS
from tests.chaos.machines import Machine, addresses
from tests.chaos.network import MACHINES, Network
from tests.integration.proxy import Proxy
from tests.spark.chaos.faults import Hit, hits_of_job, hits_of_services
from tests.spark.chaos.job import AUDIT, SOURCE, TARGET
from tests.spark.chaos.keeper import LOCAL, LOCAL_CLUSTER, Keeper
from tests.spark.chaos.traffic import PARTITIONS, Feeder, Watcher
from tests.spark.chaos.verdict import Counted, judged, logs_of, require_nothing_left

# Bounds that only end what would hang. The machine may be slow: a driver that starts has JVMs to
# start, and a batch that is run again waits for deadlines of a minute, one after the other.
PATIENCE_S: Final = 900.0
LOOK_EVERY_S: Final = 0.2
# Queries that may fail because the machine is too busy for Spark, in all.
TOO_BUSY_MAX: Final = 500
# Between two faults, so that their times are not mixed.
CALM_S: Final = 2.0
# Of four faults of the job, so many meet one of a service.
TOGETHER_OF_4: Final = 1
# Of four drivers that are started anew, so many have executors of their own.
CLUSTERS_OF_4: Final = 1
EXTERNAL_PORT_UP: Final = 100


@dataclass(frozen=True, slots=True)
class Stood:
    """What a fault cost: seconds until the job had committed something that was fed after it, and
    after it was healed."""

    kind: str
    since_fault_s: float
    since_healed_s: float


class Run:
    """Its story comes from `chance`; when things happen does not."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        etcd: Path,
        chance: random.Random,
        *,
        seconds: float,
        pace: float,
        only: Sequence[str] | None,
        once: bool,
        long_s: tuple[float, float],
    ) -> None:
        self.stood: list[Stood] = []
        self.counted: Counted | None = None
        self._chance = chance
        self._seconds = seconds
        self._pace = pace
        self._once = once
        self._begun_s = time.monotonic()
        self._roads: list[Proxy] = []
        self._machines = [
            Machine(number, folder, network, etcd, self._further(number, network))
            for number in MACHINES
        ]
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "GRPC_ENABLE_FORK_SUPPORT": "false",
            "PYSPARK_PYTHON": sys.executable,
        }
        provide_java(environment, folder / "java")
        self.keeper = Keeper(",".join(road.address for road in self._roads), folder, environment)
        self._of_job = _chosen(hits_of_job(self.keeper, self._goes_on), only)
        self._of_services = _chosen(
            hits_of_services(self._machines, network, self._roads, self._leads, long_s=long_s), only
        )
        if not self._of_job and not self._of_services:
            raise SystemExit(f"no such fault here: {only}")
        self._known: Leads = {role: _somewhere() for role in ROLES}
        self._feeder: Feeder | None = None
        self._watcher: Watcher | None = None

    def _further(self, number: int, network: Network) -> dict[str, list[str]]:
        """Settings: the job comes in from outside, over roads on which answers can be lost."""
        found = {}
        for role in ROLES:
            inside = f"{network.address(number)}:{PORTS[role] + EXTERNAL_PORT_UP}"
            road = Proxy(inside)
            self._roads.append(road)
            found[role] = [
                f"node.listen_external={inside}",
                f"node.advertise_external={road.address}",
            ]
        return found

    def kill_all(self) -> None:
        self.keeper.kill_all()
        for machine in self._machines:
            machine.kill()

    def whole(self) -> None:
        """Raises AssertionError where a promise was broken."""
        for road in self._roads:
            road.__enter__()
        for machine in self._machines:
            machine.start()
        bootstrap = addresses(self._machines)
        with (
            oncelog.connect(bootstrap, timeout_ms=CALL_MS, connect_timeout_ms=CALL_MS) as log,
            Protocol(bootstrap) as protocol,
        ):
            self._log = log
            self._until(self._is_in_sync, "the machines come up")
            for topic in (SOURCE, TARGET, AUDIT):
                log.admin.create_topic(topic, PARTITIONS, replication_factor=len(MACHINES))
            self._feeder = Feeder(bootstrap, pace=self._pace)
            self._watcher = Watcher(bootstrap)
            try:
                self.keeper.start(LOCAL)
                self._goes_on()
                self._say("the job runs")
                self._trouble()
                self._finish(log, protocol)
            finally:
                self._feeder.end()
                self._watcher.end()

    # -------------------------------------------------------------------------------------- steps

    def _trouble(self) -> None:
        """Each kind in some order, then again in another one, until the time is over. Now and then
        a fault of the job happens while one of the services lasts."""
        end = time.monotonic() + self._seconds
        kinds = [*self._of_job, *self._of_services]
        order = self._chance.sample(kinds, len(kinds))
        while order and (self._once or time.monotonic() < end):
            self._one(order.pop())
            self._rest()
            if not order and not self._once:
                order = self._chance.sample(kinds, len(kinds))

    def _one(self, kind: str) -> None:
        hits = {kind: self._hit(kind)}
        together = self._chance.randrange(4) < TOGETHER_OF_4 and not hits[kind].waits_for_job
        if together and kind in self._of_job and self._of_services:
            other = self._chance.choice(sorted(self._of_services))
            hits = {other: self._hit(other), **hits}
        name = " + ".join(hits)
        master = next((hit.master for hit in hits.values() if hit.master is not None), None)
        if master is not None and self.keeper.driver.master != master:
            self._other_driver(master)
        self._known = self._leads()
        told = [f"{hit.inject(self._chance)}" for hit in hits.values()]
        lasts_s = max(self._chance.uniform(*hit.seconds) for hit in hits.values())
        self._wait(lasts_s)
        told += [hit.heal() for hit in reversed(hits.values())]
        healed = time.monotonic()
        self._goes_on()
        back_s = self._back_after(min(hit.struck_s for hit in hits.values()))
        after_s = self._back_after(healed)
        self.stood.append(Stood(name, back_s, after_s))
        self._until(self._is_in_sync, f"all are in sync after {name}")
        self._say(
            f"{name} ({'; '.join(said for said in told if said)}; {lasts_s:.0f} s): output after "
            f"{back_s:.1f} s, after healing {after_s:.1f} s; driver {self.keeper.drivers} "
            f"({self.keeper.master}), {self._fed} fed"
        )

    def _finish(self, log: oncelog.Log, protocol: Protocol) -> None:
        assert self._feeder is not None
        assert self._watcher is not None
        self._feeder.end()
        self._feeder.check()
        last = self._feeder.fed
        watcher = self._watcher
        self._until(lambda: len(watcher.seen) >= last, f"all {last} came out")
        self._say(f"all {last} came out")
        self.keeper.finish()
        logs = logs_of(log)
        numbers = {int(row.value) for row in logs[SOURCE]}
        assert numbers >= set(range(self._feeder.acknowledged)), "the input lost what was fed"
        self.counted = judged(logs)
        self._say(str(self.counted))
        require_nothing_left(log, protocol, self._until)
        self._say("nothing is open, staged or pending; the group stands at the heads of the input")

    # -------------------------------------------------------------------------------------- parts

    def _hit(self, kind: str) -> Hit:
        return self._of_job.get(kind) or self._of_services[kind]

    def _other_driver(self, master: str) -> None:
        """The same job, ended well and started with other executors."""
        self.keeper.driver.tell("end")
        self._until(lambda: not self.keeper.driver.is_running, "the driver ends", tend=False)
        self.keeper.driver.end()
        self.keeper.start(master)
        self._goes_on()

    def _rest(self) -> None:
        """Calm, and another kind of driver next time, perhaps."""
        clusters = self._chance.randrange(4) < CLUSTERS_OF_4
        self.keeper.master = LOCAL_CLUSTER if clusters else LOCAL
        self._wait(CALM_S)

    def _goes_on(self) -> None:
        """Until the job has committed what was fed from now on."""
        fed = self._fed
        self._until(lambda: self._came_since(fed), "the job goes on")

    @property
    def _fed(self) -> int:
        assert self._feeder is not None
        return self._feeder.fed

    def _came_since(self, fed: int) -> bool:
        assert self._watcher is not None
        return self._watcher.newest >= fed

    def _back_after(self, since_s: float) -> float:
        """Seconds from then until the first output of what was fed after it; it has come."""
        assert self._feeder is not None
        assert self._watcher is not None
        came_s = self._watcher.first_from(self._feeder.fed_at(since_s))
        # All that was fed has come; where nothing was fed since, it was by now at the latest.
        return (time.monotonic() if came_s is None else came_s) - since_s

    def _leads(self) -> Leads:
        """Who leads what; as it was, where nobody tells it now."""
        try:
            found = leads_of(self._log.admin.topics(internal=True), self._machines)
        except OncelogError:
            return self._known
        if all(found[role] for role in ROLES):
            self._known = found
        return self._known

    def _is_in_sync(self) -> bool:
        try:
            topics = self._log.admin.topics(internal=True)
        except OncelogError:
            return False
        return len(topics) >= 2 and is_whole(topics) and is_etcd_whole(self._machines)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(min(LOOK_EVERY_S, seconds))

    def _until(
        self,
        predicate: Callable[[], bool],
        what: str,
        within_s: float = PATIENCE_S,
        *,
        tend: bool = True,
    ) -> None:
        end = time.monotonic() + within_s
        slow = self.keeper.too_busy()
        while not predicate():
            self._look(tend=tend)
            if slow < (now_slow := self.keeper.too_busy()) <= TOO_BUSY_MAX:
                # Spark gave up on a machine that is slow; the job had no chance until now.
                slow, end = now_slow, time.monotonic() + within_s
            assert time.monotonic() < end, f"it did not come about: {what}"
            time.sleep(LOOK_EVERY_S)

    def _look(self, *, tend: bool = True) -> None:
        for thread in (self._feeder, self._watcher):
            if thread is not None:
                thread.check()
        if self._watcher is not None:
            assert not self._watcher.twice, f"came out twice: {self._watcher.twice[:5]}"
        if tend and self.keeper.drivers:
            self.keeper.tend()

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._begun_s:6.1f} s  {what}", flush=True)


def by_kind(stood: Sequence[Stood]) -> dict[str, list[Stood]]:
    found: dict[str, list[Stood]] = defaultdict(list)
    for one in stood:
        # Two at once count for themselves, not for either.
        found["two at once" if " + " in one.kind else one.kind].append(one)
    return dict(sorted(found.items()))


def _chosen(hits: dict[str, Hit], only: Sequence[str] | None) -> dict[str, Hit]:
    return {name: hit for name, hit in hits.items() if only is None or name in only}


def _somewhere() -> Counter[int]:
    return Counter({MACHINES[0]: 1})
