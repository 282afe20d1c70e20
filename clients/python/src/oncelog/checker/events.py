"""Writing a history: one JSON object per line, as docs/history_format.md says.

A history is what clients asked and were told, with times of one monotonic clock. Every operation is
two lines, `invoke` and one of `ok`, `fail`, `unknown`; one that has no second line has an unknown
outcome. Every line is handed to the operating system at once, so that a killed process leaves all
that it was told.

Left out: what the lines mean (`history`), how a client writes them (`recorder`).
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias

Event: TypeAlias = dict[str, Any]


def monotonic_us() -> int:
    """The machine's monotonic clock: the same for all its processes, not across machines."""
    return time.monotonic_ns() // 1000


class HistoryWriter:
    """Appends events, from any thread. With a path they go to that file, in any case they stay in
    `events`, unless `keep` is False. `client` names this writer in operation ids: it must differ
    between the writers whose files are checked together."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        client: str = "c",
        now_us: Callable[[], int] = monotonic_us,
        keep: bool = True,
    ) -> None:
        self.client = client
        self.now_us = now_us
        self.events: list[Event] = []
        self._keep = keep
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        if path is not None:
            self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def fresh(self, prefix: str) -> str:
        """A name that this writer gives once: a value id, a transaction's or a consumer's name."""
        return f"{prefix}.{self.client}.{next(self._numbers)}"

    def invoke(self, do: str, *, at_us: int | None = None, **arguments: Any) -> str:
        """An operation begins. Returns its id, for `ok`, `fail` or `unknown`."""
        operation = f"{self.client}.{next(self._numbers)}"
        time_us = self.now_us() if at_us is None else at_us
        self._write(
            {"event": "invoke", "op": operation, "time_us": time_us, "do": do, **_given(arguments)}
        )
        return operation

    def ok(self, operation: str, **results: Any) -> None:
        """It was done, and this is the answer."""
        self._complete("ok", operation, results)

    def fail(self, operation: str, reason: str, **fields: Any) -> None:
        """It was refused: nothing happened, and nothing will."""
        self._complete("fail", operation, {"reason": reason, **fields})

    def unknown(self, operation: str, reason: str, **fields: Any) -> None:
        """It may have happened, or may still."""
        self._complete("unknown", operation, {"reason": reason, **fields})

    def mark(self, what: str, **fields: Any) -> None:
        """Something happened that is no operation: `restart`, `kill`, `settled`, any word."""
        self._write({"event": "mark", "time_us": self.now_us(), "what": what, **_given(fields)})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _complete(self, event: str, operation: str, fields: Mapping[str, Any]) -> None:
        self._write({"event": event, "op": operation, "time_us": self.now_us(), **_given(fields)})

    def _write(self, event: Event) -> None:
        with self._lock:
            if self._keep:
                self.events.append(event)
            if self._file is not None:
                self._file.write(json.dumps(event) + "\n")


def _given(fields: Mapping[str, Any]) -> Event:
    """Absent and None are the same."""
    return {name: value for name, value in fields.items() if value is not None}
