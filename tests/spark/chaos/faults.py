"""What goes wrong with the job, its processes and what it is written with. What goes wrong with the
services is of tests/chaos, and a little more."""

from __future__ import annotations

import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from oncelog_server.core.roles import ROLES
from tests.chaos.faults import Cut, Fault, Kill, Leads, every_fault, most
from tests.chaos.machines import ETCD, Machine
from tests.chaos.network import CLIENTS, Network
from tests.integration.proxy import Proxy, Road
from tests.spark.chaos.driver import STARTS_S, Part, send
from tests.spark.chaos.keeper import LOCAL_CLUSTER, Keeper

PHASES: Final = ("write", "commit", "now")
# A driver says that a batch got somewhere, or that none came.
REACHED_S: Final = 60.0
# Of two drivers on one checkpoint, so many of four times it is the older that is ended.
OLDER_ENDS: Final = 3


class Hit(ABC):
    """One kind. `inject` says what it did; it may begin with waiting for a moment that hurts."""

    # How long it lasts, drawn from here.
    seconds: tuple[float, float] = (0.0, 0.0)
    # When it happened: `inject` may take a while before, and after.
    struck_s: float = 0.0
    # `inject` waits for the job to go on, which it does not while services are away.
    waits_for_job: bool = False
    # What it needs: executors that are processes of their own.
    master: str | None = None

    @abstractmethod
    def inject(self, chance: random.Random) -> str: ...

    def heal(self) -> str:
        return ""

    def strikes(self) -> None:
        self.struck_s = time.monotonic()


