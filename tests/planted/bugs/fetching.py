"""Bugs of Fetch and Subscribe: what is waited for, and how much is given."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "unknown-ways-to-read",
        "what a service does not know is refused, never taken for something else",
        (
            Edit(
                "oncelog_server.partition_leader.wire:require_isolation",
                'require_known("isolation", isolation, _ISOLATIONS)',
                "pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_unknown_values",
                "test_a_way_to_read_that_is_not_known_here_is_refused",
            ): "DID NOT RAISE InvalidArgument",
        },
    ),
    Bug(
        "unknown-waits",
        "what a service does not know is refused, never taken for less",
        (
            Edit(
                "oncelog_server.coordinator.wire:commit_transaction",
                '    require_known("wait", request.wait, _WAITS)\n',
                "",
            ),
        ),
        {
            unit(
                "coordinator/test_unknown_values",
                "test_what_is_not_known_here_is_refused_and_not_taken_for_less",
            ): "DID NOT RAISE InvalidArgument",
        },
    ),
    Bug(
        "advance-missed-during-read",
        "I27: a long poll is woken by whatever becomes durable after its read began",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching._read",
                "cursor.watch(replica)",
                "pass",
            ),
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching._read",
                "with_offsets=request.with_offsets,\n            )",
                "with_offsets=request.with_offsets,\n            )\n"
                "            cursor.watch(replica)",
            ),
        ),
        {
            unit(
                "partition_leader/test_fetching",
                "test_what_becomes_durable_during_the_read_ends_the_wait_behind_it",
            ): "assert [] == [b'a']"
        },
    ),
    Bug(
        "what-was-refused-wakes-who-waits",
        "a Subscribe is woken only by what it still follows",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Cursor.fail",
                "self.forget()",
                "pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_fetching",
                "test_a_subscription_waits_within_the_lease_only",
            ): "its caller was told that it ends",
        },
    ),
    Bug(
        "long-poll-past-deadline",
        "a long poll ends before its caller gives up",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching.fetch",
                "max(call.timeout_ms - REPLY_MARGIN_MS, 0)",
                "call.timeout_ms",
            ),
        ),
        {
            unit(
                "partition_leader/test_fetching", "test_a_long_poll_ends_before_its_caller_gives_up"
            ): "its caller has no time"
        },
    ),
    Bug(
        "budget-per-partition",
        "max_bytes is of the reply, not of each partition in it",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching._read_all",
                "budget -= cursor.payload_bytes",
                "pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_fetching",
                "test_max_bytes_is_of_the_reply_and_not_of_each_partition",
            ): "assert [1, 1] == [0, 1]"
        },
    ),
    Bug(
        "producer-zero-in-a-transaction",
        "only a producer from InitProducer writes in transactions",
        (
            Edit(
                "oncelog_server.partition_leader.wire:require_producer",
                "if not producer.producer_id or is_plain(producer.producer_id):",
                "if is_plain(producer.producer_id):",
            ),
        ),
        {
            unit(
                "partition_leader/test_produce",
                "test_a_head_that_contradicts_itself_is_refused_whole",
            ): "DID NOT RAISE InvalidArgument"
        },
    ),
    Bug(
        "rows-unbounded",
        "Python work per record is bounded",
        (
            Edit(
                "oncelog_server.partition_leader.reads:Reader.read",
                "max_bytes = min(max_bytes, self._config.rows_bytes_max)",
                "pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_fetching",
                "test_of_rows_one_reply_gives_no_more_than_is_converted_at_once",
            ): "assert 4 < 4"
        },
    ),
    Bug(
        "old-producers-looked-for-at-each-frame",
        "old producers are forgotten once an hour of the journal's time",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._sweep",
                "self._next_sweep_ms = aged_ms + SWEEP_EVERY_MS",
                "pass",
            ),
        ),
        {
            story(
                "partition_leader/old_producers_are_looked_for_once_an_hour"
            ): "+plain x1 1+1 -> UNKNOWN_PRODUCER"
        },
    ),
    Bug(
        "reads-on-in-an-epoch-that-ended",
        "who steps down between two reads of a reply says so",
        (
            Edit(
                "oncelog_server.partition_leader.reads:_require_same_epoch",
                "is not log",
                "is None",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads_and_epochs",
                "test_who_steps_down_between_two_reads_of_a_reply_says_so",
            ): "an assertion, and not who leads now"
        },
    ),
    Bug(
        "subscription-waits-past-the-lease",
        "a reader that waits is sent on when the lease of its leader has run out",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching.subscribe",
                "self._require_now(following)",
                "pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_fetching",
                "test_a_subscription_waits_within_the_lease_only",
            ): "it waits past the lease",
        },
    ),
    Bug(
        "lapse-of-a-lost-lease-untold",
        "those who wait hear of the end of a lease, whichever way it ended",
        (
            Edit(
                "oncelog_server.runtime.leadership.lease:Membership._tick",
                "is_valid = self.valid()",
                "is_valid = not lapsed",
            ),
        ),
        {
            unit(
                "leadership/test_lease",
                "test_those_who_wait_hear_once_that_the_lease_lapsed[ended]",
            ): "assert [] == [False]"
        },
    ),
)
