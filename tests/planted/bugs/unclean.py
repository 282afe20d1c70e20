"""Bugs of unclean elections: who is proposed, who is refused, what has to be said first."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_COMMAND: Final = "oncelog_server.cli.unclean"
_JUDGE: Final = "oncelog_server.runtime.leadership.last_resort"
_SERVER: Final = "oncelog_server.runtime.leadership.unclean"

BUGS: Final = (
    Bug(
        "unclean-election-beside-a-replica-in-sync",
        "I5: while a replica in sync is left, on whatever node, nothing has to be lost",
        (Edit(f"{_JUDGE}:_refusal", "if in_sync:", "if False:"),),
        {
            unit(
                "leadership/test_last_resort",
                "test_i5_where_nothing_has_to_be_lost_or_nothing_is_known_nobody_is_proposed",
            ): "could still be elected"
        },
    ),
    Bug(
        "unclean-election-of-who-is-in-sync",
        "I5: who is in sync is elected by itself, and the others that are keep their names",
        (
            Edit(
                f"{_SERVER}:unclean_bid",
                "if fitness(state, candidate) is Fitness.FIT:",
                "if False:",
            ),
        ),
        {
            unit(
                "leadership/test_unclean",
                "test_i5_a_replica_that_is_in_sync_is_not_elected_uncleanly",
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "unclean-election-of-what-nobody-saw",
        "I5: an operator decided on what he saw; a replica that has less by now is not it",
        (Edit(f"{_SERVER}:_require_as_seen", "if seen is None:", "if True:"),),
        {
            unit(
                "leadership/test_unclean", "test_i5_what_changed_since_it_was_seen_is_refused"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "unclean-election-on-the-word-of-who-is-behind",
        "I5: who told the operator who is in sync may be behind: a member may run of which he knew "
        "nothing",
        (
            Edit(
                f"{_SERVER}:_require_as_seen",
                "(seen.epoch, seen.isr, seen.incarnation)",
                "(seen.epoch, now[1], seen.incarnation)",
            ),
        ),
        {
            unit(
                "leadership/test_unclean", "test_i5_what_changed_since_it_was_seen_is_refused"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "who-did-not-answer-has-nothing",
        "I5: a process that runs and does not answer may have more than all that did",
        (Edit(f"{_JUDGE}:Proposal.doubts", "if one.runs", "if False"),),
        {
            unit(
                "leadership/test_last_resort",
                "test_i5_who_has_less_and_who_did_not_answer_are_doubts",
            ): "node n1 runs",
            unit(
                "cli/test_unclean", "test_i5_a_process_that_runs_and_does_not_answer_is_a_doubt"
            ): "what n1 has is lost",
        },
    ),
    Bug(
        "accepting-a-loss-accepts-any",
        "I5: who accepts that something is lost has not said that it may be more than has to be",
        (Edit(f"{_COMMAND}:_confirm", "if doubts and not not_the_best and (", "if False and ("),),
        {
            unit(
                "cli/test_unclean", "test_i5_a_worse_one_is_elected_only_by_who_says_so"
            ): "more is lost than has to be"
        },
    ),
    Bug(
        "what-an-operator-was-told-is-not-kept",
        "who let records go knew of it, and the audit log says what he was told",
        (
            Edit(
                f"{_COMMAND}:_elect",
                "told=",
                'told="" and ',
            ),
        ),
        {
            unit(
                "cli/test_unclean",
                "test_i5_all_are_asked_and_who_has_most_is_elected_as_it_was_seen",
            ): "what is said is written down"
        },
    ),
    Bug(
        "unclean-election-without-an-answer-leaves-no-word",
        "who gave records up is known, also where the answer to the election was lost",
        (
            Edit(
                "oncelog_server.runtime.leadership.standing:Standing.unclean_elect",
                "asked.report_asked(self._reporter, epoch=bid.new.epoch, kept_end=kept_end)",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_unclean",
                "test_an_election_that_etcd_did_not_answer_leaves_word_of_who_asked",
            ): "nobody knows who gave records up"
        },
    ),
)
