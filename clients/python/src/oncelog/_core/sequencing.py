"""One partition's batches of one producer, in order: what is numbered, in flight, and sent again.

A *lane* belongs to (producer, partition), in a transaction to (TxId, writer, partition). Its
sequence counts records from 0. At most 16 batches are in flight, because a leader remembers the
positions of the last 16, and so knows each of them again.

Invariants:
- a batch keeps its sequence number for ever: a retry sends the same bytes under the same number;
- batches go out in the order of their numbers, which have no gap but for what was acknowledged;
- after a failure nothing new goes out until everything in flight was answered; then what failed
  goes again, in order, before what waits. So a retry never overtakes, and a gap that a leader
  reports behind a failed batch is an echo of that failure, not an error of its own.

Left out: time (when to retry) and the wire.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from oncelog._core.batching import Sealed
from oncelog._core.deliveries import Part
from oncelog._core.retries import Action, action_for
from oncelogpb import errors
from oncelogpb.doubt import Doubt

# Batches of one lane that may be unanswered: what a leader remembers.
IN_FLIGHT_MAX: Final = 16


def _no_doubt() -> Doubt:
    return Doubt("partition_leader.produce")


class Fate(Enum):
    """What became of a batch in flight."""

    FLYING = "flying"
    # Refused, or its answer was lost; goes again.
    AGAIN = "again"
    # Refused for good.
    LOST = "lost"
    DONE = "done"


@dataclass(slots=True)
class Numbered:
    """A batch with its place in the lane."""

    sealed: Sealed
    base_sequence: int
    # When the sender gives up, on its clock, milliseconds.
    deadline_ms: float
    # Its records, to be told what became of them.
    part: Part | None = field(default=None, repr=False)
    fate: Fate = Fate.FLYING
    # Sendings so far.
    attempts: int = 0
    # Each failed sending passes through it: an earlier one may have been appended.
    doubt: Doubt = field(default_factory=_no_doubt)

    @property
    def in_doubt(self) -> bool:
        return self.doubt.lost

    @property
    def size(self) -> int:
        return len(self.sealed.payload)


@dataclass(slots=True)
class Lane:
    """See the module. `renewable`: a plain producer's, which may start again under a new producer
    id; in a transaction the first batch that is lost ends the transaction."""

    renewable: bool
    waiting: deque[Numbered] = field(default_factory=deque)
    flying: deque[Numbered] = field(default_factory=deque)
    next_sequence: int = 0
    # Records that were acknowledged: the manifest's count.
    acknowledged: int = 0
    # True: wait for everything in flight, then send what failed again.
    draining: bool = False
    # True: nothing can follow under this sequence: `restart` is due once nothing flies.
    broken: bool = False

    def add(self, sealed: Sealed, deadline_ms: float, part: Part | None = None) -> Numbered:
        """Puts a batch at the end. `part` is told how it ends, by who sends it."""
        numbered = Numbered(sealed, self.next_sequence, deadline_ms, part)
        self.next_sequence += sealed.record_count
        self.waiting.append(numbered)
        return numbered

    def sendable(self) -> bool:
        return (
            bool(self.waiting)
            and not self.draining
            and not self.broken
            and len(self.flying) < IN_FLIGHT_MAX
        )

    def take(self) -> Numbered:
        """The next batch to send; it is in flight now. Only where `sendable`."""
        assert self.sendable(), "ask sendable first"
        batch = self.waiting.popleft()
        batch.fate = Fate.FLYING
        batch.attempts += 1
        self.flying.append(batch)
        return batch

    def succeed(self, batch: Numbered) -> None:
        """The leader acknowledged it: it is durable."""
        assert batch.fate is Fate.FLYING, "answered twice"
        batch.fate = Fate.DONE
        self.acknowledged += batch.sealed.record_count
        self._retire()

    def fail(self, batch: Numbered, error: errors.OncelogError) -> Action:
        """The leader refused it, or its answer was lost. Returns RETRY or REDIRECT where it goes
        again by itself, once the lane has drained; REWIND or FATAL where it is lost and the lane is
        broken. Never ASK: a sequence makes repeating harmless."""
        assert batch.fate is Fate.FLYING, "answered twice"
        action = self._judge(batch, error)
        self.draining = True
        batch.doubt.as_reported(error)
        if action in (Action.RETRY, Action.REDIRECT):
            batch.fate = Fate.AGAIN
        else:
            batch.fate = Fate.LOST
            self.broken = True
        self._retire()
        return action

    def expire(self, now_ms: float) -> list[Numbered]:
        """Takes out what has waited too long; the lane is
        broken where that leaves a gap. Only while nothing flies."""
        assert not self.flying, "drain first"
        late = [batch for batch in self.waiting if batch.deadline_ms <= now_ms]
        if late:
            self.broken = True
            self.waiting = deque(batch for batch in self.waiting if batch.deadline_ms > now_ms)
        return late

    def restart(self) -> list[Numbered]:
        """Starts at sequence 0, under a new producer id, once nothing flies. Returns what may not
        go again: a batch in doubt may stand there under the old one (I6)."""
        assert self.renewable, "a transaction ends instead"
        assert self.broken, "nothing is broken"
        assert not self.flying, "drain first"
        doubtful = [batch for batch in self.waiting if batch.in_doubt]
        kept = [batch for batch in self.waiting if not batch.in_doubt]
        self.waiting.clear()
        self.next_sequence = 0
        self.draining = self.broken = False
        for batch in kept:
            batch.base_sequence = self.next_sequence
            self.next_sequence += batch.sealed.record_count
            self.waiting.append(batch)
        return doubtful

    @property
    def idle(self) -> bool:
        """Nothing waits, nothing flies."""
        return not self.waiting and not self.flying

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        assert len(self.flying) <= IN_FLIGHT_MAX
        expected: int | None = None
        for batch in [*self.flying, *self.waiting]:
            if expected is not None:
                assert batch.base_sequence >= expected, "in order"
            expected = batch.base_sequence + batch.sealed.record_count
        assert expected is None or expected <= self.next_sequence

    def _judge(self, batch: Numbered, error: errors.OncelogError) -> Action:
        action = action_for(error)
        if action is Action.ASK:
            return Action.REDIRECT
        # An answer may overtake the one of an earlier batch, which may yet turn out to have failed.
        behind = any(
            earlier.fate is not Fate.DONE and earlier.base_sequence < batch.base_sequence
            for earlier in self.flying
        )
        if behind and isinstance(error, errors.OutOfOrderSequence | errors.UnknownProducer):
            return Action.RETRY
        if isinstance(error, errors.UnknownProducer) and self.renewable and not batch.in_doubt:
            # The leader dropped an idle producer's state (7 days): nothing was appended.
            self.broken = True
            return Action.RETRY
        return action

    def _retire(self) -> None:
        """Drops what is done from the front; once nothing flies, what failed waits again."""
        if any(batch.fate is Fate.FLYING for batch in self.flying):
            while self.flying and self.flying[0].fate is Fate.DONE:
                self.flying.popleft()
            return
        again = [batch for batch in self.flying if batch.fate is Fate.AGAIN]
        self.flying.clear()
        self.waiting.extendleft(reversed(again))
        self.draining = False
