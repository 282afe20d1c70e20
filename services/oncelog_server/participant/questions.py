"""When to ask the coordinator about transactions that are open here. PURE, and volatile: changed
only by signals, dropped at step-down, never replicated.

A TxId is asked about when it has been open for `after_ms`, then every `again_ms`, and at once after
a change of leader on either side, until it has ended *here*: asked once, told ONGOING, the
coordinator fails over and forgets us, and it would be pending for ever. A question says how many
bytes came since the last one that was answered: what got lost on the way is said again, for it is a
sign of life.

Left out: who is asked, and how (`asking`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, assert_never

from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    ProducerId,
    TxId,
    journal_partition_of,
)
from oncelog_server.core.timers import Timers
from oncelog_server.participant.commands import (
    Answered,
    Asked,
    LeaderMoved,
    Look,
    Question,
    Signal,
)

# Of one journal partition. A coordinator takes no more in a call.
QUESTIONS_PER_CALL_MAX: Final = 1_000


class OpenHere(Protocol):
    """What a participant keeps of an open transaction, as far as questions need it."""

    @property
    def producer_id(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def first_position(self) -> JournalOffset:
        """Journal offset of the first that it holds here."""
        ...

    @property
    def bytes_received(self) -> int:
        """Only grows."""
        ...


class Questions:
    """Timers of the open transactions of one partition. `open_` is the machine's own, by TxId."""

    def __init__(self, open_: Mapping[int, OpenHere], *, after_ms: int, again_ms: int) -> None:
        self._open = open_
        self._after_ms = after_ms
        self._again_ms = again_ms
        # Opened since the last signal; `apply` knows no monotonic time.
        self._fresh: list[int] = []
        # A transaction that ended keeps its timer until that is due.
        self._timers: Timers[int] = Timers()
        # TxId -> bytes that an answered question has told.
        self._told: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Entries about transactions, open or not."""
        return len(self._timers) + len(self._told) + len(self._fresh)

    def opened(self, tx_id: int) -> None:
        # It may have been open before, under another producer.
        self._told.pop(tx_id, None)
        self._fresh.append(tx_id)

    def inherited(self) -> None:
        """Open at a change of leader here: due at once."""
        self._fresh.clear()
        for tx_id in self._open:
            self._timers.set(tx_id, 0)

    def seen(self, signal: object, now_ms: int) -> None:
        """Of any machine whose only signals are these. `now_ms` is monotonic."""
        assert isinstance(signal, Signal), f"a participant knows no signal {signal!r}"
        for tx_id in self._fresh:
            self._timers.set(tx_id, now_ms + self._after_ms)
        self._fresh.clear()
        match signal:
            case Look():
                pass
            case Asked(questions):
                self._asked(questions, now_ms)
            case Answered(questions):
                self._answered(questions)
            case LeaderMoved(journal_partitions):
                self._leader_moved(journal_partitions, now_ms)
            case _:
                assert_never(signal)
        self._turn(now_ms)

    def due(self, below: JournalOffset) -> list[Question]:
        """What to ask now: about transactions whose first batch here is below the HW, for what is
        above may be cut. By TxId, and so by journal partition: of each partition at most as many as
        one call takes, and the rest next time, for there may be very many."""
        found: list[Question] = []
        counts: Counter[int] = Counter()
        for tx_id in sorted(self._timers.due()):
            journal_partition = journal_partition_of(tx_id)
            if counts[journal_partition] == QUESTIONS_PER_CALL_MAX:
                continue
            transaction = self._open.get(tx_id)
            if transaction is not None and transaction.first_position < below:
                counts[journal_partition] += 1
                found.append(self._question(tx_id, transaction))
        return found

    def _question(self, tx_id: int, transaction: OpenHere) -> Question:
        return Question(
            TxId(tx_id),
            ProducerId(transaction.producer_id),
            Generation(transaction.generation),
            transaction.bytes_received - self._told.get(tx_id, 0),
        )

    def _asked(self, questions: Iterable[Question], now_ms: int) -> None:
        for question in questions:
            if question.tx_id in self._open:
                self._timers.set(question.tx_id, now_ms + self._again_ms)

    def _answered(self, questions: Iterable[Question]) -> None:
        for question in questions:
            transaction = self._open.get(question.tx_id)
            # Ended meanwhile, and opened again by another producer: its bytes are not told yet.
            if transaction is not None and transaction.producer_id == question.producer_id:
                told = self._told.get(question.tx_id, 0)
                self._told[question.tx_id] = told + question.bytes_received

    def _leader_moved(self, journal_partitions: frozenset[int], now_ms: int) -> None:
        for tx_id in self._open:
            if journal_partition_of(tx_id) in journal_partitions:
                self._timers.set(tx_id, now_ms)

    def _turn(self, now_ms: int) -> None:
        self._timers.turn(now_ms)
        for tx_id in [tx_id for tx_id in self._timers.due() if tx_id not in self._open]:
            self._timers.cancel(tx_id)
            self._told.pop(tx_id, None)
