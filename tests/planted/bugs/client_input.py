"""Bugs of what a consumer gives to transactions: that one of them commits all it has processed."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_TESTS: Final = "client/test_input_of_open_transactions"
_ALL: Final = "test_i21_a_transaction_commits_what_it_has_processed_or_nothing"
_NAMED: Final = "test_i21_a_transaction_that_was_sent_offsets_commits_those_or_nothing"
_OTHER_THAN_PROCESSED: Final = "assert sorted(scene.processed) == scene.consumed"

BUGS: Final = (
    Bug(
        "plain-commit-beside-an-open-transaction",
        "I21: what an open transaction takes is committed by nobody else",
        (
            Edit(
                "oncelog.aio.consumer:Consumer._commit",
                "self.feeding.require_not_taken([step.partition for step in progress], "
                '"commit it")',
                "pass",
            ),
        ),
        {
            unit(_TESTS, f"{_ALL}[alone commit_that_is_taken-dropped]"): _OTHER_THAN_PROCESSED,
            unit(_TESTS, f"{_NAMED}[alone-commit_that_is_taken-left]"): _OTHER_THAN_PROCESSED,
        },
    ),
    Bug(
        "seek-out-of-an-open-transaction",
        "I21: who seeks while a transaction is open takes nothing of its input out of it",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.seek",
                'self.feeding.require_not_given([key], "seek")',
                "pass",
            ),
        ),
        {unit(_TESTS, f"{_ALL}[alone seek_on-left]"): _OTHER_THAN_PROCESSED},
    ),
    Bug(
        "seek-to-an-end-out-of-an-open-transaction",
        "I21: who seeks while a transaction is open takes nothing of its input out of it",
        (
            Edit(
                "oncelog.aio.consumer:Consumer._seek_all",
                'self.feeding.require_not_given(chosen, "seek")',
                "pass",
            ),
        ),
        {unit(_TESTS, f"{_ALL}[alone seek_to_the_end-left]"): _OTHER_THAN_PROCESSED},
    ),
    Bug(
        "others-assigned-under-an-open-transaction",
        "I21: partitions of which an open transaction has processed something stay assigned",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.assign",
                'self.feeding.require_not_given(dropped, "assign others")',
                "pass",
            ),
        ),
        {unit(_TESTS, f"{_ALL}[alone read_something_else-left]"): _OTHER_THAN_PROCESSED},
    ),
    Bug(
        "sent-back-under-an-open-transaction",
        "I21: a transaction whose consumer was sent back by another one is spoiled",
        (
            Edit(
                "oncelog.aio.feeding:Feeding._drop",
                "        self._open.drop(",
                "        _ = (",
            ),
        ),
        {
            unit(_TESTS, f"{_ALL}[alone begin_another_in_it-left]"): _OTHER_THAN_PROCESSED,
            unit(_TESTS, f"{_NAMED}[alone-make_one_that_cannot_be-left]"): "assert",
        },
    ),
    Bug(
        "two-transactions-take-one-input",
        "I21: what was given is in one open transaction only",
        (
            Edit(
                "oncelog._core.open_transactions:OpenTransactions.begin",
                "if others and (named is None or not others <= self._named.keys()):",
                "if False:",
            ),
        ),
        {
            unit(
                _TESTS, f"{_ALL}[alone begin_one_of_another_producer-dropped]"
            ): _OTHER_THAN_PROCESSED,
            unit(
                _TESTS, f"{_ALL}[member send_its_offsets_elsewhere-dropped]"
            ): _OTHER_THAN_PROCESSED,
        },
    ),
    Bug(
        "offsets-not-sent-and-committed-without",
        "I21: a transaction whose offsets were not taken does not commit without them",
        (
            Edit(
                "oncelog.aio.transactions:Transaction.send_offsets",
                "except BaseException as error:",
                "except (errors.GroupMoved, errors.InvalidTimeout) as error:",
            ),
        ),
        {
            unit(
                _TESTS, "test_i21_offsets_of_who_commits_by_itself_are_not_sent[alone]"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "offsets-of-who-commits-by-itself",
        "I21: a consumer that commits by itself feeds no transaction by its offsets either",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.add",
                "group.feeding.require_its_own_commits()",
                "pass",
            ),
        ),
        {
            unit(
                _TESTS, "test_i21_offsets_of_who_commits_by_itself_are_not_sent[member]"
            ): "DID NOT RAISE",
        },
    ),
)
