"""Tick: what ends by itself. Idle timeouts, lifetimes, sessions, unnamed producers. PURE.

What expires loses its TxId, not its producer: the generation stays.
"""

from __future__ import annotations

from typing import Final

from oncelog_server.coordinator.decide_end import abort_record
from oncelog_server.coordinator.decide_producer import forget_idle
from oncelog_server.coordinator.records import LogEndProved, Record
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.values import AbortCause
from oncelog_server.core.age import TimePassed
from oncelog_server.core.ids import TxId
from oncelog_server.core.machine import Decision, Instant

# Transactions that one Tick aborts at most for each cause, so that no turn of the loop is long.
EXPIRED_PER_TICK_MAX: Final = 1_000


def decide_tick(state: CoordinatorState, now: Instant) -> Decision[Record]:
    causes: dict[TxId, AbortCause] = {}
    for timers in (state.idle, state.lifetime):
        for tx_id in timers.due(EXPIRED_PER_TICK_MAX):
            causes[tx_id] = AbortCause.TIMEOUT
    for producer_id, generation in state.sessions.over(EXPIRED_PER_TICK_MAX):
        producer = state.producers.get(producer_id)
        if producer is not None and producer.generation == generation and producer.open_tx:
            causes.setdefault(producer.open_tx, AbortCause.SESSION)
    records: list[Record] = [
        abort_record(state, state.transactions[tx_id], cause)
        for tx_id, cause in sorted(causes.items())
    ]
    records += forget_idle(state, now)
    records += prove_log_end(state)
    if state.watch.wants_record and (len(state.producers) or state.outcome_ages.are_told):
        records.append(TimePassed())
    return Decision(records)


def prove_log_end(state: CoordinatorState) -> list[Record]:
    """A record of this epoch's own, where participants wait for one (`unborn`)."""
    return [LogEndProved()] if state.unborn.wants_proof else []
