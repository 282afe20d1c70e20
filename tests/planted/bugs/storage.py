"""Bugs of the log on disk: syncs, torn tails, damage, identity, the lock."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "ack-before-sync",
        "I5, I25: acknowledged means fsynced",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit_all",
                "error = await self._commit(writes, len(taken), before)",
                "for item, end in taken:\n"
                "                self._tell(item, end)\n"
                "            error = await self._commit(writes, len(taken), before)",
            ),
        ),
        {
            unit(
                "storage/test_commit", "test_i25_nobody_is_told_before_the_disk_has_synced"
            ): "told before the sync",
            unit("runtime/test_driver", "test_i5_a_reply_waits_for_the_sync"): "assert not True",
        },
    ),
    Bug(
        "write-without-sync",
        "I25: losing power everywhere at once loses nothing acknowledged",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk._sync_touched",
                "self._sync_all(list(touched))",
                "False",
            ),
        ),
        {
            unit(
                "storage/test_disk", "test_every_touched_file_is_synced_and_so_is_its_name"
            ): "assert [] ==",
        },
    ),
    Bug(
        "failed-journal-appends",
        "after a failed sync nothing is appended until what is in doubt is abandoned",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.mark_failed",
                "self._failed = True",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_commit",
                "test_a_failed_journal_writes_nothing_until_it_has_abandoned_what_is_in_doubt",
            ): "DID NOT RAISE OSError",
        },
    ),
    Bug(
        "doubtful-bytes-kept",
        "a failed sync's bytes are in doubt: on from the last good sync, in a new file",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.cut",
                "            segment = self._segments.begin(end)\n"
                "            self._disk.write_and_sync(segment.file, 0, _PROOF)",
                "            pass",
            ),
        ),
        {
            unit(
                "storage/test_cuts",
                "test_after_a_failed_write_the_log_goes_on_from_the_last_sync_in_a_new_file",
            ): "0003.log' in [",
        },
    ),
    Bug(
        "torn-tail-served",
        "I26: a torn tail is detected, never served",
        (
            Edit(
                "oncelog_server.runtime.storage.frames:decode",
                "if crc32c(buffer[position + _SEAL.size : position + size]) != crc:",
                "if not position and crc32c(buffer[_SEAL.size : size]) != crc:",
            ),
        ),
        {
            unit("storage/test_recovery", "test_a_torn_tail_is_cut_at_every_byte"): "== ['a']",
        },
    ),
    Bug(
        "corrupt-middle-taken-for-a-torn-tail",
        "I26: a bad frame below synced_end is refused by file and position",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "if walk.why and (walk.end.offset < noted.synced_end or walk.is_unreadable):",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i26_a_flipped_bit_below_synced_end_is_refused_by_file_and_byte",
            ): "DID NOT RAISE JournalDamaged",
        },
    ),
    Bug(
        "kept-tail-not-synced",
        "recovery syncs what it kept before it reports a log end",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:_keep",
                "disk.sync(segment.file)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_every_file_that_was_kept_is_synced_before_the_log_end_is_told",
            ): "assert ['a'] ==",
        },
    ),
    Bug(
        "damaged-replica-keeps-its-name",
        "unfit replicas take a new incarnation",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "if incarnation is None or not fit or walk.end.offset < noted.synced_end:",
                "if incarnation is None or not fit:",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_i26_a_file_cut_below_synced_end_takes_a_new_incarnation_once",
            ): "!= b'",
        },
    ),
    Bug(
        "second-damage-reuses-the-name",
        "a fresh UUID at every damage, else the second damage reuses a trusted name",
        (
            Edit(
                "oncelog_server.runtime.storage.recovery:recover",
                "        take_incarnation(disk, directory, random_bytes)\n"
                "        raise JournalDamaged(walk",
                "        take_incarnation(disk, directory, lambda count: bytes(count))\n"
                "        raise JournalDamaged(walk",
            ),
        ),
        {
            unit(
                "storage/test_recovery", "test_a_second_refusal_takes_another_incarnation"
            ): "!= b'",
        },
    ),
    Bug(
        "crc-not-checked",
        "I26: a flipped bit is detected, never served",
        (
            Edit(
                "oncelog_server.runtime.storage.frames:decode",
                "if crc32c(buffer[position + _SEAL.size : position + size]) != crc:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_frames", "test_i26_every_flipped_bit_is_noticed"
            ): "DID NOT RAISE FrameError",
            unit(
                "storage/test_journal", "test_i26_a_damaged_frame_is_never_read_and_is_named"
            ): "DID NOT RAISE CorruptLog",
            "tests/simulation/test_copies.py::"
            "test_i26_what_rots_where_no_start_looks_is_never_read_and_copied_anew[it follows]": (
                "rotted, and all of it is read"
            ),
        },
    ),
    Bug(
        "unknown-frame-skipped",
        "an unknown frame kind stops the replica, it never skips",
        (
            Edit(
                "oncelog_server.runtime.storage.scan:Scan._take",
                "raise UnknownFrame(self._file.path, place.position, str(error)) from error",
                "self.ending, self.why = Ending.BAD, str(error)\n            return None",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_an_unknown_kind_refuses_the_replica_and_costs_it_nothing",
            ): "DID NOT RAISE UnknownFrame",
        },
    ),
    Bug(
        "misplaced-frame-kept",
        "recovery stops at the first frame whose offset is not the next or whose epoch is lower",
        (
            Edit(
                "oncelog_server.runtime.storage.scan:Scan._take",
                "if why is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_recovery",
                "test_the_tail_ends_before_an_intact_frame_that_does_not_belong",
            ): "offset leaves a hole",
        },
    ),
    Bug(
        "read-above-below",
        "I27: a read gives nothing above the offset that it is told",
        (
            Edit(
                "oncelog_server.runtime.storage.reading:read_segment",
                "if stored.end > below or (taken and max_bytes < 0):",
                "if taken and max_bytes < 0:",
            ),
        ),
        {
            unit(
                "storage/test_journal",
                "test_i27_a_read_gives_the_frame_that_holds_its_offset_and_nothing_above_below",
            ): "assert [0, 1, 4] == [0, 1]",
        },
    ),
    Bug(
        "cut-not-noted-first",
        "the synced end is lowered before anything is cut: who crashes must not look damaged",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal._lower_promise",
                "self._synced_end_file.note_and_sync(lower)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_cuts", "test_a_cut_lowers_the_promise_before_the_log"
            ): "who crashes in the middle of a cut must not look damaged",
        },
    ),
    Bug(
        "snapshot-of-the-lost-tail-loaded",
        "a snapshot of what the log lost is a phantom",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:SnapshotFiles.drop_above",
                "if offset > end:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_snapshots",
                "test_a_snapshot_above_the_log_end_is_never_loaded_not_even_when_the_log_has_grown",
            ): "assert (6, b'six'",
        },
    ),
    Bug(
        "damaged-snapshot-loaded",
        "I26: damage is detected, never served: the older snapshot serves",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:decode_snapshot",
                " or crc32c(memoryview(data)[_SEAL.size :]) != crc:",
                ":",
            ),
        ),
        {
            unit(
                "storage/test_snapshots", "test_a_damaged_newest_falls_back_to_the_older_one"
            ): "assert (6, b'six'",
        },
    ),
    Bug(
        "snapshot-before-its-rows",
        "rows are synced before the snapshot that counts them stands",
        (
            Edit(
                "oncelog_server.runtime.storage.tables:TableFiles._write",
                "self._disk.sync(file)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_snapshots", "test_a_snapshot_that_was_cut_off_leaves_the_one_before"
            ): "assert None == (6, b'six'",
        },
    ),
    Bug(
        "lock-not-taken",
        "flock on the data directory",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.lock",
                "fcntl.flock(self._root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
                "pass",
            ),
        ),
        {
            unit("storage/test_disk", "test_a_second_process_is_refused_by_name"): "assert 0 == 3",
        },
    ),
    Bug(
        "short-write-is-a-record",
        "a short write is an error, not a record",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk._write_part",
                "if written != wanted:",
                "if False:",
            ),
        ),
        {
            unit(
                "storage/test_disk", "test_a_short_write_is_an_error_never_a_record"
            ): "DID NOT RAISE OSError",
        },
    ),
    Bug(
        "recreated-name-taken-for-durable",
        "I25: losing power everywhere at once loses nothing acknowledged, names included",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.open",
                "self._durable_names.discard(full)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable", "test_i25_a_removed_name_does_not_come_back"
            ): "assert ['sync p/log'] =="
        },
    ),
    Bug(
        "replaced-file-not-synced",
        "write-temp, sync, rename, sync-directory",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.replace_file", "os.fsync(fd)", "pass"
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i25_a_replaced_file_is_whole_before_its_name_shows_it",
            ): "assert ['rename node"
        },
    ),
    Bug(
        "replaced-name-not-synced",
        "write-temp, sync, rename, sync-directory",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.replace_file",
                "sync_directory(os.path.dirname(full))",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i25_a_replaced_file_is_whole_before_its_name_shows_it",
            ): "assert ['sync node_i"
        },
    ),
    Bug(
        "made-directory-not-synced",
        "I25: losing power everywhere at once loses nothing acknowledged, names included",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.make_directory",
                "sync_directory(parent)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i25_each_directory_on_the_way_is_durable_in_its_parent",
            ): "assert ['mkdir parti"
        },
    ),
    Bug(
        "rename-not-synced-where-it-came",
        "I25: losing power everywhere at once loses nothing acknowledged, names included",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.rename",
                "{os.path.dirname(old), os.path.dirname(new)}",
                "{os.path.dirname(old)}",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i25_a_rename_is_durable_where_it_left_and_where_it_came",
            ): "assert ['rename part"
        },
    ),
    Bug(
        "removed-name-not-synced",
        "what a cut removed does not come back",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.remove",
                "sync_directory(os.path.dirname(full))",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable", "test_i25_a_removed_name_does_not_come_back"
            ): "assert ['unlink p/log'] =="
        },
    ),
    Bug(
        "cut-not-synced",
        "a cut is synced before the next frame is written",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk.truncate_and_sync",
                "os.fsync(held.fd)",
                "pass",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable",
                "test_i26_a_cut_is_durable_and_what_follows_it_is_allocated_anew",
            ): "assert ['ftruncate log'] =="
        },
    ),
    Bug(
        "name-durable-although-its-sync-failed",
        "I25: losing power everywhere at once loses nothing acknowledged, names included",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk._sync_names",
                "unknown = [path for path in full_paths if path not in self._durable_names]",
                "unknown = [path for path in full_paths if path not in self._durable_names]\n"
                "        self._durable_names.update(unknown)",
            ),
        ),
        {
            unit(
                "storage/test_disk_durable", "test_i25_a_sync_that_fails_leaves_no_name_for_durable"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "epoch-of-lost-frames-written",
        "the epoch table answers where two logs part: it names no epoch that the log lost",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.cut",
                "self._unwritten.drop()",
                "self._unwritten._frames, self._unwritten._note = [], None",
            ),
        ),
        {
            unit(
                "storage/test_cuts", "test_epochs_behind_a_failed_write_are_never_written"
            ): "((2, 2), (3, 4)) == ((1, 2), (3, 4))"
        },
    ),
    Bug(
        "cut-leaves-earlier-files-unsynced",
        "a cut is synced, all that it leaves, before the next frame is written",
        (
            Edit(
                "oncelog_server.runtime.storage.unwritten:Unwritten.write_frames",
                'self._disk.write_and_sync(segment.file, position, b"".join(chunks))',
                'self._disk.write_unsynced(segment.file, position, b"".join(chunks))',
            ),
        ),
        {
            unit(
                "storage/test_cuts", "test_a_cut_makes_durable_what_it_leaves_also_of_earlier_files"
            ): "assert 'a' == 'abc'"
        },
    ),
    Bug(
        "fault-of-ours-taken-for-a-sync",
        "I25: whatever ended a commit, the bytes are in doubt",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit",
                'failure = _as_failure(error, "commit failed")',
                "failure = None",
            ),
        ),
        {
            unit(
                "storage/test_commit",
                "test_i25_a_commit_that_fails_for_any_reason_has_not_happened",
            ): "the bytes are in doubt"
        },
    ),
    Bug(
        "one-journal-stops-the-node",
        "a journal that fails, in whatever way, stops no other",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit_all",
                "except Exception as not_taken:",
                "except OSError as not_taken:",
            ),
        ),
        {
            unit(
                "storage/test_commit",
                "test_a_journal_that_fails_in_a_way_of_its_own_stops_no_other",
            ): "the others go on"
        },
    ),
    Bug(
        "snapshot-of-another-offset-loaded",
        "I26, I35: a snapshot that stands in the place of another is noticed",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:read_snapshot",
                "return None if found is None or found.offset != offset else found",
                "return found",
            ),
        ),
        {
            unit(
                "storage/test_snapshots",
                "test_i26_a_snapshot_under_the_name_of_another_is_not_loaded",
            ): "frames 2 to 4 would be missing from the state"
        },
    ),
    Bug(
        "a-cut-that-failed-counts-on-what-it-cut",
        "I29: a replica whose cut failed goes on from what is left",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.cut",
                "self.synced_end = min(self.synced_end, end)\n        if end == self.log_start",
                "if end == self.log_start",
            ),
        ),
        {
            unit(
                "storage/test_cuts",
                "test_i29_a_cut_that_failed_is_abandoned_and_the_log_goes_on[3-]",
            ): "it takes no frames any more"
        },
    ),
    Bug(
        "a-file-that-was-not-removed-is-forgotten",
        "I5: nothing stands behind the log's end that a start would take for its continuation",
        (
            Edit(
                "oncelog_server.runtime.storage.cutting:remove_segments",
                "segments[-1].remove()\n        segments.pop()",
                "segments.pop().remove()",
            ),
        ),
        {
            unit(
                "storage/test_cuts",
                "test_i29_a_cut_that_failed_is_abandoned_and_the_log_goes_on[3-xyz]",
            ): "what was synced is lost"
        },
    ),
)
