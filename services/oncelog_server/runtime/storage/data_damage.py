"""PURE. What of a data log is known to be damaged: offsets that no intact block serves.

    found ─► known, until it is looked at again: replaced by what is found then, or by nothing

Invariant: it says where to look, and is no proof: what is known may have been replaced, deleted or
cut since, by a writer in a thread while a reader found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from oncelog_server.runtime.storage.data_walk import Damage
from oncelogpb.errors import CorruptLog

# Ranges of one data log that are known. More are found again once these are healed.
KNOWN_DAMAGE_MAX: Final = 1_000


class DamagedRange(NamedTuple):
    """Offsets: half-open, and where they stood."""

    first_offset: int
    end_offset: int
    # Or the directory, where a file is gone.
    file: str
    position: int
    why: str

    @property
    def record_count(self) -> int:
        """At most: some may have been taken out."""
        return self.end_offset - self.first_offset

    def corrupt(self) -> CorruptLog:
        """What a reader is told: file, byte and offsets."""
        return CorruptLog(str(self), file=self.file, position=self.position)

    def __str__(self) -> str:
        return (
            f"{self.file} is damaged at byte {self.position}: {self.why}. Offsets "
            f"{self.first_offset} to {self.end_offset} are not served from this replica"
        )


class KnownDamage:
    """Of the data log in a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # By first offset.
        self._found: dict[int, DamagedRange] = {}

    def found(self, file: str, damage: Damage) -> DamagedRange:
        """By a walk through a file. What was known of any of these offsets is that now."""
        position, first_offset, end_offset, why = damage
        found = DamagedRange(first_offset, end_offset, file, position, why)
        self.forget(first_offset, end_offset)
        if len(self._found) < KNOWN_DAMAGE_MAX:
            self._found[first_offset] = found
        return found

    def lacks(self, first_offset: int, end_offset: int) -> DamagedRange:
        """No file has any of these."""
        lacking = Damage(0, first_offset, end_offset, "a file of it is gone")
        return self.found(self._directory, lacking)

    def is_in(self, error: CorruptLog) -> bool:
        """It names a file of this data log."""
        return error.metadata.get("file", "").startswith(self._directory)

    def forget(self, first_offset: int, end_offset: int) -> None:
        """What touches these offsets: it was replaced, or is intact."""
        for known in tuple(self._found.values()):
            if known.first_offset < end_offset and first_offset < known.end_offset:
                self._found.pop(known.first_offset, None)

    def between(self, begin: int, end: int) -> Sequence[DamagedRange]:
        """Ascending; what is beyond was deleted, or cut."""
        # Taken at once: a thread may find more.
        return sorted(
            known
            for known in tuple(self._found.values())
            if known.first_offset < end and begin < known.end_offset
        )
