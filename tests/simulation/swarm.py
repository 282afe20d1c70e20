"""The plan of a random day: drawn from the seed, and another kind of day for each.

Each day has only some of the applications, some of the kinds of faults, and its own measures of
haste and carelessness (*swarm testing*: two features that would hide each other's bugs are apart in
most runs, and each one has runs in which it happens all the time).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from oncelog_server.core.roles import PARTITION_LEADER, ROLES
from tests.simulation.applications import (
    compacting,
    gardening,
    keeping,
    pipelining,
    settling,
    tabling,
)
from tests.simulation.applications.table import APPLICATIONS
from tests.simulation.plan import Plan, Spice
from tests.simulation.trouble import FAULTS

# The feeder is there always: most others live on what it writes.
ALWAYS: Final = ("feeder",)
APPLICATIONS_AT_ONCE: Final = (2, 6)
FAULTS_AT_ONCE: Final = (1, 4)
TROUBLE_S: Final = (2.0, 8.0)
# More than a day has time for.
FAULTS_MAX: Final = 10_000
# How many days of a hundred have so many nodes of a role. Most have few: they are quick, and what
# three nodes cannot show, five rarely can.
NODES: Final[Mapping[int, int]] = {1: 30, 2: 22, 3: 36, 4: 6, 5: 6}
# How many days of a hundred want so many replicas; a day with fewer nodes has as many as nodes.
REPLICAS: Final[Mapping[int, int]] = {1: 25, 2: 15, 3: 60}
# Of days whose records are on two disks before they are acknowledged.
LOST_DISK: Final = "lost disk"
OLDER_DISK: Final = "older disk"
LONE_TAIL: Final = "lone tail"
LOST_ETCD: Final = "lost etcd"
# How often a day that can have one of the faults of replicas has it.
FAULT_OF_COPIES: Final = 0.4
GARDENER: Final = "gardener"
# Members of groups, drawn of themselves: how often days have the first, and then each other.
CREWS: Final[Mapping[str, float]] = {"crew": 0.3, "plain crew": 0.5, "unit crew": 0.4}
BESIDE_CREWS_MAX: Final = 2
# Topics that forget, and topics that are settled, drawn of themselves likewise.
OFTEN: Final[Mapping[str, float]] = {
    keeping.NAME: 0.3,
    settling.NAME: 0.3,
    tabling.NAME: 0.3,
    compacting.NAME: 0.2,
    pipelining.NAME: 0.3,
}
# How often the other topics of a day are settled, and each of such a day's.
SETTLED_DAYS: Final = 0.25
SETTLED_TOPICS: Final = 0.7
ROTTEN_BLOCKS: Final = "rotten blocks"
STOPPED_CLIENT: Final = "stopped client"
MOVED_GROUPS: Final = "moved groups"
# Those that were added later, and how often days have them. A lost etcd stops everybody.
LATER: Final[Mapping[str, float]] = {
    LONE_TAIL: FAULT_OF_COPIES,
    LOST_ETCD: 0.15,
    STOPPED_CLIENT: 0.6,
    MOVED_GROUPS: 0.6,
    ROTTEN_BLOCKS: 0.5,
    OLDER_DISK: FAULT_OF_COPIES,
}
# Those that all days have, and the gardener's.
TOPICS: Final = ("in", "out", "side", gardening.TOPIC)
# Faults that are drawn more often than the others, which have 1: those in the middle of a step find
# what a loss of power in a quiet moment never does.
WEIGHTS: Final = {"strike": 6, "power": 2, "client": 2, "reset": 2}


def plan_of(seed: int, without: Collection[str] = ()) -> Plan:
    """Of a random day. `without`: applications and faults that are not drawn, for example those
    that show a known bug. Raises ValueError for a name that nothing has."""
    unknown = set(without) - set(APPLICATIONS) - set(FAULTS)
    if unknown:
        raise ValueError(f"no application or fault is called {sorted(unknown)[0]!r}")
    chance = random.Random(f"plan {seed}")
    copies = ReplicasDrawn(random.Random(f"replicas {seed}"))
    # Of chances of their own: what a seed drew before stays as it was.
    copies.faults += [
        name for name, often in LATER.items() if random.Random(f"{name} {seed}").random() < often
    ]
    known = sorted(APPLICATIONS.keys() - {*ALWAYS, *CREWS, *OFTEN, *without})
    drawn, crews = _some(chance, known, APPLICATIONS_AT_ONCE), _crews(seed, without)
    # A crew is busy enough.
    drawn = [*drawn[: BESIDE_CREWS_MAX if crews else None], *crews]
    drawn += [
        name
        for name, often in OFTEN.items()
        if name not in without and random.Random(f"{name} {seed}").random() < often
    ]
    applications = [*ALWAYS, *_compatible(drawn)]
    faults = _faults(chance, sorted(FAULTS.keys() - {*without, *OF_COPIES}))
    needed = [line for name in applications for line in APPLICATIONS[name].settings]
    own_topics = {
        topic: partitions
        for name in applications
        for topic, partitions in APPLICATIONS[name].topics.items()
    }
    configs, is_settled = _configs(seed, applications, [*TOPICS, *own_topics])
    if is_settled:
        needed += settling.SETTINGS
    plan = Plan(
        applications=tuple(applications),
        faults=tuple(faults),
        hands=chance.choice([1, 1, 2]),
        faults_max=FAULTS_MAX,
        trouble_s=chance.uniform(*TROUBLE_S),
        between_faults=chance.choice([(0.02, 0.2), (0.05, 0.5), (0.2, 1.0), (0.02, 2.0)]),
        client_calls=chance.choice([(0.0,), (0.0, 0.02), (0.0, 0.1, 0.3), (0.1,), (0.3,)]),
        process_calls=chance.choice([(0.0,), (0.0,), (0.0, 0.1), (0.3,)]),
        slowness=chance.choice([1.0, 1.0, 1.0, 0.1, 20.0]),
        nodes=_nodes(chance),
        paces=chance.choice([(1.0,), (1.0,), (0.99, 1.0, 1.01), (0.995, 1.01)]),
        etcd_ms=chance.choice([0.0, 0.0, 0.5, 5.0]),
        rollout=chance.choice(["together", "together", "together", "one by one"]),
        partitions={
            "in": chance.randint(1, 2),
            "out": chance.randint(1, 3),
            "side": chance.randint(1, 2),
            **own_topics,
        },
        configs=configs,
        control_replicas=copies.of_control,
        replicas={name: copies.draw() for name in (*TOPICS, *own_topics)},
        min_insync_replicas=copies.min_insync_replicas,
        settings=(
            *_settings(chance),
            *copies.settings,
            *_control_journals(seed),
            *_commits_ahead(seed),
            *dict.fromkeys(needed),
        ),
        spice=_spice(chance),
        rests=chance.random() < 0.8,
    )
    more = [name for name in copies.faults if name not in without and OF_COPIES[name](plan)]
    return replace(plan, faults=(*plan.faults, *more))


def _configs(
    seed: int, applications: Sequence[str], topics: Sequence[str]
) -> tuple[dict[str, Mapping[str, str]], bool]:
    """By topic, as applications want it; on some days most topics are settled: whether it is such
    a day."""
    configs = {
        topic: wanted
        for name in applications
        for topic, wanted in APPLICATIONS[name].configs.items()
    }
    chance = random.Random(f"settled topics {seed}")
    if chance.random() >= SETTLED_DAYS:
        return configs, False
    for topic in topics:
        if chance.random() < SETTLED_TOPICS:
            configs[topic] = {**configs.get(topic, {}), **settling.COPY}
    return configs, True


class ReplicasDrawn:
    """How many replicas a day's partitions have: mostly all as many, as clusters are configured."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._of_most = self._some_number()
        self._alike = chance.random() < 0.8
        self.of_control = self.draw()
        self.min_insync_replicas = chance.choice([1, 2, 2, 2])
        self.faults = [
            name for name in OF_COPIES if name not in LATER and chance.random() < FAULT_OF_COPIES
        ]
        self.settings = (f"node.replica_lag_ms={chance.choice([500, 2_000, 10_000])}",)

    def draw(self) -> int:
        return self._of_most if self._alike else self._some_number()

    def _some_number(self) -> int:
        return self._chance.choices(list(REPLICAS), list(REPLICAS.values()))[0]


