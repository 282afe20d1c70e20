"""What a follower and its leader say to each other about one partition, and who brings it there.

    the follower ── Ask, Acknowledge ──► the leader ── Told: an Answer, frames, the HW ──►
    the follower ── PartOf ──► the leader ── SnapshotPart ──►     of what was before its log

Left out: the wire, and how streams begin and end (`runtime/replication`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import Incarnation, JournalOffset, LeaderEpoch, PartitionId
from oncelog_server.runtime.replica.follower import SendSnapshot
from oncelog_server.runtime.replica.following import Acknowledge, Answer, Ask
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.snapshot_parts import Part, PartOf
from oncelog_server.runtime.target import Follow
from oncelogpb.errors import OncelogError

Said: TypeAlias = Ask | Acknowledge


class Told(NamedTuple):
    """By the leader of an epoch."""

    epoch: LeaderEpoch
    # The leader's; exclusive.
    high_watermark: int
    # Frames as bytes; None: only the high watermark is told. An error ends the dialog.
    what: Answer | bytes | SendSnapshot | OncelogError | None = None


class SettledThere(NamedTuple):
    """What a leader's data log has."""

    # Offsets: half-open. What is below the first was deleted.
    begin: int = 0
    end: int = 0
    # All of it became readable by these frames.
    allowed: Allowance = Allowance()
    # What was taken out of it, at most.
    cleanness: Cleanness = Cleanness()


class SnapshotPart(NamedTuple):
    """Of what was before the log of who leads an epoch."""

    # Where that log begins, and the state is of.
    offset: JournalOffset
    part: Part
    # With the first part of the file: no frame behind has an earlier time; which slots there are;
    # and what that log start rests on.
    time_ms: int = 0
    slot_names: Sequence[str] = ()
    allowed: Allowance = Allowance()
    # With blocks of its data log.
    settled: SettledThere = SettledThere()


class Dialog(Protocol):
    """A follower's, with the process that it follows."""

    def say(self, said: Said) -> None:
        """Lost where no stream stands: the next one begins with `begun`."""
        ...

    async def fetch(self, wanted: PartOf) -> SnapshotPart:
        """Also where no stream stands. Raises OncelogError."""
        ...

    def close(self) -> None: ...


class Hears(Protocol):
    """A follower."""

    def begun(self) -> None:
        """A stream stands: nothing of an earlier one is heard any more."""
        ...

    def told(self, told: Told) -> None: ...


# Opens one; `begun` is called in a later turn.
OpenDialog = Callable[[PartitionId, Follow, Incarnation, Hears], Dialog]
