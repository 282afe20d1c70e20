"""Bugs of how a log becomes a machine: when it is loaded, and on a follower that keeps its snapshot
fresh."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "replay-slices-by-frames-alone",
        "I18: a loop that replays large frames ticks, or the lease is lost while it loads",
        (
            Edit(
                "oncelog_server.runtime.replica.replaying:Slice.is_full",
                "self._bytes += encoded_bytes(stored.frame)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_replaying",
                "test_i18_the_loop_has_a_turn_after_so_many_bytes_of_a_replay",
            ): "the lease is not kept by a loop that stands"
        },
    ),
    Bug(
        "snapshot-says-nothing-of-the-high-watermark",
        "I4: what a snapshot holds was durable when it was written",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._covered_by_snapshot",
                "max(self._hw, offset)",
                "self._hw",
            ),
        ),
        {
            unit(
                "runtime/test_replaying",
                "test_i4_what_a_snapshot_holds_is_known_to_be_durable_after_a_restart",
            ): "all below was durable when it was written"
        },
    ),
    Bug(
        "followers-keep-no-snapshot",
        "I35: who is elected replays what is behind its snapshot, not its whole log",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership.report",
                "self._snapshots.look()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i35_a_follower_that_is_elected_replays_what_is_behind_its_snapshot_only",
            ): "a follower has no snapshot"
        },
    ),
    Bug(
        "follower-snapshot-above-the-high-watermark",
        "I35: a snapshot of a follower, too, holds only what is durable",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._covered",
                "min(self._following.high_watermark, self._journal.synced_end)",
                "self._journal.synced_end",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i27_i35_nothing_above_the_high_watermark_is_in_a_followers_snapshot",
            ): "it may be in no other log"
        },
    ),
    Bug(
        "follower-snapshot-without-its-outcomes",
        "I4: a snapshot leaves no outcome behind that was not shown to the projection",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._replay",
                "projecting.saw(record, stored.at)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i4_what_a_followers_snapshot_leaves_behind_was_shown_to_the_projection",
            ): "nobody replays these records again"
        },
    ),
    Bug(
        "log-cut-under-a-follower-snapshot",
        "I35: nothing else touches a log while its snapshot is being written",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership.closed",
                "await self._snapshots.halted()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i35_nothing_else_touches_a_log_while_a_thread_has_its_snapshot",
            ): "it is cut under a thread that writes"
        },
    ),
    Bug(
        "follower-replays-on-when-told-otherwise",
        "an election does not wait for a replay of who follows no more",
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership.end",
                "self._snapshots.end()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots", "test_a_replay_ends_with_the_following"
            ): "an election waits for it"
        },
    ),
    Bug(
        "who-waits-to-replay-is-waited-for",
        "an election does not wait for another partition's replay",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots.halt",
                "self._working is not None and not self._has_turn",
                "False",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots", "test_one_replica_of_a_process_replays_at_a_time"
            ): "an election waits for another partition"
        },
    ),
    Bug(
        "many-followers-replay-at-once",
        "one machine beside those that are led, not one for each partition",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._work",
                "async with self._around.replication.replaying:",
                "if True:",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots", "test_one_replica_of_a_process_replays_at_a_time"
            ): "each has a machine in memory"
        },
    ),
    Bug(
        "follower-replays-without-a-pause",
        "the loop goes on while a follower replays",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._replay",
                "if part.is_full(stored):",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_the_loop_has_turns_while_a_follower_replays",
            ): "others of the process wait for it"
        },
    ),
    Bug(
        "failed-follower-snapshot-tried-at-once",
        "I28: what a disk does not take is tried again after a while",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._failed",
                "self._not_before_ms = self._now_ms() + pause_ms",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i28_a_disk_that_takes_no_snapshot_stops_no_follower",
            ): "it reads all anew"
        },
    ),
    Bug(
        "alarm-of-a-follower-snapshot-stays",
        "an alarm ends with what it is about",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.drop",
                "if self._failing:",
                "if False:",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_a_record_of_a_later_version_stops_no_follower",
            ): "it alarms for ever"
        },
    ),
    Bug(
        "rot-found-by-a-follower-is-borne",
        "I26: a log that cannot be read is copied anew where another one is whole",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._replay_and_save",
                "self._found_damage(error)",
                "self._failed()",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots", "test_i26_rot_that_a_replay_finds_is_copied_anew"
            ): "it holds less than it said"
        },
    ),
    Bug(
        "small-frames-counted-by-their-bytes",
        "I5: a failover takes seconds: what is replayed is bounded in frames, too",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._are_enough",
                "or bool(are_enough)",
                "or False",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i5_small_frames_are_worth_a_snapshot_by_their_number",
            ): "so many frames are replayed"
        },
    ),
    Bug(
        "large-snapshot-read-for-few-frames",
        "reading a snapshot never costs more than the frames that it saves",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._are_enough",
                "max(self._around.snapshot_every_bytes, self._restored_bytes)",
                "self._around.snapshot_every_bytes",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_a_snapshot_that_is_larger_than_the_frames_behind_it_is_not_read_for_them",
            ): "sums are read for"
        },
    ),
    Bug(
        "cut-snapshot-still-the-newest",
        "a follower whose snapshot was cut writes another one",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:SnapshotFiles.drop_above",
                "self.newest = max(self.offsets, default=0)",
                "self.newest = max(self.newest, *self.offsets, 0)",
            ),
        ),
        {
            unit(
                "storage/test_snapshots", "test_the_newest_snapshot_is_known_without_reading_it"
            ): "it is of what was cut"
        },
    ),
    Bug(
        "damaged-snapshot-still-the-newest",
        "a follower whose snapshot is damaged writes another one",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshots:SnapshotFiles.load",
                "self._tables, self.newest = {}, 0",
                "self._tables = {}",
            ),
        ),
        {
            unit(
                "storage/test_snapshots",
                "test_a_snapshot_that_is_damaged_is_not_the_newest_any_more",
            ): "assert 4 == 0"
        },
    ),
    Bug(
        "no-snapshot-while-steps-go-on",
        "I35: what goes on step by step gives way to a snapshot that is due",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots._must_give_way",
                "is_asked_to = self.is_due or",
                "is_asked_to =",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i35_what_goes_on_for_days_keeps_no_snapshot_from_being_taken",
            ): "all of that would be replayed"
        },
    ),
    Bug(
        "the-next-turn-before-a-snapshot-that-is-due",
        "I35: nothing is begun beside snapshots while one is to be captured",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.save",
                "self._wanted and (self._captured is not None or not self.is_due)",
                "self._wanted",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i35_nothing_else_is_begun_where_a_snapshot_is_due",
            ): "the next append finds it busy again"
        },
    ),
    Bug(
        "a-snapshot-that-was-due-is-forgotten",
        "I35: what was appended counts until a snapshot has it",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.capture",
                "self.is_owed = self.is_owed or self._is_by_steps",
                "self._bytes_since = self._frames_since = 0",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i35_a_snapshot_that_was_due_comes_though_nothing_more_is_appended",
            ): "it was given up"
        },
    ),
    Bug(
        "a-quiet-partition-forgets-the-snapshot-that-was-due",
        "I35: a snapshot that is due needs no further append",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.report",
                "self._snapshots.is_due or",
                "self._snapshots.is_owed or",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i35_a_snapshot_that_was_due_comes_though_nothing_more_is_appended",
            ): "it was given up"
        },
    ),
    Bug(
        "a-stop-waits-for-the-whole-backlog",
        "I29: a clean stop waits for one step of what goes on for days",
        (
            Edit(
                "oncelog_server.runtime.replica.snapshots:Snapshots.checkpoint",
                "self._is_stopping = True",
                "",
            ),
        ),
        {
            unit(
                "runtime/test_snapshotting",
                "test_i29_a_clean_stop_waits_for_one_step_of_what_goes_on_for_days",
            ): "it stops when all is done, or when it is killed"
        },
    ),
    Bug(
        "no-snapshot-of-a-follower-while-steps-go-on",
        "I35: what goes on step by step gives way to a snapshot, at followers too",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._must_give_way",
                "return is_asked_to or self._is_worth_it(self._behind_bytes)",
                "return is_asked_to",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i35_what_goes_on_for_days_keeps_no_follower_from_its_snapshot",
            ): "it would replay all of it"
        },
    ),
)
