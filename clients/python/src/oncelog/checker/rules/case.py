"""What a rule is given: the facts of a history, and what follows from several of them together."""

from __future__ import annotations

from functools import cached_property

from oncelog.checker import exposure
from oncelog.checker.coverage import Coverage
from oncelog.checker.deletion import Deletions
from oncelog.checker.exposure import Contradiction, Exposure
from oncelog.checker.facts import COMMITTED_VIEW, Facts, Place
from oncelog.checker.history import History
from oncelog.checker.outcomes import Outcomes
from oncelog.checker.stored_offsets import StoredOffsets


class Case:
    """Made once per history; what is derived is derived when the first rule asks for it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.facts = Facts(history)
        self.coverage = Coverage(self.facts)
        self.outcomes = Outcomes(self.facts, self.coverage)

    @cached_property
    def exposures(self) -> dict[Place, list[Exposure]]:
        """By partition, in order of position."""
        places = sorted(self.facts.seen[COMMITTED_VIEW])
        return {place: exposure.exposures(self.facts, place) for place in places}

    @cached_property
    def contradictions(self) -> list[Contradiction]:
        return [
            contradiction
            for sequence in self.exposures.values()
            for contradiction in exposure.contradictions(sequence)
        ]

    @cached_property
    def deletions(self) -> Deletions:
        return Deletions(self.facts, self.exposures)

    @cached_property
    def stored_offsets(self) -> StoredOffsets:
        return StoredOffsets(self.facts, self.outcomes)
