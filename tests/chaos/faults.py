"""What goes wrong, one thing at a time, at the machine that it hurts most."""

from __future__ import annotations

import json
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from oncelog.aio import TopicInfo
from oncelog_server.core.ids import TopicId
from oncelog_server.core.roles import COORDINATOR, OFFSET_MANAGER, PARTITION_LEADER, ROLES, role_of
from tests.chaos.machines import ETCD, ETCD_PORT, Machine
from tests.chaos.network import CLIENTS, MACHINES, Network

# Leadership of a role's partitions: how many each machine leads.
Leads = Mapping[str, Counter[int]]

# Twice the lease, by default: another leads meanwhile, whatever phase the lease was in.
PAUSE_S: Final = 8.0
# etcd's members are asked on loopback, or on the bridge: they answer at once or not at all.
ETCD_ANSWERS_S: Final = 1.0


class Fault(ABC):
    """One kind. `inject` says which machine was hurt."""

    # At least so long; at least until the service is back, too.
    lasts_s: float = 2.0
    needs_namespaces: bool = False

    def __init__(self, machines: Sequence[Machine], network: Network) -> None:
        self.machines = machines
        self.network = network

    @abstractmethod
    def inject(self, leads: Leads) -> int: ...

    @abstractmethod
    def heal(self, number: int) -> None: ...

    def machine(self, number: int) -> Machine:
        (found,) = [machine for machine in self.machines if machine.number == number]
        return found


class Kill(Fault):
    """kill -9 of the process that leads most of a role's partitions; its machine lives."""

    def __init__(self, machines: Sequence[Machine], network: Network, role: str) -> None:
        super().__init__(machines, network)
        self._role = role

    def inject(self, leads: Leads) -> int:
        number = most(leads, [self._role])
        self.machine(number).kill(self._role)
        return number

    def heal(self, number: int) -> None:
        self.machine(number).start(self._role)


class Bounce(Kill):
    """The same, and started again at once."""

    lasts_s = 0.0

    def inject(self, leads: Leads) -> int:
        number = super().inject(leads)
        self.machine(number).start(self._role)
        return number

    def heal(self, number: int) -> None:
        pass


class PowerOff(Fault):
    """A machine is gone in an instant, with its member of etcd, and nobody refuses a connection in
    its name."""

    needs_namespaces = True

    def inject(self, leads: Leads) -> int:
        number = most(leads, ROLES)
        _cut_off(self.network, number)
        self.machine(number).kill()
        return number

    def heal(self, number: int) -> None:
        self.network.heal()
        self.machine(number).start()


class Pause(Fault):
    """SIGSTOP, longer than the lease."""

    lasts_s = PAUSE_S

    def __init__(self, machines: Sequence[Machine], network: Network, role: str) -> None:
        super().__init__(machines, network)
        self._role = role

    def inject(self, leads: Leads) -> int:
        number = most(leads, [self._role])
        self.machine(number).pause(self._role)
        return number

    def heal(self, number: int) -> None:
        self.machine(number).go_on()


class Cut(Fault):
    """A machine lives, and packets are lost on their way."""

    lasts_s = PAUSE_S
    needs_namespaces = True

    def __init__(
        self,
        machines: Sequence[Machine],
        network: Network,
        *,
        sends: Sequence[int] = (),
        hears: Sequence[int] = (),
    ) -> None:
        """`sends`: to whom nothing arrives of what it sends; `hears`: of whom it hears nothing."""
        super().__init__(machines, network)
        self._sends = sends
        self._hears = hears

    def inject(self, leads: Leads) -> int:
        number = most(leads, ROLES)
        for other in self._sends:
            if other != number:
                self.network.cut(number, other)
        for other in self._hears:
            if other != number:
                self.network.cut(other, number)
        return number

    def heal(self, number: int) -> None:
        self.network.heal()


