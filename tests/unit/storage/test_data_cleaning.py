"""A data log that is compacted holds what the pure function of docs/adr/0074 says, however its
blocks and files are cut, in whatever passes, and wherever the power went."""

from __future__ import annotations

import random
from errno import EIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.cleaning import SLOT_BYTES, Cleanness
from oncelog_server.runtime.storage.data_cleaning import DataCleaning, Overtaken
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_note import NOT_KNOWN
from oncelogpb.errors import CorruptLog, OncelogError
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.cleaned_logs import (
    MAP_BYTES,
    SETTLER,
    Kept,
    blocks_of,
    clean,
    held,
    must_be,
    unit_of,
)
from tests.unit.storage.data_logs import DIRECTORY, open_data, read, settle

SEGMENT_BYTES = 2_000
KEYS = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"d", b"\0\0\0\0"])
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=30)), min_size=1, max_size=60)
FEW_KEYS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([None, b"v"])),
    min_size=2,
    max_size=12,
)
# Keys come again and again; the last value of each is at the end.
OFTEN = [(b"%d" % (number % 7), b"v%d" % number) for number in range(70)]


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.data(), st.randoms(use_true_random=False))
def test_i33_a_compacted_log_is_a_function_of_its_records_and_of_x_and_t(
    given_records: list[tuple[bytes | None, bytes | None]],
    data: st.DataObject,
    chance: random.Random,
) -> None:
    """Two replicas, each with blocks, passes and limits of its own."""
    end = len(given_records)
    below = data.draw(st.integers(0, end))
    tombstones_below = data.draw(st.integers(0, below))
    for _ in range(2):
        log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
        settle(log, *blocks_of(given_records, chance))
        for _ in range(chance.randint(0, 3)):
            to = chance.randint(0, below)
            clean(log, to, chance.randint(0, min(to, tombstones_below)))
        while log.compacted_to < below:
            clean(log, below, tombstones_below, map_bytes_max=chance.choice([1, 200, MAP_BYTES]))
        clean(log, below, tombstones_below)
        assert held(log) == must_be(given_records, below, tombstones_below), "as the records say"
        assert log.cleanness[:2] == (below, tombstones_below)


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.data(), st.randoms(use_true_random=False))
def test_i33_a_pass_that_the_power_ends_leaves_a_log_from_which_nothing_lacks(
    given_records: list[tuple[bytes | None, bytes | None]],
    data: st.DataObject,
    chance: random.Random,
) -> None:
    """Whatever step it is, of several passes; records are appended meanwhile. And the last one
    makes of it what it would have been."""
    disk = FakeDisk(seed=chance.randrange(1 << 30))
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    later = given_records[len(given_records) // 2 :]
    given_records = given_records[: len(given_records) // 2] or given_records
    settle(log, *blocks_of(given_records, chance))
    tombstones_to = 0
    for _ in range(data.draw(st.integers(1, 4))):
        before = held(log)
        below = data.draw(st.integers(0, log.settled_end))
        cleaning = DataCleaning(
            log,
            SETTLER,
            below=below,
            tombstones_below=data.draw(st.integers(0, below)),
            map_bytes_max=MAP_BYTES,
        )
        failing = data.draw(st.integers(0, 25))
        disk.fail_next(EIO, after=failing)
        try:
            while not cleaning.is_over:
                cleaning.piece()
        except OSError:
            assert set(held(log)) <= set(before), "who reads goes on"
        tombstones_to = max(tombstones_to, cleaning.tombstones_below)
        disk.crash(data.draw(st.sampled_from(Tear)))
        disk = disk.reopen()
        log = open_data(disk, segment_bytes=SEGMENT_BYTES)
        found = set(held(log))
        lasting = set(must_be(given_records, log.settled_end, tombstones_to))
        assert lasting <= found <= set(before), "the last record of each key is there"
        assert log.cleanness.holes_below >= below or found == set(before), "it was noted before"
        if later and chance.random() < 0.5:
            settle(log, *blocks_of(later, chance, first=log.settled_end))
            given_records, later = [*given_records, *later], []
    end = log.settled_end
    clean(log, end, tombstones_to)
    assert held(log) == must_be(given_records, end, tombstones_to), "as without all that"
    names = disk.list(DIRECTORY)
    assert not [it for it in names if it.endswith((".rewritten", ".joined"))], (
        "nothing is left over"
    )


def test_i33_what_stays_is_the_last_record_of_a_key_and_tombstones_from_t_on() -> None:
    """As it is drawn in `core/cleaning`; and two records without a key, which has an empty one."""
    drawn = [
        (b"a", b"1"),
        (b"b", b"1"),
        (b"b", None),
        (b"a", b"2"),
        (b"c", None),
        (b"a", b"3"),
        (b"d", b"1"),
        (None, None),
        (None, b"1"),
        (b"", b"1"),
    ]
    log = open_data(FakeDisk())
    settle(log, *(unit_of(number, [it]) for number, it in enumerate(drawn)))
    clean(log, 10, 4)
    assert [it.offset for it in held(log)] == [4, 5, 6, 7, 8, 9], "as the records say"


def test_a_pass_joins_small_files_and_merges_small_blocks() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    for number in range(70):
        settle(log, unit_of(number, [OFTEN[number]]))
        log.seal()
    assert len(log.spans()) == 70
    clean(log, 70)
    assert held(log) == must_be(OFTEN, 70, 0)
    assert len(log.spans()) < 12
    settle(log, unit_of(70, [OFTEN[0]]))
    clean(log, 71)
    assert len(log.spans()) == 1
    assert len(read(log, 0)) == 1, "seven records are one block"
    again = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert held(again) == must_be([*OFTEN, OFTEN[0]], 71, 0)


def test_a_log_of_which_all_was_deleted_has_nothing_to_look_at() -> None:
    log = open_data(FakeDisk())
    log.begin_at(5, begun_at=0)
    assert list(log.spans()) == []
    clean(log, 5)
    assert log.settled_end == log.begin == 5


def test_a_pass_that_finds_nothing_writes_no_file_anew() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [(b"%d" % number, b"x" * 900)]) for number in range(9)))
    clean(log, 5)
    files = [file for file, _ in log.spans()]
    settle(log, *(unit_of(number, [(b"%d" % number, b"x" * 900)]) for number in range(9, 18)))
    clean(log, 18)
    assert [file for file, _ in log.spans()][:3] == files[:3]


