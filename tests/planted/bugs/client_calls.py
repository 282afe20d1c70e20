"""Bugs of calls that users make of a consumer: closing, cancelling, committing in part."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "callback-of-a-nested-call-served-by-the-outer-one",
        "a callback may close its consumer: the thread that waits for the inner call serves it",
        (
            Edit(
                "oncelog._serving:run_serving",
                "_SERVE.set(serve)",
                "_SERVE.set(_first.setdefault(loop, serve))",
            ),
            Edit(
                "oncelog._serving:Serving.__init__",
                "self.has_callbacks = False",
                "self.has_callbacks = False; globals()['_first'] = {}",
            ),
        ),
        {
            unit(
                "client/test_serving", "test_a_callback_may_make_a_call_that_calls_back"
            ): "it waits for ever",
        },
    ),
    Bug(
        "callbacks-of-whole-transactions-served-by-nobody",
        "whoever polls serves the callbacks of its consumer, also for whole transactions",
        (
            Edit(
                "oncelog._plain_units:_Gathering.poll",
                "self._serving.call(self._loop, lambda: self._twin.poll(timeout_s))",
                "self._loop.run(self._twin.poll(timeout_s))",
            ),
        ),
        {
            unit(
                "client/test_serving",
                "test_who_polls_for_whole_transactions_serves_callbacks_too[Transactions]",
            ): "LookupError",
        },
    ),
    Bug(
        "partition-told-twice-that-it-goes",
        "I21: a consumer that is closed in on_revoked tells each partition once",
        (
            Edit(
                "oncelog.aio.member:Member.give_up",
                "self._telling.update(fresh)",
                "self._telling.update(())",
            ),
        ),
        {
            unit(
                "client/test_member_callbacks",
                "test_i21_a_consumer_that_is_closed_in_on_revoked_gives_everything_back_once",
            ): "each partition is told once",
        },
    ),
    Bug(
        "poll-in-on-revoked-lets-go",
        "I21: who polls in on_revoked may commit after that",
        (
            Edit(
                "oncelog.aio.member:Member._let_go",
                "if not going or self._telling or",
                "if not going or",
            ),
        ),
        {
            unit(
                "client/test_member_callbacks",
                "test_i21_who_polls_in_on_revoked_may_commit_after_that",
            ): "its commit covers what goes",
        },
    ),
    Bug(
        "closed-consumer-reads-on",
        "a poll that meets the end of its consumer follows nothing after it",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.poll",
                """while not self._closed:
            self._prefetcher.follow""",
                """while True:
            self._prefetcher.follow""",
            ),
        ),
        {
            unit(
                "client/test_member_callbacks",
                "test_what_is_closed_while_it_polls_reads_nothing_any_more",
            ): "assert not True",
        },
    ),
    Bug(
        "commit-of-a-closed-consumer-does-nothing",
        "who asks a closed consumer hears that it is closed",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.commit",
                "self._require_usable()",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_member_callbacks",
                "test_a_closed_consumer_says_so_whatever_is_asked_of_it[commit]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "cancellation-swallowed-by-what-came",
        "who cancels a poll ends it, whatever comes at that moment",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher.wait",
                "done, _ = await asyncio.wait((arrival,), timeout=seconds)",
                "done, _ = await asyncio.wait_for("
                "asyncio.wait((arrival,), timeout=seconds), seconds + 1)",
            ),
        ),
        {
            unit(
                "client/test_member_callbacks",
                "test_a_poll_that_is_cancelled_as_something_comes_ends",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "commit-beyond-what-was-given",
        "I21: a commit covers what was given, and skips nothing",
        (
            Edit(
                "oncelog._core.positions:Positions.progress_to",
                "if not 0 <= to <= position:",
                "if not 0 <= to:",
            ),
        ),
        {
            unit(
                "client/test_committing", "test_i21_what_was_not_given_is_not_committed"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "committed-answers-beside-a-transaction-in-flight",
        "I21: what a decided transaction moves is waited for",
        (Edit("oncelog.aio.offsets:Offsets.settled", "stable=True", "stable=False"),),
        {
            unit(
                "client/test_committing", "test_i21_committed_waits_for_a_transaction_in_flight"
            ): "== []",
        },
    ),
)
