"""Real processes at each failpoint while the story is told:

    kill           kill -9 there, start, go on
    stop           SIGSTOP there for longer than the lease, SIGCONT, go on
    cut            the reply is dropped: with the process stopped before it, the proxy through which
                   everybody reaches the process breaks all connections
    lose           the caller is told that the reply was lost
    repeat, late   the request comes twice, or once more, seconds later

`make faults` runs every failpoint of every role; the suite runs some of each kind. At the end every
journal is replayed (I35).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from oncelog.aio.log import connect
from oncelog.checker import HistoryWriter
from oncelog.checker.recorder import RecordedLog
from oncelog_server.cli.compose import make_roles
from oncelog_server.cli.settings import ServeSettings
from oncelog_server.core.failpoints import TABLE, Failpoint, FailpointKind
from oncelog_server.core.roles import COORDINATOR, OFFSET_MANAGER, PARTITION_LEADER, ROLES
from oncelog_server.runtime.failpoint_actions import VARIABLE, said
from oncelog_server.runtime.replicas import PARTITIONS_DIRECTORY, partition_of
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.journal import Journal
from tests.faults.story import Names, Story, Told
from tests.faults.test_matrix import SCOPE
from tests.faults.verdict import judge, judge_history, read_to_the_end, replay, same
from tests.integration.cluster import LEASE_MS, Cluster, created, running
from tests.integration.proxy import Proxy

pytestmark = pytest.mark.integration

CLIENTS: Final = 5
STORY_SECONDS_MAX: Final = 300
# Where a story did not come to the point (a snapshot needs bytes), the next one may.
TELLINGS_MAX: Final = 3
# How long a stopped process sleeps.
STOPPED_SECONDS: Final = LEASE_MS / 1000 + 2
LOOK_EVERY_SECONDS: Final = 0.05

# Small, so that stories meet many.
SEGMENT_BYTES: Final = 2048
SETTINGS: Final = (
    "node.snapshot_every_bytes=512",
    f"node.segment_bytes={SEGMENT_BYTES}",
    "node.control_journal_bytes_max=1024",
)

_numbers = itertools.count()


class Case(NamedTuple):
    role: str
    point: str
    action: str
    passing: int

    def __str__(self) -> str:
        return f"{self.role}-{self.point}-{self.action}"

    @property
    def setting(self) -> str:
        return f"{self.point}={self.at_the_point}@{self.passing}"

    @property
    def at_the_point(self) -> str:
        """What the process does there. A cut is made while it is stopped."""
        return "stop" if self.action == "cut" else self.action


# What the suite runs: before and after the steps that decide, in each role.
SOME: Final = (
    Case(COORDINATOR, "driver.append.after", "kill", 9),
    Case(COORDINATOR, "call.participant.write_markers.after", "kill", 5),
    Case(COORDINATOR, "serve.coordinator.commit_transaction.after", "kill", 2),
    Case(COORDINATOR, "driver.release.before", "stop", 25),
    Case(PARTITION_LEADER, "driver.snapshot.before", "kill", 1),
    Case(PARTITION_LEADER, "serve.participant.write_markers.before", "kill", 3),
    Case(PARTITION_LEADER, "etcd.txn.after", "kill", 4),
    Case(PARTITION_LEADER, "serve.partition_leader.produce.after", "stop", 12),
    Case(OFFSET_MANAGER, "disk.commit.before", "kill", 6),
    Case(OFFSET_MANAGER, "serve.offset_manager.commit_transaction_offsets.after", "kill", 3),
    Case(OFFSET_MANAGER, "serve.participant.write_markers.after", "kill", 2),
    Case(OFFSET_MANAGER, "etcd.keep_alive.before", "stop", 2),
    Case(COORDINATOR, "serve.coordinator.transact.after", "cut", 2),
    Case(COORDINATOR, "serve.coordinator.commit_transaction.after", "lose", 2),
    Case(COORDINATOR, "serve.coordinator.begin_transaction.before", "repeat", 2),
    Case(PARTITION_LEADER, "serve.partition_leader.produce.after", "cut", 9),
    Case(PARTITION_LEADER, "serve.participant.write_markers.before", "late", 3),
    Case(OFFSET_MANAGER, "serve.participant.write_markers.after", "cut", 2),
)


def actions_at(point: Failpoint) -> Iterator[str]:
    yield from ("kill", "stop")
    if point.kind is FailpointKind.SERVE:
        yield from ("repeat", "late") if point.name.endswith(".before") else ("cut", "lose")


EVERY: Final = tuple(
    Case(role, point.name, action, 1)
    for point in TABLE
    for role in point.roles
    for action in actions_at(point)
)


def is_of_first_start(case: Case) -> bool:
    """These roles pass it only where they have no data yet: the others begin new journals, too."""
    return case.point.startswith("disk.write_and_sync.") and case.role != PARTITION_LEADER


def later() -> Sequence[Case]:
    every = [case for case in EVERY if not is_of_first_start(case)]
    return every if SCOPE.startswith("all") else SOME


def first() -> Sequence[Case]:
    every = [case for case in EVERY if is_of_first_start(case)]
    return every if SCOPE.startswith("all") else every[:1]


class Proxied(NamedTuple):
    """A cluster whose services are reached, by clients and by each other, through proxies."""

    cluster: Cluster
    proxies: dict[str, Proxy]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made, ExitStack() as stack:
        proxies = {role: stack.enter_context(Proxy(made.address(role))) for role in ROLES}
        made.advertised = {role: proxy.address for role, proxy in proxies.items()}
        made.restart(*ROLES)
        made.wait_ready()
        yield Proxied(made, proxies)
        made.kill(*ROLES)
        compared = sum(replayed(role, made.data_of(role)) for role in ROLES)
        assert compared > len(ROLES), "journals were replayed"


@pytest.mark.parametrize("case", later(), ids=str)
def test_all_promises_hold_over_a_process_that_dies_or_sleeps(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """As in test_matrix.py, over the real disk, network, etcd and clocks."""
    cluster = proxied.cluster
    if cluster.is_running(case.role):
        cluster.kill(case.role)
    happening = _start(proxied, monkeypatch, case)
    for _ in range(TELLINGS_MAX):
        asyncio.run(_tell(cluster, case, happening))
        if happening.is_over:
            return
    raise AssertionError(f"{case.setting} was never reached")


@pytest.mark.parametrize("case", first(), ids=str)
def test_all_promises_hold_over_a_first_start_that_ends_or_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    with created(tmp_path / "cluster", *SETTINGS) as cluster:
        cluster.start(*(role for role in ROLES if role != case.role))
        happening = _start(Proxied(cluster, {}), monkeypatch, case)
        asyncio.run(asyncio.wait_for(happening.follow(), STORY_SECONDS_MAX))
        cluster.wait_ready()
        asyncio.run(_tell(cluster, case, happening))
        cluster.kill(*ROLES)
        assert replayed(case.role, cluster.data_of(case.role)) > 0


def _start(proxied: Proxied, monkeypatch: pytest.MonkeyPatch, case: Case) -> Happening:
    happening = Happening(proxied, case)
    monkeypatch.setenv(VARIABLE, case.setting)
    proxied.cluster.start(case.role)
    monkeypatch.delenv(VARIABLE)
    return happening


async def _tell(cluster: Cluster, case: Case, happening: Happening) -> None:
    history, names = HistoryWriter(), Names(f"n{next(_numbers)}-")
    story = Story(Told(random.Random(str(case)), print), names)
    async with asyncio.timeout(STORY_SECONDS_MAX), AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as telling:
            following = telling.create_task(happening.follow())
            clients = [
                RecordedLog(await stack.enter_async_context(connect(cluster.bootstrap)), history)
                for _ in range(CLIENTS)
            ]
            await story.prepare(clients[0])
            await story.tell(*clients)
            if not happening.is_reached:
                following.cancel()
        judge(story.attempts, await read_to_the_end(clients[0], names))
    judge_history(history)


class Happening:
    """A case under way: made before its process is started."""

    def __init__(self, proxied: Proxied, case: Case) -> None:
        self._proxied = proxied
        self._case = case
        self._log_at = len(proxied.cluster.log_of(case.role))
        self.is_over = False

    @property
    def is_reached(self) -> bool:
        said_since = self._proxied.cluster.log_of(self._case.role)[self._log_at :]
        return said(self._case.point, self._case.at_the_point) in said_since

    async def follow(self) -> None:
        """Starts or wakes the process when it has happened. Returns then."""
        while not self.is_reached:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        if not self.is_over:
            await self._help(self._proxied.cluster, self._case)
            self.is_over = True

    async def _help(self, cluster: Cluster, case: Case) -> None:
        match case.action:
            case "kill":
                assert cluster.wait_exit(case.role) == -signal.SIGKILL
                cluster.start(case.role)
            case "stop":
                await _stopped(cluster.pid(case.role))
                await asyncio.sleep(STOPPED_SECONDS)
                os.kill(cluster.pid(case.role), signal.SIGCONT)
            case "cut":
                await _stopped(cluster.pid(case.role))
                self._proxied.proxies[case.role].break_connections()
                os.kill(cluster.pid(case.role), signal.SIGCONT)


async def _stopped(pid: int) -> None:
    while not _is_stopped(pid):
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def _is_stopped(pid: int) -> bool:
    # "pid (name) state ...", and a name may hold anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def replayed(role: str, data: Path) -> int:
    """I35: from the front and from the newest snapshot a machine gets the same state. The number of
    journals compared."""
    (made,) = make_roles([role], ServeSettings.make([role]).loaded)
    disk = RealDisk(data)
    names = disk.list(PARTITIONS_DIRECTORY)
    try:
        for name in names:
            journal = Journal.open(
                disk, f"{PARTITIONS_DIRECTORY}/{name}", segment_bytes=SEGMENT_BYTES
            )
            again = functools.partial(replay, made, partition_of(name), journal)
            fresh, restored = again(from_snapshot=False), again(from_snapshot=True)
            same(fresh.snapshot(), restored.snapshot(), f"{role} {name}")
            journal.close()
    finally:
        disk.close()
    return len(names)