def _may_lose_disks(plan: Plan) -> bool:
    """Of some role: whatever its nodes hold is on two of them before it is acknowledged."""
    controls = (
        min(plan.control_replicas, plan.nodes[role]) for role in ROLES if role != PARTITION_LEADER
    )
    topics = min(map(plan.replicas_of_topic, plan.replicas))
    return plan.min_insync_replicas > 1 and max(topics, *controls) > 1


def _may_lose_blocks(plan: Plan) -> bool:
    is_settled = any("materialization" in wanted for wanted in plan.configs.values())
    return is_settled and _may_lose_disks(plan)


def _has_followers(plan: Plan) -> bool:
    """Of some role."""
    topics = max(map(plan.replicas_of_topic, plan.replicas))
    controls = min(plan.control_replicas, max(plan.nodes.values()))
    return max(topics, controls) > 1


def _has_crews(plan: Plan) -> bool:
    return not CREWS.keys().isdisjoint(plan.applications)


def _deletes_nothing(plan: Plan) -> bool:
    """A topic whose deletion only etcd knew comes back with a recovery."""
    return GARDENER not in plan.applications


# Faults that are drawn of themselves, for days that can have them.
OF_COPIES: Final[Mapping[str, Callable[[Plan], bool]]] = {
    LOST_DISK: _may_lose_disks,
    OLDER_DISK: _may_lose_disks,
    "rot": _may_lose_disks,
    ROTTEN_BLOCKS: _may_lose_blocks,
    "unanswered ISR": _has_followers,
    LONE_TAIL: _has_followers,
    LOST_ETCD: _deletes_nothing,
    STOPPED_CLIENT: _has_crews,
    MOVED_GROUPS: _has_crews,
}