class EtcdMember(Fault):
    """kill -9 of the member that leads etcd."""

    def inject(self, leads: Leads) -> int:
        number = leader_of_etcd(self.machines)
        self.machine(number).kill(ETCD)
        return number

    def heal(self, number: int) -> None:
        self.machine(number).start(ETCD)


class DiskFull(Fault):
    """Not a byte fits into the volume of the partition leader that leads most."""

    lasts_s = 5.0
    needs_namespaces = True

    def inject(self, leads: Leads) -> int:
        number = most(leads, [PARTITION_LEADER])
        self.machine(number).fill_disk()
        return number

    def heal(self, number: int) -> None:
        self.machine(number).free_disk()


def every_fault(machines: Sequence[Machine], network: Network) -> dict[str, Fault]:
    """By name, those that can happen here."""
    everybody = (*MACHINES, CLIENTS)
    found: dict[str, Fault] = {
        "power off": PowerOff(machines, network),
        **{f"kill -9 {role}": Kill(machines, network, role) for role in ROLES},
        **{f"bounce {role}": Bounce(machines, network, role) for role in ROLES},
        f"pause {COORDINATOR}": Pause(machines, network, COORDINATOR),
        f"pause {PARTITION_LEADER}": Pause(machines, network, PARTITION_LEADER),
        f"pause {OFFSET_MANAGER}": Pause(machines, network, OFFSET_MANAGER),
        "cut off": Cut(machines, network, sends=everybody, hears=everybody),
        "cut off from machines": Cut(machines, network, sends=MACHINES, hears=MACHINES),
        "mute": Cut(machines, network, sends=everybody),
        "deaf": Cut(machines, network, hears=everybody),
        "etcd member": EtcdMember(machines, network),
        "disk full": DiskFull(machines, network),
    }
    return {
        name: fault
        for name, fault in found.items()
        if network.can_cut or not fault.needs_namespaces
    }


def leads_of(topics: Iterable[TopicInfo], machines: Sequence[Machine]) -> Leads:
    """Who leads how many partitions, from what a process says of the topics."""
    number_of = {machine.address: machine.number for machine in machines}
    found: dict[str, Counter[int]] = {role: Counter() for role in ROLES}
    for topic in topics:
        role = role_of(TopicId(bytes.fromhex(topic.topic_id)))
        for partition in topic.partitions:
            if partition.leader is not None:
                found[role][number_of[partition.leader.rpartition(":")[0]]] += 1
    return found


def most(leads: Leads, roles: Sequence[str]) -> int:
    """The machine that leads most of these roles' partitions."""
    together: Counter[int] = Counter()
    for role in roles:
        together += leads[role]
    return together.most_common(1)[0][0]


def leader_of_etcd(machines: Sequence[Machine]) -> int:
    """The machine whose member leads; the first one where no member says so."""
    for machine in machines:
        status = _status_of_etcd(machine)
        if status is not None and status["leader"] == status["header"]["member_id"]:
            return machine.number
    return machines[0].number


def is_etcd_whole(machines: Sequence[Machine]) -> bool:
    """All members answer, and follow the same leader."""
    followed = [
        None if status is None else (status.get("leader"), status["raftTerm"])
        for status in map(_status_of_etcd, machines)
    ]
    return None not in followed and len(set(followed)) == 1 and followed[0] != (None, "0")


def _status_of_etcd(machine: Machine) -> Any | None:
    url = f"http://{machine.address}:{ETCD_PORT}/v3/maintenance/status"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, data=b"{}", timeout=ETCD_ANSWERS_S) as reply:
            return json.load(reply)
    except OSError:
        return None


def _cut_off(network: Network, number: int) -> None:
    for other in (*MACHINES, CLIENTS):
        if other != number:
            network.cut(number, other)
            network.cut(other, number)


def is_whole(topics: Sequence[TopicInfo]) -> bool:
    """Every partition has a leader and three replicas in sync."""
    return all(
        partition.leader is not None and len(partition.isr) >= len(MACHINES)
        for topic in topics
        for partition in topic.partitions
    )
