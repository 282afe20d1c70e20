"""Idempotence: which batch is new, which is a repeat, which came too early. PURE.

Sequences count records, from 0: per producer id for plain batches (this module keeps them), per
(TxId, writer) inside a transaction (`pending` keeps those, and forgets them at the marker). Both
obey one rule, `judge`.

Invariant: a plain window holds the last batches without a gap between their sequences.
Left out: nothing here knows how many batches a client has in flight; that a client keeps at most
WINDOW of them is what makes every repeat findable.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.frame import Frame
from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.partition_leader.commands import Placed
from oncelogpb.errors import DuplicateSequence, OncelogError, OutOfOrderSequence, UnknownProducer
from oncelogpb.ids import show_id

# Batches of a plain producer whose positions are kept, hence the most it may have in flight.
WINDOW: Final = 16


class Seen(NamedTuple):
    """A batch that stands in the journal."""

    base_sequence: int
    record_count: int
    journal_offset: JournalOffset
    # In the committed log; None inside a transaction.
    offset: Offset | None


class PlainProducer(msgspec.Struct):
    """What is known of one plain producer."""

    # Last batches, oldest first, at most WINDOW.
    window: list[Seen]
    # Of its last frame, by the journal's age.
    last_ms: int

    @property
    def next_sequence(self) -> int:
        last = self.window[-1]
        return last.base_sequence + last.record_count


class PlainSequences:
    """All plain producers of a partition.

    Invariant: they stand in the order of their last frames, so that forgetting looks at no others.
    """

    def __init__(self) -> None:
        self._producers: dict[int, PlainProducer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def next_sequence(self, producer_id: int) -> int:
        """0 where nothing is known."""
        producer = self._producers.get(producer_id)
        return producer.next_sequence if producer is not None else 0

    def find(self, producer_id: int, base_sequence: int) -> Seen | None:
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return next((s for s in producer.window if s.base_sequence == base_sequence), None)

    def remember(
        self, frame: Frame, *, journal_offset: JournalOffset, offset: Offset, aged_ms: int
    ) -> None:
        seen = Seen(frame.base_sequence, frame.record_count, journal_offset, offset)
        producer = self._producers.pop(frame.producer_id, None)
        if producer is None or not frame.base_sequence:
            # Known and beginning again: 0.1 had forgotten it here, for it aged by the wall clock.
            self._producers[frame.producer_id] = PlainProducer([seen], aged_ms)
            return
        assert producer.next_sequence == seen.base_sequence, "decide lets no gap through"
        self._producers[frame.producer_id] = producer
        producer.window.append(seen)
        del producer.window[:-WINDOW]
        producer.last_ms = aged_ms

    def forget_before(self, aged_ms: int) -> None:
        """Producers whose last frame is older. Their next batch must start at 0 again."""
        old = takewhile(lambda item: item[1].last_ms < aged_ms, self._producers.items())
        for producer_id, _ in list(old):
            del self._producers[producer_id]

    def check(self) -> None:
        last = [producer.last_ms for producer in self._producers.values()]
        assert last == sorted(last), "in the order of their last frames"
        for producer_id, producer in self._producers.items():
            assert 0 < len(producer.window) <= WINDOW, f"window of {show_id(producer_id)}"
            for one, other in pairwise(producer.window):
                gap = other.base_sequence - (one.base_sequence + one.record_count)
                assert gap == 0, f"producer {show_id(producer_id)}: a gap of {gap} in its window"

    def dump(self) -> list[tuple[int, PlainProducer]]:
        return list(self._producers.items())

    def load(self, dumped: list[tuple[int, PlainProducer]]) -> None:
        self._producers = dict(dumped)


def judge(
    batch: Frame, expected: int, find: Callable[[int], Seen | None]
) -> Placed | OncelogError | None:
    """None: new, append it. Placed: a repeat. An error: refuse it."""
    base = batch.base_sequence
    if base == expected:
        return None
    if base > expected:
        return _gap(batch, expected)
    seen = find(base)
    if seen is not None and seen.record_count == batch.record_count:
        return Placed(seen.journal_offset, seen.offset, duplicate=True)
    return DuplicateSequence(
        f"sequence {base} with {batch.record_count} records was used with other records, or is "
        f"older than the last {WINDOW} batches, which are remembered; the client has a fault",
        expected=expected,
    )


def _gap(batch: Frame, expected: int) -> OncelogError:
    if not batch.tx_id and expected == 0:
        # Were another number accepted here, a retry after expiry would be appended twice.
        return UnknownProducer(
            f"nothing is known of plain producer {show_id(batch.producer_id)} here (it may have "
            "been idle for too long); start again with a fresh producer id and sequence 0",
            expected=0,
        )
    return OutOfOrderSequence(
        f"sequence {batch.base_sequence} came before {expected}; send the batches in between again",
        expected=expected,
    )
