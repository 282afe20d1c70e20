"""Bugs of the opening of a journal: what is kept is synced, what is lost is made again."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "full-file-with-one-unsynced-frame",
        "I25: what was kept is synced before a log end is reported",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:_keep",
                "if end > noted_end:",
                "if end > noted_end + 1:",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i25_a_full_file_of_which_only_the_last_frame_is_unsynced_is_synced_too",
            ): "assert ['a'] == ['a', 'b', 'c', 'd']"
        },
    ),
    Bug(
        "torn-tail-taken-for-room",
        "I26: what is torn behind the end is cut before frames are written there",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:_keep",
                "if is_last and not segment.file.is_blank_from(segment.size):",
                "if is_last and segment.file.is_blank_from(segment.size):",
            ),
        ),
        {
            unit(
                "storage/test_recovery", "test_a_torn_tail_is_cut_at_every_byte[50]"
            ): "assert not ",
        },
    ),
    Bug(
        "promised-before-it-is-synced",
        "I25: recovery promises nothing that it has not synced yet",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "promise = max(min(walk.end.offset, noted.synced_end), log_start)",
                "promise = walk.end.offset",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i25_who_lost_its_identity_promises_nothing_that_is_not_synced_yet",
            ): "assert "
        },
    ),
    Bug(
        "page-cache-believed",
        "I25: what a failed sync left in the page cache is on no disk until it is written again",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:_keep",
                "_write_again(disk, segment, noted_end)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i25_what_a_failed_sync_left_in_the_page_cache_is_written_again[0]",
            ): "assert ['a'] == ['a', 'b']"
        },
    ),
    Bug(
        "epoch-table-believed",
        "I25: an epoch of a failed sync is in the table after the next start",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:_keep",
                "anew=newest >= noted_end",
                "anew=False",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i25_an_epoch_of_a_failed_sync_is_in_the_epoch_table_after_the_next_start[0]",
            ): "assert"
        },
    ),
    Bug(
        "failed-notes-in-turn",
        "I26: notes of the synced end that fail leave the last durable one",
        (
            Edit(
                "oncelog_server.runtime.storage.identity:SyncedEnd.note",
                "        sequence = self._sequence + 1",
                "        self._sequence = sequence = self._sequence + 1",
            ),
        ),
        {
            unit(
                "storage/test_cuts",
                "test_notes_that_fail_one_after_the_other_leave_the_last_durable_one",
            ): "it lost nothing that it had promised"
        },
    ),
    Bug(
        "torn-frame-called-zeros",
        "I26: damage is named by what it is",
        (
            Edit(
                "oncelog_server.runtime.storage.scan:Scan.__iter__",
                'self.ending, self.why = Ending.BAD, "the file ends inside a frame"',
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i26_a_file_that_ends_inside_a_synced_frame_is_refused_and_says_so",
            ): "the file ends inside a frame"
        },
    ),
    Bug(
        "frame-runs-into-the-next-file",
        "I26: a frame belongs to one file",
        (
            Edit(
                "oncelog_server.runtime.storage.scan:Scan._take",
                "if why is None and self._until is not None and stored.end > self._until:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i26_a_frame_that_runs_into_the_next_file_is_refused_and_says_so",
            ): "ends at journal offset 4, not at 3"
        },
    ),
    Bug(
        "synced-beyond-the-cut",
        "I25: what was cut off is not synced, and not read",
        (
            Edit(
                "oncelog_server.runtime.storage.cutting:cut_segments",
                "last.size = last.synced = place.position",
                "last.size = place.position",
            ),
        ),
        {
            unit(
                "storage/test_segment",
                "test_after_a_cut_the_log_replays_to_its_new_end_before_more_is_written",
            ): "the file ends here"
        },
    ),
    Bug(
        "index-outlives-its-frames",
        "the index file goes before the frames that it points to",
        (
            Edit(
                "oncelog_server.runtime.storage.cutting:cut_segments",
                "last.drop_index_file()",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_segment",
                "test_the_index_file_goes_before_the_frames_that_it_points_to",
            ): ".index'] == []"
        },
    ),
    Bug(
        "index-entry-at-the-cut-kept",
        "an index has no entry of what was cut off",
        (Edit("oncelog_server.runtime.storage.segment:OffsetIndex.cut", "offset - 1,", "offset,"),),
        {
            unit(
                "storage/test_segment", "test_a_cut_takes_the_entry_of_the_frame_that_begins_there"
            ): "assert 3 == 2"
        },
    ),
    Bug(
        "index-file-ahead-of-the-log",
        "the index file holds only entries below synced_end",
        (
            Edit(
                "oncelog_server.runtime.storage.segment:OffsetIndex.unsaved",
                "below - 1,",
                "1 << 62,",
            ),
        ),
        {
            unit(
                "storage/test_segment", "test_the_file_is_given_only_entries_below_synced_end"
            ): "assert [3, 3, 3, 3, 3] == [0, 1, 1, 2, 3]"
        },
    ),
    Bug(
        "index-of-a-removed-segment-left",
        "an index never speaks of another file",
        (
            Edit(
                "oncelog_server.runtime.storage.segment:Segment.remove",
                "self.drop_index_file()",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_segment", "test_no_index_is_left_of_a_segment_that_was_cut_away"
            ): "<= {'00000000000"
        },
    ),
    Bug(
        "unsaved-index-dropped",
        "a segment at rest keeps the entries that its file does not have",
        (
            Edit(
                "oncelog_server.runtime.storage.segment:Segment.rest",
                "if self.index_is_saved:",
                "if True:",
            ),
        ),
        {
            unit(
                "storage/test_segment",
                "test_a_segment_at_rest_keeps_the_entries_that_its_file_does_not_have",
            ): "assert 2 == 3"
        },
    ),
    Bug(
        "start-reads-a-large-block-of-each-log",
        "a start reads what is behind the last index entry, and little more",
        (
            Edit(
                "oncelog_server.runtime.storage.scan:Scan.__iter__",
                "wanted = SCAN_BYTES_FIRST",
                "wanted = SCAN_BYTES",
            ),
        ),
        {
            unit(
                "storage/test_start_reads",
                "test_a_start_reads_what_is_behind_the_last_index_entry",
            ): "assert "
        },
    ),
)
