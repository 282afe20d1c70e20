"""This process gives partitions up that it leads: it stops in one turn, and then etcd is told, so
that others need not wait for its lease.

Invariant: what is written empties `leader` only of the epoch that was left, and is made of the very
revision that named this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.etcd.cluster_view import Entry
from oncelog_server.runtime.etcd.keys import (
    TXN_KEYS_MAX,
    decode_partition,
    encode,
    partition_key,
)
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.leadership.held import Held
from oncelog_server.runtime.leadership.host import ReplicaHost
from oncelog_server.runtime.leadership.isr import change_isr
from oncelog_server.runtime.leadership.rounds import ROUND_RETRY_MS, Rounds
from oncelog_server.runtime.leadership.rules import resignation
from oncelog_server.runtime.target import Assignment, StandBy


class Resigning:
    """Of one process."""

    def __init__(
        self, etcd: Etcd, held: Held, rounds: Rounds, *, host: ReplicaHost, reporter: Reporter
    ) -> None:
        self._etcd = etcd
        self._held = held
        self._rounds = rounds
        self._host = host
        self._reporter = reporter

    async def resign(self, partition: PartitionId) -> None:
        """Never leads this epoch again; returns when etcd shows it. The caller has stopped
        acknowledging. After STAND_PAUSE_MS this process may stand for a later epoch."""
        history = self._held.histories.get(partition)
        if history is None or not history.led_epoch:
            return
        epoch = history.leave()
        self._host.aim(partition, StandBy())
        # Should this call be cancelled, the round finishes it: etcd names us in an epoch we left.
        self._rounds.call([partition])
        while True:
            try:
                await self._try_resign(partition, epoch)
                return
            except EtcdUnavailable:
                await asyncio.sleep(ROUND_RETRY_MS / 1000)

    def hand_over(self, partitions: Sequence[PartitionId]) -> None:
        """Leads these no more, from this very turn; the round says so to etcd, many at once. Their
        replicas follow whoever is elected. This process stands again after STAND_PAUSE_MS."""
        for partition in partitions:
            history = self._held.histories.get(partition)
            if history is not None and history.led_epoch:
                self._held.pause(history)
                history.leave()
                self._host.aim(partition, StandBy())
        self._rounds.call(partitions)

    async def resign_all(self, resigned: Sequence[tuple[PartitionId, Entry]]) -> None:
        """Of epochs that this process left. What changed meanwhile is resigned one by one."""
        for start in range(0, len(resigned), TXN_KEYS_MAX):
            batch = resigned[start : start + TXN_KEYS_MAX]
            compares, puts = resignation([(p, *entry) for p, entry in batch])
            try:
                if (await self._etcd.txn(compares, puts)).succeeded:
                    for partition, entry in batch:
                        self._resigned(partition, entry.state.epoch)
                    continue
                for partition, entry in batch:
                    await self._try_resign(partition, entry.state.epoch)
            except EtcdUnavailable:
                # The round looks again.
                return

    def _resigned(self, partition: PartitionId, epoch: int) -> None:
        if (history := self._held.histories.get(partition)) is not None:
            self._held.pause(history)
        self._reporter.event("resigned", partition=str(partition), epoch=epoch)

    async def _try_resign(self, partition: PartitionId, epoch: int) -> None:
        """Empties `leader` where etcd names this boot in `epoch`. Raises EtcdUnavailable."""
        key = partition_key(partition)
        if (history := self._held.histories.get(partition)) is not None:
            self._held.pause(history)
        found, _ = await self._etcd.get(key)
        if found is None:
            return
        state = decode_partition(found.value)
        if (
            state.leader is None
            or state.leader.boot_id != self._held.boot_id
            or state.epoch != epoch
        ):
            return
        empty = msgspec.structs.replace(state, leader=None)
        result = await self._etcd.txn([Compare(key, found.mod_revision)], [Put(key, encode(empty))])
        if not result.succeeded:
            raise EtcdUnavailable(f"{key} changed under a resignation; it is read again")
        self._resigned(partition, epoch)

    async def end_move(
        self,
        partition: PartitionId,
        epoch: int,
        *,
        members: Sequence[Incarnation],
        assignment: Assignment,
        compared_revision: int,
    ) -> None:
        """The end of a move after which this process has no replica. In the turn in which this is
        run it stops answering; then etcd is asked. Where that does not work, it resigns, and the
        next leader ends the move."""
        history = self._held.histories.get(partition)
        if history is None or history.led_epoch != epoch:
            return
        history.leave()
        self._held.pause(history)
        self._host.aim(partition, StandBy())
        seen = await change_isr(
            self._etcd,
            partition,
            own_boot=self._held.boot_id,
            epoch=epoch,
            members=members,
            compared_revision=compared_revision,
            assignment=assignment,
        )
        if seen is not None and seen.assignment == assignment:
            self._reporter.event("handed over", partition=str(partition), epoch=epoch)
        self._rounds.call([partition])
