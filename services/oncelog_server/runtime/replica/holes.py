"""What should be in the data log, is not, and cannot be settled again: its frames went from the
front of the journal, for they had been settled.

    begin of the data log      blocks of its files       settled end      end at the newest snapshot
      │  a file that is gone     │  a file that is short   │  a note that was lost   │
      └ ........................ ┴ ....................... ┴ ....................... ┘
                     each is looked for in the journal, by the rows of the snapshot

Left out: rot within a file, which is found where it is read; what is done about a hole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from oncelog_server.core.settling import Settler, Stretch
from oncelog_server.runtime.replica.settling_source import Source, Standing
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.journal import Journal

# Of a stretch that cannot be found in the journal, so many are looked at.
HOLE_STRETCHES: Final = 8_192
# Files whose ends are looked at, a block of each.
LOOKED_AT_MAX: Final = 16


class Hole(NamedTuple):
    """Offsets of the committed log that are in neither, half-open."""

    first_offset: int
    end_offset: int
    # The file that lacks them, or the directory where that is gone, too.
    file: str

    def __str__(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.end_offset} are in neither the data log nor the "
            f"journal: {self.file} lacks them"
        )


async def find_hole(
    newest: Standing,
    journal: Journal,
    settler: Settler,
    offload: Callable[[Callable[[], None]], Awaitable[None]],
) -> Hole | None:
    """The first one, as the newest snapshot tells. Raises CorruptLog, OSError."""
    if not journal.log_start:
        # Every frame is there.
        return None
    data, (begin, end, *_) = journal.data, newest.settled
    lacking: list[Hole] = []
    await offload(lambda: lacking.extend(_lacking(data)))
    lacking.append(Hole(data.settled_end, end, data.directory))
    for first, behind, file in lacking:
        first, behind = max(first, begin), min(behind, end)
        if first >= behind:
            continue
        source = Source(newest, journal, settler, offload)
        await source.open(first)
        for stretch in await source.stretches(HOLE_STRETCHES):
            if stretch.first_offset >= behind:
                break
            if _needs_from(stretch, first) < journal.log_start:
                return Hole(max(first, stretch.first_offset), behind, file)
    return None


def _lacking(data: DataLog) -> Iterator[Hole]:
    """What should be in blocks: in front, and at the ends of the last files. Blocking; raises
    OSError."""
    files = data.files
    if (found := data.damaged_at(data.begin)) is not None:
        has_file = bool(files) and files[0][0] <= data.begin
        yield Hole(*found, files[0][1] if has_file else data.directory)
    for number in range(max(0, len(files) - LOOKED_AT_MAX), len(files)):
        base, path = files[number]
        end = files[number + 1][0] if number + 1 < len(files) else data.settled_end
        found = data.damaged_at(end - 1)
        if found is not None and found[0] >= base:
            yield Hole(*found, path)


def _needs_from(stretch: Stretch, offset: int) -> int:
    """Journal offset of what is needed of it from an offset on."""
    skipped = max(offset - stretch.first_offset, 0) if stretch.is_run else 0
    return stretch.journal_offset + skipped
