"""BeginTransaction, alone or as a commit's `begin_next`. PURE.

Order of precedence: UNKNOWN_PRODUCER, PRODUCER_FENCED · a known request id: the same TxId and, once
that has ended, its outcome · STALE_REQUEST_ID · ALREADY_COMMITTED by commit_seq · INVALID_TIMEOUT ·
what the outside has against it · CONCURRENT_TRANSACTION · LIMIT_EXCEEDED · THROTTLED · BEGIN.

The request id comes before commit_seq: a second write of one Spark batch by its own generation must
hear COMMITTED, not ALREADY_COMMITTED.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncelog_server.coordinator.commands import BeginAnswer, BeginResult, BeginTransaction
from oncelog_server.coordinator.identify import require_nothing_open, require_producer
from oncelog_server.coordinator.producers import Producer
from oncelog_server.coordinator.records import Begun, Record
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.values import CommitSeq
from oncelog_server.core.ids import compose_tx_id
from oncelog_server.core.machine import Decision
from oncelogpb.errors import InvalidTimeout, LimitExceeded, StaleRequestId, Throttled

# When a THROTTLED caller should come back.
RETRY_AFTER_MS: Final = 50


class Closing(NamedTuple):
    """A commit that is decided in the same step, before this Begin."""

    # Its commit_seq becomes the producer's last one; None: the last one stays.
    commit_seq: CommitSeq | None


def decide_begin(state: CoordinatorState, command: BeginTransaction) -> Decision[Record]:
    producer = require_producer(state, command.producer)
    answer, records = begin(state, producer, command, closing=None)
    return Decision(records, answer)


def begin(
    state: CoordinatorState,
    producer: Producer,
    command: BeginTransaction,
    *,
    closing: Closing | None,
) -> tuple[BeginAnswer, tuple[Begun, ...]]:
    """The answer, and the BEGIN if there is one to journal. Raises every refusal of the module."""
    known = producer.begin_request(command.request_id)
    if known is not None:
        return known.answer(), ()
    if producer.begins and command.request_id < producer.begins[-1].request_id:
        raise StaleRequestId(
            "request ids grow within a generation, and this one is below those that are remembered",
            highest=producer.begins[-1].request_id,
        )
    last_seq = producer.committed_seq
    if closing is not None and closing.commit_seq is not None:
        last_seq = closing.commit_seq
    if last_seq is not None and last_seq.covers(command.commit_seq):
        return BeginAnswer(BeginResult.ALREADY_COMMITTED), ()
    timeout_ms = _timeout_ms(state, command.timeout_ms)
    if command.unfit is not None:
        raise command.unfit
    if closing is None:
        require_nothing_open(producer)
    require_open_slot(state, closing=closing is not None)
    require_participants(state, len(command.parts))
    tx_id = compose_tx_id(state.journal_partition, state.next_offset + (closing is not None))
    record = Begun(
        tx_id,
        producer.producer_id,
        producer.generation,
        command.request_id,
        timeout_ms,
        command.commit_seq,
        tuple(sorted(set(command.parts))),
    )
    return BeginAnswer(BeginResult.OPEN, tx_id), (record,)


def require_open_slot(state: CoordinatorState, *, closing: bool = False) -> None:
    """`closing`: one that is open now is decided in the same step, and makes room."""
    limit = state.config.open_transactions_max
    if state.transactions.undecided - closing >= limit:
        raise LimitExceeded(
            f"{limit} transactions are open in this journal partition (open_transactions_max)",
            limit="open_transactions_max",
        )


def require_participants(state: CoordinatorState, count: int) -> None:
    """Room for so many more, at least for one: whatever begins will have some."""
    limit = state.config.participants_max
    if state.participants + max(count, 1) > limit:
        raise throttled("participants_max", limit)


def throttled(limit: str, value: int) -> Throttled:
    return Throttled(
        f"{limit} ({value}) is reached: markers wait to be taken; try again",
        limit=limit,
        retry_after_ms=RETRY_AFTER_MS,
    )


def _timeout_ms(state: CoordinatorState, asked_ms: int) -> int:
    config = state.config
    if not asked_ms:
        return config.transaction_timeout_ms
    if asked_ms > config.transaction_timeout_ms_max:
        raise InvalidTimeout(
            f"a timeout of {asked_ms} ms is above transaction_timeout_ms_max "
            f"({config.transaction_timeout_ms_max} ms)",
            limit="transaction_timeout_ms_max",
        )
    if asked_ms < config.transaction_timeout_ms_min:
        raise InvalidTimeout(
            f"a timeout of {asked_ms} ms is below transaction_timeout_ms_min "
            f"({config.transaction_timeout_ms_min} ms): signs of life come every two seconds, so a "
            "busy transaction would be aborted too",
            limit="transaction_timeout_ms_min",
        )
    return asked_ms
