"""The control partitions of a role: created by its first processes, all in one transaction.

They have `node.control_replication_factor` replicas from the beginning: with one, nobody waits for
others, and who comes first creates them for whoever is there; with more, nobody has any before so
many processes of the role live.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from oncelog_server.core.ids import CONTROL_PARTITIONS, PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.core.roles import CONTROL_TOPIC_OF_ROLE
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.cluster_view import ClusterView, Entry
from oncelog_server.runtime.etcd.keys import PartitionState, encode
from oncelog_server.runtime.etcd.placed import holders, placed
from oncelog_server.runtime.etcd.placement import TooFewNodes
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.etcd.topics import CHANGE_TIMEOUT_MS

# Who waits for others of a role looks again after so long.
OTHERS_WAIT_MS: Final = 1_000


class ControlPartitions:
    """Of the roles of one process."""

    def __init__(
        self,
        etcd: Etcd,
        view: ClusterView,
        roles: Sequence[str],
        *,
        replication_factor: int,
        reporter: Reporter,
    ) -> None:
        self._etcd = etcd
        self._view = view
        self._roles = roles
        self._replication_factor = replication_factor
        self._reporter = reporter

    @property
    def stand(self) -> bool:
        return all(have_control_partitions(self._view, role) for role in self._roles)

    async def create(self) -> bool:
        """Those that nobody has created yet. False: of some role too few processes live. Raises
        EtcdUnavailable."""
        is_done = True
        for role in self._roles:
            try:
                await create_control_partitions(
                    self._etcd, self._view, role, replication_factor=self._replication_factor
                )
            except TooFewNodes as error:
                is_done = False
                self._reporter.event("waiting for others", wanted=role, why=str(error))
        return is_done

    async def create_when_others_live(self) -> None:
        alive = self._alive()
        while not self.stand:
            await self._look(alive)
            if self._alive() == alive:
                continue
            try:
                if await self.create():
                    return
            except EtcdUnavailable:
                await asyncio.sleep(OTHERS_WAIT_MS / 1000)
                continue
            alive = self._alive()

    async def _look(self, alive: int) -> None:
        with contextlib.suppress(TimeoutError):
            await self._view.wait_for(lambda _: self._alive() != alive, timeout_ms=OTHERS_WAIT_MS)

    def _alive(self) -> int:
        """Of all its roles: who grows changes it."""
        return sum(len(holders(self._view, role)) for role in self._roles)


async def create_control_partitions(
    etcd: Etcd, view: ClusterView, role: str, *, replication_factor: int = 1
) -> bool:
    """The control partitions of `role`, where nobody has created them yet: over the nodes that run
    the role now. Who comes at the same time, and got none, spreads those again that nobody ever
    led. True where this call wrote some. Raises TooFewNodes, EtcdUnavailable. A role without a
    control topic has nothing to create."""
    topic_id = CONTROL_TOPIC_OF_ROLE.get(role)
    if topic_id is None:
        return False
    partitions = [PartitionId(topic_id, number) for number in range(CONTROL_PARTITIONS)]
    if not have_control_partitions(view, role):
        states = placed(view, role, CONTROL_PARTITIONS, replication_factor)
        puts = _puts(partitions, states)
        result = await etcd.txn([Compare(put.key, 0) for put in puts], puts)
        if result.succeeded:
            return True
        # Somebody was quicker; where the view does not show what he made, that stays as it is.
        with contextlib.suppress(TimeoutError):
            await view.wait_for(
                lambda view: view.revision >= result.revision, timeout_ms=CHANGE_TIMEOUT_MS
            )
    standing = _standing(view, partitions)
    return await _spread_again(etcd, view, role, standing, replication_factor=replication_factor)


def have_control_partitions(view: ClusterView, role: str) -> bool:
    """The view shows those of the role, or it has none."""
    topic_id = CONTROL_TOPIC_OF_ROLE.get(role)
    return topic_id is None or view.entry(PartitionId(topic_id, 0)) is not None


def _standing(view: ClusterView, partitions: Sequence[PartitionId]) -> dict[PartitionId, Entry]:
    """Those that the view shows."""
    known = ((partition, view.entry(partition)) for partition in partitions)
    return {partition: entry for partition, entry in known if entry is not None}


async def _spread_again(
    etcd: Etcd,
    view: ClusterView,
    role: str,
    standing: Mapping[PartitionId, Entry],
    *,
    replication_factor: int,
) -> bool:
    """Control partitions that were never led, over the living nodes, where one of these holds none
    of them all. Nothing was ever acknowledged in epoch 0, so no record stays behind; an election
    compares the key's revision as we do, so one of the two fails."""
    holding = {node_id for entry in standing.values() for node_id in entry.state.replicas}
    unled = {p: entry for p, entry in standing.items() if entry.state.epoch == 0}
    if not unled or holding.issuperset(holder.node_id for holder in holders(view, role)):
        return False
    states = placed(view, role, len(unled), replication_factor)
    wrote = False
    for put, entry in zip(_puts(list(unled), states), unled.values(), strict=True):
        # One by one: some may be won in this moment.
        wrote |= (await etcd.txn([Compare(put.key, entry.mod_revision)], [put])).succeeded
    return wrote


def _puts(partitions: Sequence[PartitionId], states: Sequence[PartitionState]) -> list[Put]:
    return [
        Put(keys.partition_key(partition), encode(state))
        for partition, state in zip(partitions, states, strict=True)
    ]
