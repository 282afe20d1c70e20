"""Opens what a process left behind: finds the log end, cuts a torn tail, refuses a corrupt middle.

Each segment is scanned from its last index entry; the last one's scan gives the log end.

    what a scan ends at                        below synced_end        at or above it
    nothing behind (zeros, end of file)        new incarnation         the log end
    a bad frame, a gap between two files       refused, new incarn.    torn tail: cut
    an intact frame of an unknown kind         refused                 refused

Invariants (docs/leadership.md, "Disks"):
  * what was kept is written again and synced before a log end is reported: after a failed sync the
    page cache shows bytes that the disk lacks, and counts them as clean, so that no later sync
    would write them;
  * who ends below `synced_end`, or is refused, has a new incarnation before it says anything;
  * a refused journal is left as it is, byte for byte;
  * a log that begins above 0 has a snapshot there, and is scanned from the file that holds its
    first frame. What is before that file is left over from a trim, and goes once both slots of the
    note say so, durably;
  * where the note is lost, or is an older one, of a start that no file holds any more, the log
    begins at a snapshot that has all behind it: a log of which only a snapshot is left is not
    taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EIO

from oncelog_server.core.frame import FrameKind
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.epochs import EPOCHS_FILE, EpochEntry, EpochTable
from oncelog_server.runtime.storage.identity import (
    Bounds,
    SyncedEnd,
    read_incarnation,
    take_incarnation,
)
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.port import Disk, read_all
from oncelog_server.runtime.storage.scan import SCAN_BYTES, Ending, Place, Scan
from oncelog_server.runtime.storage.segment import Segment, base_of
from oncelog_server.runtime.storage.snapshots import (
    read_snapshot,
    snapshot_offsets,
    snapshot_path,
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A journal as recovery leaves it: everything below `end.offset` is synced."""

    incarnation: bytes
    log_start: int
    # Of the log start.
    allowed: Allowance
    segments: list[Segment]
    epochs: EpochTable
    synced_end: SyncedEnd
    end: Place


@dataclass(slots=True)
class _Walk:
    """The chain of segments, as far as it holds."""

    end: Place
    segments: list[Segment] = field(default_factory=list)
    # Segments behind the place where the chain broke.
    beyond: list[Segment] = field(default_factory=list)
    # Where it broke; "" where it did not.
    broken_path: str = ""
    broken_position: int = 0
    why: str = ""
    # The disk did not give back all of what stands there: nobody knows that it is a torn tail.
    is_unreadable: bool = False

    def breaks(self, path: str, position: int, why: str, beyond: list[Segment]) -> None:
        self.broken_path, self.broken_position, self.why = path, position, why
        self.beyond = beyond


def recover(
    disk: Disk, directory: str, segment_bytes: int, random_bytes: Callable[[int], bytes]
) -> Recovered:
    """Blocking. Raises JournalDamaged, UnknownFrame, OSError."""
    disk.make_directory(directory)
    names = disk.list(directory)
    bases = sorted(base for name in names if (base := base_of(name)) is not None)
    incarnation = read_incarnation(disk, directory)
    synced_end = SyncedEnd(disk, directory)
    noted = synced_end.noted
    snapshots = snapshot_offsets(names)
    if not bases and not snapshots and incarnation is None:
        # Fresh. The incarnation comes last: a directory that has one is whole.
        noted = Bounds(0, 0)
        synced_end.note_and_sync(noted)
        incarnation = take_incarnation(disk, directory, random_bytes)
    fit = incarnation is not None
    start = _probable_start(bases, snapshots)
    if noted is None:
        noted, fit = Bounds(start, 0), False
    elif _is_of_older_start(noted, bases, snapshots):
        if _was_trimmed(disk, directory, snapshots, start):
            noted, fit = Bounds(start, noted.synced_end), False
        elif not bases:
            take_incarnation(disk, directory, random_bytes)
            raise JournalDamaged(directory, 0, f"no file has the frames from {noted.log_start} on")
    log_start = noted.log_start
    epochs, whole = _load_epochs(disk, directory, log_start)
    if log_start > 0 and (lacks := _lacks_before(disk, directory, log_start, epochs)):
        take_incarnation(disk, directory, random_bytes)
        raise JournalDamaged(*lacks)
    segments = [Segment(disk, directory, base, grows_to=segment_bytes) for base in bases]
    left_over = _wholly_before(segments, log_start)
    walk = _walk(segments[len(left_over) :], log_start, epochs, whole=not whole)
    _require_no_rest(walk, noted.synced_end)
    _begin_where_told(walk, noted, epochs)
    if walk.why and (walk.end.offset < noted.synced_end or walk.is_unreadable):
        take_incarnation(disk, directory, random_bytes)
        raise JournalDamaged(walk.broken_path, walk.broken_position, walk.why)
    if log_start > 0 and (lacks := _lacks_epoch(disk, directory, log_start, epochs)):
        take_incarnation(disk, directory, random_bytes)
        raise JournalDamaged(*lacks)
    allowed = _allowance(noted, walk.end.offset, epochs)
    if walk.end.offset == log_start > 0:
        walk.end = walk.end._replace(time_ms=_time_before(disk, directory, log_start))
    if incarnation is None or not fit or walk.end.offset < noted.synced_end:
        incarnation = take_incarnation(disk, directory, random_bytes)
        # Lowered before the cut; never raised before what is kept is synced.
        promise = max(min(walk.end.offset, noted.synced_end), log_start)
        synced_end.note_and_sync(Bounds(log_start, promise, allowed))
    elif walk.end.offset > noted.synced_end:
        synced_end.write_again()
    if left_over or any(offset < log_start for offset in snapshots):
        # What a trim left over.
        assert synced_end.noted is not None, "it was there, or was just written"
        synced_end.note_in_both(synced_end.noted)
    for segment in left_over:
        segment.remove()
    _keep(disk, directory, walk, epochs, noted.synced_end)
    disk.remove_cut_off(directory)
    return Recovered(incarnation, log_start, allowed, walk.segments, epochs, synced_end, walk.end)


