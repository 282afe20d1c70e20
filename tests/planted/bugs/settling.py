"""Bugs of settling: how what is readable comes into the data log, and what lets its journal go."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_SETTLING: Final = "oncelog_server.runtime.replica.settling:Settling"
_SOURCE: Final = "oncelog_server.runtime.replica.settling_source:Source"
_MACHINE: Final = "oncelog_server.partition_leader.machine:PartitionMachine"


def _replica(test: str) -> str:
    return unit("partition_leader/test_settling_over_the_journal", test)


def _storage(test: str) -> str:
    return unit("storage/test_settled_journal", test)


BUGS: Final = (
    Bug(
        "open-transactions-are-not-pending",
        "I32: the journal of what is open stays, however much is settled",
        (
            Edit(
                f"{_MACHINE}.settled",
                "pending_from=self.next_offset if first_open is None else first_open",
                "pending_from=self.next_offset",
            ),
        ),
        {_replica("test_i32_what_is_settled_outlives_its_journal"): "what is open needs its frame"},
    ),
    Bug(
        "journal-goes-before-it-is-settled",
        "I32: only what was readable at a snapshot and is settled needs no journal",
        (
            Edit(
                f"{_SETTLING}._tell_trimming",
                "reached = [it for it in standing if it.settled.end <= data.settled_end]",
                "reached = standing[:-1] or standing",
            ),
        ),
        {
            _replica("test_a_full_disk_makes_settling_wait_and_nothing_else"): (
                "nothing is settled, and all of the journal is needed"
            )
        },
    ),
    Bug(
        "start-rests-on-blocks-without-saying-so",
        "I32: a log start that rests on blocks is noted with where they were settled from",
        (
            Edit(
                "oncelog_server.runtime.replica.trimming:Trimming._allowed_at",
                "self._said_at if said.needed_from >= self.needs.needed_from else self._settled_at",
                "self._said_at",
            ),
        ),
        {
            _replica("test_i25_a_start_that_rests_on_blocks_says_where_they_were_settled_from"): (
                "its front goes"
            )
        },
    ),
    Bug(
        "start-allowed-by-what-has-not-come",
        "I32: blocks of another replica let nothing go before the log has come as far as they",
        (
            Edit(
                "oncelog_server.runtime.replica.trimming:Trimming.needs",
                "if self._settled_at > self._journal.synced_end:",
                "if not self._settled_at:",
            ),
        ),
        {
            unit(
                "runtime/test_trimming",
                "test_i32_a_start_that_rests_on_blocks_is_not_allowed_before_the_log_has_come_so_far",
            ): "assert Needs(",
        },
    ),
    Bug(
        "blocks-outlive-the-cut",
        "I27: what is cut from the journal is settled no more",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.cut",
                "self.data.cut(max(end, self.allowed.at), journal_start=self.log_start)",
                "pass",
            ),
        ),
        {
            _storage("test_i27_what_is_cut_from_the_journal_is_settled_no_more"): (
                "the second block became readable by what is gone"
            )
        },
    ),
    Bug(
        "rows-settled-by-are-not-compared",
        "I26: rows that lead to frames are as they were written",
        (
            Edit(
                "oncelog_server.runtime.storage.snapshot_rows:SnapshotRows._verify",
                "if crc != chunk.crc:",
                "if crc == -1:",
            ),
        ),
        {
            _storage("test_i26_rows_that_are_not_as_they_were_written_are_not_settled_by"): (
                "DID NOT RAISE CorruptLog"
            )
        },
    ),
    Bug(
        "materialization-is-no-news",
        "a changed materialization reaches the partitions of a living topic",
        (
            Edit(
                "oncelog_server.partition_leader.commands:Settings.says_the_same",
                "msgspec.structs.replace(other, version=self.version) == self",
                "(self.retention_ms, self.retention_bytes) == "
                "(other.retention_ms, other.retention_bytes)",
            ),
        ),
        {
            _replica("test_materialization_changes_on_a_living_topic_both_ways"): (
                "what was there before is settled too"
            )
        },
    ),
    Bug(
        "quiet-topics-are-not-settled",
        "a topic that is quiet is settled in the end",
        (
            Edit(
                f"{_SETTLING}.lacks_snapshot",
                "return is_worth_it or waited_ms >= SNAPSHOT_AT_LAST_MS",
                "return is_worth_it",
            ),
        ),
        {_replica("test_a_topic_that_is_quiet_is_settled_in_the_end"): "assert [] == [b'1 "},
    ),
    Bug(
        "tombstones-that-no-snapshot-lets-go",
        "tombstones of a topic that is quiet go in the end",
        (
            Edit(
                f"{_SETTLING}.is_uncounted",
                "if self._lets_tombstones_go(settled.compaction):",
                "if False:",
            ),
        ),
        {_replica("test_tombstones_of_a_topic_that_is_quiet_go_in_the_end"): "they stay for ever"},
    ),
    Bug(
        "quiet-topics-rest-before-they-are-settled",
        "a replica with something to settle is asked again",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership._owes_work",
                "or self.settling.is_uncounted(self.machine.settled())",
                "",
            ),
        ),
        {
            _replica("test_a_topic_that_is_quiet_is_settled_in_the_end"): (
                "it would not be asked any more"
            )
        },
    ),
    Bug(
        "a-full-disk-is-settled-to-at-once-again",
        "I31: a disk that takes no blocks makes settling wait",
        (
            Edit(
                f"{_SETTLING}._failed",
                "self._not_before_ms = self._now_ms() + again_ms",
                "self._not_before_ms = self._now_ms()",
            ),
        ),
        {
            _replica("test_a_full_disk_makes_settling_wait_and_nothing_else"): (
                "it is told every ten seconds"
            )
        },
    ),
    Bug(
        "settles-below-the-floor",
        "below half of the floor of the disk nothing is settled",
        (Edit(f"{_SETTLING}._next_piece", "self._around.require_room_to_settle()", "pass"),),
        {
            _replica("test_below_half_of_the_floor_of_the_disk_nothing_is_settled"): (
                "what is settled stands twice"
            )
        },
    ),
    Bug(
        "settles-only-where-data-is-taken",
        "a disk that is full of journals gets its room back: settling may take half of the reserve",
        (
            Edit(
                "oncelog_server.runtime.replica.env:ReplicaEnv.require_room_to_settle",
                "if not self.may_settle():",
                "if not self.has_room():",
            ),
        ),
        {_replica("test_below_half_of_the_floor_of_the_disk_nothing_is_settled"): "assert 1 == 0"},
    ),
    Bug(
        "last-block-of-a-step-stays-small",
        "blocks are large, however the steps fall",
        (
            Edit(
                f"{_SETTLING}._settle",
                "if not source.is_over and len(blocks) > 1 and",
                "if not blocks and",
            ),
        ),
        {_replica("test_blocks_are_large_however_the_steps_fall"): "each step left a small one"},
    ),
    Bug(
        "a-step-takes-all-there-is",
        "I31: memory holds one step, however much there is to settle",
        (Edit(f"{_SOURCE}._some_stretches", "if size >= STEP_BYTES or", "if"),),
        {
            _replica("test_i31_a_step_holds_so_many_bytes_however_much_there_is"): (
                "more than a step was held"
            )
        },
    ),
    Bug(
        "deleted-of-a-quiet-topic-stays-on-disk",
        "what was deleted goes from the disk, also where nobody writes any more",
        (
            Edit(
                "oncelog_server.runtime.replica.settling:Settling.is_uncounted",
                "if self._data.goes_before(settled.begin):",
                "if False:",
            ),
        ),
        {
            "tests/simulation/test_settling.py::"
            "test_what_was_deleted_of_a_topic_to_which_nobody_writes_goes_from_the_disk": (
                "it did not come about: the front of the data log goes"
            )
        },
    ),
    Bug(
        "settling-takes-no-hole-for-damage",
        "I26: what is in neither data log nor journal is found",
        (
            Edit(f"{_SETTLING}._read", "if self._holes_are_damage:", "if False:"),
            Edit(f"{_SETTLING}._look_for_hole", "if self._holes_are_damage:", "if False:"),
        ),
        {
            _replica(
                "test_i26_what_is_in_neither_data_log_nor_journal_is_found_and_copied_anew"
            ): "who has a hole says so, and is copied anew where others have it"
        },
    ),
    Bug(
        "settling-takes-what-was-deleted-for-a-hole",
        "I26: what a state behind the snapshot deleted is no hole",
        (
            Edit(
                f"{_SETTLING}._read", "if not self._tells_all_that_went(source.standing):", "if 0:"
            ),
        ),
        {
            _replica("test_i26_what_was_deleted_and_is_not_settled_is_no_hole"): (
                "a healthy replica is not copied anew"
            )
        },
    ),
    Bug(
        "settling-takes-what-an-unclean-election-lost-for-damage",
        "I26: after an unclean election no other replica has more",
        (
            Edit(
                "oncelog_server.runtime.replica.leading:Leadership.__init__",
                "holes_are_damage=granted.unclean_epoch == 0",
                "holes_are_damage=True",
            ),
        ),
        {
            _replica("test_i26_a_hole_after_an_unclean_election_is_told_and_nothing_else"): (
                "no other replica has more"
            )
        },
    ),
)