def test_where_all_is_gone_a_block_without_records_covers_what_was_there() -> None:
    log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    settle(log, unit_of(0, [(b"a", b"1"), (b"b", None)]), unit_of(2, [(b"a", None)]))
    clean(log, 3, 3)
    assert held(log) == []
    [block] = read(log, 0)
    assert (block.first_offset, block.end_offset, block.record_count) == (0, 3, 0)
    assert block.time_ms == 1_002, "when what was there became visible"
    settle(log, unit_of(3, [(b"a", b"2")]))
    clean(log, 4, 3)
    assert held(log) == [Kept(3, b"a", b"2")]


def test_units_tell_of_what_is_left_of_them() -> None:
    log = open_data(FakeDisk())
    first = unit_of(0, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    settle(log, SETTLER.joined([first, unit_of(3, [(b"a", b"2")]), unit_of(4, [(b"a", b"3")])]))
    clean(log, 5)
    [block] = read(log, 0)
    assert list(block.offsets) == [1, 2, 4]
    assert list(block.units.record_count) == [2, 1]
    assert list(block.units.journal_offset) == [1, 9], "of the first record that each once had"


def test_memory_that_does_not_hold_all_keys_makes_a_pass_shorter() -> None:
    log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    distinct = [(b"%d" % number, b"") for number in range(30)]
    settle(log, *blocks_of([*distinct, *distinct], random.Random(1)))
    cleaning = clean(log, 60, map_bytes_max=12 * SLOT_BYTES)
    assert cleaning.keys == 9, "three quarters of the slots"
    assert log.compacted_to == 9
    while log.compacted_to < 60:
        clean(log, 60, map_bytes_max=12 * SLOT_BYTES)
    assert held(log) == must_be([*distinct, *distinct], 60, 0)


def test_i26_damage_ends_a_pass_and_nothing_is_guessed_around_it() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    [file, *_] = log.spans()

    def rot(content: bytearray) -> None:
        content[150] ^= 1

    disk.damage(file[0].path, rot)
    with pytest.raises(CorruptLog, match="is damaged at byte"):
        clean(log, 70)
    assert log.compacted_to == 0
    assert log.damaged_at(0) is not None, "it is found where it was"


def test_i26_damage_ends_a_pass_and_is_known_until_it_is_replaced() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    blocks = [unit_of(number, [OFTEN[number]]) for number in range(70)]
    settle(log, *blocks)
    [file, *_] = log.spans()

    def rot(content: bytearray) -> None:
        content[150] ^= 1

    disk.damage(file[0].path, rot)
    with pytest.raises(CorruptLog, match="is damaged at byte"):
        clean(log, 70)
    assert [it.first_offset for it in log.damaged] == [0], "it is healed"
    under_way = DataCleaning(log, SETTLER, below=70, tombstones_below=0, map_bytes_max=MAP_BYTES)
    log.replace(blocks[:1], donor=Cleanness(0, 0, 65))
    assert not log.damaged
    assert log.cleanness == Cleanness(0, 0, 65)
    with pytest.raises(Overtaken):
        under_way.piece()
    clean(log, 70)
    assert held(log) == must_be(OFTEN, 70, 0)


def test_i33_blocks_of_another_replica_that_do_not_fit_are_refused() -> None:
    log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    blocks = [unit_of(number, [OFTEN[number]]) for number in range(70)]
    settle(log, *blocks)
    log.note_cleanness(Cleanness(40, 30, 40))
    with pytest.raises(ValueError, match="do not fit"):
        log.replace([unit_of(20, [OFTEN[20]])], donor=Cleanness(29, 0, 40))
    with pytest.raises(ValueError, match="do not fit"):
        log.replace(blocks[45:47], donor=Cleanness(70, 46, 70))
    log.replace(blocks[45:47], donor=Cleanness(70, 45, 70))
    assert log.cleanness == Cleanness(40, 30, 70)


@pytest.mark.parametrize(
    ("here", "there", "together"),
    [
        # Of [10, 20). It is as clean as the less clean of both, and lacks what both lack.
        (Cleanness(100, 5, 100), Cleanness(50, 3, 60), Cleanness(50, 5, 100)),
        (Cleanness(100, 5, 100), Cleanness(6, 0, 6), Cleanness(10, 5, 100)),
        (Cleanness(8, 5, 8), Cleanness(50, 3, 60), Cleanness(8, 5, 60)),
        # A tombstone at 15, say, lacks from now on; and those here stay gone.
        (Cleanness(100, 5, 100), Cleanness(50, 16, 60), Cleanness(50, 16, 100)),
        (Cleanness(100, 5, 100), Cleanness(50, 40, 60), Cleanness(50, 20, 100)),
        (Cleanness(100, 40, 100), Cleanness(50, 12, 60), Cleanness(50, 40, 100)),
        # Of those that may be gone there, some are not.
        (Cleanness(50, 40, 50, 40), Cleanness(50, 40, 50, 12), Cleanness(50, 40, 50, 12)),
        (Cleanness(50, 40, 50, 40), Cleanness(50, 40, 50), Cleanness(50, 40, 50, 10)),
        # Of a record before: it would come back.
        (Cleanness(15, 5, 15), Cleanness(50, 16, 60), None),
        # At 45, say, gone here, of a record that comes.
        (Cleanness(100, 51, 100), Cleanness(50, 12, 60), None),
    ],
)
def test_i33_what_is_replaced_inside_a_log_brings_nothing_back(
    here: Cleanness, there: Cleanness, together: Cleanness | None
) -> None:
    assert here.with_part_inside(there, first=10, end=20) == together


@settings(max_examples=300, deadline=None)
@given(FEW_KEYS, st.data())
def test_i33_what_another_replica_has_of_the_middle_brings_nothing_back(
    given_records: list[tuple[bytes | None, bytes | None]], data: st.DataObject
) -> None:
    """As below, of a log that goes on behind what comes."""
    count = len(given_records)
    here_x, there_x = data.draw(st.integers(0, count)), data.draw(st.integers(0, count))
    here_t, there_t = data.draw(st.integers(0, here_x)), data.draw(st.integers(0, there_x))
    first = data.draw(st.integers(0, count))
    end = data.draw(st.integers(first, count))
    here = Cleanness(here_x, here_t, here_x, here_t)
    there = Cleanness(there_x, there_t, there_x, there_t)
    joined = here.with_part_inside(there, first=first, end=end)
    if joined is None:
        assert max(here_t, there_t) > first, "what is refused could not be taken"
        return
    mixed = [
        *(it for it in must_be(given_records, here_x, here_t) if it.offset < first),
        *(it for it in must_be(given_records, there_x, there_t) if first <= it.offset < end),
        *(it for it in must_be(given_records, here_x, here_t) if it.offset >= end),
    ]
    top = max(here_t, there_t)
    last: dict[bytes | None, int] = {it.key: it.offset for it in mixed}
    cleaned_on = [it for it in mixed if it.key is None or _stays(it, last, top)]
    assert cleaned_on == must_be(given_records, count, top), "nothing comes back"
    offsets = {it.offset for it in mixed}
    for offset, (key, value) in enumerate(given_records):
        if key is not None and value is None and offset not in offsets:
            later = [it for it, _ in given_records[offset + 1 : joined.holes_below]]
            assert offset < joined.tombstones_to or key in later, "it says what lacks"
    for it in mixed:
        later = [key for key, _ in given_records[it.offset + 1 : joined.compacted_to]]
        assert it.key is None or it.key not in later, "it is as clean as it says"
        assert not _is_dropped(it, joined), "what is gone is gone"


def test_a_pass_is_over_where_files_were_changed() -> None:
    log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    cleaning = DataCleaning(log, SETTLER, below=70, tombstones_below=0, map_bytes_max=MAP_BYTES)
    cleaning.piece()
    log.remove_before(30, begun_at=1)
    with pytest.raises((Overtaken, OncelogError)) as caught:
        cleaning.piece()
    assert caught.type is Overtaken, "it says so"
    clean(log, 70)
    begin = log.begin
    assert held(log) == [it for it in must_be(OFTEN, 70, 0) if it.offset >= begin]


# ------------------------------------------------------------------------------------ cuts


def test_i33_a_cut_below_what_superseded_is_refused_where_nothing_has_what_lacks() -> None:
    """What superseded goes, and what it superseded is gone already."""
    log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    clean(log, 50)
    before = held(log)
    with pytest.raises(CorruptLog, match="has to be copied anew"):
        log.cut(2 * 49, journal_start=1)
    assert held(log) == before, "nothing was changed"
    log.cut(2 * 60, journal_start=1)
    assert (log.settled_end, log.compacted_to) == (60, 50)
    assert held(log) == must_be(OFTEN[:60], 50, 0)


def test_i33_a_cut_below_what_superseded_begins_anew_where_the_journal_has_all() -> None:
    log = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    clean(log, 50)
    log.cut(2 * 49, journal_start=0)
    assert (log.settled_end, log.cleanness) == (0, Cleanness()), "it is settled once more"


def test_i33_holes_are_noted_before_anything_is_taken_out() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    cleaning = DataCleaning(log, SETTLER, below=70, tombstones_below=0, map_bytes_max=MAP_BYTES)
    while cleaning.next_step != "compact_write":
        cleaning.piece()
    cleaning.piece()
    cleaning.piece()
    log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert len(held(log)) < 70, "the first file stands"
    assert log.cleanness == Cleanness(0, 0, 70), "a cut knows of it"


def test_a_join_that_a_kill_cut_off_is_finished_by_the_next_start() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    for number in range(20):
        settle(log, unit_of(number, [OFTEN[number]]))
        log.seal()
    cleaning = DataCleaning(log, SETTLER, below=20, tombstones_below=0, map_bytes_max=MAP_BYTES)
    while cleaning.next_step != "compact_join":
        cleaning.piece()
    # The name of the joined file stands; of those that it is in the place of, one goes.
    disk.fail_next(EIO, after=2)
    with pytest.raises(OSError, match="told to fail"):
        cleaning.piece()
    joined = held(log)
    assert joined[-1] == Kept(19, *OFTEN[19]), "readers have the joined one"
    copy = disk.reopen()
    found = held(open_data(copy, segment_bytes=SEGMENT_BYTES))
    assert found == joined, "what was joined is read by the next start"
    assert not [name for name in copy.list(DIRECTORY) if name.endswith(".joined")]


# --------------------------------------------------------------------- parts of other replicas


@settings(max_examples=300, deadline=None)
@given(FEW_KEYS, st.data())
def test_i33_what_another_replica_sent_brings_nothing_back(
    given_records: list[tuple[bytes | None, bytes | None]], data: st.DataObject
) -> None:
    """Two logs, cleaned each in its way; what is here up to an offset, and there from it on, is
    then what it says that it is: once it is cleaned to the same, it is what the records say."""
    end = len(given_records)
    here_x, there_x = data.draw(st.integers(0, end)), data.draw(st.integers(0, end))
    here_t, there_t = data.draw(st.integers(0, here_x)), data.draw(st.integers(0, there_x))
    first = data.draw(st.integers(here_x, end))
    here = Cleanness(here_x, here_t, here_x, here_t)
    there = Cleanness(there_x, there_t, there_x, there_t)
    joined = here.with_part(there, first=first, end=end)
    if joined is None:
        assert there_t > first, "what is refused could not be taken"
        return
    mixed = [it for it in must_be(given_records, here_x, here_t) if it.offset < first]
    mixed += [it for it in must_be(given_records, there_x, there_t) if it.offset >= first]
    top = max(here_t, there_t)
    cleaned_on = [
        it for it in mixed if it.key is None or _stays(it, {m.key: m.offset for m in mixed}, top)
    ]
    assert cleaned_on == must_be(given_records, end, top), "nothing comes back"
    below = joined.compacted_to
    superseded = [
        it
        for it in mixed
        if it.key is not None
        and any(key == it.key for key, _ in given_records[it.offset + 1 : below])
    ]
    assert superseded == [], "it is as clean as it says"
    assert not any(_is_dropped(it, joined) for it in mixed), "what is gone is gone"


@pytest.mark.parametrize(
    ("here", "there", "first", "together"),
    [
        (Cleanness(8, 4, 8), Cleanness(3, 2, 6), 10, Cleanness(8, 4, 8)),
        (Cleanness(8, 4, 8), Cleanness(30, 8, 40), 10, Cleanness(8, 4, 40)),
        # Copied from the beginning: what is here is cleaner than it is long.
        (Cleanness(30, 8, 30), Cleanness(20, 5, 50), 10, Cleanness(20, 8, 50)),
        (Cleanness(30, 20, 30), Cleanness(), 10, Cleanness(10, 10, 30)),
        # A tombstone at 11, say, of a record that is here.
        (Cleanness(8, 4, 8), Cleanness(30, 12, 30), 10, None),
        (Cleanness(12, 4, 12), Cleanness(30, 12, 30), 10, Cleanness(12, 12, 30)),
        # Of those that may be gone there, some are not.
        (Cleanness(30, 20, 30, 20), Cleanness(30, 20, 30, 12), 10, Cleanness(30, 20, 30, 12)),
        (Cleanness(30, 8, 30, 8), Cleanness(30, 20, 30, 12), 10, Cleanness(30, 20, 30, 8)),
    ],
)
def test_i33_a_log_is_as_clean_as_the_less_clean_of_its_parts(
    here: Cleanness, there: Cleanness, first: int, together: Cleanness | None
) -> None:
    assert here.with_part(there, first=first, end=60) == together


def _is_dropped(it: Kept, of: Cleanness) -> bool:
    """It should not be there any more."""
    return it.key is not None and it.value is None and it.offset < of.dropped_to


def _stays(it: Kept, last: dict[bytes | None, int], tombstones_below: int) -> bool:
    if it.offset < last[it.key]:
        return False
    return it.value is not None or it.offset >= tombstones_below


def test_of_a_log_whose_note_is_lost_it_is_not_known_what_was_taken_out() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    clean(log, 50)
    disk.remove(f"{DIRECTORY}/settled")
    log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert log.cleanness == Cleanness(0, 0, NOT_KNOWN)
    clean(log, 60)
    assert held(log) == must_be(OFTEN, 60, 0)


@pytest.mark.parametrize("slot", [0, 512])
def test_i33_a_slot_of_the_note_that_rots_takes_nothing_of_a_file_that_was_written_anew(
    slot: int,
) -> None:
    """Of the slots that are left none says where the next block goes in a file that changed."""
    given_records = [(b"k%d" % number, b"") for number in range(1_500)]
    given_records[7] = (b"k900", b"")
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *(unit_of(at, given_records[at : at + 15]) for at in range(0, 1_500, 15)))
    cleaning = DataCleaning(log, SETTLER, below=1_500, tombstones_below=0, map_bytes_max=1 << 20)
    while cleaning.next_step != "compact_note":
        cleaning.piece()
    assert len(held(log)) == 1_499
    disk.write_and_sync(disk.open(f"{DIRECTORY}/settled"), slot, b"rotten")
    try:
        found = held(open_data(disk.reopen()))
    except CorruptLog:
        found = []
    assert found == must_be(given_records, 1_500, 0), "all is read that was written anew"