def _is_of_older_start(noted: Bounds, bases: list[int], snapshots: list[int]) -> bool:
    """No file holds the frames that it speaks of; snapshots are there that may stand for them."""
    if bases:
        return noted.log_start < bases[0]
    # Of a log without frames, what is above is of one that was about to begin in the middle.
    has_later = any(offset > noted.log_start for offset in snapshots)
    return has_later and noted.synced_end > noted.log_start


def _was_trimmed(disk: Disk, directory: str, snapshots: list[int], start: int) -> bool:
    """Else files are lost: the newest snapshot still needs them, or none is left that says so."""
    newest = read_snapshot(disk, directory, snapshots[-1]) if snapshots else None
    return newest is not None and newest.needs.needed_from >= start


def _probable_start(bases: list[int], snapshots: list[int]) -> int:
    """Where the log begins, as nothing says it: at the first snapshot that has all frames behind
    it. This replica has another name from now on."""
    if not bases:
        return max(snapshots, default=0)
    if bases[0] == 0:
        return 0
    return min((offset for offset in snapshots if offset >= bases[0]), default=bases[0])


def _allowance(noted: Bounds, end: int, epochs: EpochTable) -> Allowance:
    """Where a note of its start is lost, or of an earlier version: all that was ever here, as far
    as it is known, for what allowed the start is somewhere in it."""
    if not noted.log_start or noted.allowed.epoch:
        return noted.allowed
    at = noted.allowed.at or max(noted.synced_end, end)
    return Allowance(at, epochs.epoch_at(at - 1))


def _wholly_before(segments: list[Segment], log_start: int) -> list[Segment]:
    """What a trim left over, from the front on."""
    count = sum(following.base <= log_start for following in segments[1:])
    return segments[:count]


def _begin_where_told(walk: _Walk, noted: Bounds, epochs: EpochTable) -> None:
    """The first file may end before the log begins: nothing of the log is in it, then, and what was
    promised says whether that is all."""
    log_start = noted.log_start
    if walk.end.offset >= log_start or (walk.why and noted.synced_end > log_start):
        return
    walk.beyond = [*walk.segments, *walk.beyond]
    walk.segments, walk.why = [], ""
    walk.end = Place(0, log_start, epochs.epoch_at(log_start - 1))


def _lacks_before(
    disk: Disk, directory: str, log_start: int, epochs: EpochTable
) -> tuple[str, int, str] | None:
    """A log that begins in the middle needs what was before: where, and what it lacks."""
    if not epochs.epoch_at(log_start - 1):
        why = f"it does not say in which epoch the log begins, at {log_start}"
        return f"{directory}/{EPOCHS_FILE}", 0, why
    if not disk.exists(path := snapshot_path(directory, log_start)):
        return path, 0, f"the log begins at {log_start}, and what was before is not there"
    return None


def _lacks_epoch(
    disk: Disk, directory: str, log_start: int, epochs: EpochTable
) -> tuple[str, int, str] | None:
    """The snapshot says in which epoch the log begins: a table that lacks this one agrees with
    nobody where logs part."""
    found, known = read_snapshot(disk, directory, log_start), epochs.epoch_at(log_start - 1)
    if found is None or found.epoch in (0, known):
        return None
    why = f"the log begins in leader epoch {found.epoch}, and the table says {known}"
    return f"{directory}/{EPOCHS_FILE}", 0, why


def _time_before(disk: Disk, directory: str, log_start: int) -> int:
    """Of the last frame that was before the log, which has none now; 0: not known."""
    found = read_snapshot(disk, directory, log_start)
    return 0 if found is None else found.time_ms


def _load_epochs(disk: Disk, directory: str, log_start: int) -> tuple[EpochTable, bool]:
    """And whether it is as it was written. One that is not is made again from the frames; where the
    log begins above 0, it goes on from what is intact, for a power that went may have torn its
    end."""
    path = f"{directory}/{EPOCHS_FILE}"
    if not disk.exists(path):
        return EpochTable(), True
    data = read_all(disk, path)
    table = EpochTable.decode(data)
    if table is not None:
        return table, True
    return EpochTable.decode_intact(data) if log_start > 0 else EpochTable(), False


