"""Log lines: one per event, as JSON or for people, on standard error.

    2026-11-22T08:20:01.123456Z [warning  ] lease lost                     lost=1 boot_id=0f3a...

TxIds (any field named tx_id or ending in _tx_id) are shown as 16 hex digits, bytes as hex, line
breaks and other control characters escaped, so that one event is one line, and no name in it writes
elsewhere on a terminal. What libraries log through `logging` comes out in the same form, from
warnings up.

It is written by hand, for every process imports it: the library that wrote such lines before took
a sixth of what a process needs to start.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from oncelog_server.core.printable import printable
from oncelogpb.ids import show_id

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
# Columns of the form for people.
_LEVEL_WIDTH: Final = 9
_EVENT_WIDTH: Final = 30
_COLORS: Final = {"debug": "32", "info": "32", "warning": "33", "error": "31"}
# What must be quoted to be told from the next field.
_BREAKS: Final = frozenset(" \t\"'=")

Render = Callable[[Mapping[str, Any]], str]


class Log:
    """Where events go. Fields are keyword arguments; `level` is one of them, "info" if absent."""

    def __init__(
        self, *, level: str = "info", form: str = "console", stream: TextIO | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._level = LEVELS[level]
        self._render = _rendering(form, self._stream)

    def line(self, event: str, *, level: str = "info", **fields: object) -> None:
        """Writes one event."""
        if LEVELS[level] < self._level:
            return
        shown: dict[str, object] = {"timestamp": _now(), "level": level, "event": event}
        for key, value in fields.items():
            shown[key] = _readable(key, value)
        # In one piece: other threads write too.
        self._stream.write(self._render(shown) + "\n")
        self._stream.flush()

    def adopt_libraries(self) -> None:
        """Has what libraries say through `logging` written here too. Once per process."""
        root = logging.getLogger()
        root.handlers[:] = [_Adopted(self)]
        root.setLevel(max(self._level, logging.WARNING))


class _Adopted(logging.Handler):
    """Passes on what a library logs."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._tracebacks = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = record.levelname.lower()
            fields: dict[str, object] = {"logger": record.name}
            if record.exc_info:
                fields["traceback"] = self._tracebacks.formatException(record.exc_info)
            self._log.line(
                record.getMessage(), level=level if level in LEVELS else "error", **fields
            )
        except Exception:
            self.handleError(record)


def _now() -> str:
    """UTC, ISO 8601, microseconds."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{stamp}.{nanoseconds // 1_000:06d}Z"


def _readable(key: str, value: object) -> object:
    if isinstance(value, int) and (key == "tx_id" or key.endswith("_tx_id")):
        return show_id(value)
    return value.hex() if isinstance(value, bytes) else value


def _rendering(form: str, stream: TextIO) -> Render:
    if form == "json":
        # Escapes line breaks by itself.
        return lambda shown: json.dumps(shown, default=str)
    assert form == "console", f"log format {form!r}"
    return _colored if stream.isatty() else _plain


def _plain(shown: Mapping[str, Any]) -> str:
    return _for_people(shown, lambda text, color: text)


def _colored(shown: Mapping[str, Any]) -> str:
    return _for_people(shown, lambda text, color: f"\x1b[{color}m{text}\x1b[0m")


def _for_people(shown: Mapping[str, Any], paint: Callable[[str, str], str]) -> str:
    fields = dict(shown)
    timestamp, level = fields.pop("timestamp"), fields.pop("level")
    event = _on_one_line(str(fields.pop("event"))).ljust(_EVENT_WIDTH)
    said = " ".join(f"{paint(key, '36')}={_value(value)}" for key, value in fields.items())
    level = paint(level.ljust(_LEVEL_WIDTH), _COLORS[level])
    return f"{paint(timestamp, '2')} [{level}] {paint(event, '1')} {said}".rstrip()


def _value(value: object) -> str:
    text = str(value)
    # One that stands by itself is shown as it is, line breaks escaped.
    return repr(text) if not text or not _BREAKS.isdisjoint(text) else _on_one_line(text)


def _on_one_line(text: str) -> str:
    return printable(text.rstrip("\n"))
