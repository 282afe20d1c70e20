"""Parts of what was before this log, for a replica that ends before it begins (`receiving`).

Left out: whether this process leads (`driver`), and the wire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oncelog_server.core.ids import JournalOffset
from oncelog_server.runtime.replica.dialog import SettledThere, SnapshotPart
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import Content, Part, PartOf
from oncelogpb.errors import InvalidArgument, Unavailable


async def read_part(
    journal: Journal, offload: Callable[[Callable[[], None]], Awaitable[None]], wanted: PartOf
) -> SnapshotPart:
    """Off the loop. Raises InvalidArgument where there is no such thing, CorruptLog,
    Unavailable."""
    if not journal.log_start:
        raise InvalidArgument("this log begins at 0: nothing was before it", field="content")
    parts = journal.snapshot_parts()
    read: list[Part] = []
    try:
        await offload(lambda: read.append(parts.read(wanted)))
    except KeyError as error:
        raise InvalidArgument(f"there is no {wanted.content.value} {error}", field="name") from None
    except OSError as error:
        raise Unavailable(f"what was before the log could not be read: {error}") from error
    offset = JournalOffset(parts.offset)
    if wanted.content is Content.DATA:
        data = journal.data
        rests_on = journal.allowance_at(max(data.settled_at, data.begun_at))
        there = SettledThere(data.begin, data.settled_end, rests_on)
        return SnapshotPart(offset, read[0], settled=there)
    if wanted.content is not Content.FILE or wanted.position:
        return SnapshotPart(offset, read[0])
    first = await journal.read(offset, 1, below=journal.log_end)
    time_ms = first[0].at.time_ms if first else journal.last_time_ms
    return SnapshotPart(offset, read[0], time_ms, parts.slot_names, parts.allowed)
