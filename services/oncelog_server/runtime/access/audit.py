"""The audit log: one line per admin call and per refusal. Who, what, when, how it ended, whence.

    {"time": "...", "event": "audit", "who": "alice", "from": "ipv4:10.0.0.7:50112",
     "what": "PartitionLeader.produce", "outcome": "PERMISSION_DENIED",
     "verb": "write", "kind": "topic", "name": "payments"}

Refusals are at most REFUSALS_PER_MINUTE of one identity, so that a flood does not fill the disk:
those beyond are counted (`audit_suppressed`), and the next line of that identity tells how many.
Admin calls are all written.

A file is written by a thread of its own, so that a slow disk holds up nobody. A line that cannot be
written there goes to the process's log, which says so.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from oncelog_server.core.ports import Clock, Reporter

REFUSALS_PER_MINUTE: Final = 60
MINUTE_MS: Final = 60_000
# Identities whose refusals are counted: above, the counts start anew.
IDENTITIES_COUNTED_MAX: Final = 10_000
# Lines on their way to the file: above, they are counted (`audit_lost`) and lost.
LINES_WAITING_MAX: Final = 10_000
# How long the end of a process waits for the last lines.
CLOSE_SECONDS_MAX: Final = 5.0

Fields = dict[str, Any]


class Sink(Protocol):
    """Where lines go."""

    def write(self, fields: Fields) -> None: ...

    def close(self) -> None: ...


class LogSink:
    """The process's own log."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def write(self, fields: Fields) -> None:
        level = "info" if fields["outcome"] == "ok" else "warning"
        self._reporter.event("audit", level=level, **fields)

    def close(self) -> None:
        """Not ours to close."""


class FileSink:
    """A file of its own. Made on the loop."""

    def __init__(self, path: str, reporter: Reporter, clock: Clock) -> None:
        """Raises OSError where it cannot be opened."""
        self._path = Path(path)
        self._reporter = reporter
        self._clock = clock
        self._log = LogSink(reporter)
        self._loop = asyncio.get_running_loop()
        self._lines: queue.SimpleQueue[Fields | None] = queue.SimpleQueue()
        # None after it was moved away, until it is opened anew.
        self._file: int | None = _open(self._path)
        self._thread = threading.Thread(target=self._run, name="oncelog-audit", daemon=True)
        self._thread.start()

    def write(self, fields: Fields) -> None:
        if self._lines.qsize() >= LINES_WAITING_MAX:
            self._reporter.count("audit_lost")
            return
        wall_ms = self._clock.now().wall_ms
        time = datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC)
        said = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._lines.put({"time": said, "event": "audit", **fields})

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while (fields := self._lines.get()) is not None:
            try:
                self._append(json.dumps(fields, default=str) + "\n")
            except OSError as error:
                self._hand_back(fields, error)
        self._close_file()

    def _append(self, line: str) -> None:
        if self._file is not None and _moved(self._file, self._path):
            self._close_file()
        if self._file is None:
            self._file = _open(self._path)
        data = line.encode()
        while data:
            data = data[os.write(self._file, data) :]

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _hand_back(self, fields: Fields, error: OSError) -> None:
        def tell() -> None:
            self._reporter.event(
                "audit log not written", level="error", file=str(self._path), error=str(error)
            )
            del fields["time"], fields["event"]
            self._log.write(fields)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:
            # The loop has ended, and with it everything that could be told.
            return


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _moved(file: int, path: Path) -> bool:
    """The path names another file now, or none: it was rotated."""
    try:
        there, here = os.stat(path), os.fstat(file)
    except FileNotFoundError:
        return True
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)


class _Counted:
    __slots__ = ("lines", "since_ms", "suppressed")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.lines = 0
        self.suppressed = 0


class Audit:
    """What is written, and what is only counted."""

    def __init__(self, sink: Sink, clock: Clock, reporter: Reporter) -> None:
        self._sink = sink
        self._clock = clock
        self._reporter = reporter
        self._counted: dict[str, _Counted] = {}

    def called(self, fields: Fields) -> None:
        """An admin call that has ended, in whatever way."""
        self._sink.write(fields)

    def refused(self, who: str, fields: Callable[[], Fields]) -> None:
        """A refusal; `fields` are made only where they are written."""
        suppressed = self._may_write(who)
        if suppressed is None:
            self._reporter.count("audit_suppressed")
            return
        line = fields()
        if suppressed:
            line["suppressed"] = suppressed
        self._sink.write(line)

    def close(self) -> None:
        self._sink.close()

    def _may_write(self, who: str) -> int | None:
        """How many of this identity were not written since its last line; None: not this one."""
        now_ms = self._clock.now().monotonic_ms
        counted = self._counted.get(who)
        if counted is None:
            if len(self._counted) >= IDENTITIES_COUNTED_MAX:
                self._counted.clear()
            counted = self._counted[who] = _Counted(now_ms)
        elif now_ms - counted.since_ms >= MINUTE_MS:
            counted.since_ms, counted.lines = now_ms, 0
        if counted.lines >= REFUSALS_PER_MINUTE:
            counted.suppressed += 1
            return None
        counted.lines += 1
        suppressed, counted.suppressed = counted.suppressed, 0
        return suppressed
