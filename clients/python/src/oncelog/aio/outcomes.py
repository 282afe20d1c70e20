"""Getting a commit decided: the calls that must not be lost, and what is said about their outcome.

A commit is idempotent, so a lost answer is asked for again, inside `call`, until the deadline; then
the outcome is looked up. What is still unknown then is UnknownOutcome, and nothing less.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from oncelog._core.transaction import ProducerCore
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2, types_pb2

# How long a lookup of an outcome may take beside the call that lost it, milliseconds.
LOOKUP_MS: Final = 5_000


class CommitSeq(NamedTuple):
    """A number of the application's own that only grows, and its scope: what was committed under it
    is not committed again."""

    scope: str
    number: int

    def wire(self) -> types_pb2.CommitSeq:
        """As requests carry it."""
        return types_pb2.CommitSeq(scope=self.scope, number=self.number)


class ExposedPart(NamedTuple):
    """Where the records of one partition became readable; only with wait="visible"."""

    topic: str
    partition: int
    first_offset: int
    record_count: int


def wait_of(wait: str) -> types_pb2.Wait.ValueType:
    """prepared: the decision is durable. visible: all partitions show it, too. Raises
    InvalidArgument."""
    choices: dict[str, types_pb2.Wait.ValueType] = {
        "prepared": types_pb2.WAIT_PREPARED,
        "visible": types_pb2.WAIT_VISIBLE,
    }
    if wait not in choices:
        raise errors.InvalidArgument(f"wait is {wait!r}; allowed: prepared, visible", field="wait")
    return choices[wait]


async def transact(
    protocol: AsyncProtocol, identity: ProducerCore, request: coordinator_pb2.TransactRequest
) -> Any:
    """A number that was never used is asked for again: nothing happened under ours."""
    try:
        return await protocol.call("coordinator.transact", request)
    except errors.OutOfOrderSequence as error:
        if not identity.expect_request_number(error):
            raise
    request.request_number = identity.take_request_number()
    return await protocol.call("coordinator.transact", request)


async def commit(
    protocol: AsyncProtocol, request: coordinator_pb2.CommitTransactionRequest
) -> coordinator_pb2.CommitTransactionReply:
    """The reply, once it is decided. Raises TransactionEnded (aborted), Damaged (committed, but a
    part did not match), UnknownOutcome (nobody could say), and what a refusal says."""
    try:
        reply: coordinator_pb2.CommitTransactionReply = await protocol.call(
            "coordinator.commit_transaction", request
        )
        return reply
    except errors.Damaged:
        raise
    except (errors.InDoubt, errors.TransactionEnded, errors.UnknownTransaction) as error:
        outcome = await _look_up(protocol, request.tx_id)
        if outcome is not None and outcome.state == types_pb2.TRANSACTION_STATE_COMMITTED:
            return coordinator_pb2.CommitTransactionReply(visible=outcome.visible)
        if outcome is not None and outcome.state == types_pb2.TRANSACTION_STATE_ABORTED:
            raise errors.TransactionEnded(
                f"transaction {show_id(request.tx_id)} was aborted: "
                f"{types_pb2.AbortCause.Name(outcome.cause)}",
                tx_id=request.tx_id,
                outcome="ABORTED",
            ) from error
        if isinstance(error, errors.TransactionEnded):
            raise
        raise errors.UnknownOutcome(
            f"nobody could say what became of transaction {show_id(request.tx_id)}; ask "
            "admin.describe_transaction later",
            tx_id=request.tx_id,
        ) from error


async def _look_up(
    protocol: AsyncProtocol, tx_id: int
) -> coordinator_pb2.TransactionDescription | None:
    try:
        reply: coordinator_pb2.GetTransactionReply = await protocol.call(
            "coordinator.get_transaction",
            coordinator_pb2.GetTransactionRequest(tx_id=tx_id),
            LOOKUP_MS,
        )
    except errors.OncelogError:
        return None
    return reply.transaction
