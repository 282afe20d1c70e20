"""Log lines: one per event, as JSON or for people, on standard error.

TxIds (any field named tx_id or ending in _tx_id) are shown as 16 hex digits, bytes as hex, line
breaks escaped, so that one event is one line. What libraries log through `logging` comes out in
the same form, from warnings up.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

from oncelogpb.ids import show_named

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log:
    """Where events go. Fields are keyword arguments; `level` is one of them, "info" if absent."""

    def __init__(
        self, *, level: str = "info", form: str = "console", stream: TextIO | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._level = LEVELS[level]
        self._render = _rendering(form, self._stream)
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(self._stream),
            processors=[*_SHAPE, *self._render],
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
            cache_logger_on_first_use=True,
        )

    def line(self, event: str, *, level: str = "info", **fields: object) -> None:
        """Writes one event."""
        self._logger.log(LEVELS[level], event, **fields)

    def adopt_libraries(self) -> None:
        """Has what libraries say through `logging` written here too. Once per process."""
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[structlog.stdlib.add_logger_name, *_SHAPE],
                processors=[
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    _name_traceback,
                    *self._render,
                ],
            )
        )
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(max(self._level, logging.WARNING))


def _rendering(form: str, stream: TextIO) -> tuple[Any, ...]:
    if form == "json":
        return (structlog.processors.JSONRenderer(default=str),)
    assert form == "console", f"log format {form!r}"
    # JSON escapes line breaks by itself.
    return (_one_line, structlog.dev.ConsoleRenderer(colors=stream.isatty(), sort_keys=False))


def _readable(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = show_named(key, value)
    return event


def _name_traceback(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Under "exception" the console renderer would put it on lines of its own."""
    if "exception" in event:
        event["traceback"] = event.pop("exception")
    return event


def _one_line(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and "\n" in value:
            event[key] = value.rstrip("\n").replace("\n", "\\n")
    return event


_SHAPE: Final[tuple[Any, ...]] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _readable,
)
