"""What follows from each reason: a table that names all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core.retries import (
    BACKOFF_MS_MAX,
    RETRY_AFTER_MS_MAX,
    Action,
    action_for,
    backoff_ms,
    is_repeatable,
    wait_ms,
)
from oncelogpb import errors

EXPECTED = {
    Action.REDIRECT: {"NOT_LEADER", "UNAVAILABLE"},
    Action.RETRY: {
        "LOADING",
        "THROTTLED",
        "DISK_FULL",
        "NOT_ENOUGH_REPLICAS",
        "PENDING_TRANSACTION",
        "CONCURRENT_TRANSACTION",
    },
    Action.ASK: {"UNKNOWN_OUTCOME"},
    Action.REWIND: {"TRANSACTION_ENDED", "STALE_POSITION", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER"},
}


@pytest.mark.parametrize("reason", errors.reasons())
def test_each_reason_has_its_action(reason: str) -> None:
    error = errors.BY_REASON[reason]("x")
    expected = [action for action, reasons in EXPECTED.items() if reason in reasons]
    assert action_for(error) is (expected[0] if expected else Action.FATAL)


@pytest.mark.parametrize("reason", errors.reasons())
def test_what_the_error_table_calls_retriable_is_repeated_and_nothing_else(reason: str) -> None:
    error = errors.BY_REASON[reason]("x")
    assert is_repeatable(action_for(error), idempotent=False) == error.retriable


def test_a_lost_answer_is_repeated_only_where_that_is_harmless() -> None:
    assert is_repeatable(Action.ASK, idempotent=True)
    assert not is_repeatable(Action.ASK, idempotent=False)


@given(st.integers(0, 100), st.floats(0, 1, exclude_max=True))
def test_the_wait_is_bounded_and_never_zero(attempt: int, chance: float) -> None:
    assert 1 <= backoff_ms(attempt, chance) <= BACKOFF_MS_MAX


def test_the_wait_doubles() -> None:
    assert [backoff_ms(attempt, 0.0) for attempt in range(7)] == [20, 40, 80, 160, 320, 500, 500]


def test_throttled_says_when_to_come_back_and_is_not_believed_without_end() -> None:
    assert wait_ms(errors.Throttled("x", retry_after_ms=70), 5, 0.0) == 70
    assert wait_ms(errors.Throttled("x", retry_after_ms=10**9), 5, 0.0) == RETRY_AFTER_MS_MAX
    assert wait_ms(errors.Throttled("x", retry_after_ms="soon"), 0, 0.0) == 20
