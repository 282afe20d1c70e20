"""The changes of the ISR that this process asks etcd for, as leader of many partitions: those that
are asked for while one transaction is under way go together in the next one.

    asked, and the view shows what it compares ─► gathered ─► one transaction, TXN_KEYS_MAX at most
                  │ it does not                                   │ refused: one of them was late
                  └──────────────► by itself (`isr`) ◄────────────┘

When a node comes or goes, each partition that it has a replica of needs a change. One by one each
would be two calls of etcd, a sync there, and a revision that every process of the cluster hears of.

Invariants: see `isr`. Who asks is answered by what became of its own partition; of a transaction
that nobody answered it is told that nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from oncelog_server.core.ids import Incarnation, PartitionId
from oncelog_server.runtime import vital
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import TXN_KEYS_MAX, PartitionState, encode, partition_key
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.leadership.isr import change_isr, changed, isr_of
from oncelog_server.runtime.target import Assignment, Isr
from oncelog_server.runtime.vital import Fatal


class _Asked(NamedTuple):
    partition: PartitionId
    epoch: int
    members: Sequence[Incarnation]
    compared_revision: int
    assignment: Assignment | None
    # What stands there at that revision.
    state: PartitionState
    answer: asyncio.Future[Isr | None]


class IsrChanges:
    """Of one process."""

    def __init__(self, etcd: Etcd, view: ClusterView, *, own_boot: str, on_fatal: Fatal) -> None:
        self._etcd = etcd
        self._view = view
        self._own_boot = own_boot
        self._on_fatal = on_fatal
        self._waiting: list[_Asked] = []
        self._sending: asyncio.Task[None] | None = None

    async def change(
        self,
        partition: PartitionId,
        *,
        epoch: int,
        members: Sequence[Incarnation],
        compared_revision: int,
        assignment: Assignment | None = None,
    ) -> Isr | None:
        """See `change_isr`."""
        entry = self._view.entry(partition)
        if entry is None or entry.mod_revision != compared_revision:
            # etcd has more to say than the view knows, or less.
            return await self._alone(partition, epoch, members, compared_revision, assignment)
        leader = entry.state.leader
        if leader is None or leader.boot_id != self._own_boot or entry.state.epoch != epoch:
            return None
        answer: asyncio.Future[Isr | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(
            _Asked(partition, epoch, members, compared_revision, assignment, entry.state, answer)
        )
        if self._sending is None:
            self._sending = vital.spawn(self._send(), self._on_fatal)
        return await answer

    async def stop(self) -> None:
        """Nobody waits for an answer any more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = (
                    self._waiting[:TXN_KEYS_MAX],
                    self._waiting[TXN_KEYS_MAX:],
                )
                # Who leads no more does not ask any more, either; another epoch may.
                await self._send_all([asked for asked in batch if not asked.answer.done()])
        finally:
            self._sending = None

    async def _send_all(self, batch: Sequence[_Asked]) -> None:
        if not batch:
            return
        new = [changed(one.state, one.members, one.assignment) for one in batch]
        keys = [partition_key(one.partition) for one in batch]
        try:
            result = await self._etcd.txn(
                [Compare(key, one.compared_revision) for key, one in zip(keys, batch, strict=True)],
                [Put(key, encode(state)) for key, state in zip(keys, new, strict=True)],
            )
        except EtcdUnavailable:
            for one in batch:
                _answer(one, None)
            return
        if result.succeeded:
            for one, state in zip(batch, new, strict=True):
                _answer(one, isr_of(state, result.revision))
            return
        # What stands there of the one that was late it is told; the others are not.
        await asyncio.gather(*(self._one_of_a_batch(one) for one in batch))

    async def _one_of_a_batch(self, one: _Asked) -> None:
        if not one.answer.done():
            _answer(
                one,
                await self._alone(
                    one.partition, one.epoch, one.members, one.compared_revision, one.assignment
                ),
            )

    async def _alone(
        self,
        partition: PartitionId,
        epoch: int,
        members: Sequence[Incarnation],
        compared_revision: int,
        assignment: Assignment | None,
    ) -> Isr | None:
        return await change_isr(
            self._etcd,
            partition,
            own_boot=self._own_boot,
            epoch=epoch,
            members=members,
            compared_revision=compared_revision,
            assignment=assignment,
        )


def _answer(asked: _Asked, seen: Isr | None) -> None:
    if not asked.answer.done():
        asked.answer.set_result(seen)