def _crews(seed: int, without: Collection[str]) -> list[str]:
    """Of chances of their own, as faults that were added later."""
    chance = random.Random(f"crews {seed}")
    drawn = [name for name, often in CREWS.items() if chance.random() < often]
    return [name for name in drawn if name not in without] if "crew" in drawn else []


def _nodes(chance: random.Random) -> Mapping[str, int]:
    """By role: mostly the same number of each, as clusters are built."""
    numbers, weights = list(NODES), list(NODES.values())
    of_all = chance.choices(numbers, weights)[0]
    alike = chance.random() < 0.7
    return {role: of_all if alike else chance.choices(numbers, weights)[0] for role in ROLES}


def _compatible(names: Sequence[str]) -> list[str]:
    """Without those that another one does not want beside it."""
    unwanted = {other for name in names for other in APPLICATIONS[name].not_beside}
    return [name for name in names if name not in unwanted]


def _spice(chance: random.Random) -> Spice:
    return Spice(
        large=chance.choice([0.0, 0.0, 0.0, 0.1]),
        flush=chance.choice([0.0, 0.1, 0.5]),
        abort=chance.choice([0.0, 0.1, 0.4]),
        interrupt=chance.choice([0.0, 0.05, 0.3]),
        slow=chance.choice([0.0, 0.0, 0.03]),
        visible=chance.choice([0.0, 0.5, 1.0]),
        cramped=chance.choice([0.0, 0.0, 0.5, 1.0]),
        tired=chance.choice([0.02, 0.1, 0.3]),
        records=chance.choice([1, 3, 6, 12]),
        pauses=chance.choice([(0.001,), (0.001, 0.01, 0.1), (0.01, 0.1, 0.5), (0.5,)]),
    )


def _settings(chance: random.Random) -> Sequence[str]:
    """Of the services: timers and sizes at which more happens in a short day."""
    question_ms = chance.choice([200, 1_000])
    return (
        f"node.lease_ms={chance.choice([2_000, 5_000])}",
        f"node.tick_ms={chance.choice([100, 400])}",
        f"node.segment_bytes={chance.choice([32_768, 262_144])}",
        f"node.snapshot_every_bytes={chance.choice([600, 20_000, 1 << 20])}",
        "node.disk_free_floor_bytes=65536",
        f"coordinator.session_grace_ms={chance.choice([500, 3_000, 10_000])}",
        f"coordinator.staged_pending_ms_max={chance.choice([1_000, 10_000])}",
        *(
            f"{role}.{name}={value}"
            for role in ("partition_leader", "offset_manager")
            for name, value in (
                ("question_after_ms", question_ms),
                ("question_again_ms", 2 * question_ms),
            )
        ),
    )


def _control_journals(seed: int) -> Sequence[str]:
    """On some days coordinators keep next to nothing of what they need no more."""
    chance = random.Random(f"control journals {seed}")
    return ("node.control_journal_bytes_max=4000",) if chance.random() < 0.4 else ()


def _commits_ahead(seed: int) -> Sequence[str]:
    """On some days whatever is appended beside a commit is written at once."""
    chance = random.Random(f"commits ahead {seed}")
    return ("node.commit_ahead_bytes=1",) if chance.random() < 0.4 else ()


def _faults(chance: random.Random, names: Sequence[str]) -> list[str]:
    weights = {name: WEIGHTS.get(name, 1) for name in names}
    chosen: list[str] = []
    for _ in range(min(len(names), chance.randint(*FAULTS_AT_ONCE))):
        (name,) = chance.choices(list(weights), list(weights.values()))
        chosen.append(name)
        del weights[name]
    return chosen


def _some(chance: random.Random, names: Sequence[str], how_many: tuple[int, int]) -> list[str]:
    """In an order of their own: who comes first, starts first."""
    return chance.sample(names, min(len(names), chance.randint(*how_many)))
