"""Bugs of the trust boundary: who is let in, and what is believed of him."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit


def attack(test: str) -> str:
    return f"tests/access/test_attacks.py::{test}"


BUGS: Final = (
    Bug(
        "heartbeats-throttled",
        "I23: a member that gives signs of life is taken for alive, whatever else it did",
        (
            Edit(
                "oncelog_server.runtime.access.quotas:Meter.refusal",
                "if is_let_in:",
                "if False:",
            ),
        ),
        {
            unit(
                "access/test_edge", "test_i23_a_member_whose_quota_is_used_up_is_heard"
            ): "assert not [",
        },
    ),
    Bug(
        "verb-that-cannot-be-given",
        "what the services ask for can be said in a rule",
        (
            Edit(
                "oncelog.access:rules",
                'VERBS.get(kind, ()) if verbs == "all"',
                '[verb for verb in VERBS.get(kind, ()) if verb != "alter"] if verbs == "all"',
            ),
        ),
        {
            unit(
                "cli/test_access", "test_rules_are_added_and_removed_by_the_same_words"
            ): "assert [",
        },
    ),
    Bug(
        "rulings-of-any-length-kept",
        "what a certificate without a rule asks for does not stay in memory",
        (
            Edit(
                "oncelog_server.core.access:Rights.may",
                "if len(need.name) > RULE_NAME_BYTES_MAX:",
                "if False:",
            ),
        ),
        {
            unit(
                "access/test_rights", "test_what_nothing_can_be_called_is_judged_and_not_kept"
            ): "== {}",
        },
    ),
    Bug(
        "names-of-any-length-audited",
        "the audit log is written by the line, of bounded length",
        (
            Edit(
                "oncelog_server.runtime.access.guard:denied",
                "if len(need.name) > RULE_NAME_BYTES_MAX:",
                "if False:",
            ),
        ),
        {
            unit(
                "access/test_guard",
                "test_a_name_that_is_longer_than_any_can_be_is_cut_where_it_is_said_and_written",
            ): "< 2000",
        },
    ),
    Bug(
        "markers-from-anybody",
        "I1: markers, replication and questions are for service identities only",
        (
            Edit(
                "oncelog_server.core.needs:serving",
                "return Entry(lambda request, call: (need,))",
                "return Entry()",
            ),
        ),
        {
            attack("test_i1_a_forged_abort_marker_does_not_touch_a_transaction"): "isinstance(None",
        },
    ),
    Bug(
        "one-shots-of-others-told",
        "transactions of others are neither seen nor ended, by whatever they are asked for",
        (
            Edit(
                "oncelog_server.coordinator.access:_Needs._of_one_shot",
                "if producer is not None:",
                "if producer is None:",
            ),
        ),
        {
            attack("test_transactions_of_others_are_neither_seen_nor_ended"): "PermissionDenied",
        },
    ),
    Bug(
        "outgrown-topics-shown-to-anybody",
        "who describes a group sees the topics that he may describe",
        (
            Edit(
                "oncelog_server.offset_manager.access:_Groups.show_members",
                "for topics in (reply.topics, reply.outgrown):",
                "for topics in (reply.topics,):",
            ),
        ),
        {
            unit(
                "offset_manager/test_heartbeats",
                "test_who_describes_a_group_sees_the_topics_that_he_may_see",
            ): "salaries",
        },
    ),
    Bug(
        "deny-after-allow",
        "deny before allow",
        (
            Edit(
                "oncelog_server.core.access:Rights.ruling",
                "if denied is not None:",
                "if denied is not None and holdings.allows(need) is None:",
            ),
        ),
        {
            unit(
                "access/test_rights", "test_a_ruling_names_the_rule_that_made_it"
            ): "deny alice read topic:tt",
        },
    ),
    Bug(
        "operator-bound-by-a-rule",
        "rules that lock everybody out can be removed",
        (
            Edit(
                "oncelog_server.core.access:Rights.ruling",
                "if self.is_operator(identity):",
                "if self.is_operator(identity) and not self._holdings_of(identity).denies(need):",
            ),
        ),
        {
            unit("access/test_rights", "test_no_rule_locks_an_operator_out"): "a rule denies it",
        },
    ),
    Bug(
        "unnamed-producer-by-a-rule",
        "an unnamed producer is its owner's",
        (
            Edit(
                "oncelog_server.core.access:_of_unnamed",
                "if need.owner != identity:",
                "if need.owner is None:",
            ),
        ),
        {
            attack(
                "test_an_unnamed_producer_is_nobody_elses_whatever_the_rules_also_after_a_restart"
            ): "AssertionError",
        },
    ),
    Bug(
        "owner-lost-in-the-journal",
        "I35: who registered a producer is journaled with it",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine._initialize",
                "owner=record.owner,",
                'owner="",',
            ),
        ),
        {
            unit(
                "coordinator/test_owners",
                "test_a_producer_is_of_who_registered_its_newest_instance",
            ): "'alice'",
        },
    ),
    Bug(
        "batch-in-the-name-of-another",
        "I6, ADR 28: a source of batches is of the identity whose batch came first",
        (
            Edit(
                "oncelog_server.partition_leader.claims:Claims.hold",
                "elif claim.identity != call.identity:",
                "elif not claim.identity:",
            ),
        ),
        {
            unit(
                "partition_leader/test_claims",
                "test_i6_who_sends_under_the_name_of_another_is_refused[plain]",
            ): "PERMISSION_DENIED",
            attack(
                "test_i3_i6_nobody_writes_into_a_transaction_or_a_sequence_of_another"
            ): "AssertionError",
        },
    ),
    Bug(
        "claimed-by-a-batch-that-was-refused",
        "ADR 28: what was never taken claims nothing",
        (
            Edit(
                "oncelog_server.partition_leader.claims:Claims.settle",
                "elif not claim.is_proven and held.claims.get(claim.source) is claim:",
                "elif claim.is_proven and held.claims.get(claim.source) is claim:",
            ),
        ),
        {
            unit(
                "partition_leader/test_claims", "test_what_was_never_taken_claims_nothing"
            ): "PERMISSION_DENIED",
        },
    ),
    Bug(
        "topic-that-is-not-heard-of-needs-nothing",
        "ADR 27: what cannot be judged is not let in",
        (
            Edit(
                "oncelog_server.core.needs:TopicNames.needs",
                "elif topic_id not in self._gone:",
                "elif topic_id in self._gone:",
            ),
        ),
        {
            unit(
                "access/test_guard",
                "test_a_topic_that_is_not_heard_of_yet_does_not_slip_through",
            ): "isinstance",
        },
    ),
    Bug(
        "data-flows-on-after-the-right-to-it",
        "ADR 27: data that is long in coming is judged again",
        (
            Edit(
                "oncelog_server.runtime.access.guard:Gate.require_still",
                "if call.judged_at == self._guard.revision:",
                "if call.judged_at <= self._guard.revision:",
            ),
        ),
        {
            unit(
                "access/test_guard", "test_data_that_was_long_in_coming_is_judged_again"
            ): "PermissionDenied",
        },
    ),
    Bug(
        "list-shows-what-is-not-theirs",
        "lists show what may be described",
        (
            Edit(
                "oncelog_server.runtime.access.guard:Gate.through",
                "if entry.shown is not None and self._guard.mode is Mode.ON:",
                "if entry.shown is not None and self._guard.mode is Mode.WARN:",
            ),
        ),
        {
            unit(
                "access/test_guard", "test_a_list_shows_what_its_caller_may_see"
            ): "['t', 'u'] == ['u']",
        },
    ),
    Bug(
        "pair-that-has-ended-is-taken",
        "a broken pair keeps the old one",
        (
            Edit(
                "oncelog_server.runtime.rpc.certificates:CertificateFiles._take",
                "if not certificate.is_valid(now_ms):",
                "if not certificate.identity:",
            ),
        ),
        {
            unit("rpc/test_certificates", "test_a_pair_that_has_ended_is_not_taken"): "== []",
        },
    ),
    Bug(
        "quota-forgives-what-is-owed",
        "over time nobody has more than his share",
        (
            Edit(
                "oncelog_server.runtime.access.quotas:Bucket.take",
                "self._left -= amount",
                "self._left = max(0.0, self._left - amount)",
            ),
        ),
        {
            unit(
                "access/test_quotas",
                "test_a_large_message_passes_and_is_waited_for_afterwards",
            ): "4000 <=",
        },
    ),
    Bug(
        "claimed-by-what-was-refused-before-it-was-decided",
        "ADR 28: a batch that is refused for another reason claims nothing",
        (
            Edit(
                "oncelog_server.partition_leader.producing:Producing._submit",
                "self._claims.settle(machine, claim, placed=0)",
                "pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_claims",
                "test_what_was_refused_before_it_was_decided_claims_nothing",
            ): "PERMISSION_DENIED"
        },
    ),
)
