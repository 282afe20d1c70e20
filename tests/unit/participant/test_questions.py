"""Timers of questions, by themselves."""

from __future__ import annotations

from typing import NamedTuple

from oncelog_server.core.ids import JournalOffset, compose_tx_id
from oncelog_server.participant.commands import Answered, Asked, LeaderMoved, Look, Question
from oncelog_server.participant.questions import QUESTIONS_PER_CALL_MAX, Questions

TX = 5
ELSEWHERE = compose_tx_id(2, 9)
HW = 9


class Open(NamedTuple):
    """The OpenHere protocol."""

    bytes_received: int
    producer_id: int = 1
    generation: int = 1
    first_position: JournalOffset = JournalOffset(1)


class Story:
    """Open transactions and their timers; `ask` is one round of the outbox."""

    def __init__(self) -> None:
        self.open: dict[int, Open] = {}
        self.questions = Questions(self.open, after_ms=1_000, again_ms=2_000)

    def opens(self, tx_id: int, transaction: Open) -> None:
        self.open[tx_id] = transaction
        self.questions.opened(tx_id)

    def due(self, now_ms: int) -> tuple[Question, ...]:
        self.questions.seen(Look(), now_ms)
        return tuple(self.questions.due(JournalOffset(HW)))

    def ask(self, now_ms: int) -> list[tuple[int, int]]:
        """TxIds and bytes of what is asked, and answered."""
        asked = self.due(now_ms)
        self.questions.seen(Asked(asked), now_ms)
        self.questions.seen(Answered(asked), now_ms)
        return [(question.tx_id, question.bytes_received) for question in asked]


def test_a_txid_that_ended_and_was_opened_again_since_the_last_look_begins_anew() -> None:
    """By another producer, whom nothing fences: its bytes are not the other one's."""
    told = Story()
    told.opens(TX, Open(100))
    assert told.ask(0) == []
    assert told.ask(1_000) == [(TX, 100)]
    told.opens(TX, Open(10, producer_id=2))
    assert told.ask(1_100) == []
    assert told.ask(2_100) == [(TX, 10)]


def test_of_many_that_are_due_as_many_are_made_as_a_call_takes() -> None:
    """They are looked at five times a second: to make all of 100,000 each time takes longer."""
    told = Story()
    for number in range(3 * QUESTIONS_PER_CALL_MAX):
        told.opens(1 + number, Open(100))
        told.opens(ELSEWHERE + number, Open(100))
    told.due(0)
    due = [question.tx_id for question in told.due(1_000)]
    assert due == [
        *range(1, 1 + QUESTIONS_PER_CALL_MAX),
        *range(ELSEWHERE, ELSEWHERE + QUESTIONS_PER_CALL_MAX),
    ]


def test_an_answer_about_another_producers_transaction_tells_nothing_of_this_one() -> None:
    """It ended, and was opened again, while the question was under way."""
    told = Story()
    told.opens(TX, Open(100))
    told.due(0)
    asked = told.due(1_000)
    told.questions.seen(Asked(asked), 1_000)
    told.opens(TX, Open(10, producer_id=2))
    told.questions.seen(Answered(asked), 1_100)
    assert told.ask(2_100) == [(TX, 10)]


def test_bytes_that_no_answer_confirmed_are_told_again() -> None:
    """A sign of life that got lost would let an idle timeout end a producer that writes."""
    told = Story()
    told.opens(TX, Open(100))
    told.due(0)
    told.questions.seen(Asked(told.due(1_000)), 1_000)
    told.open[TX] = Open(150)
    assert told.ask(3_000) == [(TX, 150)]
    assert told.ask(5_000) == [(TX, 0)]


def test_what_is_inherited_is_due_at_once_and_what_moved_too() -> None:
    told = Story()
    told.opens(TX, Open(100))
    told.opens(ELSEWHERE, Open(50))
    told.questions.inherited()
    assert told.ask(7) == [(TX, 100), (ELSEWHERE, 50)]
    told.questions.seen(LeaderMoved(frozenset({2})), 8)
    assert told.ask(8) == [(ELSEWHERE, 0)]
    assert told.ask(2_007) == [(TX, 0)]
    assert told.ask(2_008) == [(ELSEWHERE, 0)]


def test_nothing_is_kept_of_a_transaction_that_ended() -> None:
    told = Story()
    for tx_id in range(1, 100):
        told.opens(tx_id, Open(10))
    told.due(0)
    assert len(told.ask(1_000)) == 99
    told.open.clear()
    assert told.ask(3_000) == []
    assert not told.questions.held


def test_a_transaction_above_the_high_watermark_waits() -> None:
    told = Story()
    told.opens(TX, Open(100, first_position=JournalOffset(HW)))
    told.due(0)
    assert told.ask(1_000) == []
    told.open[TX] = Open(100, first_position=JournalOffset(HW - 1))
    assert told.ask(1_001) == [(TX, 100)]
