"""Bugs of what is told to who asks again: known requests, a commit and its next, one content for
one number, parts that nobody can be told about."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "begin-next-without-a-request-id-of-its-own",
        "a late duplicate of the commit begins again",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:_with_next",
                "begin_answer, begun = begin(state, producer, command.begin_next, closing=closing)",
                "fresh = max((r.request_id for r in producer.begins), default=0) + 1\n"
                "        again = type(command.begin_next)(command.begin_next.producer, fresh)\n"
                "        begin_answer, begun = begin(state, producer, again, closing=closing)",
            ),
        ),
        {
            story("coordinator/commit_begin_next"): "-commit T2 p -> COMMITTED next: T4 OPEN",
        },
    ),
    # ------------------------------------------------------------------------------- commit_seq
    Bug(
        "fenced-producer-begins-next",
        "I16: a repeated commit is answered, its begin_next is not, once the producer was replaced",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:_with_next",
                "producer = require_producer(state, command.producer)",
                "producer = state.producers[command.producer.producer_id]",
            ),
        ),
        {
            story(
                "coordinator/abort_repeated_after_the_fence"
            ): "+commit T4 p1 -> COMMITTED next: T7 OPEN"
        },
    ),
    Bug(
        "commit-answered-by-its-next",
        "I1, I4: what refuses the next transaction replaces the answer of a commit that is a fact",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:_with_next",
                "        return Decision(records, answer._replace(next_refusal=refusal))",
                "        raise",
            ),
        ),
        {
            story(
                "coordinator/i04_commit_is_a_fact_whatever_becomes_of_the_next"
            ): "+commit T2 p -> PRODUCER_FENCED"
        },
    ),
    Bug(
        "held-generation-not-compared",
        "I16: the instance that was replaced registers again and fences the one that replaced it",
        (
            Edit(
                "oncelog_server.coordinator.decide_producer:decide_init",
                " or 0 < command.held < producer.generation",
                "",
            ),
        ),
        {story("coordinator/init_held_generation"): "-init p c -> PRODUCER_FENCED generation=1.2"},
    ),
    Bug(
        "journal-takes-part",
        "a marker for the transaction journal can never be delivered, and is repeated for ever",
        (
            Edit(
                "oncelog_server.coordinator.wire:_parts",
                "if any(part.topic_id == TRANSACTION_CONTROL_ID for part in parts):",
                "if False:",
            ),
        ),
        {
            unit(
                "coordinator/test_parts", "test_the_transaction_journal_takes_part_in_nothing"
            ): "DID NOT RAISE"
        },
    ),
    Bug(
        "participants-of-open-transactions-uncounted",
        "every limit holds: what Begins name is remembered until their transactions end",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.participants",
                "self.deliveries.waiting_markers + self.named_parts + self.asked_parts",
                "self.deliveries.waiting_markers",
            ),
        ),
        {
            unit(
                "coordinator/test_parts", "test_participants_of_open_transactions_are_counted"
            ): "BeginAnswer"
        },
    ),
    Bug(
        "used-request-number-takes-any-content",
        "I1, I5: a second content under a used request number is dropped without a word",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:decide_transact",
                "        _require_same(known, command)\n",
                "",
            ),
        ),
        {
            story(
                "coordinator/i01_one_request_number_one_content"
            ): "-transact p 1 -> DUPLICATE_SEQUENCE expected=2"
        },
    ),
    Bug(
        "claimed-checksum-trusted",
        "I1: the content that really came decides, not the checksum that it claims to have",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_digest",
                "[replace(b, crc32c=crc32c(b.payload)) for b in command.batches]",
                "command.batches",
            ),
        ),
        {
            unit(
                "coordinator/test_known_requests",
                "test_i1_a_used_request_number_with_another_content_is_refused",
            ): "Failed: DID NOT RAISE"
        },
    ),
    Bug(
        "known-one-shot-judged-again",
        "I4: a committed one-shot whose topic was deleted since is told UNKNOWN_TOPIC",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:decide_transact",
                "    known = _known(",
                "    if command.unfit is not None:\n"
                "        raise command.unfit\n"
                "    known = _known(",
            ),
        ),
        {
            unit(
                "coordinator/test_known_requests", "test_i4_a_known_one_shot_gets_its_old_answer"
            ): "UNKNOWN_TOPIC"
        },
    ),
    Bug(
        "forgotten-one-shot-was-never-there",
        "I4: what may have been accepted, and is forgotten, is neither refused nor denied",
        (
            Edit(
                "oncelog_server.coordinator.producers:Producer._keep_former",
                "        if dropped:\n",
                "        if False:\n",
            ),
        ),
        {
            unit(
                "coordinator/test_lost_one_shots",
                "test_i4_what_is_forgotten_is_told_as_forgotten",
            ): "UNKNOWN_TRANSACTION"
        },
    ),
    Bug(
        "standing-batch-refused",
        "I6: a batch that stands is acknowledged again; a refusal would promise that nothing "
        "happened",
        (
            Edit(
                "oncelog_server.partition_leader.admission:produce",
                "tuple(_repeat(partition, b) or refusal for b in command.batches)",
                "(refusal,) * len(command.batches)",
            ),
        ),
        {
            unit(
                "partition_leader/test_produce",
                "test_i6_a_batch_that_stands_is_acknowledged_again_whatever_has_happened_since",
            ): "assert [0] == [3]",
        },
    ),
    Bug(
        "commit-seq-passed-over",
        "I21: #5 is aborted, #6 behind it committed, and a retry of #5 is taken for committed",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_require_no_rival",
                "if state.transactions[tx_id].commit_seq is not None:",
                "if state.transactions[tx_id].commit_seq == command.commit_seq:",
            ),
        ),
        {
            story(
                "coordinator/i21_a_commit_seq_is_not_passed_over"
            ): "+transact p 3 -> ALREADY_COMMITTED"
        },
    ),
)
