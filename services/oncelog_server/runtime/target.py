"""What elections want of a replica. They say it in the turn in which etcd's word is heard, and the
last word counts; the replica goes there by itself (`replica/driver`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from oncelog_server.core.ids import Incarnation
from oncelog_server.core.ports import Address


class Assignment(NamedTuple):
    """On which nodes the replicas of a partition are, and where they shall be."""

    replicas: tuple[str, ...]
    # Of these, those that a move adds.
    adding: tuple[str, ...] = ()
    # Where replicas shall be; empty while none is moved.
    target: tuple[str, ...] = ()

    @property
    def replication_factor(self) -> int:
        """How many there are, without those that are being added: a partition whose second copy is
        still on its way needs no more of them in sync than before."""
        return len(self.replicas) - len(self.adding)


class Isr(NamedTuple):
    """Who is in sync, as etcd shows it, and who may be."""

    # Of the partition's key.
    revision: int
    members: tuple[Incarnation, ...]
    # None: nothing was said of it.
    assignment: Assignment | None = None


# Nobody but the replica itself, of which etcd knows nothing yet.
ALONE = Isr(0, ())


@dataclass(frozen=True, slots=True)
class StandBy:
    """Its log is open, so that it may stand in an election, and it leads nothing."""


@dataclass(frozen=True, slots=True)
class Lead:
    """etcd granted this epoch to this process."""

    epoch: int
    # Epoch of the partition's last unclean election; 0 for none.
    unclean_epoch: int = 0
    # As it was granted.
    isr: Isr = ALONE
    # Replicas that the partition should have.
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class Follow:
    """Another process leads, and lives: this log becomes what that one's is."""

    # With the epoch that it leads.
    leader: Address

    @property
    def epoch(self) -> int:
        return self.leader.epoch


@dataclass(frozen=True, slots=True)
class Close:
    """The process stops: its log is closed."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Its topic was deleted: its directory is put aside."""


Target: TypeAlias = StandBy | Lead | Follow | Close | Leave


class Candidate(NamedTuple):
    """A replica that is open: what an election asks of it."""

    incarnation: bytes
    # Largest epoch in its journal; 0 for an empty one.
    last_epoch: int
    # What an unclean election keeps of it.
    synced_end: int = 0
