"""What a history says of an operation that raised, and how it names things: said once, for every
operation of `recorder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oncelog.batch import TopicPartition
from oncelog.checker.events import HistoryWriter
from oncelog.errors import OncelogError


@contextmanager
def telling(history: HistoryWriter, op: str) -> Iterator[None]:
    """Around what the operation does: says how it failed, and lets the error go on. That it went
    well is the caller's to say, with what it was told."""
    try:
        yield
    except BaseException as error:
        raised(history, op, error)
        raise


def raised(history: HistoryWriter, op: str, error: BaseException, **fields: Any) -> None:
    """Where the error promises that nothing happened it failed; else nobody knows."""
    if isinstance(error, OncelogError) and not error.may_have_applied:
        history.fail(op, reason_of(error), **fields)
    else:
        history.unknown(op, reason_of(error), **fields)


def reason_of(error: BaseException) -> str:
    """A service's reason, or the name of the exception."""
    return error.reason if isinstance(error, OncelogError) else type(error).__name__


def placed(place: TopicPartition) -> Mapping[str, Any]:
    return {"topic": place.topic, "partition": place.partition}
