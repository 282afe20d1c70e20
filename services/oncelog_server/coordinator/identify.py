"""Is the caller who it says, and whose is the transaction? The first checks of every command. PURE.

Order of precedence, for all that name a producer: UNKNOWN_PRODUCER, PRODUCER_FENCED, then whatever
the command itself checks.
"""

from __future__ import annotations

from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.producers import Producer
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import Transaction
from oncelog_server.core.ids import TxId
from oncelogpb.errors import (
    ConcurrentTransaction,
    ProducerFenced,
    ProducerMismatch,
    UnknownProducer,
)
from oncelogpb.ids import show_generation


def require_producer(state: CoordinatorState, identity: ProducerIdentity) -> Producer:
    """The producer, if `identity` holds its current generation."""
    producer = state.producers.get(identity.producer_id)
    if producer is None or identity.generation > producer.generation:
        raise unknown_producer(identity)
    if identity.generation < producer.generation:
        raise fenced(producer, identity)
    return producer


def unknown_producer(identity: ProducerIdentity) -> UnknownProducer:
    return UnknownProducer(
        "no such producer and generation here; call InitProducer first",
        producer_id=identity.producer_id,
    )


def fenced(producer: Producer, identity: ProducerIdentity) -> ProducerFenced:
    return ProducerFenced(
        f"generation {show_generation(identity.generation)} was replaced by "
        f"{show_generation(producer.generation)}; this instance must stop",
        generation=producer.generation,
    )


def require_owner(transaction: Transaction, identity: ProducerIdentity) -> None:
    if transaction.identity != identity:
        raise ProducerMismatch(
            "the transaction belongs to another producer or generation",
            tx_id=transaction.tx_id,
        )


def concurrent(tx_id: TxId, why: str) -> ConcurrentTransaction:
    return ConcurrentTransaction(why, tx_id=tx_id)


def require_nothing_open(producer: Producer) -> None:
    """One ONGOING transaction per producer, and none beside undecided one-shots."""
    if producer.open_tx:
        raise concurrent(producer.open_tx, "the producer has an open transaction; end it first")
    if producer.staged:
        raise concurrent(
            producer.staged[0], "a one-shot of the producer is not decided yet; try again"
        )
