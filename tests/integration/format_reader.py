"""A second reader of a replica's directory, written from docs/log_format.md alone.

It takes nothing from the server: where it finds something else than `oncelog consume` shows, either
the page or the server is wrong. It reads what is at rest, of a replica that is stopped or a copy.

    found = Directory(path)
    found.records      # all that is served, in the order of the committed log
    found.begin        # everything below was deleted

Left out: what a replica does about damage (here it ends the reading), slots, the state that a
snapshot holds.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c

from oncelogpb.v1 import types_pb2 as pb

EPOCH_START, DATA, MARKER, ONE_SHOT, RECORD = range(1, 6)
COMMITTED, ABORTED, DAMAGED = 1, 2, 3
FRAME: Final = struct.Struct("<4sIBBBBHHIIQQIIQQQQQq")
BLOCK: Final = struct.Struct("<4sIIBBHQQQqqIIIIIII")
SNAPSHOT: Final = struct.Struct("<4sIQQIIQQQQQQQIIQQQ")
NOTE_BYTES: Final = 112
SLOT_AT: Final = (0, 512)

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "item",
                    pa.struct(
                        [
                            pa.field("key", pa.string(), nullable=False),
                            pa.field("value", pa.binary()),
                        ]
                    ),
                    nullable=False,
                )
            ),
        ),
    ]
)


class Content(NamedTuple):
    """What a client sent."""

    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    offset: int
    content: Content
    tx_id: int
    producer_id: int
    visible_ms: int

    @property
    def is_tombstone(self) -> bool:
        return self.content.key is not None and self.content.value is None


@dataclass(frozen=True, slots=True)
class Frame:
    segment: str
    byte: int
    kind: int
    control: int
    encoding: int
    epoch: int
    offset: int
    timestamp_ms: int
    record_count: int
    producer_id: int
    writer: int
    tx_id: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + (self.record_count if self.kind in (DATA, ONE_SHOT) else 1)


@dataclass(frozen=True, slots=True)
class Block:
    file: str
    byte: int
    begin: int
    end: int
    exposed_below: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class Snapshot:
    offset: int
    epoch: int
    committed_begin: int
    committed_end: int
    compacted_below: int
    tombstones_below: int


@dataclass(frozen=True, slots=True)
class Note:
    begin: int = 0
    settled_end: int = 0
    holes_below: int = 0


@dataclass
class Directory:
    """One replica. Raises AssertionError where it does not hold together."""

    path: Path
    log_start: int = 0
    # Of the committed log: below it all was deleted; where its blocks end, and it ends.
    begin: int = 0
    settled_end: int = 0
    end: int = 0
    compacted_below: int = 0
    tombstones_below: int = 0
    frames: list[Frame] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        slot = newest_slot(self.path / "synced_end", b"OSE2", 48)
        _, self.log_start, _, _, _ = struct.unpack("<5Q", slot)
        self.snapshots = [
            read_snapshot(path, self.path / "tables")
            for path in sorted(self.path.glob("snapshot-*"))
            if path.name.removeprefix("snapshot-").isdigit()
        ]
        self.frames = [
            frame for frame in read_segments(self.path) if frame.offset >= self.log_start
        ]
        check_epochs(self.path / "epochs", self.frames)
        note = read_note(self.path / "data" / "settled")
        self.settled_end = note.settled_end
        self.blocks = list(read_blocks(self.path / "data", note))
        self._read(note)

    def _read(self, note: Note) -> None:
        settled = [record for block in self.blocks for record in block.records]
        unsettled = self._of_journal()
        self.begin = max(self.begin, note.begin)
        # Here more may be taken out than what all replicas have.
        self.compacted_below = max(self.compacted_below, min(note.holes_below, self.settled_end))
        found = [
            *(record for record in settled if record.offset >= self.begin),
            *(record for record in unsettled if record.offset >= max(self.begin, note.settled_end)),
        ]
        self.records = self.cleaned(found)

    def _of_journal(self) -> list[Record]:
        """What the frames from the log start on made readable, as far as all of it is there: of
        what began before the log start only the number counts."""
        pending: dict[int, dict[int, list[Content]]] = defaultdict(lambda: defaultdict(list))
        found: list[Record] = []
        for snapshot in self.snapshots:
            if snapshot.offset == self.log_start:
                self.begin, self.end = snapshot.committed_begin, snapshot.committed_end
                self.compacted_below = snapshot.compacted_below
                self.tombstones_below = snapshot.tombstones_below

        def show(frame: Frame, contents: list[Content], count: int) -> None:
            if len(contents) >= count:
                for number, content in enumerate(contents[:count]):
                    found.append(
                        Record(
                            self.end + number,
                            content,
                            frame.tx_id,
                            frame.producer_id,
                            frame.timestamp_ms,
                        )
                    )
            self.end += count

        for frame in self.frames:
            match frame.kind, frame.control:
                case (2, _) if frame.tx_id:
                    pending[frame.tx_id][frame.writer] += contents_of(frame.encoding, frame.payload)
                case ((2 | 4), _):
                    show(frame, contents_of(frame.encoding, frame.payload), frame.record_count)
                case 3, 1:
                    of_writer = pending.pop(frame.tx_id, {})
                    for writer, count in struct.iter_unpack("<QQ", frame.payload):
                        show(frame, of_writer.get(writer, []), count)
                case 3, _:
                    pending.pop(frame.tx_id, None)
                case 5, _:
                    self._note(msgspec.msgpack.decode(frame.payload))
        return found

    def require(self, shown: list[Record], name: str) -> None:
        """It holds what a consumer was shown, but for what compaction has taken out since."""
        expected = self.cleaned(shown)
        offsets, wanted = ({record.offset for record in of} for of in (self.records, expected))
        differ = sorted(offsets ^ wanted)
        assert not differ, (
            f"{name}: in one of both: {differ[:20]}, not here: {sorted(wanted - offsets)[:20]}; "
            f"compacted below {self.compacted_below}, tombstones below {self.tombstones_below}, "
            f"settled to {self.settled_end}, journal from {self.log_start}, ends at {self.end}"
        )
        others = [
            (here, said) for here, said in zip(self.records, expected, strict=True) if here != said
        ]
        assert not others, f"{name}: {len(others)} differ from what was shown, first {others[0]}"

    def cleaned(self, records: list[Record]) -> list[Record]:
        """As far as records may be taken out here."""
        return cleaned(records, self.compacted_below, self.tombstones_below)

    def _note(self, said: object) -> None:
        match said:
            case ["start", int(begin)]:
                self.begin = max(self.begin, begin)
            case ["compacted", int(below), int(tombstones)]:
                self.compacted_below, self.tombstones_below = below, tombstones


def cleaned(records: list[Record], below: int, tombstones_below: int) -> list[Record]:
    """Of each key below that offset the last one, and all that has no key; without tombstones, of
    which some may be left."""
    last = {record.content.key: record.offset for record in records if record.offset < below}
    return [
        record
        for record in records
        if record.offset >= below
        or record.content.key is None
        or last[record.content.key] == record.offset
        if not (record.is_tombstone and record.offset < tombstones_below)
    ]


# --------------------------------------------------------------------------------------- journal


def read_segments(folder: Path) -> Iterator[Frame]:
    """Every frame of every segment; each follows the one before."""
    paths = sorted(folder.glob("*.log"))
    ends: list[int | None] = [*(int(path.stem) for path in paths[1:]), None]
    at: int | None = None
    epoch = 0
    for path, end in zip(paths, ends, strict=True):
        byte_of = {}
        for frame in read_frames(path, end):
            byte_of[frame.offset] = frame.byte
            assert frame.epoch >= epoch, f"{path.name}: epoch {frame.epoch} after {epoch}"
            if frame.kind != EPOCH_START:
                assert at in (None, frame.offset), f"{path.name}: {frame.offset} after {at}"
                assert at is None or frame.epoch == epoch, "an epoch begins with its EPOCH_START"
            at, epoch = frame.end, frame.epoch
            yield frame
        check_index(path.with_suffix(".index"), byte_of)


def read_frames(path: Path, end: int | None) -> Iterator[Frame]:
    data = path.read_bytes()
    at, next_offset = 0, int(path.stem)
    while next_offset != end and any(data[at : at + FRAME.size]):
        (
            magic, crc, version, kind, control, encoding, header_bytes, _, payload_bytes, epoch,
            offset, timestamp_ms, count, client_crc, producer_id, _, writer, _, tx_id, _,
        ) = FRAME.unpack_from(data, at)  # fmt: skip
        assert (magic, version, header_bytes) == (b"ONCE", 1, 96), f"{path.name} at {at}"
        whole = data[at : at + header_bytes + payload_bytes]
        assert crc32c(whole[8:]) == crc, f"{path.name} at {at}: damaged"
        payload = whole[header_bytes:]
        if kind in (DATA, ONE_SHOT):
            assert crc32c(payload) == client_crc, f"{path.name} at {at}: the client's CRC"
        yield (
            frame := Frame(
                path.name, at, kind, control, encoding, epoch, offset, timestamp_ms, count,
                producer_id, writer, tx_id, payload,
            )
        )  # fmt: skip
        at, next_offset = at + len(whole), frame.end


def check_epochs(path: Path, frames: list[Frame]) -> None:
    table = {}
    for crc, epoch, first, previous_end in struct.iter_unpack("<IIQQ", path.read_bytes()):
        assert crc32c(struct.pack("<IQQ", epoch, first, previous_end)) == crc
        table[epoch] = first
    assert list(table) == sorted(table)
    for frame in frames:
        if frame.kind == EPOCH_START:
            assert table[frame.epoch] == frame.offset


def check_index(path: Path, byte_of: dict[int, int]) -> None:
    """Each of its entries names a frame, or a block, and where it stands."""
    if path.exists():
        data = path.read_bytes()
        for at in range(0, len(data) - len(data) % 16, 16):
            offset, byte, crc = struct.unpack_from("<QII", data, at)
            assert crc32c(data[at : at + 12]) == crc, f"{path.name} at {at}"
            assert byte_of.get(offset) == byte, f"{path.name}: {offset} at {byte}"


# ----------------------------------------------------------------------------------- one notes


def newest_slot(path: Path, magic: bytes, size: int) -> bytes:
    """What stands behind magic and CRC, of the intact slot with the higher sequence."""
    data = path.read_bytes()
    intact = [
        data[at + 8 : at + size]
        for at in SLOT_AT
        if data[at : at + 4] == magic
        and crc32c(data[at + 8 : at + size]) == int.from_bytes(data[at + 4 : at + 8], "little")
    ]
    return max(intact, key=lambda slot: int.from_bytes(slot[:8], "little"))


def read_note(path: Path) -> Note:
    if not path.exists():
        return Note()
    slot = newest_slot(path, b"OSD2", NOTE_BYTES)
    _, begin, settled_end, _, _, _, _, _, _, _, holes_below, *_ = struct.unpack("<13Q", slot)
    return Note(begin, settled_end, holes_below)


def read_snapshot(path: Path, tables: Path) -> Snapshot:
    data = path.read_bytes()
    (
        magic, crc, offset, state_bytes, table_count, epoch, _, _, _, _, begin, end, _, _, _, _,
        compacted, tombstones,
    ) = SNAPSHOT.unpack_from(data)  # fmt: skip
    assert magic == b"OSN4"
    assert crc32c(data[8:]) == crc, f"{path.name}: damaged"
    assert int(path.name.removeprefix("snapshot-")) == offset
    at = SNAPSHOT.size
    for _ in range(table_count):
        row_bytes, chunks, _, name_bytes = struct.unpack_from("<IIQH", data, at)
        at += 18
        name = data[at : at + name_bytes].decode()
        at += name_bytes
        for _ in range(chunks):
            first, rows, rows_crc = struct.unpack_from("<QQI", data, at)
            at += 20
            chunk = tables / (f"{name}-{first:020}.rows" if first else f"{name}.rows")
            counted = chunk.read_bytes()[: rows * row_bytes]
            assert len(counted) == rows * row_bytes, f"{chunk.name} is short"
            assert crc32c(counted) == rows_crc, f"{chunk.name}: damaged"
    assert at + state_bytes == len(data), "the state ends the file"
    return Snapshot(offset, epoch, begin, end, compacted, tombstones)


# -------------------------------------------------------------------------------------- data log


def read_blocks(folder: Path, note: Note) -> Iterator[Block]:
    """From the note's begin to its settled end."""
    paths = sorted(path for path in folder.glob("*.data") if path.stem.isdigit())
    ends = [*(int(path.stem) for path in paths), note.settled_end][1:]
    for path, end in zip(paths, ends, strict=True):
        data = path.read_bytes()
        byte, at = 0, int(path.stem)
        byte_of = {}
        while at < end:
            block, block_bytes = read_block(path.name, data, byte)
            assert block.begin == at, f"{path.name}: {block.begin} after {at}"
            byte_of[block.begin] = byte
            yield block
            byte, at = byte + block_bytes, block.end
        if at:
            check_index(path.with_suffix(".index"), byte_of)