def _walk(segments: list[Segment], log_start: int, epochs: EpochTable, *, whole: bool) -> _Walk:
    """Follows the chain. `whole`: through every frame, as nothing else tells where epochs begin."""
    # A log that begins in the middle of an epoch knows it by its table alone.
    begins_at = min([log_start, *(segment.base for segment in segments[:1])])
    walk = _Walk(Place(0, begins_at, epochs.epoch_at(begins_at - 1)))
    for number, segment in enumerate(segments):
        if segment.base != walk.end.offset:
            why = f"it begins at {segment.base}, and journal offset {walk.end.offset} is next"
            walk.breaks(segment.path, 0, why, segments[number:])
            return walk
        if whole:
            segment.begin_index()
        until = segments[number + 1].base if number + 1 < len(segments) else None
        scan = _walk_segment(segment, walk.end, epochs, until)
        walk.segments.append(segment)
        walk.end = scan.place
        if scan.ending is Ending.BAD or (until is not None and scan.ending is Ending.BLANK):
            why = scan.why or f"it ends at journal offset {walk.end.offset}, not at {until}"
            walk.is_unreadable = segment.has_unreadable
            why = segment.what_is_wrong(why)
            walk.breaks(segment.path, walk.end.position, why, segments[number + 1 :])
            return walk
    return walk


def _walk_segment(segment: Segment, before: Place, epochs: EpochTable, until: int | None) -> Scan:
    """Scans its tail; all of it where the index is missing or disagrees with log or epochs."""
    entry = segment.index.last_good()
    if entry is not None and entry.offset >= segment.base:
        start = Place(entry.position, entry.offset, epochs.epoch_at(entry.offset))
        scan = _scan_into(segment, start, epochs, until)
        if scan.place.position > start.position:
            return scan
    segment.begin_index()
    start = Place(0, segment.base, before.epoch, before.time_ms)
    return _scan_into(segment, start, epochs, until)


def _scan_into(segment: Segment, start: Place, epochs: EpochTable, until: int | None) -> Scan:
    scan = Scan(segment.file, start, until=until)
    for stored in scan:
        if stored.frame.kind is FrameKind.EPOCH_START:
            epochs.add(EpochEntry(stored.at.epoch, stored.at.offset, scan.place.offset))
        else:
            segment.index.saw(stored.at.offset, scan.place.position)
    segment.size = segment.synced = scan.place.position
    return scan


def _require_no_rest(walk: _Walk, synced_end: int) -> None:
    """A hole of zeros below synced_end with bytes behind it is damage, not an end."""
    if walk.why or walk.end.offset >= synced_end or not walk.segments:
        return
    file, position = walk.segments[-1].file, walk.end.position
    while block := file.read(position, SCAN_BYTES):
        if block.strip(b"\0"):
            why = "zeros stand where a frame was, and more follows behind them"
            walk.breaks(file.path, walk.end.position, why, [])
            return
        position += len(block)


def _keep(disk: Disk, directory: str, walk: _Walk, epochs: EpochTable, noted_end: int) -> None:
    """Cuts what is torn, makes durable what was kept, and makes index and epoch table say the
    same."""
    for segment in reversed(walk.beyond):
        segment.remove()
    for number, segment in enumerate(walk.segments):
        is_last = number + 1 == len(walk.segments)
        end = walk.end.offset if is_last else walk.segments[number + 1].base
        if end > noted_end:
            _write_again(disk, segment, noted_end)
            disk.sync(segment.file)
        # Zeros were allocated ahead, and are of use.
        if is_last and not segment.file.is_blank_from(segment.size):
            disk.truncate_and_sync(segment.file, segment.size)
        segment.save_index(walk.end.offset)
        if not is_last:
            segment.rest()
    epochs.cut(walk.end.offset)
    newest = epochs.entries[-1].first_offset if epochs.entries else 0
    save_epochs(disk, directory, epochs, anew=newest >= noted_end)


def _write_again(disk: Disk, segment: Segment, noted_end: int) -> None:
    """From the last index entry at or below `noted_end`: everything below that was synced."""
    entry, _ = segment.index.around(noted_end)
    position = 0 if entry is None else entry.position
    # Opened anew: what cannot be read may stand behind the log, and then is not written.
    file = disk.open(segment.path)
    try:
        while position < segment.size:
            block = file.read(position, min(SCAN_BYTES, segment.size - position))
            if file.has_unreadable:
                raise OSError(EIO, "the disk cannot read all of it", segment.path)
            disk.write_unsynced(segment.file, position, block)
            position += len(block)
    finally:
        file.close()


def save_epochs(disk: Disk, directory: str, epochs: EpochTable, *, anew: bool = False) -> None:
    """Durably, unless the file says so already; `anew`: also then. Raises OSError."""
    path, data = f"{directory}/{EPOCHS_FILE}", epochs.encode()
    if disk.exists(path) and not anew:
        file = disk.open(path)
        same = file.size() == len(data) and file.read(0, len(data)) == data
        file.close()
        if same:
            return
    disk.replace_file(path, data)
