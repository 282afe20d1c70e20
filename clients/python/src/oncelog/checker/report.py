"""What a check found: violations, each with the lines that prove it, and what was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Violation(NamedTuple):
    """A broken promise. `lines` are the places in the history that contradict each other."""

    invariant: int
    message: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        noun = "line" if len(self.lines) == 1 else "lines"
        return f"I{self.invariant}: {self.message} ({noun} {', '.join(self.lines)})"


class Finding(NamedTuple):
    """A violation whose lines are still numbers: what a rule yields."""

    message: str
    lines: Iterable[int]


@dataclass(frozen=True, slots=True)
class Size:
    """What the history holds, so that nobody takes an empty one for a clean one."""

    operations: int
    records: int
    transactions: int
    committed: int
    not_committed: int
    # Nobody knows, and nothing in the history says.
    unknown: int
    reads: int


@dataclass(frozen=True, slots=True)
class Report:
    """All violations, by invariant, at most `VIOLATIONS_MAX` of each; `more` counts the others."""

    violations: Sequence[Violation]
    more: int
    size: Size

    @property
    def clean(self) -> bool:
        return not self.violations

    def invariants(self) -> list[int]:
        """The numbers of the broken promises."""
        return sorted({violation.invariant for violation in self.violations})

    def __str__(self) -> str:
        if self.clean:
            return "clean"
        more = [f"and {self.more} more"] if self.more else []
        return "\n".join([*map(str, self.violations), *more])
