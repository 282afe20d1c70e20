"""TxIds that participants hold something of, and that this coordinator has not given out. PURE.

A batch under such a TxId is nobody's: a producer guessed it, or a log was cut. But "I do not know
it" is no answer: a coordinator that was paused while its successor gave out T does not know T
either, and its word would make a participant drop what T commits. So it proves first that it has no
successor, by a record of its own:

    question about X, at or above the log end L ──► LATER, and L is noted
    LogEndProved is appended at P >= L
    the HW passes P, in this epoch            ──► X, asked again and still above the log end: NEVER

Was X given out when the question came? Not by this coordinator: X lies above its log end. Not by an
earlier one: what that gave out was durable, so it lies below L. Not by a later one: it would have
been elected before P was appended, by a member of the ISR that from then on acknowledges nothing
of this epoch, and P would not be durable in it. So nobody had, and what the participant held then
is of no transaction (docs/adr/0011, docs/protocol.md).

Volatile: a new leader asks for itself. An entry belongs to one participant and one identity, for
another one's question may be younger than the proof.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.core.ids import JournalOffset, PartitionId, TxId

# Between two proofs of one journal partition. Participants ask again after 2 s.
PROVE_EVERY_MS: Final = 1_000
# Questions that wait for a proof; above, LATER is all they hear until others are answered.
UNBORN_KEPT: Final = 10_000
# Whoever did not ask again for so long does not hold it any more.
_GONE_AFTER_MS: Final = 60_000


class Claim(NamedTuple):
    """What a participant holds something of, and for whom."""

    tx_id: TxId
    producer: ProducerIdentity
    partition: PartitionId


class _Asked(NamedTuple):
    # Of the journal, when the question came.
    log_end: JournalOffset
    asked_ms: int


class Unborn:
    """Of one journal partition and one epoch."""

    def __init__(self) -> None:
        # Oldest first.
        self._asked: dict[Claim, _Asked] = {}
        # Journal offset of the last LogEndProved; 0: none in this epoch.
        self._proved_at = JournalOffset(0)
        self._next_proof_ms = 0
        # Some are not covered by the last proof, and it is time for another.
        self.wants_proof = False

    def __len__(self) -> int:
        return len(self._asked)

    def is_disproved(self, claim: Claim, *, below: JournalOffset) -> bool:
        """A durable proof came after its question."""
        asked = self._asked.get(claim)
        return asked is not None and asked.log_end <= self._proved_at < below

    # ------------------------------------------------------------------------------ called by apply

    def proved(self, offset: JournalOffset) -> None:
        self._proved_at = offset
        self.wants_proof = False

    # ------------------------------------------------------------------------------- called by seen

    def asked(self, claim: Claim, *, log_end: JournalOffset, now_ms: int) -> None:
        if claim not in self._asked:
            self._make_room(now_ms)
            if len(self._asked) < UNBORN_KEPT:
                self._asked[claim] = _Asked(log_end, now_ms)
        self.turn(now_ms)

    def claimed(self, claim: Claim) -> None:
        """It heard NEVER. Asked again, it is proved again: it may hold something newer."""
        self._asked.pop(claim, None)

    def turn(self, now_ms: int) -> None:
        if self.wants_proof or now_ms < self._next_proof_ms:
            return
        if self.is_waiting:
            self.wants_proof = True
            self._next_proof_ms = now_ms + PROVE_EVERY_MS

    @property
    def is_waiting(self) -> bool:
        """Some wait for a proof."""
        newest = next(reversed(self._asked.values()), None)
        return self.wants_proof or (newest is not None and newest.log_end > self._proved_at)

    def _make_room(self, now_ms: int) -> None:
        while len(self._asked) >= UNBORN_KEPT:
            claim, oldest = next(iter(self._asked.items()))
            if oldest.asked_ms + _GONE_AFTER_MS > now_ms:
                return
            del self._asked[claim]

    def check(self) -> None:
        log_ends = [asked.log_end for asked in self._asked.values()]
        assert log_ends == sorted(log_ends), "questions stand in the order in which they came"
