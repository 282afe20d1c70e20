"""Where in the journal the committed log is found: from where on the journal is needed, and where a
reader of it begins who gives the same from a certain offset on. PURE.

The committed log is in commit order: what is readable next may lie far before what was readable
last, so both look at all entries behind an offset, not at the first of them.

    journal     │ a1 │ y1 │ b1 │ COMMITTED b │ COMMITTED a │
    committed     y1   b1   a1         offset 1 (b1): iterator at COMMITTED b, earliest at a1
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import NamedTuple

from oncelog_server.core.ids import JournalOffset
from oncelog_server.core.settling import RUN
from oncelog_server.partition_leader.committed_log import CommittedLog
from oncelog_server.partition_leader.damage import Damage
from oncelog_server.partition_leader.pending import OpenTransaction, Pending


class NeededBy(Enum):
    """What keeps the journal from going further in front."""

    NOTHING = "nothing"
    RECORDS = "records"
    OPEN_TRANSACTION = "open transaction"
    DAMAGED = "damaged part"


class Needed(NamedTuple):
    """From where on the journal is read again, whatever happens, and for what."""

    position: JournalOffset
    by: NeededBy
    # That is open or damaged.
    transaction: OpenTransaction | None = None


class JournalPoint(NamedTuple):
    """A reader of the journal from `earliest` on, who drops what becomes readable below `iterator`,
    and the first `given` records of what becomes readable from there on, gives what the committed
    log has from a certain offset on."""

    earliest: JournalOffset
    iterator: JournalOffset
    given: int


def needed(
    committed: CommittedLog, pending: Pending, damage: Damage, next_offset: JournalOffset
) -> Needed:
    """As of what was applied. Never descends: what is readable later was open before, or comes
    behind all that is there."""
    found = Needed(next_offset, NeededBy.NOTHING)
    opened = next(iter(pending.open.values()), None)
    if opened is not None:
        found = Needed(opened.first_position, NeededBy.OPEN_TRANSACTION, opened)
    damaged = damage.first()
    if damaged is not None and damaged.first_position < found.position:
        found = Needed(damaged.first_position, NeededBy.DAMAGED, damaged)
    if committed.start_offset < committed.end_offset:
        unit = committed.unit_row(committed.entry_of(committed.start_offset))
        lowest = JournalOffset(committed.lowest_from(unit))
        if lowest < found.position:
            found = Needed(lowest, NeededBy.RECORDS)
    return found


def find_point(
    committed: CommittedLog,
    offset: int,
    *,
    first_open: JournalOffset | None,
    high_watermark: int,
) -> JournalPoint:
    """Of an offset that can be read under this HW, or is the end of what can. Says nothing that a
    change of leader could undo."""
    if offset == committed.readable_end(high_watermark):
        iterator, given = high_watermark, 0
        entry = committed.entries_begun(high_watermark)
    else:
        entry = committed.entry_of(offset)
        exposed_at = committed.exposed_at[entry]
        entry = committed.unit_row(entry)
        iterator = committed.journal[entry] if exposed_at == RUN else exposed_at
        given = offset - committed.first_offset(entry)
    earliest = iterator if first_open is None else min(iterator, first_open)
    if entry < len(committed):
        earliest = min(earliest, committed.lowest_from(entry))
    return JournalPoint(JournalOffset(earliest), JournalOffset(iterator), given)


def find_journaled(
    committed: CommittedLog, offset: int, *, log_start: int, high_watermark: int
) -> int:
    """The first offset at or behind one that can be read from which on the journal, which begins at
    `log_start`, holds all that is committed: where something became readable, or the end of what
    can be read. Before it, records are settled, and only there."""
    readable_end = committed.readable_end(high_watermark)
    if offset == readable_end:
        return offset
    first = committed.unit_row(committed.entry_of(offset))
    entries = committed.entries_begun(high_watermark)
    # From entry to entry, what lies lowest in the journal from there on never descends.
    found = bisect_left(range(entries), log_start, first, key=committed.lowest_from)
    if found < entries and committed.unit_row(found) < found:
        # The front of a transaction went: what became readable next is whole.
        found = committed.entries_begun(committed.exposed_at[found] + 1)
    return max(offset, committed.first_offset(found)) if found < entries else readable_end
