"""Bugs of one-shot transactions: their order, their offsets, their numbers."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "staged-one-shots-count-nowhere",
        "what is held in memory for callers has a limit, also while the offset manager is away",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.undelivered_bytes",
                "self.deliveries.payload_bytes + self.transactions.staged_bytes",
                "self.deliveries.payload_bytes",
            ),
        ),
        {
            unit(
                "coordinator/test_precedence",
                "test_staged_one_shots_count_in_the_limit_of_bytes",
            ): "== 'THROTTLED'",
        },
    ),
    Bug(
        "offsets-of-a-one-shot-of-any-size",
        "a one-shot is held in memory, so all of it has a limit",
        (
            Edit(
                "oncelog_server.coordinator.fitness:Fitness.of_one_shot",
                "one_shot_bytes(command.batches, command.offsets)",
                "one_shot_bytes(command.batches, None)",
            ),
        ),
        {
            unit(
                "coordinator/test_known_requests", "test_offsets_count_in_what_a_one_shot_may_have"
            ): "DID NOT RAISE OncelogError",
        },
    ),
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
                "oncelog_server.coordinator.machine:CoordinatorMachine.owed_beside_markers",
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
        "what-builds-on-a-refused-one-is-decided-by-itself",
        "a chain is refused from its first refused one on: the next one moves another partition, "
        "and the offset manager takes it",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:decide_answer",
                "if follower.chain_first and _chain_of(follower) == broken:",
                "if False:",
            ),
        ),
        {
            story(
                "coordinator/i03_a_chain_is_refused_from_the_first_on"
            ): "-@8 PREPARE_ABORT T4 CHAIN TRANSACTION_ENDED",
        },
    ),
    Bug(
        "a-new-coordinator-goes-on-with-a-broken-chain",
        "a crash tears the refusal of a chain apart: the next leader puts the rest of it",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine.owed_beside_markers",
                "if head.offsets is None or has_lost_its_chain(self.state, head):",
                "if head.offsets is None:",
            ),
        ),
        {
            story("coordinator/i03_a_chain_is_refused_by_the_next_coordinator"): "-decision of T3",
        },
    ),
    Bug(
        "accepted-behind-a-refused-one-of-its-chain",
        "what comes when its chain is refused already is not taken for the first of another one",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_require_chain",
                "or producer.broken_chain == chain:",
                ":",
            ),
        ),
        {
            story(
                "coordinator/i03_a_chain_is_refused_from_the_first_on"
            ): "-transact p 5 -> TRANSACTION_ENDED cause=CHAIN",
        },
    ),
    Bug(
        "a-late-copy-joins-another-chain",
        "a copy of #3 comes when #2 is another content, of another chain",
        (
            Edit(
                "oncelog_server.coordinator.decide_one_shot:_require_chain",
                "if producer.chain != chain or",
                "if",
            ),
        ),
        {
            story(
                "coordinator/i03_a_chain_never_takes_the_place_of_another"
            ): "-transact p 3 -> TRANSACTION_ENDED cause=CHAIN",
        },
    ),
    Bug(
        "chains-on-the-last-one-of-any-partition",
        "#3 names #2, which moved another partition, and waits for the marker of #1",
        (
            Edit(
                "oncelog_server.coordinator.one_shots:FirstStaged.chains_on",
                "partition: chain[partition]",
                "partition: max(chain.values())",
            ),
        ),
        {
            story(
                "coordinator/one_shot_chain_by_partition"
            ): "-offsets of T4 to offsets/6 after T2",
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
