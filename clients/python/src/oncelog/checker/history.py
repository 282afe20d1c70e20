"""Reading a history: lines become operations, each with what was asked, what was told, and when.

Invariants of an Operation:
- `invoked_us` <= `ended_us`; an unknown outcome ends never (`NEVER_US`): it may still take effect;
- a failed operation had no effect and will have none.

Left out: what operations have to do with each other (`facts`), whether they may (`rules`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

NEVER_US: Final = 1 << 62

# What may be done, and the fields that an `invoke` of it must have.
OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "create_topic": ("topic",),
    "alter_topic": ("topic",),
    "truncate": ("topic", "before"),
    "produce": ("topic", "values"),
    "acknowledge": (),
    "init_producer": (),
    "begin": ("tx",),
    "send": ("tx", "topic", "values"),
    "commit": ("tx",),
    "transact": ("tx", "sends"),
    "abort": ("tx",),
    "get_transaction": ("tx_id",),
    "commit_offsets": ("offsets",),
    "fetch_offsets": ("group",),
    "position": ("consumer",),
    "seek": ("consumer", "topic", "partition", "offset"),
    "read": (),
    "list_offsets": ("topic",),
    "heartbeat": ("group", "member"),
    "remove_member": ("group",),
    "take_offsets": ("group", "member", "offsets"),
}


class HistoryError(ValueError):
    """The file is no history: says where, and what is wrong with the line."""


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """See the module. `line` and `end_line` are places for `History.where`; `end_line` 0: none."""

    do: str
    line: int
    invoked_us: int
    args: Mapping[str, Any]
    outcome: Outcome = Outcome.UNKNOWN
    end_line: int = 0
    ended_us: int = NEVER_US
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def may_have_applied(self) -> bool:
        return self.outcome is not Outcome.FAIL

    @property
    def lines(self) -> tuple[int, ...]:
        return (self.line, self.end_line) if self.end_line else (self.line,)


@dataclass(frozen=True, slots=True)
class Mark:
    """A remark: `settled` means that no client writes any more and no transaction is open or on its
    way to a partition; `clocks` says how far services' clocks may be trusted."""

    what: str
    line: int
    time_us: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """All operations in order of invocation, and the marks in order of time."""

    operations: list[Operation]
    marks: list[Mark]
    # Lines of all files, one after the other: (name, number of lines).
    sources: Sequence[tuple[str, int]]

    def where(self, line: int) -> str:
        """A line as people write it; with the file where there are several."""
        for name, count in self.sources:
            if line <= count:
                return str(line) if len(self.sources) == 1 else f"{name}:{line}"
            line -= count
        raise AssertionError("every line is of a source")


def read_files(paths: Sequence[str | Path]) -> History:
    """The history in these files, of one clock. Raises HistoryError, OSError."""
    reader = _Reader()
    for path in paths:
        with open(path, "rb") as lines:
            reader.read(str(path), _parsed(str(path), lines))
    return reader.history()


def read_events(events: Iterable[Mapping[str, Any]]) -> History:
    """The history in these events. Raises HistoryError."""
    reader = _Reader()
    reader.read("events", enumerate(events, 1))
    return reader.history()


def _parsed(name: str, lines: Iterable[bytes]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    torn: str | None = None
    for number, line in enumerate(lines, 1):
        if torn is not None:
            raise HistoryError(torn)
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            event = json.loads(line.decode())
        except ValueError as error:
            # A killed writer leaves its last line torn; only there is that no error.
            torn = f"{name}:{number}: no JSON: {error}"
            continue
        if not isinstance(event, dict):
            raise HistoryError(f"{name}:{number}: a line is one JSON object")
        yield number, event
    if torn is not None and line.endswith(b"\n"):
        raise HistoryError(torn)


class _Reader:
    """Pairs the lines of operations."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._marks: list[Mark] = []
        self._sources: list[tuple[str, int]] = []
        self._base = 0

    def read(self, name: str, events: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        number = 0
        for number, event in events:
            try:
                self._take(event, self._base + number)
            except KeyError as error:
                raise HistoryError(f"{name}:{number}: field {error.args[0]!r} is missing") from None
            except HistoryError as error:
                raise HistoryError(f"{name}:{number}: {error}") from None
        self._sources.append((name, number))
        self._base += number

    def history(self) -> History:
        self._operations.sort(key=lambda operation: (operation.invoked_us, operation.line))
        self._marks.sort(key=lambda mark: (mark.time_us, mark.line))
        return History(self._operations, self._marks, self._sources)

    def _take(self, event: Mapping[str, Any], line: int) -> None:
        kind, time_us = event["event"], event["time_us"]
        if type(time_us) is not int:
            raise HistoryError(f"time_us is {time_us!r}, not a whole number of microseconds")
        if kind == "invoke":
            self._invoke(event, line, time_us)
        elif kind == "mark":
            self._marks.append(Mark(event["what"], line, time_us, event))
        elif kind in ("ok", "fail", "unknown"):
            self._complete(event, line, time_us, Outcome(kind))
        else:
            raise HistoryError(f"event is {kind!r}; allowed: invoke, ok, fail, unknown, mark")

    def _invoke(self, event: Mapping[str, Any], line: int, time_us: int) -> None:
        name, do = event["op"], event["do"]
        if do not in OPERATIONS:
            raise HistoryError(f"do is {do!r}; allowed: {', '.join(OPERATIONS)}")
        for wanted in OPERATIONS[do]:
            if wanted not in event:
                raise KeyError(wanted)
        if name in self._by_name:
            raise HistoryError(f"operation {name!r} was invoked before: ids are used once")
        operation = Operation(do, line, time_us, event)
        self._by_name[name] = operation
        self._operations.append(operation)

    def _complete(
        self, event: Mapping[str, Any], line: int, time_us: int, outcome: Outcome
    ) -> None:
        operation = self._by_name.get(event["op"])
        if operation is None:
            raise HistoryError(f"operation {event['op']!r} ends and was never invoked")
        if operation.end_line:
            raise HistoryError(f"operation {event['op']!r} ends twice")
        if time_us < operation.invoked_us:
            raise HistoryError(f"operation {event['op']!r} ends before it is invoked")
        operation.outcome, operation.end_line, operation.results = outcome, line, event
        operation.ended_us = NEVER_US if outcome is Outcome.UNKNOWN else time_us
