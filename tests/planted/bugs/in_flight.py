"""Bugs of several transactions in flight, as the client sees them."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

FILE: Final = "client/test_in_flight"
LARGE: Final = "client/test_in_flight_large"
EDGES: Final = "client/test_in_flight_edges"
TOLD: Final = "client/test_in_flight_told"
LINE: Final = "oncelog.aio.line:Line"
TRANSACTION: Final = "oncelog.aio.transactions:Transaction"

BUGS: Final = (
    Bug(
        "later-ones-are-not-taken-back",
        "a refusal takes back all behind it: their consumer stands where the refused one began",
        (Edit(f"{LINE}._take_back", "reversed(flights)", "flights[:1]"),),
        {
            unit(FILE, "test_i21_a_refusal_takes_back_all_behind_it"): "'aborted'",
        },
    ),
    Bug(
        "taken-back-in-the-order-in-which-they-were-sent",
        "the last one first, else a partition stands where a later one began",
        (Edit(f"{LINE}._take_back", "reversed(flights)", "flights"),),
        {
            unit(FILE, "test_i21_a_refusal_takes_back_all_behind_it"): "where the first began",
        },
    ),
    Bug(
        "sent-ahead-of-the-first-of-its-chain",
        "the first of a chain goes alone: else its number may begin two chains",
        (
            Edit(
                f"{TRANSACTION}._go_ahead",
                "if alone or (is_small and not line.chain_first(identity)):",
                "if alone:",
            ),
        ),
        {
            unit(FILE, "test_the_first_of_a_chain_goes_alone"): "it waits for its answer",
        },
    ),
    Bug(
        "doubt-of-the-head-forgets-what-landed-behind-it",
        "of a chain nothing takes effect whose earlier part does not, so a later one says it",
        (
            Edit(
                f"{LINE}._look",
                "elif any(_took_effect(flight) for flight in self._flights):",
                "elif False:",
            ),
        ),
        {
            unit(
                FILE, "test_i04_a_later_one_that_is_committed_says_that_an_earlier_one_is"
            ): "in doubt",
        },
    ),
    Bug(
        "two-in-flight-wait-for-each-other",
        "I31: one that came before its turn asks again once the one before it is answered",
        (
            Edit(
                f"{LINE}._ask",
                "[before.decided, answering]",
                "[before.decided]",
            ),
        ),
        {
            unit(
                FILE,
                "test_i31_one_of_which_nobody_knows_whether_it_arrived_holds_up_nobody_for_ever",
            ): "each waits for the other",
        },
    ),
    Bug(
        "a-gap-is-taken-for-a-refusal",
        "one that came before its turn comes again under its own number",
        (
            Edit(
                f"{LINE}._ask",
                "if not is_out_of_order(error) or flight.before is None:",
                "if True:",
            ),
        ),
        {
            unit(
                FILE, "test_one_that_came_before_its_turn_comes_again_under_its_own_number"
            ): "it came again",
        },
    ),
    Bug(
        "a-batch-of-before-the-refusal-is-committed",
        "what was given before its consumer was sent back is given again",
        (
            Edit(
                "oncelog.aio.feeding:Feeding.feeds",
                "if self._sent_back is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                FILE, "test_i21_what_was_given_before_the_refusal_is_not_made_a_transaction_of"
            ): "it holds what is given again",
        },
    ),
    Bug(
        "filled-on-behind-a-refused-one",
        "the one that is being filled builds on what was refused",
        (
            Edit(
                "oncelog.aio.place:Place._tell_current",
                "return self._current is not None and self._current.build_on(refused)",
                "return False",
            ),
        ),
        {
            unit(FILE, "test_i21_one_that_is_being_filled_is_spoiled"): "it is told why",
        },
    ),
    Bug(
        "partitions-go-while-something-of-them-is-in-flight",
        "whoever gives partitions away waits for what it has in flight",
        (
            Edit(
                "oncelog.aio.member:Member.give_up",
                "await self._flights_over()",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_in_flight_members",
                "test_i21_close_waits_for_what_is_in_flight_before_the_member_leaves",
            ): "assert",
        },
    ),
    Bug(
        "gone-through-while-a-thread-begins-one",
        "a transaction that a thread begins disturbs nothing of what the loop takes back",
        (
            Edit(
                "oncelog._core.open_transactions:OpenTransactions.drop",
                "list(self._open.items())",
                "self._open.items()",
            ),
        ),
        {
            unit(
                FILE,
                "test_one_that_a_thread_begins_while_others_are_taken_back_disturbs_nothing",
            ): "changed size during iteration",
        },
    ),
    Bug(
        "waited-for-ever-behind-a-fault",
        "whatever fails while transactions are taken back: who waits for them hears of their end",
        (
            Edit(
                "oncelog.aio.line:Line._take_back",
                "        finally:\n            self._end(flights, told)",
                "        finally:\n            pass\n        self._end(flights, told)",
            ),
        ),
        {
            unit(
                FILE,
                "test_whatever_fails_while_they_are_taken_back_nobody_waits_for_ever",
            ): "they wait for ever",
        },
    ),
    Bug(
        "begun-beside-a-large-one",
        "I20: leaders know one transaction of a producer at a time; the next begins behind it",
        (
            Edit(
                f"{TRANSACTION}._begin",
                "await self._place.line.empty()",
                "pass",
            ),
        ),
        {
            unit(
                LARGE, "test_the_next_one_is_filled_while_it_is_decided_and_sent_behind_it"
            ): "one transaction at a time",
        },
    ),
    Bug(
        "a-small-one-overtakes-a-large-one",
        "I20: a small one is sent when the large one before it is decided",
        (
            Edit(
                f"{TRANSACTION}._go_ahead",
                "await line.nothing_large()",
                "pass",
            ),
        ),
        {
            unit(
                LARGE, "test_i20_a_small_one_behind_it_is_sent_when_it_is_decided"
            ): "not small.done()",
        },
    ),
    Bug(
        "a-large-one-that-was-refused-stays-open",
        "what is not committed is aborted before the next one begins",
        (
            Edit(
                f"{TRANSACTION}._commit_on_its_way",
                "await self._registration.abort_open("
                "self._own(), self._core.tx_id, self._partitions())",
                "pass",
            ),
        ),
        {
            unit(LARGE, "test_it_is_aborted_before_the_next_one_begins"): "abort_transaction",
        },
    ),
    Bug(
        "an-answer-lost-before-the-commit-is-taken-for-doubt",
        "what was lost before a commit was sent leaves no doubt: it is aborted",
        (
            Edit(
                f"{TRANSACTION}._commit_on_its_way",
                "if lost and self.is_asked_for:",
                "if lost:",
            ),
        ),
        {
            unit(
                LARGE, "test_i21_a_refused_one_takes_back_the_one_that_is_filled"
            ): "what was open is ended",
        },
    ),
    Bug(
        "interrupted-and-forgotten",
        "one that is interrupted before its commit may be open: the next instance ends it",
        (
            Edit(
                f"{LINE}._look",
                "head.transaction.was_interrupted()",
                "pass",
            ),
        ),
        {
            unit(
                LARGE, "test_i21_one_that_is_interrupted_is_given_up"
            ): "ended by its next instance",
        },
    ),
    Bug(
        "beside-what-is-on-its-way-where-the-limit-fell",
        "I20: where the limit was lowered meanwhile, what is on its way is waited for",
        (Edit(f"{TRANSACTION}.commit", "elif len(line):", "elif False:"),),
        {
            unit(
                EDGES, "test_i20_where_the_limit_was_lowered_one_waits_for_what_is_on_its_way"
            ): "an open one stands beside it",
            unit(EDGES, "test_i21_so_it_is_of_small_ones"): "assert",
        },
    ),
    Bug(
        "committed-again-while-it-is-on-its-way",
        "one that was left is not committed again, nor given more",
        (
            Edit(
                "oncelog.aio.ending:Ending._require_open",
                "if self._flight is not None and not self.ended:",
                "if False:",
            ),
        ),
        {
            unit(EDGES, "test_one_that_was_left_is_not_committed_again_nor_given_more"): "assert",
        },
    ),
    Bug(
        "an-abort-waits-for-the-one-before",
        "I31: one that has not begun ends without the one before it",
        (Edit(f"{TRANSACTION}.abort", "self._opening.cancel()", "pass"),),
        {
            unit(
                EDGES, "test_i31_one_that_has_not_begun_ends_without_the_one_before_it"
            ): "it waits for the one before it",
        },
    ),
    Bug(
        "an-abort-that-was-cancelled-ends-nothing",
        "what an abort that is cancelled leaves open is ended by the next instance",
        (
            Edit(
                f"{TRANSACTION}.abort",
                "self._doubt(self._core.tx_id)",
                "pass",
            ),
        ),
        {
            unit(EDGES, "test_an_abort_that_is_cancelled_leaves_nothing_open"): "it is open still",
        },
    ),
    Bug(
        "a-damaged-one-forgets-what-it-has-begun",
        "I20: the transaction that a damaged one's commit has begun is the next one",
        (
            Edit(
                f"{TRANSACTION}._ask_to_commit",
                'if request.HasField("begin_next"):',
                'if request.HasField("begin_next") and damaged is None:',
            ),
        ),
        {
            unit(
                EDGES, "test_i20_what_a_damaged_one_has_begun_is_taken"
            ): "in the one that is open",
        },
    ),
    Bug(
        "begun-by-a-thread-while-another-is-refused",
        "I21: a refusal that comes between a thread's question and its place is told at the commit",
        (Edit(f"{TRANSACTION}.commit", "line.require_no_trouble()", "pass"),),
        {
            unit(
                EDGES,
                "test_i21_one_that_a_thread_begins_while_another_is_refused_is_not_committed",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "begun-for-a-producer-that-is-closed",
        "what a commit begins for a producer that was closed meanwhile is ended",
        (
            Edit(
                f"{TRANSACTION}._commit_on_its_way",
                "await self._registration.end_what_nobody_takes()",
                "pass",
            ),
        ),
        {
            unit(EDGES, "test_a_close_that_is_cancelled_leaves_nothing_open"): "is nobody's",
        },
    ),
    Bug(
        "cancelled-while-it-asks-what-was-begun",
        "I20: who is cancelled while it asks what the commit before has begun registers anew",
        (
            Edit(
                "oncelog.aio.registration:Registration._find_adopted",
                "knows of it any more.\n            self.doubt(identity, 0)",
                "knows of it any more.",
            ),
        ),
        {
            unit(
                EDGES, "test_i20_who_is_cancelled_while_it_asks_what_was_begun_registers_anew"
            ): "nobody knows of it any more",
        },
    ),
    Bug(
        "waited-for-ever-behind-a-fault-of-one-that-landed",
        "whatever fails while one is taken in as committed: who waits for it hears of its end",
        (
            Edit(
                f"{LINE}._land",
                "        finally:\n"
                "            # Whatever fails here, as below: nobody waits for it for ever.\n"
                "            self._over(flight)",
                "        finally:\n            pass\n        self._over(flight)",
            ),
        ),
        {
            unit(
                TOLD, "test_whatever_fails_when_one_is_decided_nobody_waits_for_ever[has_landed]"
            ): "they wait for ever",
        },
    ),
    Bug(
        "refusal-ends-with-the-one-that-was-to-tell-it",
        "I31: a refusal is told, whatever becomes of the transaction that is filled meanwhile",
        (
            Edit(
                "oncelog.aio.ending:Ending._drop",
                "if self._untold is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                TOLD,
                "test_i31_a_refusal_that_the_filled_one_did_not_tell_is_told_by_flush[aborts]",
            ): "DID NOT RAISE",
            unit(TOLD, "test_i31_so_it_is_by_the_next_one"): "DID NOT RAISE",
        },
    ),
    Bug(
        "refusal-behind-an-error-of-its-own",
        "I31: one that tells what had spoiled it before does not tell the refusal",
        (
            Edit(
                "oncelog.aio.ending:Ending.build_on",
                "if self._core.spoiled_by is not refused:",
                "if False:",
            ),
            Edit(
                "oncelog.aio.ending:Ending.build_on",
                "self._untold = refused",
                "pass",
            ),
        ),
        {
            unit(
                TOLD,
                "test_i31_one_with_an_error_of_its_own_tells_that_and_the_next_one_the_refusal",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "told-again-by-the-next-one",
        "a refusal is told once",
        (
            Edit(
                "oncelog.aio.ending:Ending._raises",
                "self._untold = None",
                "pass",
            ),
        ),
        {
            unit(
                TOLD, "test_who_was_told_by_the_filled_one_is_not_told_again[sends]"
            ): "in flight was not committed",
        },
    ),
    Bug(
        "sent-back-is-said-once",
        "I21: a batch of before a refusal is refused until its consumer has given something",
        (
            Edit(
                "oncelog.aio.feeding:Feeding.feeds",
                "            raise self._sent_back",
                "            why, self._sent_back = self._sent_back, None\n            raise why",
            ),
        ),
        {
            unit(
                TOLD, "test_i21_a_batch_of_before_a_refusal_is_refused_however_often_it_is_tried"
            ): "it holds what is given again",
        },
    ),
    Bug(
        "what-was-committed-before-a-refusal-is-forgotten",
        "I21: another producer waits until what moved these positions last is visible",
        (
            Edit(
                "oncelog._core.positions:Positions.arrived",
                "ahead.behind.get(partition)",
                "None",
            ),
        ),
        {
            unit(
                TOLD, "test_i21_a_refusal_does_not_forget_the_committed_one_before_it"
            ): "assert None == After",
        },
    ),
    Bug(
        "what-is-passed-over-counts-as-given",
        "I21: who was given nothing since a refusal still holds a batch of before",
        (
            Edit(
                "oncelog.aio.consumer:Consumer._give",
                "        if not chunks:\n            return None\n        self.feeding.gave()\n",
                "        self.feeding.gave()\n        if not chunks:\n            return None\n",
            ),
        ),
        {
            unit(
                TOLD, "test_i21_to_pass_over_what_was_compacted_away_is_not_to_give"
            ): "assert refuses(consumer)",
        },
    ),
    Bug(
        "whole-transactions-do-not-count-as-given",
        "who is given a transaction since a refusal goes on with that",
        (
            Edit(
                "oncelog.aio.gathering:Gathering.poll",
                "self._consumer.feeding.gave()",
                "pass",
            ),
        ),
        {
            unit(
                TOLD,
                "test_i21_a_transaction_that_was_gathered_is_given_when_it_is_handed_over",
            ): "assert not refuses(consumer)",
        },
    ),
)
