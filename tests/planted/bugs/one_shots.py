"""Bugs of one-shot transactions: their order, their offsets, their numbers."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "one-shots-decided-out-of-order",
        "#5 with offsets is STAGED, #6 without is visible first",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_accept",
                "if command.offsets is None and not producer.staged:",
                "if command.offsets is None:",
            ),
        ),
        {
            story("coordinator/one_shot_order"): "-@3 STAGED T3 #2",
        },
    ),
    Bug(
        "torn-decision-owed-nothing",
        "a crash tears the records of one decision apart, and the later one-shot stays staged",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine.owed",
                "owed.append(OweDecision(tx_id))",
                "pass",
            ),
        ),
        {
            story("coordinator/one_shot_order_torn"): "-decision of T3",
        },
    ),
    Bug(
        "one-shot-offsets-only-in-the-marker",
        "one-shot with offsets is STAGED first, else the next member fetches a stale position",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_accept",
                "if command.offsets is None and not producer.staged:",
                "if not producer.staged and command.batches:",
            ),
        ),
        {
            unit(
                "coordinator/test_service", "test_transact_waits_for_the_offset_manager"
            ): "assert 'participant.write_markers' ==",
        },
    ),
    Bug(
        "offsets-put-before-the-earlier-prepare-is-durable",
        "#6 chains on #5's pending position and #5 aborts: input skipped",
        (
            Edit(
                "oncelog_server.coordinator.one_shots:FirstStaged.due",
                "if gate < below",
                "",
            ),
        ),
        {
            story("coordinator/one_shot_order_durable"): "-nothing",
        },
    ),
    Bug(
        "one-shot-chains-on-an-undecided-one",
        "`from` may chain only on a transaction known to be at PREPARE_COMMIT",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine._stage",
                "self.state.transactions.add(transaction)",
                "self.state.transactions.add(transaction)\n"
                "        self.state.first_staged.committed(transaction)",
            ),
        ),
        {
            story(
                "coordinator/one_shot_never_chains_on_an_aborted_one"
            ): "-offsets of T3 to offsets/6",
        },
    ),
    Bug(
        "one-shot-executed-again",
        "request numbers are consecutive and durable, else an old duplicate is executed",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_require_next_number",
                "if request_number < producer.next_request_number:",
                "if False:",
            ),
        ),
        {
            story("coordinator/one_shot_request_numbers"): "request numbers are consecutive",
        },
    ),
    Bug(
        "one-shot-beside-an-open-transaction",
        'its TxId moves "highest ended" past the open one, whose batches are then refused',
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_require_no_rival",
                "if producer.open_tx:",
                "if False:",
            ),
        ),
        {
            story(
                "coordinator/one_shot_beside_open"
            ): "-transact p 1 -> CONCURRENT_TRANSACTION tx_id=2",
        },
    ),
    Bug(
        "begin-beside-a-staged-one-shot",
        "Begin meanwhile is CONCURRENT_TRANSACTION",
        (
            Edit(
                "oncelog_server.coordinator.identify:require_nothing_open",
                "if producer.staged:",
                "if False:",
            ),
        ),
        {
            story("coordinator/one_shot_beside_open"): "no one-shot beside an open transaction",
        },
    ),
    Bug(
        "init-does-not-wait-for-staged",
        "STAGED has no timeout and InitProducer waits for it",
        (
            Edit(
                "oncelog_server.coordinator.decide_producer:_take_over",
                "if producer.staged:",
                "if False:",
            ),
        ),
        {
            story(
                "coordinator/init_waits_for_staged"
            ): "-init p b -> CONCURRENT_TRANSACTION tx_id=2",
        },
    ),
    Bug(
        "one-shot-refused-after-prepare",
        "after PREPARE nobody says no: a full disk refuses before the append (DISK_FULL "
        "after decide)",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_require_room",
                "if deliveries.is_disk_full(batch.partition):",
                "if False:",
            ),
        ),
        {
            story("coordinator/one_shot_disk_full"): "-transact p 2 -> DISK_FULL",
        },
    ),
    Bug(
        "chain-forgotten-by-a-new-coordinator",
        "`from` chains on a transaction known to be at PREPARE_COMMIT, by a new one too",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.decode",
                "self.first_staged.committed(transaction)",
                "pass",
            ),
        ),
        {
            story(
                "coordinator/one_shot_chain_survives_failover"
            ): "-offsets of T5 to offsets/6 after T2"
        },
    ),
)
