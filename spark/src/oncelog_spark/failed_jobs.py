"""The end of what a failed job left open: at once, and not when its idle time is over.

Spark tells the driver which tasks succeeded, and a message of one of them names the transaction.
Where every task failed, there is none. A batch job then still knows what its tasks called
themselves, for its writer is made in the driver; a micro-batch does not, for its driver knows
neither query nor run: the next run of the query ends it.

Invariant: nothing here fences a run that is later than this one, or ends its transaction: a job
that was replaced fails, too. Nothing raises an OncelogError: what cannot be ended ends by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncelog_spark.batch_transaction import Standing, TransactionLost, described, enter
from oncelog_spark.manifest import TaskWritten, TransactionKey, participants
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# How long a driver that fails already waits for each call.
ABORT_TIMEOUT_MS: Final = 10_000

log = logging.getLogger(__name__)


def abort_told(protocol: Protocol, messages: Sequence[TaskWritten]) -> bool:
    """Ends the transaction that the messages name; False where none does. Changes nothing where it
    was committed: Spark also aborts when the answer to a commit was lost."""
    open_ones = [message for message in messages if message.tx_id]
    if not open_ones:
        return False
    first = open_ones[0]
    producer = pb.Producer(producer_id=first.producer_id, generation=first.generation)
    try:
        abort_transaction(protocol, first.tx_id, producer, participants(open_ones))
    except errors.OncelogError as error:
        _say(error)
    return True


def abort_untold(protocol: Protocol, key: TransactionKey) -> None:
    """Ends what the tasks of a batch job opened, of which none succeeded. `key` is what they were
    given; inside of foreachBatch they used another, and nothing is found here."""
    try:
        if key.producer_name and key.scope_is_run:
            _abort_listed(protocol, key)
            return
        # The tasks' own two calls: a later run of the name is not fenced, it fences us. A task that
        # still runs and comes late finds the transaction ended.
        entered = enter(protocol, key, timeout_ms=ABORT_TIMEOUT_MS)
        if entered.standing is Standing.OPEN:
            abort_transaction(protocol, entered.tx_id, entered.producer)
    except TransactionLost:
        return
    except errors.OncelogError as error:
        _say(error)


def abort_transaction(
    protocol: Protocol, tx_id: int, producer: pb.Producer, parts: Sequence[pb.Partition] = ()
) -> None:
    """Raises OncelogError."""
    request = coordinator_pb2.AbortTransactionRequest(tx_id=tx_id, producer=producer, parts=parts)
    protocol.call("coordinator.abort_transaction", request, timeout_ms=ABORT_TIMEOUT_MS)


def end_earlier_run(protocol: Protocol, tx_id: int) -> None:
    """Ends the open transaction of an earlier run that holds a group's positions, where nobody is
    told the name of its producer. Only a batch's has a scope; one of anybody else, and one that is
    decided, stays as it is. Raises OncelogError."""
    found = described(protocol, tx_id, timeout_ms=ABORT_TIMEOUT_MS)
    if found.state != pb.TRANSACTION_STATE_ONGOING or not found.commit_seq.scope:
        return
    try:
        abort_transaction(protocol, tx_id, found.producer)
    except errors.TransactionEnded:
        return


def _abort_listed(protocol: Protocol, key: TransactionKey) -> None:
    """By the scope, which no other run has. Not by InitProducer: inside of foreachBatch the name is
    the query's, and this job's instance id would fence the query."""
    request = coordinator_pb2.ListTransactionsRequest(
        states=[pb.TRANSACTION_STATE_ONGOING], name=key.producer_name
    )
    reply = protocol.call("coordinator.list_transactions", request, timeout_ms=ABORT_TIMEOUT_MS)
    for found in reply.transactions:
        if found.commit_seq.scope == key.scope:
            abort_transaction(protocol, found.tx_id, found.producer)


def _say(error: errors.OncelogError) -> None:
    """An outcome that stands already is none to speak of."""
    if isinstance(error, errors.TransactionEnded | errors.ProducerFenced):
        return
    log.warning(
        "the transaction of the failed job was not ended (%s): it ends with the next run of its "
        "producer, or after `transactionTimeout`",
        error,
    )
