"""What writers of the fault tests remember of each thing they did."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    UNDER_WAY = "under way"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    """One transaction, or one plain record, as its writer saw it."""

    # Of which story line; attempts of one line are in program order.
    line: str
    number: int
    # (partition of "out", value), in send order.
    wrote: list[tuple[int, bytes]] = field(default_factory=list)
    outcome: Outcome = Outcome.UNDER_WAY
    # Inputs that it stands for, each of which must be seen exactly once.
    inputs: tuple[int, ...] = ()

    def value(self, rest: str) -> bytes:
        return f"{self.line}|{self.number}|{rest}".encode()
