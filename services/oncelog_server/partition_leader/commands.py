"""What a partition can be asked beside what every participant can (`participant.commands`). PURE.

A command is checked for its shape before it gets here (`wire`): payloads match their CRC and
counts, one command holds batches of one producer. The machine decides what depends on state.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.frame import Frame
from oncelog_server.core.ids import JournalOffset, Offset, TxId
from oncelog_server.core.machine import Tick
from oncelog_server.participant.commands import HearVerdicts, WriteMarkers
from oncelogpb.errors import OncelogError

# No limit, in a topic's settings.
UNLIMITED: Final = -1
# What is deleted sooner after its commit than this is not worth a copy: of a log that grows slowly
# it would be made ten minutes later (`runtime/replica/settling`), for what is left of an hour.
SHORT_LIVED_MS: Final = 60 * 60 * 1000
# For how long a tombstone is kept where a topic that is compacted does not say.
DELETE_RETENTION_MS: Final = 24 * 60 * 60 * 1000


class Materialization(IntEnum):
    """How the committed log of a topic holds its records. Its numbers are journaled."""

    # Entries point into the journal.
    REFERENCE = 0
    # What is readable is settled: copied, in its order, into the data log.
    COPY = 1
    # Each replica settles what is worth it.
    AUTO = 2


class Settings(msgspec.Struct, frozen=True, array_like=True, tag="settings"):
    """What a topic's settings mean to its partitions: a record, once the machine knows them, so
    that every replica and every replay deletes by the same."""

    # How often the topic was altered; UNLIMITED: nothing is known yet.
    version: int = UNLIMITED
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    materialization: Materialization = Materialization.AUTO
    # Of each key the last value is kept. Of what is not compacted the other two are the defaults.
    is_compacted: bool = False
    delete_retention_ms: int = DELETE_RETENTION_MS
    min_compaction_lag_ms: int = 0

    def says_the_same(self, other: Settings) -> bool:
        return msgspec.structs.replace(other, version=self.version) == self

    @property
    def is_settled(self) -> bool:
        """What is readable is to be settled."""
        return self.is_compacted or self.materialization is Materialization.COPY

    @property
    def is_auto(self) -> bool:
        """It is to be settled where that is worth it."""
        return self.materialization is Materialization.AUTO

    @property
    def is_short_lived(self) -> bool:
        return self.retention_ms != UNLIMITED and self.retention_ms < SHORT_LIVED_MS


class Resolution(Enum):
    """What an operator wants done with a damaged part."""

    DROP = "drop"
    EXPOSE = "expose"


# ------------------------------------------------------------------------------------- commands


class Produce(msgspec.Struct, frozen=True):
    """DATA frames of one producer (and TxId, and writer), in sequence order.

    Reply: tuple[Placed | OncelogError, ...], one per batch.
    """

    batches: tuple[Frame, ...]
    # By place: what the outside has against a batch (unsound, too large, no room on the disk). It
    # is refused with that where it is new; one that stands here is acknowledged again whatever has
    # happened since.
    unfit: dict[int, OncelogError] = {}


class Resolve(msgspec.Struct, frozen=True):
    """An operator ends a damaged part. Reply: number of records dropped or exposed."""

    tx_id: TxId
    resolution: Resolution


class Configure(msgspec.Struct, frozen=True):
    """What the topic's settings say now, as far as they are the machine's. Reply: None."""

    settings: Settings


class Truncate(msgspec.Struct, frozen=True):
    """Deletes all committed records below an offset, which readers can see or is the end.

    Reply: Truncated.
    """

    before: Offset


class Cleaned(msgspec.Struct, frozen=True):
    """A signal: of the leader's own data log, what is superseded below this offset is gone."""

    below: int


class Durable(msgspec.Struct, frozen=True):
    """A signal: what lies below is durable, and what it deleted need not stay in memory."""

    high_watermark: JournalOffset


Command = Produce | WriteMarkers | HearVerdicts | Resolve | Configure | Truncate | Tick


# -------------------------------------------------------------------------------------- replies


class Placed(NamedTuple):
    """Where a batch stands."""

    # Of its first record.
    journal_offset: JournalOffset
    # Plain: of its first record in the committed log. None: the marker will decide.
    offset: Offset | None
    # A repeat: nothing was appended, the positions are the original ones.
    duplicate: bool = False


class Truncated(NamedTuple):
    """What a Truncate deletes."""

    start_before: Offset
    start_after: Offset
    # Of entries that it deletes whole.
    payload_bytes: int

    @property
    def record_count(self) -> int:
        return self.start_after - self.start_before
