"""What became of a transaction, for who writes to another system under its TxId.

Such a writer stages what it writes under the TxId, before the transaction commits. Whether that
counts is what the coordinator says afterwards, and never a guess: README.md has the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from oncelog_spark.batch_transaction import described
from oncelog_spark.connection import connection
from oncelog_spark.options import cluster_option
from oncelogpb import errors
from oncelogpb.v1 import types_pb2 as pb

ASK_TIMEOUT_MS: Final = 30_000


class Outcome(Enum):
    """Of a transaction."""

    # Decided, for ever: what was written under its TxId counts.
    COMMITTED = "committed"
    # Decided, for ever: it does not.
    ABORTED = "aborted"
    # Not decided: ask again.
    OPEN = "open"


class OutcomeForgotten(RuntimeError):
    """The transaction ended longer ago than outcomes are kept (7 days): nobody knows any more."""


def outcome(tx_id: int, options: Mapping[str, str]) -> Outcome:
    """Asks the coordinator. `options`: where the cluster is, as for source and sink; other options
    of theirs are passed over. Raises OutcomeForgotten, UnknownTransaction (there was none of that
    TxId) or another OncelogError."""
    protocol = connection(cluster_option(options))
    state = described(protocol, tx_id, timeout_ms=ASK_TIMEOUT_MS).state
    if state == pb.TRANSACTION_STATE_EXPIRED:
        raise OutcomeForgotten(
            f"transaction {tx_id} ended longer ago than outcomes are kept: look for what was "
            "staged more often than once in 7 days"
        )
    if state == pb.TRANSACTION_STATE_COMMITTED:
        return Outcome.COMMITTED
    if state == pb.TRANSACTION_STATE_ABORTED:
        return Outcome.ABORTED
    if state == pb.TRANSACTION_STATE_ONGOING:
        return Outcome.OPEN
    raise errors.Internal(f"the coordinator says {state} of transaction {tx_id}")
