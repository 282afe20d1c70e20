"""Outcomes of transactions that the machine no longer keeps, as a service reads them: from the
outcome file and, for what was in them, from the journal."""

from __future__ import annotations

from oncelog_server.coordinator.commands import (
    AbortAnswer,
    AbortTransaction,
    CommitAnswer,
    CommitTransaction,
    ProducerIdentity,
)
from oncelog_server.coordinator.decide_end import ended
from oncelog_server.coordinator.identify import fenced
from oncelog_server.coordinator.outcomes import Outcome, Outcomes
from oncelog_server.coordinator.ports import CoordinatorReplica
from oncelog_server.coordinator.records import CODEC, PreparedCommit, Record
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.values import AbortCause
from oncelog_server.core.ids import Generation, ProducerId, TxId, journal_offset_of
from oncelogpb.errors import (
    Loading,
    ManifestMismatch,
    OffsetOutOfRange,
    ProducerMismatch,
    Unavailable,
    UnknownTransaction,
)

_NOBODY = ProducerIdentity(ProducerId(0), Generation(0))
_EXPIRED = Outcome(False, AbortCause.NONE, _NOBODY, 0, 0, 0, 0, expired=True)


def state_of(replica: CoordinatorReplica) -> CoordinatorState:
    """For a read below the HW. Raises Loading until the HW has passed EPOCH_START."""
    machine = replica.machine
    if machine is None or replica.high_watermark <= machine.state.epoch_start:
        raise Loading("the coordinator is loading its journal; try again")
    return machine.state


class EndedTransactions:
    """Of one journal partition that this process leads."""

    def __init__(self, replica: CoordinatorReplica, outcomes: Outcomes) -> None:
        self._replica = replica
        self._outcomes = outcomes

    def outcome(self, tx_id: TxId) -> Outcome | None:
        """None: there never was such a transaction. Only for a TxId below the HW, and one that the
        machine does not keep. Raises CorruptLog, Loading."""
        assert journal_offset_of(tx_id) < self._replica.high_watermark
        ages = state_of(self._replica).outcome_ages
        if journal_offset_of(tx_id) < ages.over_below(self._replica.high_watermark):
            # Whether its slot is still there or not.
            return _EXPIRED
        found = self._outcomes.read(tx_id)
        if found is None and journal_offset_of(tx_id) < self._replica.log_start:
            # Nothing tells any more whether that is the place of a BEGIN.
            return _EXPIRED
        return found

    def known_outcome(self, tx_id: TxId) -> Outcome:
        """Raises UnknownTransaction; Unavailable where its first record is not durable yet."""
        if journal_offset_of(tx_id) >= self._replica.log_end:
            # Within the lease nobody else has given it out either.
            self._replica.require_lease()
            raise UnknownTransaction("no coordinator has given out such a TxId", tx_id=tx_id)
        if journal_offset_of(tx_id) >= self._replica.high_watermark:
            raise Unavailable("the transaction's first record is not durable yet; try again")
        outcome = self.outcome(tx_id)
        if outcome is None:
            raise UnknownTransaction("there is no such transaction", tx_id=tx_id)
        return outcome

    async def repeat_commit(self, command: CommitTransaction) -> CommitAnswer:
        """The same answer as the first time. `begin_next` is the caller's to begin."""
        outcome = self._mine(command.tx_id, command.producer)
        if not outcome.committed:
            self._require_generation(command.producer)
            raise ended(command.tx_id, "aborted", outcome.cause)
        for record in await self.records(command.tx_id, outcome):
            if isinstance(record, PreparedCommit) and record.manifest != command.manifest:
                raise ManifestMismatch(
                    "the transaction is committed with another manifest", tx_id=command.tx_id
                )
        return CommitAnswer(visible=True)

    def repeat_abort(self, command: AbortTransaction) -> AbortAnswer:
        if command.producer is None:
            outcome = self._unexpired(command.tx_id)
        else:
            outcome = self._mine(command.tx_id, command.producer)
        if outcome.committed:
            raise ended(command.tx_id, "committed")
        return AbortAnswer(outcome.cause)

    async def records(self, tx_id: TxId, outcome: Outcome) -> list[Record]:
        """Its first record and its PREPARE, as far as the journal still holds them."""
        kept = self._kept(tx_id, outcome)
        try:
            stored = await self._replica.read_frames(kept)
        except OffsetOutOfRange:
            if self._kept(tx_id, outcome) == kept:
                raise
            # They went while they were read.
            return await self.records(tx_id, outcome)
        return [CODEC.decode(frame.frame) for frame in stored]

    def _kept(self, tx_id: TxId, outcome: Outcome) -> list[int]:
        """Places of its records that are still in the journal."""
        log_start = self._replica.log_start
        places = sorted({journal_offset_of(tx_id), outcome.prepare_offset})
        return [offset for offset in places if offset >= log_start]

    def _mine(self, tx_id: TxId, producer: ProducerIdentity) -> Outcome:
        outcome = self._unexpired(tx_id)
        if outcome.producer != producer:
            raise ProducerMismatch(
                "the transaction belongs to another producer or generation", tx_id=tx_id
            )
        return outcome

    def _unexpired(self, tx_id: TxId) -> Outcome:
        outcome = self.known_outcome(tx_id)
        if outcome.expired:
            raise UnknownTransaction(
                "the transaction ended longer ago than outcomes are kept", tx_id=tx_id
            )
        return outcome

    def _require_generation(self, identity: ProducerIdentity) -> None:
        producer = state_of(self._replica).producers.get(identity.producer_id)
        if producer is not None and identity.generation < producer.generation:
            raise fenced(producer, identity)
