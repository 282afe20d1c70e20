"""Bugs of what is settled where a topic leaves it to its replicas."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_WORTH: Final = "oncelog_server.runtime.replica.settling_worth:Worth"
_SETTLING: Final = "oncelog_server.runtime.replica.settling:Settling"


def _rule(test: str) -> str:
    return unit("runtime/test_settling_worth", test)


def _replica(test: str) -> str:
    return unit("partition_leader/test_settling_auto", test)


BUGS: Final = (
    Bug(
        "auto-copies-whatever-there-is",
        "where settling is left to a replica, only small batches are copied",
        (
            Edit(
                f"{_WORTH}._is_worth_it",
                "self.batches >= LEAST_BATCHES and self.mean_bytes < SMALL_BYTES",
                "self.batches >= LEAST_BATCHES",
            ),
        ),
        {
            _replica(
                "test_large_batches_that_are_not_settled_keep_a_few_small_ones_behind_them_from_it"
            ): "all of it would be copied"
        },
    ),
    Bug(
        "auto-turns-back-as-soon-as-it-turned",
        "between small and large batches it stays as it was",
        (
            Edit(
                f"{_WORTH}._is_worth_it",
                "self.mean_bytes < LARGE_BYTES",
                "self.mean_bytes < SMALL_BYTES",
            ),
        ),
        {
            _rule(
                "test_small_batches_are_worth_it_large_ones_are_not_and_in_between_it_stays"
            ): "assert"
        },
    ),
    Bug(
        "auto-is-decided-by-a-few-batches",
        "a topic that is almost empty is not copied",
        (
            Edit(
                f"{_WORTH}._is_worth_it",
                "self.batches >= LEAST_BATCHES and self.mean_bytes < SMALL_BYTES",
                "self.batches > 0 and self.mean_bytes < SMALL_BYTES",
            ),
        ),
        {
            _replica(
                "test_what_is_small_is_settled_and_what_is_large_is_not_and_both_can_be_read"
            ): "too little to tell"
        },
    ),
    Bug(
        "auto-copies-what-is-deleted-soon",
        "what retention deletes within an hour is not copied",
        (
            Edit(
                f"{_WORTH}.wants",
                "settled.auto and not settled.short_lived and",
                "settled.auto and",
            ),
        ),
        {_rule("test_settings_that_say_what_is_settled_are_followed"): "it is deleted soon"},
    ),
    Bug(
        "auto-takes-a-run-for-one-batch",
        "batches that are neighbours in the journal are counted each",
        (
            Edit(
                "oncelog_server.partition_leader.settling:PartitionSettler.weigh",
                "batches = len(base) + in_runs",
                "batches = len(base)",
            ),
        ),
        {_replica("test_batches_of_a_run_are_counted_each"): "Weight("},
    ),
    Bug(
        "auto-forgets-that-it-copied",
        "where it stays as it was, a restart is nothing new",
        (
            Edit(
                f"{_SETTLING}.__init__",
                "Worth(settles=self._data.settled_end > 0)",
                "Worth(settles=False)",
            ),
        ),
        {
            _replica(
                "test_what_was_settled_before_a_restart_goes_on_and_what_was_not_is_weighed_anew"
            ): "in between it goes on as before"
        },
    ),
    Bug(
        "auto-begins-with-nothing-where-settings-said-copy",
        "a topic that leaves it open again goes on as it was",
        (Edit(f"{_WORTH}.follow", "self.settles = settled.wanted", "pass"),),
        {
            _replica("test_a_topic_that_leaves_it_open_again_goes_on_as_it_was"): (
                "too little to turn"
            )
        },
    ),
    Bug(
        "auto-waits-for-a-snapshot-for-ever",
        "small batches that come slowly are copied in the end",
        (
            Edit(
                f"{_SETTLING}.is_uncounted", "return self.may_be_worth_it(settled)", "return False"
            ),
        ),
        {
            _replica("test_a_log_that_grows_slowly_gets_the_snapshot_that_is_weighed"): (
                "assert [] == "
            )
        },
    ),
    Bug(
        "auto-of-a-follower-waits-for-a-snapshot-for-ever",
        "followers copy small batches that come slowly, too",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots._is_uncounted",
                "or self.settling.may_be_worth_it(asked)",
                "",
            ),
        ),
        {
            "tests/simulation/test_settling.py::"
            "test_where_a_topic_says_nothing_each_replica_settles_small_batches": (
                "it did not come about: all three settle it"
            )
        },
    ),
    Bug(
        "auto-counts-what-is-settled",
        "what is settled or deleted does not count for what is left",
        (
            Edit(
                f"{_WORTH}.drop_below",
                "while len(weights) > 1 and weights[1].first_offset <= offset:",
                "while False:",
            ),
        ),
        {
            _replica(
                "test_what_is_small_is_settled_and_what_is_large_is_not_and_both_can_be_read"
            ): "assert 0 == 1"
        },
    ),
)
