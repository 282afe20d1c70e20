"""Bugs of compaction: which records stay, how files are rewritten, when that is done."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

CORE: Final = "oncelog_server.core.cleaning"
STORAGE: Final = "oncelog_server.runtime.storage"
PASS: Final = f"{STORAGE}.data_cleaning:DataCleaning"
WHEN: Final = "oncelog_server.runtime.replica.compacting:Compacting"
TURN: Final = "oncelog_server.runtime.replica.pass_turn:PassTurn"
RECEIVING: Final = "oncelog_server.runtime.replica.receiving_data:ReceivingData"
ROLE: Final = "oncelog_server.partition_leader"
SETTLING: Final = "oncelog_server.runtime.replica.settling:Settling"
OVER_THE_JOURNAL: Final = "partition_leader/test_compacting_over_the_journal"


def _pass(test: str) -> str:
    return unit("storage/test_data_cleaning", test)


def _when(test: str) -> str:
    return unit("runtime/test_compacting", test)


GOES_FIRST: Final = _when("test_i33_a_leader_that_holds_up_readers_goes_before_every_other_pass")
DRAWN: Final = _pass("test_i33_what_stays_is_the_last_record_of_a_key_and_tombstones_from_t_on")
AS_IT_SAYS: Final = "as the records say"

BUGS: Final = (
    Bug(
        "what-is-too-young-gone-through-again-and-again",
        "no pass is made over what is all too young",
        (Edit(f"{WHEN}._is_worth_a_look", " or self._is_all_late", ""),),
        {
            _when(
                "test_a_log_of_which_all_is_too_young_is_not_gone_through_again_and_again"
            ): "passes that find nothing to do",
        },
    ),
    Bug(
        "damage-below-the-point-kept-to-itself",
        "I26: what keeps a leader behind the point is healed, or another one leads",
        (Edit(f"{WHEN}.step", "self._found_damage(error)", "pass"),),
        {
            _when(
                "test_damage_below_the_point_is_handed_on_for_no_reader_comes_to_it"
            ): "nobody is told",
        },
    ),
    Bug(
        "tombstones-that-may-be-gone-taken-for-gone",
        "I33: two replicas that are cleaned to the same are equal, also where a part came of one",
        (
            Edit(
                f"{WHEN}._has_tombstones_to_go",
                "data.cleanness.dropped_to",
                "data.cleanness.tombstones_to",
            ),
        ),
        {
            _when(
                "test_i33_tombstones_that_came_of_a_part_go_though_the_note_says_that_they_may_be_gone"
            ): "assert False",
        },
    ),
    Bug(
        "dropped-to-kept-where-a-part-comes",
        "I33: of a part it is gone what its sender says is gone",
        (
            Edit(
                f"{CORE}:Cleanness.with_part",
                "min(self.dropped_to, max(there.dropped_to, first))",
                "self.dropped_to",
            ),
        ),
        {
            _pass("test_i33_a_log_is_as_clean_as_the_less_clean_of_its_parts"): "dropped_to",
        },
    ),
    Bug(
        "part-as-clean-as-before-it-was-read",
        "I33: what is sent is no cleaner than its sender says",
        (
            Edit(
                "oncelog_server.runtime.replica.sending:read_part",
                "min(before.compacted_to, said.compacted_to)",
                "before.compacted_to",
            ),
        ),
        {
            unit(
                "runtime/test_receiving_compacted",
                "test_i33_a_part_is_no_cleaner_than_before_and_after_it_was_read",
            ): "compacted_to",
        },
    ),
    Bug(
        "tombstone-at-the-point-taken-out",
        "I33: a tombstone stays until the point is behind it",
        (
            Edit(
                f"{CORE}:LastOffsets.staying",
                "if offsets[it] < tombstones_below",
                "if offsets[it] <= tombstones_below",
            ),
        ),
        {DRAWN: AS_IT_SAYS},
    ),
    Bug(
        "last-record-of-a-key-taken-out",
        "I33: the last record of each key stays",
        (
            Edit(
                f"{CORE}:LastOffsets.staying",
                "behind[slot] <= offsets[number] + 1",
                "behind[slot] <= offsets[number]",
            ),
        ),
        {DRAWN: AS_IT_SAYS},
    ),
    Bug(
        "record-without-a-key-superseded",
        "a record without a key is superseded by none",
        (
            Edit(
                f"{CORE}:LastOffsets.staying",
                "if key is None:\n                stay.append(number)\n                continue",
                'if key is None:\n                key = b""',
            ),
        ),
        {DRAWN: AS_IT_SAYS},
    ),
    Bug(
        "keys-that-do-not-fit-forgotten",
        "I33: where memory does not hold all keys, X is as far as it came",
        (Edit(f"{PASS}._add", "self.below = some[count]", "pass"),),
        {
            _pass("test_memory_that_does_not_hold_all_keys_makes_a_pass_shorter"): "assert 60 == 9",
        },
    ),
    Bug(
        "unit-of-nothing-told",
        "of a unit of which nothing is left nothing is told",
        (
            Edit(
                f"{ROLE}.settling:_thinned",
                "for number in sorted(left)",
                "for number in range(block.unit_count)",
            ),
        ),
        {_pass("test_units_tell_of_what_is_left_of_them"): "assert"},
    ),
    Bug(
        "empty-block-not-kept",
        "what is left covers the offsets of what is gone",
        (
            Edit(
                f"{ROLE}.settling:_merged",
                "end_offset=last.end_offset,",
                "end_offset=(full or pieces[:1])[-1].end_offset,",
            ),
        ),
        {
            unit(
                "partition_leader/test_thinning",
                "test_where_nothing_is_left_a_block_of_no_record_covers_it",
            ): "assert",
        },
    ),
    Bug(
        "holes-noted-afterwards",
        "I33: what is taken out is noted before",
        (
            Edit(
                f"{PASS}._all_steps",
                "holes_below=max(said.holes_below, self.below)",
                "holes_below=said.holes_below",
            ),
        ),
        {
            _pass("test_i33_holes_are_noted_before_anything_is_taken_out"): "a cut knows of it",
        },
    ),
    Bug(
        "cut-below-what-superseded",
        "I33: a log that would end below its holes is given up",
        (
            Edit(
                f"{STORAGE}.data_cutting:noted_cut",
                "if settled.settled_end < settled.holes_below:",
                "if False:",
            ),
        ),
        {
            _pass(
                "test_i33_a_cut_below_what_superseded_is_refused_where_nothing_has_what_lacks"
            ): "DID NOT RAISE",
            _pass(
                "test_i33_a_cut_below_what_superseded_begins_anew_where_the_journal_has_all"
            ): "it is settled once more",
        },
    ),
    Bug(
        "cut-below-what-dropped-tombstones",
        "I33: whoever read a value that is there again meets its tombstone",
        (
            Edit(
                f"{STORAGE}.data_cutting:noted_cut",
                "if settled.dropped_at > journal_end:",
                "if False:",
            ),
        ),
        {
            _pass(
                "test_i33_a_cut_below_what_dropped_a_tombstone_is_refused_where_nothing_has_it"
            ): "DID NOT RAISE",
            _pass(
                "test_i33_a_cut_below_what_dropped_a_tombstone_begins_anew_where_the_journal_has_all"
            ): "the tombstone is settled again",
        },
    ),
    Bug(
        "copied-without-what-it-was-settled-from",
        "I33: a cut below what a part rests on knows of it before the part is noted",
        (
            Edit(
                f"{RECEIVING}._note_cleanness",
                "settled_at = target.allowed.at if noted.holes_below else 0",
                "settled_at = 0",
            ),
        ),
        {
            unit(
                "runtime/test_receiving_compacted",
                "test_i33_what_lacks_in_a_part_is_noted_before_it_is_kept",
            ): "assert",
        },
    ),
    Bug(
        "copied-without-what-dropped-tombstones",
        "I33: by which state tombstones are gone is noted of what comes, too",
        (
            Edit(
                f"{RECEIVING}._note_cleanness",
                "dropped_at = target.allowed.at if noted.tombstones_to else 0",
                "dropped_at = 0",
            ),
        ),
        {
            unit(
                "runtime/test_receiving_compacted",
                "test_i33_who_gets_all_of_it_is_as_clean_as_its_leader",
            ): "assert",
        },
    ),
    Bug(
        "join-not-finished",
        "a file that stands in the place of several is found by the next start",
        (
            Edit(
                f"{STORAGE}.data_recovery:recover_data",
                "_finish_join(disk, directory, name, *covered)",
                "pass",
            ),
        ),
        {
            _pass("test_a_join_that_a_kill_cut_off_is_finished_by_the_next_start"): (
                "what was joined is read by the next start"
            )
        },
    ),
    Bug(
        "place-in-a-file-kept-in-one-slot",
        "I26: no slot of the note speaks of a file as it was before it was written anew",
        (
            Edit(
                f"{STORAGE}.data_log:DataLog._forget_position",
                "self._note.save_in_both(settled)",
                "self._note.save(settled)",
            ),
        ),
        {
            _pass(
                "test_i33_a_slot_of_the_note_that_rots_takes_nothing_of_a_file_that_was_written_anew"
            ): "all is read that was written anew"
        },
    ),
    Bug(
        "pass-goes-on-over-other-files",
        "a pass is over where files were changed",
        (Edit(f"{PASS}.piece", "if self._log.history != self._history:", "if False:"),),
        {_pass("test_a_pass_is_over_where_files_were_changed"): "it says so"},
    ),
    Bug(
        "part-without-tombstones-taken",
        "I33: a tombstone that is gone there has no older record here",
        (
            Edit(
                f"{CORE}:Cleanness.with_part",
                "if dropped_to > first and self.compacted_to < dropped_to:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_receiving_compacted",
                "test_i33_who_has_a_record_whose_tombstone_is_gone_there_begins_anew",
            ): "it was deleted",
        },
    ),
    Bug(
        "part-taken-for-as-clean-as-the-rest",
        "I33: a log is as clean as the less clean of its parts",
        (
            Edit(
                f"{CORE}:Cleanness.with_part",
                "min(self.compacted_to, max(there.compacted_to, first)),",
                "max(self.compacted_to, there.compacted_to),",
            ),
        ),
        {
            _pass("test_i33_a_log_is_as_clean_as_the_less_clean_of_its_parts"): "assert",
        },
    ),
    Bug(
        "part-kept-before-its-holes-are-noted",
        "I33: what lacks in a part is noted before it is kept",
        (
            Edit(
                f"{RECEIVING}._note_cleanness",
                "if noted != data.cleanness or not is_noted:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_receiving_compacted",
                "test_i33_what_lacks_in_a_part_is_noted_before_it_is_kept",
            ): "== (40, 90)",
        },
    ),
    Bug(
        "who-is-behind-the-point-waits",
        "I33: who is behind the point cleans at once",
        (
            Edit(
                f"{WHEN}._is_behind_point",
                "return data.settled_end >= min(point, counted.end)",
                "return False",
            ),
        ),
        {
            _when("test_i33_who_is_behind_the_point_begins_at_once"): (
                "it was not compacted within that time"
            ),
        },
    ),
    Bug(
        "compacted-to-the-point-before-all-of-it-is-settled",
        "who is behind the point makes one pass, and not one for each step of settling",
        (
            Edit(
                f"{WHEN}._is_behind_point",
                "return data.settled_end >= min(point, counted.end)",
                "return True",
            ),
        ),
        {
            _when("test_who_is_behind_the_point_compacts_once_all_below_it_is_settled"): (
                "it waits"
            ),
        },
    ),
    Bug(
        "leader-behind-the-point-waits-for-a-snapshot",
        "I33: a leader that refuses reads below the point makes the snapshot that ends that",
        (Edit(f"{WHEN}.lacks_snapshot", "max(self._data.compacted_to,", "max(point,"),),
        {
            unit(
                OVER_THE_JOURNAL,
                "test_i33_a_leader_behind_the_point_comes_to_it_within_seconds[later0]",
            ): "its readers wait"
        },
    ),
    Bug(
        "leader-behind-the-point-makes-snapshots-without-end",
        "a leader that is behind the point makes one snapshot for it",
        (Edit(f"{WHEN}.lacks_snapshot", "self.asked.compacted_below)", "0)"),),
        {
            unit(
                OVER_THE_JOURNAL,
                "test_i33_a_leader_behind_the_point_comes_to_it_within_seconds[later0]",
            ): "one says so, and one is for the front"
        },
    ),
    Bug(
        "what-was-compacted-is-settled-no-more",
        "I33: what others have removed comes into blocks, whatever is wanted by then",
        (
            Edit(
                f"{SETTLING}._wanted_end",
                "min(settled.end, settled.compaction.compacted_below)",
                "0",
            ),
        ),
        {
            unit(
                OVER_THE_JOURNAL,
                "test_i33_a_leader_behind_the_point_comes_to_it_within_seconds[later2]",
            ): "its readers wait"
        },
    ),
    Bug(
        "tombstones-go-with-the-point",
        "I33: tombstones go below an earlier point only",
        (
            Edit(
                f"{WHEN}._new_pass",
                "tombstones_below=asked.tombstones_below",
                "tombstones_below=asked.compacted_below",
            ),
        ),
        {_when("test_tombstones_go_once_the_point_lets_them"): "assert"},
    ),
    Bug(
        "compacted-in-spite-of-the-lag",
        "min.compaction.lag.ms: what became readable just now is not compacted",
        (Edit(f"{PASS}._add", "if until_ms is not None and", "if False and"),),
        {_when("test_what_became_readable_just_now_is_not_compacted_yet"): "assert"},
    ),
    Bug(
        "lag-left-out-of-a-block-that-was-joined",
        "min.compaction.lag.ms: of a joined block, too, only what has to be is compacted",
        (
            Edit(
                f"{PASS}._add",
                "self.below, self.late_ms = min(self.below, least), block.time_ms",
                "if block.first_offset >= self._at_least:\n"
                "                self.below, self.late_ms = min(self.below, least), block.time_ms",
            ),
        ),
        {_when("test_what_became_readable_just_now_is_not_compacted_yet"): "it waits"},
    ),
    Bug(
        "holes-that-a-pass-ended-before-stay",
        "I33: a pass that ended before what something was taken out for is followed by another",
        (Edit(f"{WHEN}._goes_on_anew", "or 0 < self", "or 2**63 < self"),),
        {
            _when("test_i33_a_pass_that_ended_before_a_hole_was_superseded_is_followed_by_one"): (
                "it was not compacted within that time"
            ),
        },
    ),
    Bug(
        "full-memory-ends-compaction-for-an-hour",
        "a pass whose memory was full is followed by the next one",
        (Edit(f"{WHEN}._go_on", "self._goes_on = under_way.was_full", "pass"),),
        {
            _when(
                "test_a_pass_whose_memory_was_full_is_followed_by_the_next_one"
            ): "it was not compacted within that time",
        },
    ),
    Bug(
        "two-maps-of-keys-at-once",
        "one pass runs at a time in a process",
        (Edit(f"{TURN}.is_free_for", "if self._holder is not None:", "if False:"),),
        {_when("test_one_pass_runs_at_a_time_in_a_process"): "it waits for its turn"},
    ),
    Bug(
        "readers-wait-for-a-pass-over-another-log",
        "a leader that is behind the point of compaction goes before every other pass",
        (Edit(f"{TURN}.should_end", "return self._holder is who and", "return False and"),),
        {GOES_FIRST: "the other one lets go of it"},
    ),
    Bug(
        "anybody-goes-before-a-leader-that-is-behind",
        "a leader that is behind the point of compaction goes before every other pass",
        (Edit(f"{TURN}.is_free_for", "not self._is_hurried", "True"),),
        {GOES_FIRST: "nobody goes before it"},
    ),
    Bug(
        "passes-wait-for-a-leader-that-was",
        "nobody waits for a leader whose epoch is over",
        (Edit(f"{WHEN}.holds_up_readers", "or self._is_over ", ""),),
        {
            _when(
                "test_who_holds_up_readers_no_more_is_waited_for_by_nobody[its epoch ends]"
            ): "assert",
        },
    ),
    Bug(
        "compacted-on-a-full-disk",
        "compaction waits below half of the floor",
        (Edit(f"{WHEN}.step", "self._around.require_room_to_settle()", "pass"),),
        {_when("test_a_disk_that_is_nearly_full_makes_it_wait_and_it_says_so"): "it waits"},
    ),
    Bug(
        "pass-that-ends-before-a-hole-was-superseded",
        "I33: a pass goes behind all by which something was taken out before",
        (
            Edit(
                f"{PASS}.__init__",
                "max(min(below, log.settled_end), log.holes_end)",
                "min(below, log.settled_end)",
            ),
        ),
        {
            unit(
                "storage/test_cleaned_parts",
                "test_i33_a_pass_goes_behind_what_another_has_taken_out",
            ): "Kept(offset=0"
        },
    ),
    Bug(
        "damage-left-out-of-a-pass",
        "I26: damage ends a pass, and nothing is guessed around it",
        (Edit(f"{PASS}._pieces", "raise self._log.found_damaged(file, found)", "return"),),
        {_pass("test_i26_damage_ends_a_pass_and_nothing_is_guessed_around_it"): "DID NOT RAISE"},
    ),
)
