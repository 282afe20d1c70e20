"""The replicas of all roles of this process: where elections, streams from other processes and
whatever repeats find them, and what they are told when etcd changes.

Invariant: a partition has one replica here at most, with the role that leads its topic.

Left out: what one role's replicas are (`replicas`), and why they go where they go (`leadership`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.needs import Entry
from oncelog_server.core.ports import Outbox, PartitionInfo, Reporter, TopicStore
from oncelog_server.core.role import Role, RoleEnv
from oncelog_server.core.roles import role_of
from oncelog_server.runtime.agenda import Agenda
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import BOOTS, PARTITIONS, partition_of_key
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.outside import Outside
from oncelog_server.runtime.pace import Pace
from oncelog_server.runtime.participants import handlers_of
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.record import ReplicaRecord, load_record
from oncelog_server.runtime.replicas import (
    PARTITIONS_DIRECTORY,
    RoleReplicas,
    partition_of,
    put_aside,
)
from oncelog_server.runtime.storage.identity import take_incarnation
from oncelog_server.runtime.storage.tail import TailBudget
from oncelog_server.runtime.target import Candidate, Isr, Target

# Those who wait for something in etcd are woken once in so long at most, however much changes
# there: with a thousand partitions, hundreds of keys a second.
WAKE_EVERY_MS: Final = 20


class Hosting:
    """Of one process: the ReplicaHost of its elections. `take_in` when there is a view of etcd."""

    def __init__(self, roles: Sequence[Role[Any]], outside: Outside, tails: TailBudget) -> None:
        self._roles = roles
        self._outside = outside
        self._tails = tails
        # Of all roles: which replicas something is to be done for.
        self.agenda = Agenda(lambda: outside.clock.now().monotonic_ms)
        # By the role's name.
        self.replicas: dict[str, RoleReplicas] = {}
        self._envs: dict[str, RoleEnv[Any]] = {}
        self._waking = Pace(self._wake, every_ms=WAKE_EVERY_MS)

    # ----------------------------------------------------------------------------- start and stop

    def take_in(
        self,
        view: ClusterView,
        topics: TopicStore,
        around: Callable[[Reporter], ReplicaEnv],
        *,
        segment_bytes: int,
    ) -> None:
        """The process's roles; none has a replica yet. `around`: what the replicas of a role that
        reports there are given."""
        outside = self._outside
        for role in self._roles:
            reporter = outside.role_reporter(role.name)
            replicas = self.replicas[role.name] = RoleReplicas(
                role,
                outside.disk,
                view,
                around(reporter),
                functools.partial(self._make_outbox, role),
                segment_bytes,
                outside.random_bytes,
                self._tails,
                self.agenda,
            )
            self._envs[role.name] = RoleEnv(
                clock=outside.clock,
                metadata=view,
                topics=topics,
                peers=outside.peers,
                replicas=replicas,
                reporter=reporter,
                random_bytes=outside.random_bytes,
                offload=outside.offload,
            )

    def _make_outbox(self, role: Role[Any], driver: Driver) -> Outbox:
        return role.outbox(driver, self._envs[role.name])

    def count_as_new(self) -> None:
        """Every replica on this disk takes a new incarnation: the directory is an older state of
        itself. Blocking, before any of them is open. Raises OSError."""
        disk = self._outside.disk
        self._outside.reporter.event(
            "data directory is older than it was",
            level="error",
            why="it was restored from a backup or rolled back: etcd knows that it held more",
            do="nothing where others are in sync: its replicas count as new, and copy what they "
            "lack; else put the newest state of the directory back",
        )
        for name in disk.list(PARTITIONS_DIRECTORY):
            take_incarnation(disk, f"{PARTITIONS_DIRECTORY}/{name}", self._outside.random_bytes)

    def put_orphans_aside(self, view: ClusterView, *, node_id: str) -> None:
        """Replicas on disk that etcd does not know: nothing is deleted, they are moved. Raises
        EtcdRefused, and moves none, where etcd is behind what another replica says of itself: it
        was restored, and forgot these."""
        disk = self._outside.disk
        names = disk.list(PARTITIONS_DIRECTORY)
        known = {name: view.partition(partition_of(name)) for name in names}
        orphans = [
            name for name, info in known.items() if info is None or node_id not in info.replicas
        ]
        for name, info in known.items() if orphans else ():
            if info is not None:
                _require_not_behind(info, load_record(disk, f"{PARTITIONS_DIRECTORY}/{name}"))
        for name in orphans:
            self._outside.reporter.event("replica put aside, etcd does not know it", name=name)
            put_aside(disk, f"{PARTITIONS_DIRECTORY}/{name}")

    async def close(self) -> None:
        """Saves and closes all of them."""
        self._waking.stop()
        for replicas in self.replicas.values():
            await replicas.checkpoint()
            await replicas.close()

    # --------------------------------------------------------------------------- what roles serve

    def services(self) -> Mapping[str, object]:
        """Handlers, by the name of their service."""
        return handlers_of([(it, it.services(self._envs[it.name])) for it in self._roles])

    def access(self) -> Mapping[str, Mapping[str, Entry]]:
        """What each RPC of these services needs of its caller."""
        tables: dict[str, Mapping[str, Entry]] = {}
        for role in self._roles:
            tables.update(role.access(self._envs[role.name]))
        return tables

    # ------------------------------------------------------------------------------ who is where

    def runs(self, partition: PartitionId) -> bool:
        """The role that leads it is one of this process."""
        return role_of(partition.topic_id) in self.replicas

    def of(self, partition: PartitionId) -> RoleReplicas:
        """The replicas of the role that leads it."""
        return self.replicas[role_of(partition.topic_id)]

    def find(self, partition: PartitionId) -> Driver | None:
        """The replica here, whatever its stage."""
        return self.of(partition).find(partition) if self.runs(partition) else None

    def led(self) -> list[tuple[Role[Any], Driver]]:
        """Those that answer now, by role and partition."""
        return [
            (role, driver)
            for role in self._roles
            if role.name in self.replicas
            for driver in self.replicas[role.name].led()
        ]

    # ------------------------------------------------------------------------- what elections ask

    def aim(self, partition: PartitionId, target: Target) -> None:
        """See ReplicaHost."""
        self.of(partition).aim(partition, target)

    def isr_seen(self, partition: PartitionId, epoch: int, isr: Isr) -> None:
        """See ReplicaHost."""
        self.of(partition).isr_seen(partition, epoch, isr)

    def candidate(self, partition: PartitionId) -> Candidate | None:
        """See ReplicaHost."""
        return self.of(partition).candidate(partition)

    async def opened(self, partition: PartitionId) -> Candidate:
        """See ReplicaHost."""
        return await self.of(partition).opened(partition)

    # ------------------------------------------------------------------------------ what they hear

    def view_changed(self, view: ClusterView, changed: frozenset[str]) -> None:
        """Keys of etcd."""
        topics = view.topics_of(changed)
        is_about_nodes = any(key.startswith(BOOTS) for key in changed)
        partitions = [partition_of_key(key) for key in changed if key.startswith(PARTITIONS)]
        self._waking.call()
        for replicas in self.replicas.values():
            if is_about_nodes:
                replicas.review()
            replicas.partitions_changed(partitions)
            if topics:
                replicas.topics_changed({topic.topic_id for topic in topics})

    def lease_lapsed(self) -> None:
        """This process may not answer any more, and may never hear who leads now."""
        for _, driver in self.led():
            driver.lease_lapsed()

    def _wake(self) -> None:
        self.agenda.wake()

    async def next_tick(self, tick_ms: int) -> None:
        """Returns when `tick` is to be called: seldom, while all rest."""
        await self.agenda.next_turn(tick_ms)

    def tick(self) -> None:
        self.agenda.turn()

    async def note(self) -> None:
        """About every second: what is synced, and what directories say of themselves."""
        await self.agenda.report()
        for replicas in self.replicas.values():
            await replicas.remember()


def _require_not_behind(info: PartitionInfo, record: ReplicaRecord | None) -> None:
    """Raises EtcdRefused. The epoch counts first: a rebuilt etcd counts its revisions anew, and its
    epochs on."""
    if record is None:
        return
    shown, noted = (info.epoch, info.revision), (record.epoch, record.revision)
    if shown < noted:
        raise EtcdRefused(
            f"etcd shows partition {info.partition} in epoch {shown[0]}, changed at revision "
            f"{shown[1]}; the replica here has noted epoch {noted[0]} and revision {noted[1]}"
        )
