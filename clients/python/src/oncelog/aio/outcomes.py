"""Getting a commit decided: the calls that must not be lost, and what is said about their outcome.

A commit is idempotent, so a lost answer is asked for again, inside `call`, until the deadline; then
the outcome is looked up. What is still unknown then is UnknownOutcome, and nothing less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def exposed_parts(
    protocol: AsyncProtocol, exposed: Iterable[types_pb2.ExposedPart]
) -> Iterator[ExposedPart]:
    """By the topics' names, where they are known; else by their ids."""
    for part in exposed:
        topic = protocol.directory.topic_by_id(part.partition.topic_id)
        name = part.partition.topic_id.hex() if topic is None else topic.name
        yield ExposedPart(name, part.partition.number, part.first_offset, part.record_count)


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
) -> coordinator_pb2.TransactReply:
    """The reply, once it is decided. Raises TransactionEnded (aborted), Damaged, UnknownOutcome
    (nobody could say), and what a refusal says."""
    try:
        reply: coordinator_pb2.TransactReply = await _transact(protocol, identity, request)
        return reply
    except errors.Damaged:
        raise
    except errors.InDoubt as error:
        return await look_up_one_shot(protocol, request, error)


async def look_up_one_shot(
    protocol: AsyncProtocol,
    request: coordinator_pb2.TransactRequest,
    error: errors.OncelogError,
) -> coordinator_pb2.TransactReply:
    """After `error`, which leaves its outcome open. Raises as `transact`."""
    asked = coordinator_pb2.GetTransactionRequest(
        producer=request.producer, request_number=request.request_number
    )
    found = await _look_up(protocol, asked)
    if found is not None and found.already_committed:
        return coordinator_pb2.TransactReply(already_committed=True)
    outcome = None if found is None else _decided(found.transaction, error)
    if outcome is None:
        raise _unknown(f"request {request.request_number}", error) from error
    return coordinator_pb2.TransactReply(tx_id=outcome.tx_id, visible=outcome.visible)


def is_out_of_order(error: errors.OncelogError) -> bool:
    """An earlier request number has not arrived: of this sending, or, where an earlier answer was
    lost, of the last one."""
    if isinstance(error, errors.UnknownOutcome):
        return isinstance(error.__cause__, errors.OutOfOrderSequence)
    return isinstance(error, errors.OutOfOrderSequence)


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
        found = await _look_up(protocol, coordinator_pb2.GetTransactionRequest(tx_id=request.tx_id))
        outcome = None if found is None else _decided(found.transaction, error)
        if outcome is not None:
            return coordinator_pb2.CommitTransactionReply(visible=outcome.visible)
        if isinstance(error, errors.TransactionEnded):
            raise
        raise _unknown(f"transaction {show_id(request.tx_id)}", error, request.tx_id) from error


async def _transact(
    protocol: AsyncProtocol, identity: ProducerCore, request: coordinator_pb2.TransactRequest
) -> Any:
    """A number that was never used is asked for again: nothing happened under ours."""
    try:
        return await protocol.call("coordinator.transact", request)
    except errors.OutOfOrderSequence as error:
        if not identity.expect_request_number(error):
            raise
    request.request_number = identity.take_request_number()
    if request.chain_first:
        # It begins one: who continues one is not renumbered.
        request.chain_first = request.request_number
    return await protocol.call("coordinator.transact", request)


async def _look_up(
    protocol: AsyncProtocol, request: coordinator_pb2.GetTransactionRequest
) -> coordinator_pb2.GetTransactionReply | None:
    """None where nobody says, or it is not known: a copy of what was sent may still arrive."""
    try:
        reply: coordinator_pb2.GetTransactionReply = await protocol.call(
            "coordinator.get_transaction", request, LOOKUP_MS
        )
    except errors.OncelogError:
        return None
    return reply


def _decided(
    outcome: coordinator_pb2.TransactionDescription, error: errors.OncelogError
) -> coordinator_pb2.TransactionDescription | None:
    """It, where it is committed; None where it is not decided, or nobody knows any more. Raises
    TransactionEnded where it is aborted."""
    if outcome.state == types_pb2.TRANSACTION_STATE_COMMITTED:
        return outcome
    if outcome.state == types_pb2.TRANSACTION_STATE_ABORTED:
        raise errors.TransactionEnded(
            f"transaction {show_id(outcome.tx_id)} was aborted: "
            f"{types_pb2.AbortCause.Name(outcome.cause)}",
            tx_id=outcome.tx_id,
            outcome="ABORTED",
        ) from error
    return None


def _unknown(what: str, error: errors.OncelogError, tx_id: int = 0) -> errors.UnknownOutcome:
    """With the names by which `admin.describe_transaction` finds it."""
    told = errors.UnknownOutcome(
        f"nobody could say what became of {what}; ask admin.describe_transaction with this error "
        f"later: {error}"
    )
    told.metadata = dict(error.metadata)
    if tx_id:
        told.metadata["tx_id"] = show_id(tx_id)
    return told


def why_aborted(cause: BaseException | None) -> errors.TransactionEnded:
    """For the receipts of its records."""
    why = "" if cause is None else f": {cause}"
    ended = errors.TransactionEnded(f"its transaction was aborted{why}", outcome="ABORTED")
    ended.__cause__ = cause
    return ended


def committed_before() -> errors.TransactionEnded:
    """For the receipts of records that are not written twice."""
    return errors.TransactionEnded(
        "an earlier run committed this commit_seq: nothing of this one was written",
        outcome="ALREADY_COMMITTED",
    )
