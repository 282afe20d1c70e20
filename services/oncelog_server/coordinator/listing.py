"""ListTransactions: a page of the transactions that are not over, by TxId, in turns of the loop
that stay short however many there are, and however long their manifests.

What begins, moves on or ends meanwhile may be in it or not; each is told as it was in the turn that
looked at it, as far as that was durable.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from oncelog_server.coordinator import describe, wire
from oncelog_server.coordinator.access import transaction_need
from oncelog_server.coordinator.ended_transactions import state_of
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import Transaction
from oncelog_server.core.access import Verb
from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId, journal_offset_of
from oncelog_server.core.ports import Call
from oncelogpb.errors import NotLeader
from oncelogpb.v1 import coordinator_pb2 as pb

LISTED_DEFAULT: Final = 1_000
LISTED_MAX: Final = 5_000
# A page ends behind the description that fills it.
LISTED_BYTES_MAX: Final = 4 << 20
# What one turn may cost: to look at a transaction is 1, to describe it DESCRIBED, and each of its
# parts 1, to judge whether it may be seen JUDGED. About two milliseconds.
UNITS_PER_TURN: Final = 4_000
DESCRIBED: Final = 100
JUDGED: Final = 10


class _Page:
    """What was found so far."""

    def __init__(self, limit: int) -> None:
        # Filled bit by bit: to copy all at the end would be a turn of its own.
        self.reply = pb.ListTransactionsReply()
        self._limit = limit
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.reply.transactions) >= self._limit or self._bytes >= LISTED_BYTES_MAX

    def add(self, description: pb.TransactionDescription) -> None:
        self.reply.transactions.append(description)
        self._bytes += description.ByteSize()


class Listing:
    """Of one process."""

    def __init__(self, env: CoordinatorEnv) -> None:
        self._env = env

    async def page(
        self, request: pb.ListTransactionsRequest, call: Call
    ) -> pb.ListTransactionsReply:
        """Of what the caller may see. Raises NotLeader where a partition was lost meanwhile: asked
        again, it is whole."""
        wire.require_states(request)
        page = _Page(min(request.limit or LISTED_DEFAULT, LISTED_MAX))
        for replica in self._replicas(request):
            await self._look_through(replica, request, call, page)
            if page.reply.more:
                break
        return page.reply

    def _replicas(self, request: pb.ListTransactionsRequest) -> Sequence[CoordinatorReplica]:
        """By partition, hence by TxId."""
        if not request.journal_partitions:
            return self._env.replicas.led()
        return [
            self._env.replicas.lead(PartitionId(TRANSACTION_CONTROL_ID, number))
            for number in sorted(set(request.journal_partitions))
        ]

    async def _look_through(
        self,
        replica: CoordinatorReplica,
        request: pb.ListTransactionsRequest,
        call: Call,
        page: _Page,
    ) -> None:
        replica.require_lease()
        epoch, spent = replica.epoch, 0
        state = state_of(replica)
        tx_ids = state.transactions.ids()
        for tx_id in tx_ids[bisect_right(tx_ids, request.after_tx_id) :]:
            if spent >= UNITS_PER_TURN:
                await asyncio.sleep(0)
                state, spent = _still(replica, epoch), 0
            spent += 1
            transaction = state.transactions.get(tx_id)
            if transaction is None or not self._matches(transaction, state, replica, request):
                continue
            spent += JUDGED
            producer = state.producers[transaction.producer_id]
            if not call.sees(transaction_need(Verb.DESCRIBE, producer)):
                continue
            if page.is_full:
                page.reply.more = True
                return
            described = describe.kept(state, transaction, below=replica.high_watermark)
            page.add(described)
            spent += DESCRIBED + describe.part_count(described)
        replica.require_lease()

    def _matches(
        self,
        transaction: Transaction,
        state: CoordinatorState,
        replica: CoordinatorReplica,
        request: pb.ListTransactionsRequest,
    ) -> bool:
        """Before anything of it is put into words."""
        below = replica.high_watermark
        producer = state.producers[transaction.producer_id]
        age_ms = self._env.clock.now().wall_ms - transaction.begin_ms
        return (
            journal_offset_of(transaction.tx_id) < below
            and age_ms >= request.min_age_ms
            and request.name in ("", producer.name)
            and request.group in ("", producer.group)
            and (
                not request.states
                or describe.state_outside(transaction, below=below) in request.states
            )
        )


def _still(replica: CoordinatorReplica, epoch: int) -> CoordinatorState:
    """The state, in a later turn. Raises NotLeader, Loading."""
    if replica.machine is None or replica.epoch != epoch:
        raise NotLeader(f"{replica.partition} was lost while it was listed; ask again")
    return state_of(replica)
