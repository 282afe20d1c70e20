"""How a committed log is settled, as roles and `runtime/` share it: a role says what lies where,
and merges; `runtime/replica` reads the journal and keeps what was merged in the data log.

    index         stretch │ stretch (run)          │ stretch     records that are neighbours in the
                  │       │        │         │     │             journal, as an entry points at them
    journal       frame   │ frame  │ frame   │ ... │ frame
                  ▼       ▼        ▼         ▼     ▼
    block         unit    │ unit   │ unit    │ ... │ unit        one payload, in commit order

A *unit* is what one frame brought: records that became readable at once and stand side by side.
`block` tells what is kept of it.

Invariant: blocks hold whole units, or what compaction has left of them (`core/cleaning`), and all
replicas have the same units. So what two replicas have of a range is equal, record by record,
however their blocks are cut, but for what only one of them has taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Keyed
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.machine import Settled

# The time and the marker of a stretch in which each frame shows itself: at its own time, from its
# own place on.
RUN: Final = -1
# Payload bytes that small units are merged towards.
BLOCK_BYTES: Final = 1024 * 1024
# A unit of so many payload bytes is a block by itself, with the payload as it was sent.
LARGE_UNIT_BYTES: Final = 256 * 1024


class Stretch(NamedTuple):
    """Records of the committed log that are neighbours in the journal too."""

    first_offset: int
    journal_offset: int
    record_count: int
    # When they were committed, or RUN.
    time_ms: int
    # Journal offset of the marker that shows them, or RUN.
    exposed_at: int
    # Of what an index entry has; of a run that is given in part, more.
    payload_bytes: int = 0

    @property
    def is_run(self) -> bool:
        return self.exposed_at == RUN

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.record_count

    @property
    def journal_end(self) -> int:
        return self.journal_offset + self.record_count


class Weight(NamedTuple):
    """Of neighbours in the index."""

    # Of the first record.
    first_offset: int
    # As they stand in the journal.
    batches: int
    payload_bytes: int


class Settler(Protocol):
    """What a role knows of settling. PURE, but for the time that merging takes: off the loop."""

    # Name of the table beside its snapshots whose rows are the index.
    table: str

    def asked(self, configs: Mapping[str, str]) -> Settled:
        """Whether a topic with these settings is to be settled; nothing is said of its records."""
        ...

    def weigh(self, rows: Iterable[bytes]) -> Iterator[Weight]:
        """What rows of the table stand for, of each piece of whole rows."""
        ...

    def stretches(self, state: bytes, rows: Iterable[bytes], from_offset: int) -> Iterator[Stretch]:
        """Where the committed records from an offset on lie, as of a snapshot: its state, and the
        rows of its table in order and in any pieces of whole rows, from at most the one that holds
        `from_offset` on. A stretch that begins below it is given whole, but for a run, which is
        given from `from_offset` on: read the frame that holds its `journal_offset`."""
        ...

    def row_offset(self, row: bytes) -> int:
        """Offset of the first record that a row of the table tells of; they ascend."""
        ...

    def blocks(self, frames: Iterable[tuple[Stretch, StoredFrame]]) -> Iterator[Block]:
        """The frames of stretches, in order, merged. All of them: the last block may be small.
        Raises CorruptBatch."""
        ...

    def split(self, block: Block) -> Sequence[Block]:
        """Each unit as a block of its own. Raises CorruptBatch."""
        ...

    def joined(self, blocks: Sequence[Block]) -> Block:
        """One block of neighbours. Raises CorruptBatch."""
        ...

    def tail(self, block: Block, from_offset: int) -> Block | None:
        """What it has from an offset on, which it covers. None: a unit of it has records below and
        above. Raises CorruptBatch."""
        ...

    def keyed(self, block: Block) -> Keyed:
        """Keys and tombstones of its records, in order. Raises CorruptBatch."""
        ...

    def thinned(self, blocks: Iterable[tuple[Block, Sequence[int] | None]]) -> Iterator[Block]:
        """Neighbours merged, of each the records with these numbers, ascending (None: all). They
        cover the same offsets; where nothing is left, a block of no record does. A unit of which
        nothing is left is told no more. Raises CorruptBatch."""
        ...
