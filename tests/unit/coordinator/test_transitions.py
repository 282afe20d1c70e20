"""The state diagram, every pair of it."""

from __future__ import annotations

import pytest

from oncelog_server.coordinator import records
from oncelog_server.coordinator.machine import TRANSITIONS, ImpossibleTransition, _next_state
from oncelog_server.coordinator.transactions import State
from oncelog_server.coordinator.values import NO_PARTS, AbortCause
from oncelog_server.core.ids import Generation, ProducerId, TxId

TX, WHO, GENERATION = TxId(2), ProducerId(1), Generation(1 << 32 | 1)
RECORDS = [
    records.Begun(TX, WHO, GENERATION, 1, 0, None, ()),
    records.OneShotStaged(TX, WHO, GENERATION, 1, None, (), None),
    records.OneShotPrepared(TX, WHO, GENERATION, 1, None, ()),
    records.PreparedCommit(TX, WHO, GENERATION, 0, 0, None, NO_PARTS),
    records.PreparedAbort(TX, WHO, GENERATION, 0, 0, AbortCause.TIMEOUT, ()),
    records.Committed(TX),
    records.Aborted(TX),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("state", [None, *State])
def test_i4_only_the_arrows_of_the_diagram(state: State | None, record: records.Record) -> None:
    if (state, type(record)) in TRANSITIONS:
        assert _next_state(state, record) is TRANSITIONS[state, type(record)]
    else:
        with pytest.raises(ImpossibleTransition, match=type(record).__name__):
            _next_state(state, record)


def test_i4_an_end_has_no_arrow_out() -> None:
    assert not [arrow for arrow in TRANSITIONS if arrow[0] in (State.COMMITTED, State.ABORTED)]


def test_i4_no_arrow_leads_from_one_outcome_to_the_other() -> None:
    for (state, _), after in TRANSITIONS.items():
        if state is State.PREPARE_COMMIT:
            assert after is State.COMMITTED
        if state is State.PREPARE_ABORT:
            assert after is State.ABORTED
