"""What a data log is after a start: what its note says, and what of its files still fits that.

Invariants:
  * what the note says is there is never given up: where it is damaged or gone, who reads it is told
    so, and the next block begins a new file;
  * intact blocks beyond the note stay, written anew for they may stand in the page cache alone; but
    not behind a cut (`beyond_goes`). All else that stands there goes;
  * a note that is lost is made again from the files, of which the last one is read as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_server.runtime.storage.damage import UnknownFrame
from oncelog_server.runtime.storage.data_blocks import BlockTooNew
from oncelog_server.runtime.storage.data_file import REWRITTEN_SUFFIX, DataFile, data_base_of
from oncelog_server.runtime.storage.data_note import DataNote, DataNoteFile
from oncelog_server.runtime.storage.data_walk import Stored, at_once, intact_from
from oncelog_server.runtime.storage.port import Disk


class RecoveredData(NamedTuple):
    """What opening found. The last file, if it is the note's, takes the next block."""

    note: DataNoteFile
    settled: DataNote
    files: tuple[DataFile, ...]


def recover_data(disk: Disk, directory: str) -> RecoveredData:
    """Blocking. Raises UnknownFrame where a newer version wrote it, OSError."""
    names = disk.list(directory)
    for name in names:
        if name.endswith(REWRITTEN_SUFFIX):
            disk.remove(f"{directory}/{name}")
    bases = [base for name in names if (base := data_base_of(name)) is not None]
    note = DataNoteFile(disk, directory)
    if note.kept is None and not bases:
        return RecoveredData(note, DataNote(), ())
    files = [DataFile(disk, directory, base) for base in sorted(bases)]
    said = note.kept or DataNote(files[0].base, files[-1].base, 0, files[-1].base)
    sealed = [file for file in files if file.base < said.base]
    beyond = [file for file in files if file.base >= said.base]
    sealed = _without_front(sealed, said)
    settled, kept = _beyond(said, beyond)
    if settled != note.kept:
        note.save(settled)
    return RecoveredData(note, settled, (*sealed, *kept))


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
        file.truncate(settled.position, end_offset=settled.settled_end)
    return settled
