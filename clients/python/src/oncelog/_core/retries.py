"""What an error means for the one who made the call: one table, from reason to action.

The rule behind the table: a reason promises that nothing happened, or it does not. What promises it
may be repeated, here (RETRY) or at the leader that the error names (REDIRECT). What does not may be
repeated only where the call is idempotent by design (ASK: repeat, or look it up). The rest is for
the user: REWIND ends the transaction and not the producer, FATAL ends the producer or the call.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from oncelog.errors import CannotConnect
from oncelogpb import errors

# The wait before the first retry, and the most that doubling may make of it, milliseconds.
BACKOFF_FIRST_MS: Final = 20
BACKOFF_MS_MAX: Final = 500
# A THROTTLED answer names its own wait; a longer one than this is not believed.
RETRY_AFTER_MS_MAX: Final = 10_000


class Action(Enum):
    """What to do about an error."""

    # The same call again, after a wait, at the same place.
    RETRY = "retry"
    # The same call again, at the leader that the error names or that fresh metadata name.
    REDIRECT = "redirect"
    # Something may have happened: repeat where the call is idempotent, else tell the user.
    ASK = "ask"
    # This transaction is over: abort, rewind, begin again. The producer is fine.
    REWIND = "rewind"
    # Repeating cannot help.
    FATAL = "fatal"


ACTIONS: Final[dict[str, Action]] = {
    "NOT_LEADER": Action.REDIRECT,
    "LOADING": Action.RETRY,
    # The process stops or lost etcd: the leader may be elsewhere soon.
    "UNAVAILABLE": Action.REDIRECT,
    "THROTTLED": Action.RETRY,
    "DISK_FULL": Action.RETRY,
    "NOT_ENOUGH_REPLICAS": Action.RETRY,
    "PENDING_TRANSACTION": Action.RETRY,
    "CONCURRENT_TRANSACTION": Action.RETRY,
    "UNKNOWN_OUTCOME": Action.ASK,
    "TRANSACTION_ENDED": Action.REWIND,
    "STALE_POSITION": Action.REWIND,
    # It joins its group again by itself.
    "ILLEGAL_GENERATION": Action.REWIND,
    "UNKNOWN_MEMBER": Action.REWIND,
}

assert set(ACTIONS) <= set(errors.BY_REASON), "the table names reasons that exist"


def action_for(error: errors.OncelogError) -> Action:
    """What to do about this error; what the table does not name is FATAL."""
    return ACTIONS.get(error.reason, Action.FATAL)


def is_repeatable(action: Action, *, idempotent: bool) -> bool:
    """May the same call be sent again?"""
    if action is Action.ASK:
        return idempotent
    return action in (Action.RETRY, Action.REDIRECT)


def may_answer_later(error: errors.OncelogError) -> bool:
    """Of a question, which changes nothing: is it worth asking again?"""
    if isinstance(error, CannotConnect):
        # Nobody of the role answers at all: all of them may be starting.
        return True
    return is_repeatable(action_for(error), idempotent=True)


def backoff_ms(attempt: int, chance: float) -> int:
    """The wait before retry number `attempt` (from 0): doubling, with up to half of it taken away
    by `chance` in [0, 1), so that clients who failed together do not come back together."""
    assert attempt >= 0, "attempts count from 0"
    assert 0.0 <= chance < 1.0, "a chance is in [0, 1)"
    ceiling = min(BACKOFF_MS_MAX, BACKOFF_FIRST_MS << min(attempt, 10))
    return max(1, int(ceiling * (1.0 - chance / 2)))


def wait_ms(error: errors.OncelogError, attempt: int, chance: float) -> int:
    """The wait before a retry after this error: what it asks for, or else the back-off."""
    asked = error.metadata.get("retry_after_ms", "")
    if asked.isdigit():
        return min(int(asked), RETRY_AFTER_MS_MAX)
    return backoff_ms(attempt, chance)
