"""Parts of what was before this log, for a replica that ends before it begins (`receiving`), and
blocks for one that lacks them (`healing`).

Left out: whether this process leads (`driver`), and the wire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import JournalOffset
from oncelog_server.runtime.replica.dialog import SettledThere, SnapshotPart
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import Content, Part, PartOf
from oncelogpb.errors import InvalidArgument, Unavailable


async def read_part(
    journal: Journal,
    offload: Callable[[Callable[[], None]], Awaitable[None]],
    wanted: PartOf,
    *,
    tombstones_below: int | None,
) -> SnapshotPart:
    """Off the loop. `tombstones_below`: up to which a pass of compaction may drop them now; None:
    nobody knows. Raises InvalidArgument where there is no such thing, CorruptLog,
    Unavailable."""
    if not journal.log_start and wanted.content is not Content.BLOCKS:
        raise InvalidArgument("this log begins at 0: nothing was before it", field="content")
    parts = journal.snapshot_parts()
    # A pass may end while this is read, and what heals may be less clean: the part is no cleaner
    # than before it was read, nor than after.
    before = journal.data.cleanness
    read: list[Part] = []
    try:
        await offload(lambda: read.append(parts.read(wanted)))
    except KeyError as error:
        raise InvalidArgument(f"there is no {wanted.content.value} {error}", field="name") from None
    except OSError as error:
        raise Unavailable(f"what was before the log could not be read: {error}") from error
    offset = JournalOffset(parts.offset)
    if wanted.content in (Content.DATA, Content.BLOCKS):
        data = journal.data
        rests_on = journal.allowance_at(max(data.settled_at, data.begun_at, data.dropped_at))
        said = data.cleanness
        may_go_to = said.holes_below if tombstones_below is None else tombstones_below
        there = SettledThere(
            data.begin,
            data.settled_end,
            rests_on,
            Cleanness(
                min(before.compacted_to, said.compacted_to),
                max(said.tombstones_to, may_go_to),
                said.holes_below,
                min(before.dropped_to, said.dropped_to),
            ),
        )
        return SnapshotPart(offset, read[0], settled=there)
    if wanted.content is not Content.FILE or wanted.position:
        return SnapshotPart(offset, read[0])
    first = await journal.read(offset, 1, below=journal.log_end)
    time_ms = first[0].at.time_ms if first else journal.last_time_ms
    return SnapshotPart(offset, read[0], time_ms, parts.slot_names, parts.allowed)
