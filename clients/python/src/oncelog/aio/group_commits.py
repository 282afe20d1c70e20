"""Waiting until a group has committed a transaction.

*Group g has committed transaction T* means: T is committed, the partition of `__consumer_offsets`
that g stands in has its marker, and g has offsets of it. From then on a fetch of g's offsets tells
those of T, or what was committed behind them. Neither half is enough alone: a coordinator says
COMMITTED before any marker has arrived, and it knows of partitions, in which many groups stand,
not of groups. What says which group it was is the last transaction of T's producer that committed
offsets of the group ("G-LAST-COMMIT"): T, or a later one where the group has gone further.
A later one hides whether T had any: then T counts as committed by the group. So it is told that T
had none only until T's producer commits offsets of the group in another transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from oncelog._core.requests import made
from oncelog._core.routing import PartitionKey
from oncelog.aio import group_standing
from oncelog.aio.admin_transactions import transaction_request
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2, types_pb2

# How long it is waited between two questions: at first, and at most, milliseconds.
ASK_AGAIN_MS: Final = 20
ASK_AGAIN_MAX_MS: Final = 500
# What a question is given at least, however short the time that is left, milliseconds.
CALL_MS: Final = 1_000
# And at most, a day: patience may be infinite, a call's time is a number of milliseconds.
CALL_MS_MAX: Final = 86_400_000
# How many processes are asked what each of them knows.
PROCESSES_ASKED: Final = 3


async def wait_for_commit(
    protocol: AsyncProtocol,
    group: str,
    transaction: int | str | errors.OncelogError,
    timeout_s: float,
) -> None:
    """See `Admin.wait_for_commit`."""
    request = transaction_request(transaction)
    deadline_ms = protocol.now_ms() + timeout_s * 1000
    participant = await _participant(protocol, group)
    pause_ms = ASK_AGAIN_MS
    while True:
        told = await _told(protocol, request, _left_ms(protocol, deadline_ms))
        if _is_over(told, participant):
            break
        left_ms = deadline_ms - protocol.now_ms()
        if left_ms <= 0:
            raise _too_early(group, told, timeout_s)
        await asyncio.sleep(min(pause_ms, left_ms) / 1000)
        pause_ms = min(2 * pause_ms, ASK_AGAIN_MAX_MS)
    left_ms = _left_ms(protocol, deadline_ms)
    stands = await group_standing.fetched(protocol, group, left_ms, with_last_commits=True)
    _require_commit(group, told, stands)


def _left_ms(protocol: AsyncProtocol, deadline_ms: float) -> int:
    """For one call: at least one is made, whatever the caller's patience."""
    return int(min(max(CALL_MS, deadline_ms - protocol.now_ms()), CALL_MS_MAX))


async def _participant(protocol: AsyncProtocol, group: str) -> PartitionKey:
    """The partition of `__consumer_offsets` that the group stands in. Any process knows: the next
    one is asked where one of them is silent. Raises Unavailable, UnknownOutcome."""
    request = made(cluster_pb2.GetMetadataRequest, consumer_groups=[group])

    async def ask() -> PartitionKey:
        reply = await protocol.call("cluster.get_metadata", request, CALL_MS)
        return PartitionKey.of(reply.consumer_groups[0].partition)

    for _ in range(PROCESSES_ASKED - 1):
        with contextlib.suppress(errors.Unavailable, errors.UnknownOutcome):
            return await ask()
    return await ask()


async def _told(
    protocol: AsyncProtocol, request: coordinator_pb2.GetTransactionRequest, timeout_ms: int
) -> coordinator_pb2.TransactionDescription:
    """What its coordinator says. Raises UnknownTransaction, TransactionEnded (it was aborted)."""
    reply: coordinator_pb2.GetTransactionReply = await protocol.call(
        "coordinator.get_transaction", request, timeout_ms
    )
    if reply.already_committed:
        raise errors.UnknownTransaction(
            "an earlier run committed this commit_seq: name that transaction, by its TxId"
        )
    told = reply.transaction
    if told.state == types_pb2.TRANSACTION_STATE_ABORTED:
        raise errors.TransactionEnded(
            f"transaction {show_id(told.tx_id)} was aborted: no group ever commits it",
            tx_id=told.tx_id,
            outcome="ABORTED",
        )
    return told


def _is_over(told: coordinator_pb2.TransactionDescription, participant: PartitionKey) -> bool:
    """What it leaves behind at this participant will not change. True also where it ended so long
    ago that its coordinator has forgotten how."""
    if told.state == types_pb2.TRANSACTION_STATE_EXPIRED:
        return True
    waits_for = {PartitionKey.of(partition) for partition in told.unacknowledged}
    return told.state == types_pb2.TRANSACTION_STATE_COMMITTED and participant not in waits_for


def _require_commit(
    group: str,
    told: coordinator_pb2.TransactionDescription,
    stands: offset_manager_pb2.FetchOffsetsReply,
) -> None:
    """That it was one of this group. Of one producer, TxIds ascend in the order of commits. Raises
    NotFound, UnknownTransaction."""
    last = {commit.producer_id: commit.tx_id for commit in stands.last_commits}
    if told.tx_id and told.tx_id in last.values():
        return
    if told.state == types_pb2.TRANSACTION_STATE_EXPIRED:
        raise errors.UnknownTransaction(
            f"transaction {show_id(told.tx_id)} ended so long ago that nobody knows how",
            tx_id=told.tx_id,
        )
    if last.get(told.producer.producer_id, 0) < told.tx_id:
        raise errors.NotFound(
            f"transaction {show_id(told.tx_id)} is committed, and has no offsets of group "
            f"{group!r}: none were sent in it, or the group was deleted since",
            tx_id=told.tx_id,
            group=group,
        )


def _too_early(
    group: str, told: coordinator_pb2.TransactionDescription, timeout_s: float
) -> errors.PendingTransaction:
    is_open = told.state == types_pb2.TRANSACTION_STATE_ONGOING
    how = "it is open" if is_open else "it is committed, but its marker is on its way to the group"
    return errors.PendingTransaction(
        f"group {group!r} has not committed transaction {show_id(told.tx_id)} within {timeout_s} "
        f"s: {how}; wait again",
        tx_id=told.tx_id,
        group=group,
    )
