"""Waits until what was made of earlier input is visible, before the input behind it is given.

Transactions of producers in different transaction groups have no order: their markers come from
different coordinators. Whoever takes over a position that another one's transaction moved would
write behind it, and could be readable before it. So where a committed offset names the transaction
that moved it, its coordinator is asked whether that one is visible everywhere, and all that its
producer committed before it: in another partition an earlier one may still wait for its marker
(ADR 72).

What its coordinator does not know any more was visible long ago. Parts that are damaged are not
waited for: they are no part of what may be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from oncelog._core import retries
from oncelog._core.routing import PartitionKey
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2, types_pb2

# Transactions that are asked about at one time.
ASKED_MAX: Final = 64
# What one question is given at most, milliseconds.
QUESTION_MS: Final = 2_000
# Visible transactions that are remembered: more than one fetch of offsets names.
KNOWN_MAX: Final = 20_000


class Visibility:
    """What one consumer knows of the transactions that moved its group's offsets."""

    def __init__(self, protocol: AsyncProtocol) -> None:
        self._protocol = protocol
        # Oldest first.
        self._visible: dict[int, None] = {}
        # At most so many questions at one time.
        self._room = asyncio.Semaphore(ASKED_MAX)

    def is_known(self, tx_id: int) -> bool:
        """That it is visible. There is nothing to know of a position that none has moved."""
        return not tx_id or tx_id in self._visible

    async def wait(
        self, tx_id: int, partitions: Collection[PartitionKey], within_ms: float
    ) -> None:
        """Until it is visible. `partitions`: whose position it moved. Raises PendingTransaction,
        which names what is waited for."""
        began_ms = self._protocol.now_ms()
        attempt = 0
        while not self.is_known(tx_id):
            held: types_pb2.Partition | None = None
            waits_for, why = tx_id, "its coordinator does not answer"
            try:
                first = await self._first_invisible(tx_id)
                if first is None:
                    return
                waits_for, held = first.tx_id, next(iter(first.unacknowledged), None)
                where = "some partition" if held is None else self._name(held)
                why = f"it cannot be read in {where} yet: look whether that has a leader"
            except errors.OncelogError as error:
                if not retries.may_answer_later(error):
                    raise
                why = f"{why}: {error.message}"
            if self._protocol.now_ms() - began_ms >= within_ms:
                moved = min(partitions).wire()
                told = (
                    f"the group's position in {self._name(moved)} was moved by transaction "
                    f"{show_id(tx_id)}, and what was made of the input before it is not readable "
                    f"everywhere: transaction {show_id(waits_for)} is committed, but {why}. What "
                    "is made of the input behind it would be readable first"
                )
                raise _pending(told, waits_for, moved if held is None else held)
            await self._protocol.back_off(attempt)
            attempt += 1

    async def _first_invisible(self, tx_id: int) -> coordinator_pb2.TransactionDescription | None:
        """The earliest that is not, of it and of what its producer committed before; None: all
        are, or its coordinator has forgotten it."""
        request = coordinator_pb2.GetTransactionRequest(tx_id=tx_id, only_visibility=True)
        async with self._room:
            try:
                reply = await self._protocol.call(
                    "coordinator.get_transaction", request, QUESTION_MS
                )
            except (errors.UnknownTransaction, errors.PermissionDenied):
                # Only a coordinator of before this question refuses it: as it was then.
                self._know(tx_id)
                return None
        told: coordinator_pb2.TransactionDescription = reply.transaction
        if told.state == types_pb2.TRANSACTION_STATE_COMMITTED and not told.visible:
            return told
        if told.state == types_pb2.TRANSACTION_STATE_ONGOING:
            raise errors.Unavailable(
                f"the coordinator of transaction {show_id(tx_id)} does not say yet that it is "
                "committed; it is asked again"
            )
        self._know(tx_id)
        return None

    def _know(self, tx_id: int) -> None:
        self._visible[tx_id] = None
        if len(self._visible) > KNOWN_MAX:
            del self._visible[next(iter(self._visible))]

    def _name(self, partition: types_pb2.Partition) -> str:
        topic = self._protocol.directory.topic_by_id(partition.topic_id)
        name = partition.topic_id.hex() if topic is None else topic.name
        return f"{name!r} partition {partition.number}"


def _pending(told: str, tx_id: int, partition: types_pb2.Partition) -> errors.PendingTransaction:
    return errors.PendingTransaction(
        told, tx_id=tx_id, topic_id=partition.topic_id.hex(), partition=partition.number
    )