# The tombstone at 3 may go by a state at 300; every record stands below 200 in the journal.
DELETED = [(b"a", b"v"), (b"b", b"v"), (b"c", b"v"), (b"a", None), *OFTEN[4:70]]
SAID_AT = 300


def without_tombstones(disk: FakeDisk) -> DataLog:
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [DELETED[number]]) for number in range(70)))
    clean(log, 70)
    assert log.dropped_at == 0, "no state says of any that it may go"
    clean(log, 70, 10, said_at=SAID_AT)
    assert held(log) == must_be(DELETED, 70, 10)
    return log


def test_i33_a_cut_below_what_dropped_a_tombstone_begins_anew_where_the_journal_has_all() -> None:
    """All records are there, and the point is gone by which it went: who leads serves the value."""
    disk = FakeDisk()
    log = without_tombstones(disk)
    assert log.settled_at < SAID_AT
    log.cut(SAID_AT, journal_start=0)
    assert log.settled_end == 70, "that state is left"
    log.cut(SAID_AT - 1, journal_start=0)
    assert (log.settled_end, log.cleanness) == (0, Cleanness()), "the tombstone is settled again"
    again = open_data(disk.reopen())
    assert (again.settled_end, again.dropped_at) == (0, 0)


def test_i33_a_cut_below_what_dropped_a_tombstone_is_refused_where_nothing_has_it() -> None:
    log = without_tombstones(FakeDisk())
    before = held(log)
    with pytest.raises(CorruptLog, match="has to be copied anew"):
        log.cut(SAID_AT - 1, journal_start=1)
    assert held(log) == before, "nothing was changed"


