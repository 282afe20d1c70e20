"""InitProducer (docs/protocol.md, "Fencing"). PURE.

The reply waits for INIT and for all that was decided before it, because the driver releases it when
the HW covers the log end. INIT is journaled even while one-shots of older generations are staged:
from then on no more of them are accepted, so the wait for the rest is bounded; the caller, told
CONCURRENT_TRANSACTION, repeats and gets the same generation.

Who registers again, because it could not learn an outcome, draws a new instance id. Were it granted
whatever happened meanwhile, it would fence the instance that has taken over from it, and go on
itself. So it says which generation it held, and where a newer one exists it hears that.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Final

from oncelog_server.coordinator.commands import InitProducer, ProducerGranted, ProducerIdentity
from oncelog_server.coordinator.decide_end import abort_record
from oncelog_server.coordinator.identify import concurrent
from oncelog_server.coordinator.producers import Producer
from oncelog_server.coordinator.records import ProducerInitialized, ProducersForgotten, Record
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.values import AbortCause
from oncelog_server.core.ids import (
    COUNTER_BITS,
    COUNTER_MASK,
    Generation,
    ProducerId,
    compose_generation,
    compose_tx_id,
)
from oncelog_server.core.machine import Decision, Instant
from oncelogpb.errors import ConcurrentTransaction, LimitExceeded, ProducerFenced

# Unnamed producers that one Tick forgets at most, so that no turn of the loop is long.
FORGOTTEN_PER_TICK_MAX: Final = 1_000


def decide_init(state: CoordinatorState, command: InitProducer) -> Decision[Record]:
    producer = state.producers.find(command.group, command.name, command.instance_id)
    if producer is None:
        return _first(state, command)
    if producer.instance_id == command.instance_id:
        return _granted(state, producer)
    if producer.was_replaced(command.instance_id) or 0 < command.held < producer.generation:
        raise ProducerFenced(
            "a later instance of this producer has taken over; this one must stop",
            generation=producer.generation,
        )
    return _take_over(state, producer, command)


def _first(state: CoordinatorState, command: InitProducer) -> Decision[Record]:
    if len(state.producers) >= state.config.producers_max:
        raise LimitExceeded(
            f"{state.config.producers_max} producers in this journal partition (producers_max); "
            "reuse names",
            limit="producers_max",
        )
    producer_id = ProducerId(compose_tx_id(state.journal_partition, state.next_offset))
    record = ProducerInitialized(
        producer_id,
        compose_generation(state.epoch, 1),
        command.group,
        command.name,
        command.instance_id,
        command.owner,
    )
    identity = Producer(
        producer_id, record.generation, command.group, command.name, command.instance_id
    )
    return Decision((record,), _grant(state, identity))


def _take_over(
    state: CoordinatorState, producer: Producer, command: InitProducer
) -> Decision[Record]:
    records: list[Record] = []
    if producer.open_tx:
        opened = state.transactions[producer.open_tx]
        records.append(abort_record(state, opened, AbortCause.FENCED))
    generation = next_generation(producer.generation, state.epoch)
    records.append(
        ProducerInitialized(
            producer.producer_id,
            generation,
            command.group,
            command.name,
            command.instance_id,
            command.owner,
        )
    )
    if producer.staged:
        return Decision(records, _undecided(producer))
    identity = ProducerIdentity(producer.producer_id, generation)
    return Decision(records, _grant(state, producer)._replace(producer=identity))


def _granted(state: CoordinatorState, producer: Producer) -> Decision[Record]:
    """The same instance again: a lost reply is harmless."""
    staged = producer.staged
    if staged and state.transactions[staged[0]].generation < producer.generation:
        return Decision((), _undecided(producer))
    return Decision((), _grant(state, producer))


def next_generation(generation: Generation, epoch: int) -> Generation:
    """Strictly above the last one: etcd's epoch first, so that a lost tail cannot repeat one."""
    last_epoch, counter = generation >> COUNTER_BITS, generation & COUNTER_MASK
    assert last_epoch <= epoch, "a generation from a later epoch"
    return compose_generation(epoch, counter + 1 if last_epoch == epoch else 1)


def _undecided(producer: Producer) -> ConcurrentTransaction:
    return concurrent(
        producer.staged[0],
        "a one-shot of the earlier instance waits for the offset manager; try again",
    )


def _grant(state: CoordinatorState, producer: Producer) -> ProducerGranted:
    last = producer.last_committed
    pending = last in state.transactions and not state.deliveries.is_visible(last)
    return ProducerGranted(
        producer.identity,
        last,
        last_committed_visible=bool(last) and not pending,
        last_commit_seq=producer.committed_seq,
    )


def forget_idle(state: CoordinatorState, now: Instant) -> list[Record]:
    """Unnamed producers whose time is over. What they hold open keeps them."""
    over_ms = state.age.at(now.wall_ms) - state.config.unnamed_producer_retention_ms
    idle = islice(
        takewhile(lambda producer: producer.active_ms <= over_ms, state.producers.unnamed()),
        FORGOTTEN_PER_TICK_MAX,
    )
    idle_ids = [producer.producer_id for producer in idle]
    if not idle_ids:
        return []
    busy = {transaction.producer_id for transaction in state.transactions}
    forgotten = tuple(producer_id for producer_id in idle_ids if producer_id not in busy)
    return [ProducersForgotten(forgotten)] if forgotten else []
