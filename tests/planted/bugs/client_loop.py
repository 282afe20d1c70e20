"""Bugs of the client's consume, transform, produce: what it reads, what a commit covers, who
commits it, and how it ends."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "a-failed-block-commits",
        "I21: what a step that failed was given is not committed",
        (
            Edit(
                "oncelog.aio.log:Log.__aexit__",
                "if kind is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_member_returns",
                "test_i21_nor_where_the_block_of_its_connection_failed",
            ): "== {}",
        },
    ),
    Bug(
        "producers-close-beside-consumers",
        "who closes may still end its transaction in `on_revoked`",
        (
            Edit(
                "oncelog.aio.log:Log.close",
                "(first or list(self._made))",
                "list(self._made)",
            ),
        ),
        {
            unit(
                "client/test_log",
                "test_consumers_close_while_producers_can_still_end_their_transactions",
            ): "== [False, False]",
        },
    ),
    Bug(
        "ctrl-c-is-the-programs",
        "a run ends in good order at the signals that it is given",
        (
            Edit(
                "oncelog._stopping:stopping",
                "in (signal.SIG_DFL, signal.default_int_handler)",
                "in (signal.SIG_DFL,)",
            ),
        ),
        {
            unit(
                "client/test_log",
                "test_a_run_stops_at_a_signal_that_nobody_handles[SIGINT]",
            ): "'interrupted'",
        },
    ),
    Bug(
        "markers-are-records",
        "a consumer gives records, and nothing else that lies between them",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher._queue_batch",
                "if batch.kind != partition_leader_pb2.FetchedBatch.KIND_DATA:",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_consuming",
                "test_what_is_no_data_is_not_given_as_records[KIND_COMMITTED]",
            ): "== [1, 2]",
        },
    ),
    Bug(
        "spoiled-while-opening-sends-on",
        "I3: of a transaction that is spoiled nothing more goes out",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._begin",
                "        if self._core.state is State.SPOILED:\n            # By a record",
                "        if False:\n            # By a record",
            ),
            Edit(
                "oncelog.aio.ending:Ending._spoil",
                "        self._release()",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_transactions",
                "test_what_is_spoiled_while_it_begins_sends_nothing_any_more",
            ): "assert 'produce' not in",
        },
    ),
    Bug(
        "takeover-replaces-newer-identity",
        "the identity that was registered last counts, not the answer that came last",
        (
            Edit(
                "oncelog.aio.registration:Registration._begin_anew",
                "            self._takeover.cancel()",
                "            pass",
            ),
            Edit(
                "oncelog.aio.registration:Registration._take_over",
                "        async with self._registering:",
                "        if True:",
            ),
            Edit(
                "oncelog.aio.registration:Registration._take_over",
                "if identity is not self._identity or instance_id != self._instance_id:",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_registering",
                "test_a_takeover_that_is_answered_late_does_not_replace_who_registered_since",
            ): "producer_id=99",
        },
    ),
    Bug(
        "chain-kept-after-visible",
        "I15: a commit chains on the one before it only while that is pending",
        (
            Edit(
                "oncelog._core.positions:Positions.committed",
                "= to, to, after",
                "= to, to, after or place.after",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_a_commit_that_became_visible_ends_the_chain_on_the_one_before",
            ): "assert (20, 99) == (20, 0)",
        },
    ),
    Bug(
        "commit-covers-what-came-meanwhile",
        "I15: a commit covers what it said, not what was read while it was decided",
        (
            Edit(
                "oncelog._core.positions:Positions.committed",
                "= to, to, after",
                "= place.position, to, after",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_i15_what_is_read_while_a_commit_is_decided_belongs_to_the_next_one",
            ): "assert [] == [Progress(",
        },
    ),
    Bug(
        "closing-a-connection-swallows-what-failed",
        "I5: what was not delivered is told",
        (
            Edit(
                "oncelog.aio.log:Log.close",
                "if failures:",
                "if not failures:",
            ),
        ),
        {
            unit(
                "client/test_log",
                "test_closing_closes_all_and_raises_what_failed_of_the_newest",
            ): "DID NOT RAISE Throttled",
        },
    ),
    Bug(
        "run-goes-on-after-a-fence",
        "a fence is final: who was replaced stops",
        (
            Edit(
                "oncelog.aio.log:passes_by_itself",
                "return isinstance(error, BufferFailed) or "
                "retries.action_for(error) is not Action.FATAL",
                "return True",
            ),
        ),
        {
            unit(
                "client/test_log",
                "test_a_run_ends_where_repeating_cannot_help[PRODUCER_FENCED]",
            ): "DID NOT RAISE ProducerFenced",
        },
    ),
)
