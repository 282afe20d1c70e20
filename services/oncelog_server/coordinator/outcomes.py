"""What became of ended transactions: one slot per TxId, addressed by the place of its BEGIN.

The machine forgets a transaction that is over; its outcome stays here and is told for
`outcome_retention_ms`. The driver shows each record once the HW covers it, so a slot is never a
guess. A slot is written at PREPARE, from that record alone, hence again by every replay.

    0       1       2     4          8                16               24
    +-------+-------+-----+----------+----------------+----------------+
    |version| state |cause| timeout  | producer id    | generation     |
    |  u8   |  u8   | u16 | ms u32   | u64            | u64            |
    +-------+-------+-----+----------+----------------+----------------+
    24              32               40               48
    +---------------+----------------+----------------+
    | begin ms u64  | end ms u64     | PREPARE u64    |
    +---------------+----------------+----------------+

All big endian. The Slots port checks that a slot is what was written; of another version it is an
error, never a guess.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.records import (
    OneShotPrepared,
    PreparedAbort,
    PreparedCommit,
    Record,
)
from oncelog_server.coordinator.transactions import State
from oncelog_server.coordinator.values import AbortCause
from oncelog_server.core.frame import At
from oncelog_server.core.ids import Generation, ProducerId, TxId, journal_offset_of
from oncelog_server.core.ports import Slots
from oncelogpb.errors import CorruptLog
from oncelogpb.ids import show_id

SLOT_FILE: Final = "outcomes"
_VERSION: Final = 1
_SLOT: Final = struct.Struct(">BBHIQQQQQ")
SLOT_BYTES: Final = _SLOT.size
assert SLOT_BYTES == 48


class Outcome(NamedTuple):
    """Of a decided transaction."""

    committed: bool
    cause: AbortCause
    producer: ProducerIdentity
    timeout_ms: int
    begin_ms: int
    end_ms: int
    # Journal offset of its PREPARE record, which holds the parts.
    prepare_offset: int
    # Older than outcomes are kept: nothing else of it may be told.
    expired: bool = False

    @property
    def is_one_shot(self) -> bool:
        """Only a one-shot has no timeout."""
        return self.timeout_ms == 0


class Outcomes:
    """The coordinator's Projection, and the reader of what it wrote."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def project(self, record: Record, at: At) -> None:
        match record:
            case PreparedCommit():
                self._write(record, State.COMMITTED, AbortCause.NONE, record.begin_ms, at)
            case PreparedAbort():
                self._write(record, State.ABORTED, record.cause, record.begin_ms, at)
            case OneShotPrepared():
                self._write(record, State.COMMITTED, AbortCause.NONE, at.time_ms, at)

    def read(self, tx_id: TxId) -> Outcome | None:
        """None where no such transaction was decided. Whether it may still be told is not asked
        here (`outcome_ages`). Raises CorruptLog."""
        slot = self._slots.read(journal_offset_of(tx_id))
        if slot is None:
            return None
        version, state, cause, timeout_ms, producer_id, generation, begin_ms, end_ms, prepare = (
            _SLOT.unpack(slot)
        )
        if version != _VERSION:
            raise CorruptLog(
                f"the outcome of transaction {show_id(tx_id)} has the unknown format {version}; "
                "read it with the version that wrote it",
                tx_id=tx_id,
            )
        return Outcome(
            state == State.COMMITTED,
            AbortCause(cause),
            ProducerIdentity(ProducerId(producer_id), Generation(generation)),
            timeout_ms,
            begin_ms,
            end_ms,
            prepare,
        )

    def _write(
        self,
        record: PreparedCommit | PreparedAbort | OneShotPrepared,
        state: State,
        cause: AbortCause,
        begin_ms: int,
        at: At,
    ) -> None:
        timeout_ms = 0 if isinstance(record, OneShotPrepared) else record.timeout_ms
        slot = _SLOT.pack(
            _VERSION,
            state,
            cause,
            timeout_ms,
            record.producer_id,
            record.generation,
            begin_ms,
            at.time_ms,
            at.offset,
        )
        self._slots.write(journal_offset_of(record.tx_id), slot)
