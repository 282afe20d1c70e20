"""What a data log is after a start: what its note says, and what of its files still fits that.

Invariants:
  * what the note says is there is never given up: where it is damaged or gone, who reads it is told
    so, and the next block begins a new file;
  * intact blocks beyond the note stay, written anew for they may stand in the page cache alone; but
    not behind a cut (`beyond_goes`). All else that stands there goes;
  * what is found in the note is durable before anything rests on it: a process that was killed may
    have left it in the page cache alone;
  * a note that is lost is made again from the files: nobody can tell any more what was promised, so
    nothing that is in them goes. Of the last one counts all up to its last intact block. Nor can
    anybody tell what was taken out of them, or by which state that was,
    or by which it begins where it does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncelog_server.runtime.storage.damage import UnknownFrame
from oncelog_server.runtime.storage.data_blocks import BlockTooNew
from oncelog_server.runtime.storage.data_file import (
    REWRITTEN_SUFFIX,
    DataFile,
    data_base_of,
    joined_range_of,
)
from oncelog_server.runtime.storage.data_note import NOT_KNOWN, DataNote, DataNoteFile
from oncelog_server.runtime.storage.data_walk import (
    Extent,
    Stored,
    all_intact,
    at_once,
    intact_from,
)
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.unreadable import is_unreadable

# Of a file of which all counts.
_NO_END: Final = 1 << 63


class RecoveredData(NamedTuple):
    """What opening found. The last file, if it is the note's, takes the next block."""

    note: DataNoteFile
    settled: DataNote
    files: tuple[DataFile, ...]


def recover_data(disk: Disk, directory: str) -> RecoveredData:
    """Blocking. Raises UnknownFrame where a newer version wrote it, OSError."""
    for name in disk.list(directory):
        if name.endswith(REWRITTEN_SUFFIX):
            disk.remove(f"{directory}/{name}")
        elif (covered := joined_range_of(name)) is not None:
            _finish_join(disk, directory, name, *covered)
    names = disk.list(directory)
    bases = [base for name in names if (base := data_base_of(name)) is not None]
    note = DataNoteFile(disk, directory)
    if note.kept is None and not bases:
        return RecoveredData(note, DataNote(), ())
    files = [DataFile(disk, directory, base) for base in sorted(bases)]
    if note.kept is None:
        settled, files = _without_note(files)
        note.save(settled)
        return RecoveredData(note, settled, tuple(files))
    note.make_durable()
    said = note.kept
    sealed = [file for file in files if file.base < said.base]
    beyond = [file for file in files if file.base >= said.base]
    sealed = _without_front(sealed, said)
    settled, kept = _beyond(said, beyond)
    if settled != note.kept:
        note.save(settled)
    return RecoveredData(note, settled, (*sealed, *kept))


def _finish_join(disk: Disk, directory: str, name: str, base: int, end: int) -> None:
    """It was synced before it got its name, so what it covers goes."""
    names = disk.list(directory)
    for other in reversed(names):
        found = data_base_of(other)
        if found is not None and base < found < end:
            DataFile(disk, directory, found).remove()
    first = DataFile(disk, directory, base)
    if disk.exists(first.index_path):
        disk.remove(first.index_path)
    disk.rename(f"{directory}/{name}", first.path)


def _without_note(files: list[DataFile]) -> tuple[DataNote, list[DataFile]]:
    """What all files say, and those that have blocks."""
    *sealed, last = files
    begin = files[0].base
    unknown = DataNote(
        begin,
        begun_at=NOT_KNOWN if begin else 0,
        holes_below=NOT_KNOWN,
        dropped_at=NOT_KNOWN,
    )
    found = _intact(last, _NO_END)
    if not found:
        # The next block takes its name; its bytes are left to whoever can read more of them.
        last.set_aside()
        at = _exposed_below(sealed, last.base)
        return unknown._replace(settled_end=last.base, settled_at=at, base=last.base), sealed
    end = found[-1].end
    last.write_again(0, end)
    step = found[-1].step
    settled = unknown._replace(
        settled_end=step.end_offset, settled_at=step.exposed_below, base=last.base, position=end
    )
    # Behind the last block that is intact others may stand, which were promised and are damaged.
    return (settled if end == last.size else _in_a_new_file(settled)), files


def _exposed_below(sealed: list[DataFile], end_offset: int) -> int:
    """Of the last block that is intact."""
    for file in reversed(sealed):
        if found := _intact(file, end_offset):
            return found[-1].step.exposed_below
        end_offset = file.base
    return 0


def _intact(file: DataFile, end_offset: int) -> list[Stored]:
    """Raises UnknownFrame."""
    try:
        extent = Extent(file.base, end_offset, file.size, file.index)
        return at_once(all_intact(extent), file.file)
    except BlockTooNew as newer:
        raise UnknownFrame(file.path, 0, str(newer)) from newer


def _without_front(sealed: list[DataFile], said: DataNote) -> list[DataFile]:
    """Removes what a crash left of what was deleted."""
    kept: list[DataFile] = []
    for number, file in enumerate(sealed):
        end = sealed[number + 1].base if number + 1 < len(sealed) else said.base
        if end <= said.begin:
            file.remove()
        else:
            kept.append(file)
    return kept


def _beyond(said: DataNote, files: list[DataFile]) -> tuple[DataNote, list[DataFile]]:
    """What there is, and the files from the note's on."""
    settled = said
    kept: list[DataFile] = []
    if said.position and all(file.base != said.base for file in files):
        # It is gone, and what the note says of it is told to whoever asks.
        settled = _in_a_new_file(said)
    for file in files:
        if file.base != settled.base and kept and settled.settled_end == file.base:
            settled = _in_a_new_file(settled)
        if file.base != settled.base:
            file.remove()
        elif file.size < settled.position:
            kept.append(file)
            settled = _in_a_new_file(settled)
        else:
            settled = _up_to_damage(file, settled)
            if settled.position:
                kept.append(file)
            else:
                file.remove()
    return settled._replace(beyond_goes=0), kept


def _in_a_new_file(settled: DataNote) -> DataNote:
    return settled._replace(base=settled.settled_end, position=0)


def _up_to_damage(file: DataFile, settled: DataNote) -> DataNote:
    """What stands beyond the note in the file that takes the next block, as far as it is intact."""
    found: list[Stored] = []
    if not settled.beyond_goes:
        try:
            walk = intact_from(file.size, settled.position, settled.settled_end)
            found = at_once(walk, file.file)
        except BlockTooNew as newer:
            raise UnknownFrame(file.path, settled.position, str(newer)) from newer
    if found:
        last = found[-1]
        file.write_again(settled.position, last.end - settled.position)
        settled = settled._replace(
            settled_end=last.step.end_offset,
            settled_at=max(settled.settled_at, last.step.exposed_below),
            position=last.end,
        )
    if settled.position and file.size > settled.position:
        try:
            file.truncate(settled.position, end_offset=settled.settled_end)
        except OSError as error:
            if not is_unreadable(error):
                raise
            # Bytes that cannot be read begin in the middle of a page: it is not cut there.
            return _in_a_new_file(settled)
    return settled
