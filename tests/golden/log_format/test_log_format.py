"""docs/log_format.md against the code: every example there is what the code writes, byte by byte.

A change here is a change of what stands on users' disks: it needs a new format version.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import pytest
from crc32c import crc32c

from oncelog_server.core.block import Block, Units, block_of
from oncelog_server.core.frame import At, ControlCode, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.machine import Compaction, Needs, Settled, Snapshot, Table
from oncelog_server.runtime.replica.record import ReplicaRecord, save_record
from oncelog_server.runtime.storage.data_blocks import decode_block, encode_block
from oncelog_server.runtime.storage.data_file import RewrittenFile
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_note import (
    NOT_KNOWN,
    DataNote,
    DataNoteFile,
    decode_note,
    encode_note,
)
from oncelog_server.runtime.storage.epochs import EpochEntry, EpochTable
from oncelog_server.runtime.storage.frames import HEADER_BYTES, decode, encode
from oncelog_server.runtime.storage.identity import Bounds, encode_incarnation
from oncelog_server.runtime.storage.identity import encode_slot as encode_bounds
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.segment import OffsetIndex, segment_name
from oncelog_server.runtime.storage.slots import SLOT_RANGE_OFFSETS, encode_slot
from oncelog_server.runtime.storage.snapshots import (
    SnapshotFile,
    decode_snapshot,
    encode_snapshot,
)
from oncelog_server.runtime.storage.tables import CHUNK_BYTES, Chunk, TableEnd
from tests.simulation.disk import FakeDisk

PAGE = Path(__file__).parents[3] / "docs" / "log_format.md"
BLOCK = re.compile(r"^```hex (?P<name>[^\n]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
# "4f 4e 43 45   magic": the bytes end where two spaces follow.
LINE = re.compile(r"^((?:[0-9a-f]{2} ?)+)(?: |$)")

FRAMES: dict[str, StoredFrame] = {
    "EPOCH_START": StoredFrame(
        Frame(FrameKind.EPOCH_START), At(JournalOffset(0), LeaderEpoch(1), 1_700_000_000_000)
    ),
    "DATA": StoredFrame(
        Frame(
            FrameKind.DATA,
            b"batch",
            record_count=3,
            producer_id=0x0002_0000_0000_0007,
            generation=0x0000_0001_0000_0004,
            writer=9,
            base_sequence=30,
            tx_id=0x0002_0000_0000_0010,
            encoding=1,
            max_timestamp_us=-1,
            client_crc=0xE39B66BF,
        ),
        At(JournalOffset(1), LeaderEpoch(1), 1_700_000_000_001),
    ),
    "MARKER": StoredFrame(
        Frame(
            FrameKind.MARKER,
            b"parts",
            producer_id=0x0002_0000_0000_0007,
            generation=0x0000_0001_0000_0004,
            tx_id=0x0002_0000_0000_0010,
            control=ControlCode.COMMITTED,
        ),
        At(JournalOffset(4), LeaderEpoch(1), 1_700_000_000_002),
    ),
    "ONE_SHOT": StoredFrame(
        Frame(FrameKind.ONE_SHOT, b"rows", record_count=2, tx_id=0x0002_0000_0000_0011, encoding=2),
        At(JournalOffset(5), LeaderEpoch(1), 1_700_000_000_003),
    ),
    "RECORD": StoredFrame(
        Frame(FrameKind.RECORD, b"\x92\x01\xc0"),
        At(JournalOffset(7), LeaderEpoch(1), 1_700_000_000_004),
    ),
}


def index_entry() -> bytes:
    index = OffsetIndex()
    index.saw(4711, 0x4000)
    return index.unsaved(below=1 << 40)


def sample_block() -> Block:
    units = Units(
        record_count=array("Q", [3, 1]),
        tx_id=array("Q", [0x0002_0000_0000_0010, 0]),
        producer_id=array("Q", [0x0002_0000_0000_0007, 0x0002_0000_0000_0008]),
        generation=array("Q", [0x0000_0001_0000_0004] * 2),
        writer=array("Q", [9, 0]),
        base_sequence=array("Q", [30, 0]),
        journal_offset=array("Q", [4711, 4720]),
        time_ms=array("q", [1_700_000_000_001, 1_700_000_000_259]),
    )
    return block_of(
        units,
        b"batch",
        first_offset=4000,
        exposed_below=4721,
        max_timestamp_us=-1,
        encoding=2,
        client_crc=0xE39B66BF,
    )


DATA_NOTE = DataNote(4000, 4711, 9000, 4500, 8192, 0, 8700, 4600, 4100, 4650, 8900, 4050)


def written() -> dict[str, bytes]:
    """Each example of the page, as the code writes it."""
    uuid = bytes.fromhex("0123456789ab4def8123456789abcdef")
    table = TableEnd(2, 1, (Chunk(0, 3, 0x11223344),))
    needs = Needs(4700, 4690, 12)
    compaction = Compaction(True, 60_000, compacted_below=40, tombstones_below=30)
    settled = Settled(7, 42, 4710, wanted=True, compaction=compaction)
    snapshot = SnapshotFile(4711, b"state", {"outcomes": table}, 3, needs, 1_234_567_890, settled)
    return {
        **{name: b"".join(encode(*stored)) for name, stored in FRAMES.items()},
        "index entry": index_entry(),
        "epochs entry": EpochEntry(3, 4711, 4700).encode(),
        "incarnation": encode_incarnation(uuid),
        "synced_end slot": encode_bounds(5, Bounds(4296, 4711, Allowance(4652, 3))),
        "snapshot": encode_snapshot(snapshot),
        "slot": encode_slot(4711, b"outcome!"),
        "block": b"".join(encode_block(sample_block())),
        "settled slot": encode_note(5, DATA_NOTE),
    }


def shown() -> dict[str, bytes]:
    """Each example of the page, as the page shows it."""
    found: dict[str, bytes] = {}
    for block in BLOCK.finditer(PAGE.read_text()):
        lines = [LINE.match(line) for line in block["body"].splitlines()]
        found[block["name"]] = b"".join(bytes.fromhex(line[1]) for line in lines if line)
    return found


def test_the_page_shows_every_kind_and_every_file() -> None:
    assert sorted(shown()) == sorted(written())
    assert {kind.name for kind in FrameKind} <= shown().keys()


@pytest.mark.parametrize("name", sorted(written()))
def test_the_page_shows_what_the_code_writes(name: str) -> None:
    assert shown()[name].hex(" ") == written()[name].hex(" ")


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_the_frames_of_the_page_are_read_back(name: str) -> None:
    assert decode(memoryview(shown()[name])) == FRAMES[name]


def test_the_other_examples_of_the_page_are_read_back() -> None:
    page = shown()
    table = EpochTable.decode(page["epochs entry"])
    assert table is not None
    assert table.entries == [EpochEntry(3, 4711, 4700)]
    entry = OffsetIndex(page["index entry"]).last_good()
    assert entry is not None
    assert (entry.offset, entry.position) == (4711, 0x4000)
    snapshot = decode_snapshot(page["snapshot"])
    assert snapshot is not None
    assert snapshot.state == b"state"
    assert decode_block(memoryview(page["block"])) == sample_block()
    disk = FakeDisk()
    disk.make_directory("data")
    disk.replace_file("data/settled", bytes(512) + page["settled slot"])
    assert DataNoteFile(disk, "data").kept == DATA_NOTE


def note_of_the_version_before(begin: int) -> bytes:
    """A slot as it was written then."""
    fields = (5, begin, 4711, 9000, 4500, 8192, 0)
    rest = b"".join(value.to_bytes(8, "little") for value in fields)
    return b"OSD1" + crc32c(rest).to_bytes(4, "little") + rest


def test_a_note_of_the_version_before_is_read() -> None:
    """It says nothing of the state by which the data log begins where it does, if it does."""
    slot = note_of_the_version_before(4000)
    assert slot[4:8].hex() == "f7a98197"
    expected = DataNote(4000, 4711, 9000, 4500, 8192, begun_at=NOT_KNOWN)
    assert decode_note(slot) == (5, expected)
    # The file went on where the slot ends, or not.
    assert decode_note(slot + bytes(32)) == (5, expected)
    assert decode_note(note_of_the_version_before(0)) == (5, DataNote(0, 4711, 9000, 4500, 8192))
    assert decode_note(slot[:-1]) is None
    assert decode_note(slot[:40] + b"?" + slot[41:]) is None


@pytest.mark.parametrize("at", [0, 4, 8, 64, 88, 96, 104, 111])
def test_a_note_of_which_a_byte_is_another_is_none(at: int) -> None:
    slot = encode_note(5, DATA_NOTE)
    assert decode_note(slot) == (5, DATA_NOTE)
    assert decode_note(slot[:at] + bytes([slot[at] ^ 1]) + slot[at + 1 :]) is None
    assert decode_note(slot[:111]) is None


def test_a_data_log_of_the_version_before_goes_on_with_notes_of_this_one() -> None:
    disk = FakeDisk()
    disk.make_directory("data")
    disk.replace_file("data/settled", bytes(512) + note_of_the_version_before(4000))
    note = DataNoteFile(disk, "data")
    assert note.kept is not None
    note.save(note.kept._replace(begun_at=8700))
    assert DataNoteFile(disk, "data").kept == DataNote(4000, 4711, 9000, 4500, 8192, 0, 8700)


def test_a_snapshot_of_the_version_before_is_read() -> None:
    """As it was written then: nothing is said of compaction."""
    raw = bytes.fromhex(
        "4f534e33"
        "808214d0"
        "6712000000000000"
        "0500000000000000"
        "01000000"
        "03000000"
        "5c12000000000000"
        "5212000000000000"
        "0c00000000000000"
        "d202964900000000"
        "0700000000000000"
        "2a00000000000000"
        "6612000000000000"
        "03000000"
        "00000000"
        "02000000"
        "01000000"
        "0100000000000000"
        "0800"
        "6f7574636f6d6573"
        "0000000000000000"
        "0300000000000000"
        "44332211"
        "7374617465"
    )
    tables = {"outcomes": TableEnd(2, 1, (Chunk(0, 3, 0x11223344),))}
    needs, settled = Needs(4700, 4690, 12), Settled(7, 42, 4710, wanted=True)
    expected = SnapshotFile(4711, b"state", tables, 3, needs, 1_234_567_890, settled)
    assert decode_snapshot(raw) == expected
    assert decode_snapshot(raw[:40] + b"?" + raw[41:]) is None


def test_a_snapshot_of_the_second_version_is_read() -> None:
    """As it was written then: nothing is said of its committed log."""
    raw = bytes.fromhex(
        "4f534e32"
        "72c65ae2"
        "6712000000000000"
        "0500000000000000"
        "01000000"
        "03000000"
        "5c12000000000000"
        "5212000000000000"
        "0c00000000000000"
        "d202964900000000"
        "02000000"
        "01000000"
        "0100000000000000"
        "0800"
        "6f7574636f6d6573"
        "0000000000000000"
        "0300000000000000"
        "44332211"
        "7374617465"
    )
    tables = {"outcomes": TableEnd(2, 1, (Chunk(0, 3, 0x11223344),))}
    needs = Needs(4700, 4690, 12)
    expected = SnapshotFile(4711, b"state", tables, 3, needs, 1_234_567_890)
    assert decode_snapshot(raw) == expected
    assert decode_snapshot(raw[:40] + b"?" + raw[41:]) is None


def test_a_snapshot_of_the_first_version_is_read() -> None:
    """As it was written then: one CRC for all rows of a table, and nothing of what it needs."""
    raw = bytes.fromhex(
        "4f534e31"
        "00148535"
        "6712000000000000"
        "0500000000000000"
        "01000000"
        "00000000"
        "02000000"
        "44332211"
        "0300000000000000"
        "0800"
        "6f7574636f6d6573"
        "7374617465"
    )
    tables = {"outcomes": TableEnd(2, 0, (Chunk(0, 3, 0x11223344),))}
    assert decode_snapshot(raw) == SnapshotFile(4711, b"state", tables)
    assert decode_snapshot(raw[:40] + b"?" + raw[41:]) is None


def test_the_layout_of_the_page_has_no_hole() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    end = 0
    tables_seen = 0
    for at, size in rows:
        if int(at) == 0:
            end, tables_seen = 0, tables_seen + 1
        assert int(at) == end, f"a field begins at {at}, the one before ends at {end}"
        end += int(size)
        if tables_seen == 1:
            header_end = end
    assert header_end == HEADER_BYTES, "the first layout is the frame's header"
    assert tables_seen >= 6


def lose_note_and_last_file(disk: FakeDisk, directory: str) -> None:
    """The note is gone, and nothing of the file is intact: it is set aside."""

    def rot(content: bytearray) -> None:
        content[:] = bytes(len(content))

    disk.remove(f"{directory}/settled")
    last = max(name for name in disk.list(directory) if name.endswith(".data"))
    disk.damage(f"{directory}/{last}", rot)


def leave_joined_file(disk: FakeDisk, directory: str) -> None:
    """A crash came before it was in the place of those that it joins."""
    anew = RewrittenFile(disk, directory, 0, 2)
    anew.sync()
    anew.stand_beside(is_joined=True)


def test_the_files_of_the_page_are_the_files_of_a_journal() -> None:
    disk = FakeDisk()
    journal = Journal.open(disk, "j")
    journal.append(Frame(FrameKind.EPOCH_START), epoch=1, time_ms=1)
    journal.append(Frame(FrameKind.RECORD, b"x"), epoch=1, time_ms=1)
    for write in journal.take_writes()[0]:
        disk.write_and_sync(write.file, write.position, b"".join(write.chunks))
    journal.mark_synced(journal.log_end)
    journal.slots.open("outcomes", 8).write(1, b"outcome!")
    journal.save_snapshot(2, Snapshot(b"", {"t": Table(1, 0, b"x"), "u": Table(1, 9, b"x", 9)}))
    journal.close()
    disk.cannot_read("j/synced_end", 0, 1)
    Journal.open(disk, "j").close()
    one = sample_block()._replace(first_offset=0)
    data = DataLog.open(disk, "j/data", segment_bytes=1)
    data.append([one, one._replace(first_offset=one.end_offset, end_offset=2 * one.end_offset)])
    data.sync_and_note(9)
    data.close()
    disk.cannot_read("j/data/settled", 0, 1)
    DataLog.open(disk, "j/data").close()
    lose_note_and_last_file(disk, "j/data")
    DataLog.open(disk, "j/data").close()
    leave_joined_file(disk, "j/data")
    save_record(disk, "j", ReplicaRecord("ab" * 16, 0, "cd" * 16, epoch=1))
    below = [
        f"{directory}{name}"
        for directory in ("", "tables/", "slots/outcomes/", "data/")
        for name in disk.list(f"j/{directory}".rstrip("/"))
    ]
    files = [path for path in below if not disk.list(f"j/{path}")]
    page = PAGE.read_text()
    patterns = re.findall(r"^- `([^`]+)`", page, re.MULTILINE)
    shapes = [
        re.escape(pattern)
        .replace(re.escape("<offset>"), r"\d{20}")
        .replace(re.escape("<end>"), r"\d{20}")
        .replace(re.escape("<row>"), r"\d{20}")
        .replace(re.escape("<name>"), r"\w+")
        for pattern in patterns
    ]
    for path in files:
        assert any(re.fullmatch(shape, path) for shape in shapes), f"{path} is not on the page"
    for shape, pattern in zip(shapes, patterns, strict=True):
        assert any(re.fullmatch(shape, path) for path in files), f"no journal has {pattern}"
    assert segment_name(0) in files
    assert f"{SLOT_RANGE_OFFSETS:,}" in page
    assert f"{CHUNK_BYTES:,}" in page
