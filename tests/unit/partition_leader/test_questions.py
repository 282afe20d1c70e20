"""Timers of questions, by themselves."""

from __future__ import annotations

from services.core.frame import At
from services.partition_leader.pending import OpenTransaction
from services.partition_leader.questions import Questions

TX = 5


def opened(bytes_received: int, *, producer: int) -> OpenTransaction:
    transaction = OpenTransaction(TX, producer, 1, At(1, 1, 0))
    transaction.bytes_received = bytes_received
    return transaction


def test_a_txid_that_ended_and_was_opened_again_since_the_last_look_begins_anew() -> None:
    """By another producer, whom nothing fences: its bytes are not the other one's."""
    open_ = {TX: opened(100, producer=1)}
    questions = Questions(open_, after_ms=1_000, again_ms=2_000)
    questions.opened(TX)
    questions.looked(0)
    questions.looked(1_000)
    assert [new_bytes for _, new_bytes in questions.due(9)] == [100]
    questions.asked([TX], 1_000)
    open_[TX] = opened(10, producer=2)
    questions.opened(TX)
    questions.looked(1_100)
    questions.looked(2_100)
    assert [new_bytes for _, new_bytes in questions.due(9)] == [10]
