"""The check: a history in, a report out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from oncelog.checker.history import History, read_events, read_files
from oncelog.checker.outcomes import Side
from oncelog.checker.report import Report, Size, Violation
from oncelog.checker.rules import RULES
from oncelog.checker.rules.case import Case

# Violations of one promise that a report shows: the first ones say it all.
VIOLATIONS_MAX: Final = 20


def check(events: Iterable[Mapping[str, Any]]) -> Report:
    """Judges the events of a history. Raises HistoryError."""
    return check_history(read_events(events))


def check_files(paths: Sequence[str | Path]) -> Report:
    """Judges the history in these files together: clients of one cluster, times of one clock.
    Raises HistoryError, OSError."""
    return check_history(read_files(paths))


def check_history(history: History) -> Report:
    """Judges a history. Raises HistoryError."""
    case = Case(history)
    violations: list[Violation] = []
    more = 0
    for invariant, rule in RULES.items():
        findings = rule(case)
        for finding in islice(findings, VIOLATIONS_MAX):
            lines = tuple(history.where(line) for line in sorted(set(finding.lines)) if line)
            violations.append(Violation(invariant, finding.message, lines))
        more += sum(1 for _ in findings)
    return Report(violations, more, _size(case))


def _size(case: Case) -> Size:
    committed = unknown = 0
    for transaction in case.facts.transactions.values():
        if case.outcomes.is_committed(transaction):
            committed += 1
        elif not case.outcomes.evidence(transaction, Side.NOT_COMMITTED):
            unknown += 1
    total = len(case.facts.transactions)
    return Size(
        operations=len(case.history.operations),
        records=len(case.facts.sent),
        transactions=total,
        committed=committed,
        not_committed=total - committed - unknown,
        unknown=unknown,
        reads=len(case.facts.reads),
    )
