"""Bugs of a log that begins later than it did."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_JOURNAL: Final = "oncelog_server.runtime.storage.journal:Journal"
_RECOVERY: Final = "oncelog_server.runtime.storage.recovery"
_SNAPSHOTS: Final = "oncelog_server.runtime.storage.snapshots:SnapshotFiles"
_KEEPING: Final = "oncelog_server.runtime.storage.keeping"
_TRIMMING: Final = "oncelog_server.runtime.replica.trimming:Trimming"
_FOLLOWING: Final = "oncelog_server.runtime.replica.following:Following"
_FOLLOWERS: Final = "oncelog_server.runtime.replica.followers:Followers"


def _storage(test: str) -> str:
    return unit("storage/test_trimming", test)


def _begin(test: str) -> str:
    return unit("storage/test_data_begin", test)


def _replica(test: str) -> str:
    return unit("runtime/test_trimming", test)


def _unclean(test: str) -> str:
    return unit("runtime/test_unclean_starts", test)


BUGS: Final = (
    Bug(
        "start-outlives-what-allowed-it",
        "I25: a log whose start a record allowed is given up where that record is cut",
        (Edit(f"{_FOLLOWING}._parted", "if end < allowed.at:", "if end < 0:"),),
        {
            unit(
                "replica/test_following",
                "test_i25_a_log_is_given_up_where_the_state_that_allowed_its_start_is_gone",
            ): "what was gone may be needed in the leader's log",
            _unclean("test_i25_a_start_does_not_outlive_the_state_that_allowed_it"): (
                "it lacks what may be asked for"
            ),
        },
    ),
    Bug(
        "copy-believes-any-leader",
        "I25: a copy that lacks what its start rests on asks whether its leader has it",
        (
            Edit(
                f"{_FOLLOWING}._parted",
                "if not self._has_what_it_rests_on():",
                "if not allowed:",
            ),
            Edit(f"{_FOLLOWING}._parted", "if end < allowed.at:", "if own_end < end:"),
        ),
        {
            _unclean(
                "test_i25_a_copy_of_which_nothing_is_cut_is_given_up_with_what_allowed_its_start"
            ): "it lacks what may be asked for"
        },
    ),
    Bug(
        "copy-forgets-what-its-start-rests-on",
        "I25: who begins where its leader begins takes over what that start rests on",
        (
            Edit(
                f"{_JOURNAL}.begin_at",
                "self._synced_end_file.note_in_both(Bounds(offset, offset, self.allowed))",
                "self._synced_end_file.note_in_both(Bounds(offset, offset))",
            ),
        ),
        {
            unit(
                "storage/test_allowance",
                "test_i25_who_begins_with_a_leaders_snapshot_takes_over_what_that_start_rests_on",
            ): "Allowance(at=70, epoch=3)"
        },
    ),
    Bug(
        "front-waits-for-a-pause-in-deletions",
        "I25: a front goes once both slots say the start and what allowed it, whatever the data "
        "log deletes meanwhile",
        (Edit(f"{_JOURNAL}._is_enough", "or (is_of_this and noted", "or (False and noted"),),
        {
            _begin("test_i25_a_front_goes_while_the_data_log_deletes_before_each_note"): (
                "both slots say it, and what allowed it"
            )
        },
    ),
    Bug(
        "front-goes-by-what-a-lost-end-allowed",
        "I25: what a note says a start rests on counts where the log has these frames",
        (Edit(f"{_JOURNAL}._is_enough", "(is_of_this and noted", "(True and noted"),),
        {
            _begin("test_i25_no_front_goes_by_what_a_lost_end_of_the_log_allowed"): (
                "the note says a later offset, of other frames"
            )
        },
    ),
    Bug(
        "blocks-are-kept-before-it-is-noted-what-they-rest-on",
        "I25: what a leader's blocks rest on is durable before the first of them is kept",
        (Edit(f"{_JOURNAL}._is_enough", "noted >= self._least_noted", "noted.at >= 0"),),
        {
            unit(
                "storage/test_allowance",
                "test_i25_what_a_leaders_blocks_rest_on_is_in_both_slots_before_they_are_kept",
            ): "[True, True, True] == [False, False, True]"
        },
    ),
    Bug(
        "elected-copy-sends-what-it-lacks",
        "I25: a copy that was elected uncleanly lets others begin where it does",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.begin",
                "self._journal.allow_start()",
                "pass",
            ),
        ),
        {
            _unclean("test_i25_a_copy_that_is_elected_before_it_was_whole_says_what_it_lacks"): (
                "who leads says what was"
            )
        },
    ),
    Bug(
        "elected-copy-says-nothing",
        "I25: a copy that was elected uncleanly says that frames may be asked for which it lacks",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._looked_at_front",
                "if needed_from < journal.log_start:",
                "if False:",
            ),
        ),
        {
            _unclean("test_i25_a_copy_that_is_elected_before_it_was_whole_says_what_it_lacks"): (
                "log lacks frames that can be asked for"
            )
        },
    ),
    Bug(
        "front-removed-before-the-note",
        "I25: nothing in front of a log goes before a durable note says where it begins",
        (Edit(f"{_JOURNAL}.retire_front", "assert self.start_is_durable", "assert self"),),
        {_storage("test_i25_nothing_goes_before_the_note_is_durable"): "DID NOT RAISE"},
    ),
    Bug(
        "note-of-the-start-in-the-page-cache-believed",
        "I25: recovery syncs the note again before it removes what a trim left over",
        (
            Edit(
                f"{_RECOVERY}:recover",
                "synced_end.note_in_both(synced_end.noted)",
                "pass",
            ),
        ),
        {
            _storage(
                "test_i25_a_note_that_only_the_page_cache_has_is_synced_before_its_files_go"
            ): "it lacks nothing that it promised"
        },
    ),
    Bug(
        "snapshot-gone-before-the-note-of-its-start",
        "I29: a beginning that is abandoned takes back its note before its snapshot goes",
        (
            Edit(
                f"{_JOURNAL}._lower_promise",
                "        self._synced_end_file.note_and_sync(",
                "        self._snapshots.drop_above(end)\n"
                "        self._synced_end_file.note_and_sync(",
            ),
        ),
        {
            unit(
                "storage/test_beginning",
                "test_i29_who_abandons_a_beginning_and_dies_is_not_taken_for_damaged",
            ): "its snapshot went before the note"
        },
    ),
    Bug(
        "start-noted-in-one-slot",
        "I25: both slots of the note say where a log begins before its front goes",
        (
            Edit(
                "oncelog_server.runtime.storage.identity:SyncedEnd.keeps",
                "for it in slots)",
                "for it in slots[:1])",
            ),
        ),
        {
            _storage("test_i25_both_slots_say_the_start_before_anything_goes"): (
                "again.incarnation == journal.incarnation"
            )
        },
    ),
    Bug(
        "trimmed-log-without-frames-taken-for-empty",
        "I25: a log of which only its snapshot is left begins there, whatever its note says",
        (Edit(f"{_RECOVERY}:_probable_start", "max(snapshots, default=0)", "0"),),
        {
            _storage(
                "test_i25_a_log_of_which_only_a_snapshot_is_left_is_not_taken_for_an_empty_one"
            ): "assert (0, 0) == "
        },
    ),
    Bug(
        "note-of-an-older-start-believed",
        "I25: a note of a start that no file holds any more is not believed",
        (Edit(f"{_RECOVERY}:_is_of_older_start", "return has_later and", "return False and"),),
        {
            _storage("test_i25_a_note_of_a_start_that_no_file_holds_is_not_believed"): (
                "assert (0, 0) == "
            )
        },
    ),
    Bug(
        "log-begins-at-a-damaged-snapshot",
        "I26: a log begins at a snapshot that is whole, with its rows",
        (
            Edit(
                f"{_JOURNAL}.prepare_start",
                "if not self._snapshots.is_whole(start):",
                "if False:",
            ),
        ),
        {_storage("test_i26_a_log_does_not_begin_at_a_snapshot_that_is_damaged"): "DID NOT RAISE"},
    ),
    Bug(
        "rows-go-while-a-snapshot-counts-them",
        "I35: a chunk of rows goes when no snapshot that is kept counts it",
        (Edit(f"{_SNAPSHOTS}.sweep", "counted |= chunk_names(file.tables.items())", "pass"),),
        {
            _storage(
                "test_a_chunk_that_an_older_snapshot_counts_stays"
            ): "it may be needed, should the newest be damaged"
        },
    ),
    Bug(
        "log-begins-in-an-epoch-that-its-table-lacks",
        "I7: the epoch table of a log that begins later knows the epoch before it",
        (Edit(f"{_RECOVERY}:_lacks_epoch", "found is None or", "found is not None or"),),
        {
            _storage(
                "test_i7_an_epoch_table_that_lacks_what_is_before_the_log_is_refused"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "epochs-that-lack-one-are-taken",
        "I7: a follower that begins with its leader's snapshot knows the epoch before it",
        (
            Edit(
                "oncelog_server.runtime.replica.receiving:Receiving._epochs",
                "if last_epoch and",
                "if not last_epoch and",
            ),
        ),
        {
            unit(
                "runtime/test_receiving",
                "test_i7_epochs_that_lack_the_one_before_the_log_are_not_taken",
            ): "it agrees with nobody where logs part"
        },
    ),
    Bug(
        "torn-epoch-table-of-a-log-that-begins-later",
        "I5: a power that tears the end of the epoch table costs nothing",
        (
            Edit(
                f"{_RECOVERY}:_load_epochs",
                "EpochTable.decode_intact(data) if log_start > 0 else EpochTable()",
                "EpochTable()",
            ),
        ),
        {
            _storage(
                "test_i5_a_power_that_tears_the_epoch_table_costs_a_log_that_begins_later_nothing"
            ): "JournalDamaged"
        },
    ),
    Bug(
        "cut-to-the-start-in-a-file-of-before",
        "I5: frames behind a cut to the log start stand in a file that begins there",
        (Edit(f"{_JOURNAL}.cut", "if end == self.log_start:", "if False:"),),
        {
            _storage(
                "test_i7_a_cut_to_the_log_start_leaves_no_file_that_begins_before_it"
            ): "['other']"
        },
    ),
    Bug(
        "a-late-reader-makes-the-file-again",
        "I25: no file stands in front of a log that was trimmed",
        (
            Edit(
                "oncelog_server.runtime.storage.segment:Segment.file",
                "if self._is_retired:",
                "if False:",
            ),
        ),
        {_storage("test_a_reader_that_comes_late_makes_no_file_again"): "DID NOT RAISE"},
    ),
    Bug(
        "needs-of-a-state-that-is-not-durable",
        "I27: what may go follows from what is below the high watermark",
        (Edit(f"{_TRIMMING}.covered", "self._sample[0] <= high_watermark", "high_watermark"),),
        {
            _replica(
                "test_i27_what_is_not_durable_lets_nothing_go"
            ): "of a state that is below the high watermark"
        },
    ),
    Bug(
        "log-begins-above-what-is-needed",
        "I25: a log begins at or below what its machine needs",
        (
            Edit(f"{_KEEPING}:next_log_start", "it <= needs.needed_from", "it >= 0"),
            Edit(f"{_KEEPING}:next_log_start", "it <= needs.wanted_from", "it >= 0"),
        ),
        {
            _replica(
                "test_i25_a_leader_lets_go_of_what_its_machine_needs_no_more"
            ): "assert 100 <= (101 - 10)"
        },
    ),
    Bug(
        "history-without-a-limit",
        "I29: what is only wanted gives way where there is too much of it",
        (Edit(f"{_KEEPING}:next_log_start", "> wanted_bytes_max", "< 0"),),
        {
            _replica(
                "test_what_is_only_wanted_gives_way_where_there_is_too_much_of_it"
            ): "assert 0 >= 30"
        },
    ),
    Bug(
        "trimmed-under-a-follower",
        "a follower that reads what could go holds the log start for a while",
        (Edit(f"{_FOLLOWERS}.held_by", "supply.reads_from < start", "supply.reads_from < 0"),),
        {_replica("test_a_follower_that_reads_what_could_go_holds_it_for_a_while"): "'' == 'n2'"},
    ),
    Bug(
        "held-for-ever",
        "I29: a follower that does not come on holds a full disk for a named time at most",
        (
            Edit(
                "oncelog_server.runtime.replica.followers:Hold.lasts",
                "now_ms - self.since_ms < HOLDS_MS_MAX",
                "now_ms >= 0",
            ),
        ),
        {
            _replica(
                "test_a_follower_that_reads_what_could_go_holds_it_for_a_while"
            ): "it begins anew, behind the next snapshot"
        },
    ),
    Bug(
        "a-quiet-log-stays",
        "what nothing needs goes from a log that takes no more frames, too",
        (Edit(f"{_TRIMMING}.roll", "journal.roll()", "pass"),),
        {_replica("test_a_quiet_log_goes_too"): "no new file, for its own end"},
    ),
    Bug(
        "sizes-need-every-index",
        "I29: an index that cannot be read costs no process: sizes are asked on its loop",
        (
            Edit(
                "oncelog_server.runtime.storage.segment:Segment.position_of",
                "except OSError:",
                "except KeyError:",
            ),
        ),
        {
            _storage(
                "test_an_index_that_cannot_be_read_says_no_less_than_a_lost_one"
            ): "whoever asks ends"
        },
    ),
    Bug(
        "held-once-and-never-again",
        "a follower that once took longer than it is waited for is waited for again",
        (
            Edit(
                f"{_FOLLOWERS}.held_by",
                "hold.lasts(now_ms) or hold.log_start == log_start",
                "True",
            ),
        ),
        {
            _replica(
                "test_a_follower_that_took_too_long_has_its_time_again_with_the_next_start"
            ): "what it fetches now is waited for"
        },
    ),
    Bug(
        "those-who-are-slow-take-turns",
        "I29: who held the log start for its time holds it again once it moved, and not before",
        (Edit(f"{_FOLLOWERS}.held_by", "or hold.log_start == log_start", ""),),
        {
            _replica(
                "test_a_follower_that_took_too_long_has_its_time_again_with_the_next_start"
            ): "while it did not move, none has it twice"
        },
    ),
    Bug(
        "a-log-without-frames-forgets-the-time",
        "frame times never go back, nor behind frames that are gone",
        (Edit(f"{_RECOVERY}:recover", "if walk.end.offset == log_start > 0:", "if False:"),),
        {
            _replica(
                "test_a_log_without_frames_goes_on_from_the_time_of_its_last_one"
            ): "times never go back"
        },
    ),
    Bug(
        "a-log-without-frames-sends-no-time",
        "frame times never go back, nor where a log begins at its leader's snapshot",
        (
            Edit(
                "oncelog_server.runtime.replica.sending:read_part",
                "else journal.last_time_ms",
                "else 0",
            ),
            Edit(
                "oncelog_server.runtime.replica.receiving:Receiving._receive",
                "max(first.time_ms, file.time_ms)",
                "first.time_ms",
            ),
        ),
        {
            _replica(
                "test_who_begins_at_its_leaders_snapshot_has_the_time_of_what_was_before"
            ): "it has no frame either"
        },
    ),
    Bug(
        "followers-snapshots-without-a-time",
        "frame times never go back, nor in a follower whose frames are gone",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._replay",
                "position, time_ms = stored.end, stored.at.time_ms",
                "position = stored.end",
            ),
        ),
        {_replica("test_each_snapshot_says_the_time_of_the_last_frame_below_it"): "leader or not"},
    ),
)
