"""The outcome file: golden bytes, and what is damaged is never a guess."""

from __future__ import annotations

import pytest

from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.outcomes import SLOT_BYTES, Outcome, Outcomes
from oncelog_server.coordinator.records import Begun, OneShotPrepared, PreparedAbort, PreparedCommit
from oncelog_server.coordinator.values import NO_PARTS, AbortCause
from oncelog_server.core.frame import At
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    ProducerId,
    TxId,
)
from oncelogpb.errors import CorruptLog
from tests.unit.coordinator.harness import MemorySlots

TX = TxId(3 << 48 | 5)
WHO = ProducerIdentity(ProducerId(3 << 48 | 1), Generation(1 << 32 | 2))
COMMIT = PreparedCommit(TX, WHO.producer_id, WHO.generation, 100, 60_000, None, NO_PARTS)
ABORT = PreparedAbort(TX, WHO.producer_id, WHO.generation, 100, 60_000, AbortCause.TIMEOUT, ())
AT = At(JournalOffset(9), LeaderEpoch(1), 200)


def make() -> tuple[MemorySlots, Outcomes]:
    slots = MemorySlots()
    return slots, Outcomes(slots)


def test_golden_bytes_of_a_slot() -> None:
    slots, outcomes = make()
    outcomes.project(ABORT, AT)
    assert SLOT_BYTES == 48
    assert slots.slots[5].hex(" ", 4) == (
        "01060002 0000ea60 00030000 00000001 00000001 00000002 00000000 00000064 "
        "00000000 000000c8 00000000 00000009"
    )


def test_an_outcome_is_what_its_prepare_said() -> None:
    _, outcomes = make()
    outcomes.project(COMMIT, AT)
    assert outcomes.read(TX) == Outcome(True, AbortCause.NONE, WHO, 60_000, 100, 200, 9)
    assert outcomes.read(TxId(3 << 48 | 6)) is None


def test_i35_projecting_again_changes_nothing() -> None:
    slots, outcomes = make()
    outcomes.project(COMMIT, AT)
    before = dict(slots.slots)
    outcomes.project(COMMIT, AT)
    assert slots.slots == before


def test_a_one_shot_begins_where_it_is_decided() -> None:
    _, outcomes = make()
    one_shot = OneShotPrepared(TX, WHO.producer_id, WHO.generation, 1, None, ())
    outcomes.project(one_shot, At(JournalOffset(5), LeaderEpoch(1), 200))
    read = outcomes.read(TX)
    assert read is not None
    assert (read.begin_ms, read.end_ms, read.prepare_offset) == (200, 200, 5)


def test_what_decides_nothing_leaves_no_slot() -> None:
    slots, outcomes = make()
    outcomes.project(Begun(TX, WHO.producer_id, WHO.generation, 1, 0, None, ()), AT)
    assert not slots.slots


def test_i26_a_slot_of_an_unknown_format_is_an_error() -> None:
    slots, outcomes = make()
    outcomes.project(COMMIT, AT)
    slots.slots[5] = b"\x02" + slots.slots[5][1:]
    with pytest.raises(CorruptLog):
        outcomes.read(TX)