def read_block(name: str, data: bytes, byte: int) -> tuple[Block, int]:
    (
        magic, crc, block_bytes, version, encoding, _, begin, end, exposed_below, _, last_ms, count,
        unit_count, client_crc, unit_bytes, offset_bytes, payload_bytes, header_crc,
    ) = BLOCK.unpack_from(data, byte)  # fmt: skip
    assert (magic, version) == (b"ODB1", 1), f"{name} at {byte}"
    whole = data[byte : byte + block_bytes]
    assert crc32c(whole[8:]) == crc, f"{name} at {byte}: damaged"
    assert crc32c(whole[8:80]) == header_crc
    assert BLOCK.size + unit_bytes + offset_bytes + payload_bytes == block_bytes
    at = BLOCK.size
    columns: list[list[int]] = []
    for number in range(8):
        column, at = unpacked(whole, at, unit_count, is_signed=number == 7)
        columns.append(column)
    assert at == BLOCK.size + unit_bytes
    offsets = list(range(begin, begin + count))
    if offset_bytes:
        column, at = unpacked(whole, at, count, is_signed=False)
        offsets = [begin + value for value in column]
    else:
        assert end - begin == count
    payload = whole[at:]
    assert crc32c(payload) == client_crc
    contents = contents_of(encoding, payload) if count else []
    assert len(contents) == count
    units = list(zip(*columns, strict=True))
    assert sum(unit[0] for unit in units) == count
    if units and not offset_bytes:
        assert units[-1][7] == last_ms
    assert all(unit[7] <= last_ms for unit in units)
    of_record = [unit for unit in units for _ in range(unit[0])]
    records = [
        Record(offset, content, unit[1], unit[2], unit[7])
        for offset, content, unit in zip(offsets, contents, of_record, strict=True)
    ]
    assert all(begin <= offset < end for offset in offsets)
    return Block(name, byte, begin, end, exposed_below, records), block_bytes


def unpacked(data: bytes, at: int, count: int, *, is_signed: bool) -> tuple[list[int], int]:
    """One column, and where the next one begins."""
    least = int.from_bytes(data[at : at + 8], "little", signed=is_signed)
    width = data[at + 8]
    at += 9
    values = [
        least + int.from_bytes(data[at + n * width : at + (n + 1) * width], "little")
        for n in range(count)
    ]
    return values, at + count * width


# --------------------------------------------------------------------------------------- records


def contents_of(encoding: int, payload: bytes) -> list[Content]:
    if encoding == pb.ENCODING_ROWS:
        return [
            Content(
                row.key if row.HasField("key") else None,
                row.value if row.HasField("value") else None,
                row.timestamp_us,
                tuple(
                    (header.key, header.value if header.HasField("value") else None)
                    for header in row.headers
                ),
            )
            for row in pb.Rows.FromString(payload).rows
        ]
    assert encoding == pb.ENCODING_ARROW_V1
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(payload), SCHEMA)
    times = batch.column(2).cast(pa.int64()).to_pylist()
    return [
        Content(
            row["key"],
            row["value"],
            time,
            tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        )
        for row, time in zip(batch.to_pylist(), times, strict=True)
    ]