@pytest.mark.parametrize("slot", [0, 512])
def test_i33_by_which_state_tombstones_go_is_noted_before_they_do(slot: int) -> None:
    """In both slots of the note."""
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *(unit_of(number, [DELETED[number]]) for number in range(70)))
    cleaning = DataCleaning(
        log, SETTLER, below=70, tombstones_below=10, said_at=SAID_AT, map_bytes_max=MAP_BYTES
    )
    while cleaning.next_step != "compact_write":
        cleaning.piece()
    disk.write_and_sync(disk.open(f"{DIRECTORY}/settled"), slot, b"rotten")
    assert open_data(disk.reopen()).dropped_at == SAID_AT, "a cut knows of it"


def test_i33_where_the_note_is_lost_tombstones_may_be_gone_by_all_that_the_journal_has() -> None:
    disk = FakeDisk()
    log = without_tombstones(disk)
    log.close()
    disk.remove(f"{DIRECTORY}/settled")
    log = open_data(disk.reopen())
    assert log.dropped_at == NOT_KNOWN
    log.learn_begin(lambda begin: None, 400)
    assert log.dropped_at == open_data(disk.reopen()).dropped_at == 400
    log.cut(400, journal_start=0)
    assert log.settled_end == 70, "the journal has lost nothing since"
    log.cut(399, journal_start=0)
    assert log.settled_end == 0


def test_i33_what_came_and_was_not_noted_is_given_up_by_a_cut_below_what_it_rests_on() -> None:
    """Blocks of a compacted log that stand beyond the note when the process is killed."""
    there = open_data(FakeDisk(), segment_bytes=SEGMENT_BYTES)
    settle(there, *(unit_of(number, [OFTEN[number]]) for number in range(70)))
    clean(there, 70)
    disk = FakeDisk()
    log = open_data(disk)
    log.note_cleanness(there.cleanness, settled_at=there.settled_at)
    log.append_copied(there.parts_from(0, 1))
    log = open_data(disk.reopen())
    end = log.settled_end
    assert 0 < end < 70
    log.cut(there.settled_at, journal_start=0)
    assert log.settled_end == end, "what it rests on is there: the next part follows"
    log.cut(2 * end + 2, journal_start=0)
    assert log.settled_end == 0, "it is settled once more"