class JobHit(Hit):
    """Of the driver that is the newest when it begins."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    def reach(self, chance: random.Random, phases: Sequence[str] = PHASES) -> str:
        """Waits for a moment within a batch. Says which one; "now" where none came."""
        phase = chance.choice(phases)
        if phase == "now":
            return phase
        driver = self.keeper.driver
        driver.forget_news()
        driver.tell("tell", phase)
        reached = driver.hears("reached", REACHED_S, lambda: None)
        return phase if reached and driver.said[-1].get("reached") else "now"


class KillParts(JobHit):
    """kill -9 of processes of the job: all of a part, or one of them."""

    def __init__(self, keeper: Keeper, part: Part, *, master: str | None = None) -> None:
        super().__init__(keeper)
        self._part = part
        self.master = master

    def inject(self, chance: random.Random) -> str:
        all_of_it = self._part in (Part.DRIVER, Part.ALL) or chance.random() < 0.5
        phase = self.reach(chance)
        pids = self.keeper.driver.pids(self._part)
        chosen = pids if all_of_it else [chance.choice(pids)] if pids else []
        self.strikes()
        send(signal.SIGKILL, chosen)
        return f"{len(chosen)} of {len(pids)} at {phase}"


class PauseParts(JobHit):
    """SIGSTOP of them."""

    seconds = (3.0, 25.0)

    def __init__(self, keeper: Keeper, part: Part, *, master: str | None = None) -> None:
        super().__init__(keeper)
        self._part = part
        self.master = master
        self._stopped: tuple[int, ...] = ()

    def inject(self, chance: random.Random) -> str:
        phase = self.reach(chance)
        self._driver = self.keeper.driver
        self._stopped = tuple(self._driver.pids(self._part))
        self.strikes()
        send(signal.SIGSTOP, self._stopped)
        return f"{len(self._stopped)} at {phase}"

    def heal(self) -> str:
        send(signal.SIGCONT, self._stopped)
        return ""


class StopQuery(JobHit):
    """q.stop() in the middle of a batch; the query is started again in the same session."""

    def __init__(self, keeper: Keeper, phase: str) -> None:
        super().__init__(keeper)
        self._phase = phase

    def inject(self, chance: random.Random) -> str:
        driver = self.keeper.driver
        driver.forget_news()
        driver.tell("stop", self._phase)
        stopped = driver.hears("stopped", REACHED_S + STARTS_S, lambda: None)
        self.strikes()
        return "stopped" if stopped else "the driver ended first"


class LostCheckpoint(KillParts):
    """The same as a killed driver, and its checkpoint is gone with it."""

    def inject(self, chance: random.Random) -> str:
        self.keeper.tends = False
        said = super().inject(chance)
        self.keeper.lose_checkpoint()
        self.keeper.tends = True
        return said


class SecondDriver(JobHit):
    """Another driver starts over the checkpoint of one that lives. Each goes on as it can."""

    seconds = (5.0, 15.0)

    def inject(self, chance: random.Random) -> str:
        self._older_ends = chance.randrange(4) < OLDER_ENDS
        self.strikes()
        second = self.keeper.start()
        begun = second.hears("started", STARTS_S, lambda: None)
        return f"started: {begun}"

    def heal(self) -> str:
        if not self._older_ends:
            self.keeper.end_newest()
        self.keeper.end_older()
        return "the older was ended" if self._older_ends else "the newer was ended"


class Zombie(JobHit):
    """All processes of a driver are frozen in the middle of a batch, another one goes on with the
    job, and the first wakes up."""

    seconds = (5.0, 15.0)
    waits_for_job = True

    def __init__(self, keeper: Keeper, goes_on: Callable[[], None]) -> None:
        super().__init__(keeper)
        self._goes_on = goes_on

    def inject(self, chance: random.Random) -> str:
        phase = self.reach(chance, ("write", "commit"))
        zombie = self.keeper.driver
        stopped = zombie.pids(Part.ALL)
        self.strikes()
        send(signal.SIGSTOP, stopped)
        self.keeper.start()
        self._goes_on()
        send(signal.SIGCONT, stopped)
        return f"at {phase}"

    def heal(self) -> str:
        self.keeper.end_older()
        return ""


class ServiceHit(Hit):
    """Of tests/chaos, at the machine that leads most."""

    def __init__(
        self, fault: Fault, leads: Callable[[], Leads], seconds: tuple[float, float] | None = None
    ) -> None:
        self._fault = fault
        self._leads = leads
        self.seconds = seconds or (fault.lasts_s, fault.lasts_s * 2)
        self._number = 0

    def inject(self, chance: random.Random) -> str:
        leads = self._leads()
        self.strikes()
        self._number = self._fault.inject(leads)
        return f"machine {self._number}"

    def heal(self) -> str:
        self._fault.heal(self._number)
        return ""


class HandOver(Kill):
    """SIGTERM: another one leads before the process ends."""

    lasts_s = 5.0

    def inject(self, leads: Leads) -> int:
        number = most(leads, [self._role])
        self.machine(number).end(self._role)
        return number


class EtcdLost(Fault):
    """kill -9 of all members at once."""

    def inject(self, leads: Leads) -> int:
        for machine in self.machines:
            machine.kill(ETCD)
        return 0

    def heal(self, number: int) -> None:
        for machine in self.machines:
            machine.start(ETCD)


class Roads(Hit):
    """Between the job and all services."""

    def __init__(self, roads: Sequence[Proxy], road: Road | None, seconds: tuple[float, float]):
        """`road` None: all connections break, and new ones are made."""
        self._roads = roads
        self._road = road
        self.seconds = seconds

    def inject(self, chance: random.Random) -> str:
        self.strikes()
        for road in self._roads:
            if self._road is None:
                road.break_connections()
            else:
                road.road = self._road
        return ""

    def heal(self) -> str:
        for road in self._roads:
            if self._road is not None:
                road.road = Road.OPEN
        return ""


def hits_of_job(keeper: Keeper, goes_on: Callable[[], None]) -> dict[str, Hit]:
    """By name."""
    return {
        "kill driver": KillParts(keeper, Part.DRIVER),
        "kill whole job": KillParts(keeper, Part.ALL),
        "kill workers": KillParts(keeper, Part.WORKERS),
        "kill executors": KillParts(keeper, Part.EXECUTORS, master=LOCAL_CLUSTER),
        "pause driver": PauseParts(keeper, Part.DRIVER),
        "pause workers": PauseParts(keeper, Part.WORKERS),
        "pause executors": PauseParts(keeper, Part.EXECUTORS, master=LOCAL_CLUSTER),
        "stop in write": StopQuery(keeper, "write"),
        "stop in commit": StopQuery(keeper, "commit"),
        "lost checkpoint": LostCheckpoint(keeper, Part.ALL),
        "lost checkpoint, orphans": LostCheckpoint(keeper, Part.DRIVER),
        "two drivers": SecondDriver(keeper),
        "zombie driver": Zombie(keeper, goes_on),
    }


def hits_of_services(
    machines: Sequence[Machine],
    network: Network,
    roads: Sequence[Proxy],
    leads: Callable[[], Leads],
    *,
    long_s: tuple[float, float],
) -> dict[str, Hit]:
    """By name, those that can happen here. `long_s`: how long etcd is lost, and a disk full."""
    found = {
        name: ServiceHit(fault, leads, long_s if name == "disk full" else None)
        for name, fault in every_fault(machines, network).items()
    }
    for role in ROLES:
        found[f"hand over {role}"] = ServiceHit(HandOver(machines, network, role), leads)
    found["etcd lost"] = ServiceHit(EtcdLost(machines, network), leads, long_s)
    if network.can_cut:
        unheard = Cut(machines, network, sends=(CLIENTS,))
        found["unheard by clients"] = ServiceHit(unheard, leads, (5.0, 20.0))
    more: Mapping[str, Hit] = {
        "answers lost": Roads(roads, Road.ANSWERS_LOST, (0.3, 5.0)),
        "all silent": Roads(roads, Road.SILENT, (3.0, 25.0)),
        "connections break": Roads(roads, None, (0.0, 0.0)),
    }
    return {**found, **more}
