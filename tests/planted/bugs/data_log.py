"""Bugs of the data log: blocks of settled records."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

STORAGE: Final = "oncelog_server.runtime.storage"
LOG: Final = f"{STORAGE}.data_log:DataLog"
IS_THERE: Final = "what the log says it has is there"


def _rot(test: str) -> str:
    return unit("storage/test_data_rot", test)


BUGS: Final = (
    Bug(
        "data-note-in-the-page-cache-believed",
        "I25: nothing rests on a note that only the page cache holds",
        (Edit(f"{STORAGE}.data_recovery:recover_data", "note.make_durable()", "pass"),),
        {
            unit(
                "storage/test_data_note", "test_i25_what_is_taken_out_rests_on_a_durable_note"
            ): "what was taken out is noted",
        },
    ),
    Bug(
        "data-note-taken-for-one-that-only-grows",
        "I25: nothing rests on a note that only the page cache holds",
        (
            Edit(
                f"{STORAGE}.data_note:_is_only_more",
                "return newer == grown and end >= older.settled_end",
                "return end >= older.settled_end",
            ),
        ),
        {
            unit(
                "storage/test_data_note", "test_i25_what_a_note_gives_up_goes_after_it_is_durable"
            ): IS_THERE,
        },
    ),
    Bug(
        "data-note-written-over-the-durable-one",
        "a torn note leaves the last durable one",
        (Edit(f"{STORAGE}.data_note:DataNoteFile.make_durable", "self._sequence += 1", "pass"),),
        {
            unit(
                "storage/test_data_note",
                "test_a_start_writes_no_note_of_what_is_found_without_it",
            ): "the one that was in doubt",
        },
    ),
    Bug(
        "data-block-crc-not-checked",
        "I26: a block is what was written, or is refused",
        (
            Edit(
                f"{STORAGE}.data_blocks:verify_block",
                "if crc32c(buffer[position + _SEAL.size : end]) != crc:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_data_rot",
                "test_i26_a_flipped_bit_in_a_block_refuses_that_block_alone",
            ): "nothing wrong is ever served",
        },
    ),
    Bug(
        "data-block-header-crc-not-checked",
        "I26: what only looks like a block, in a record, is never served",
        (
            Edit(
                f"{STORAGE}.data_blocks:step_block",
                "if crc32c(header) != "
                "_HEADER_CRC.unpack_from(buffer, position + _HEADER_CRC_AT)[0]:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_data_rot",
                "test_i26_bytes_that_look_like_a_block_in_a_record_are_none",
            ): "DID NOT RAISE CorruptLog",
        },
    ),
    Bug(
        "data-noted-before-it-is-synced",
        "I25: what the note says is synced",
        (Edit(f"{LOG}.sync_and_note", "file.sync()", "pass"),),
        {
            unit("storage/test_data_crashes", "test_i25_what_is_noted_is_synced"): IS_THERE,
        },
    ),
    Bug(
        "data-kept-by-recovery-not-synced",
        "I25: recovery syncs what it keeps",
        (
            Edit(
                f"{STORAGE}.data_recovery:_up_to_damage",
                "file.write_again(settled.position, last.end - settled.position)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_data_crashes",
                "test_i25_what_a_start_found_beyond_the_note_is_durable_before_it_counts",
            ): IS_THERE,
        },
    ),
    Bug(
        "data-files-before-the-first-note",
        "I26: what a crash left is not taken for what was promised",
        (Edit(f"{LOG}._make_directory", "self._note.save(self._settled)", "pass"),),
        {
            unit(
                "storage/test_data_crashes",
                "test_i26_what_a_crash_left_before_the_first_note_is_not_taken_for_what_was_promised",
            ): IS_THERE,
        },
    ),
    Bug(
        "data-that-was-cut-comes-back",
        "I7: once the note is lowered, nothing of what was cut is found again",
        (
            Edit(
                f"{LOG}._shorten",
                "self._save(settled._replace(beyond_goes=1))",
                "self._save(settled)",
            ),
        ),
        {
            unit(
                "storage/test_data_crashes",
                "test_i7_a_crash_in_a_cut_leaves_what_was_or_what_is_left",
            ): "once the note says so, nothing comes back",
            unit(
                "storage/test_data_crashes",
                "test_i7_a_crash_where_a_log_begins_anew_leaves_nothing_of_the_old_one",
            ): "assert",
        },
    ),
    Bug(
        "data-begin-in-one-slot",
        "I26: whichever slot rots, none says a begin of which nothing is left",
        (
            Edit(
                f"{LOG}.remove_before",
                "self._note.save_in_both(settled)",
                "self._note.save(settled)",
            ),
        ),
        {
            unit(
                "storage/test_data_crashes",
                "test_i26_a_slot_that_rots_leaves_none_that_says_a_begin_of_which_nothing_is_left",
            ): "the other slot says it, too",
        },
    ),
    Bug(
        "data-place-of-the-note-in-a-file-written-anew",
        "I25: the note names a place in a file that takes blocks, and in no other",
        (
            Edit(
                f"{LOG}.replace",
                "self._forget_position()",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_data_crashes",
                "test_i25_a_file_that_takes_the_next_block_may_be_written_anew",
            ): "assert",
        },
    ),
    Bug(
        "data-of-a-replaced-file-read-by-its-index",
        "I26: who reads while a file is written anew has what was, or what is",
        (
            Edit(f"{LOG}.replace", "file.retire()", "pass"),
            Edit(f"{LOG}.replace", "it is file", "it is None"),
        ),
        {
            unit(
                "storage/test_data_rot",
                "test_i26_a_reader_under_way_is_not_disturbed_by_what_is_replaced",
            ): "as one",
        },
    ),
    Bug(
        "data-without-a-note-up-to-damage",
        "I26: without a note, what stands behind damage counts too",
        (
            Edit(
                f"{STORAGE}.data_recovery:_without_note",
                "_intact(last, _NO_END)",
                "at_once(intact_from(last.size, 0, last.base), last.file)",
            ),
        ),
        {
            _rot(
                "test_i26_without_a_note_a_damaged_block_is_refused_and_those_behind_it_stay"
            ): "what stands behind damage was promised, too",
        },
    ),
    Bug(
        "data-without-a-note-cut-at-damage",
        "I26: without a note, nothing that is damaged goes",
        (
            Edit(
                f"{STORAGE}.data_recovery:_without_note",
                "(settled if end == last.size else _in_a_new_file(settled))",
                "settled",
            ),
        ),
        {
            _rot(
                "test_i26_without_a_note_what_is_damaged_at_the_end_stays_on_the_disk"
            ): "nobody knows what was promised of it",
        },
    ),
    Bug(
        "data-without-a-note-settled-at-nothing",
        "I27: without a note, the newest intact block says what a cut takes",
        (
            Edit(
                f"{STORAGE}.data_recovery:_without_note",
                "at = _exposed_below(sealed, last.base)",
                "at = 0",
            ),
        ),
        {
            _rot(
                "test_i26_without_a_note_a_file_of_which_nothing_is_intact_is_set_aside"
            ): "a cut takes it by that",
        },
    ),
    Bug(
        "data-of-which-nothing-is-intact-removed",
        "I26: without a note, a file of which nothing is intact is set aside",
        (Edit(f"{STORAGE}.data_recovery:_without_note", "last.set_aside()", "last.remove()"),),
        {
            _rot(
                "test_i26_without_a_note_a_file_of_which_nothing_is_intact_is_set_aside"
            ): "it is set aside",
        },
    ),
)
