"""Do source and sink mean one transaction? Asked by the sink's driver, before it commits.

The source's `transactionalSink` and the sink's `producer` (with `sinkName`) must name one producer.
Where they do not, the sink would commit its records alone, and the positions of the batch would
stay pending under the source's transaction, and hold back the group, until its idle time is over.
So the batch is refused, and the source's transaction ended with it.

What cannot be asked is not refused: the source finds out when it plans its second batch
(`SinkNeverCommits`). A source whose group the sink forgets (`inputGroups`) is the coordinator's to
refuse: the source announces its positions when it opens the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from oncelog_spark.batch_transaction import described, offset_partitions
from oncelog_spark.failed_jobs import abort_transaction
from oncelog_spark.manifest import TaskWritten
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

ASK_TIMEOUT_MS: Final = 10_000
# Runs of queries whose sink was found alone, per process.
RUNS_KEPT: Final = 100

_found_alone: dict[tuple[str, bytes], None] = {}


class SinkMismatch(RuntimeError):
    """Source and sink of a query name different producers. Nothing of the batch was committed."""


def require_positions_here(
    protocol: Protocol, written: TaskWritten, input_groups: Sequence[str]
) -> None:
    """Raises SinkMismatch where positions of this batch are pending under another transaction."""
    try:
        holders = {
            offset.pending_tx_id
            for group in input_groups
            for offset in _positions(protocol, group)
            if offset.pending_tx_id not in (0, written.tx_id)
        }
        found = [
            described(protocol, holder, timeout_ms=ASK_TIMEOUT_MS) for holder in sorted(holders)
        ]
    except errors.OncelogError:
        return
    _refuse(protocol, written, found)


def require_only_sink(protocol: Protocol, written: TaskWritten) -> bool:
    """The same for a streaming sink that may not know the groups: a query has one, so no other
    transaction of this batch holds positions. Asked once per run; False where nobody answers.
    Raises SinkMismatch."""
    run = (written.key.scope, written.key.instance_id)
    if run in _found_alone:
        return True
    request = coordinator_pb2.ListTransactionsRequest(states=[pb.TRANSACTION_STATE_ONGOING])
    try:
        reply = protocol.call("coordinator.list_transactions", request, timeout_ms=ASK_TIMEOUT_MS)
        # Of any group: they all live in one topic.
        [positions] = offset_partitions(protocol, [written.key.scope])
    except errors.OncelogError:
        return False
    holding = [
        found
        for found in reply.transactions
        if any(part.topic_id == positions.topic_id for part in found.parts.topics)
    ]
    _refuse(protocol, written, holding)
    _found_alone[run] = None
    if len(_found_alone) > RUNS_KEPT:
        del _found_alone[next(iter(_found_alone))]
    return True


def _refuse(
    protocol: Protocol,
    written: TaskWritten,
    asked: Iterable[coordinator_pb2.TransactionDescription],
) -> None:
    key = written.key
    others = [
        found
        for found in asked
        if found.tx_id != written.tx_id
        and found.state == pb.TRANSACTION_STATE_ONGOING
        and (found.commit_seq.scope, found.commit_seq.number) == (key.scope, key.number)
    ]
    if not others:
        return
    for found in others:
        try:
            abort_transaction(protocol, found.tx_id, found.producer)
        except errors.OncelogError:
            continue
    raise SinkMismatch(
        f"`transactionalSink` of the source names producer {others[0].name!r}, the sink's "
        f"`producer` is {key.shown}: records and positions of this batch are in two transactions, "
        "and nothing was committed. Give both the same name, and the same `sinkName` (without a "
        "name, and with `true`, it is the query's name, or its id where it has none)"
    )


def _positions(protocol: Protocol, group: str) -> Iterable[offset_manager_pb2.CommittedOffset]:
    request = offset_manager_pb2.FetchOffsetsRequest(group=group)
    reply = protocol.call("offset_manager.fetch_offsets", request, timeout_ms=ASK_TIMEOUT_MS)
    offsets: Iterable[offset_manager_pb2.CommittedOffset] = reply.offsets
    return offsets
