"""Bugs of the coordinator: fences, request ids, commit_seq, manifests, markers, timers."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    # ------------------------------------------------------------------------ who may, and what for
    Bug(
        "generation-compared-with-less-than",
        "I16, I17: only the generation that was granted is the producer's; a later one is as "
        "foreign "
        "as an earlier one",
        (
            Edit(
                "oncelog_server.coordinator.identify:require_producer",
                "if producer is None or identity.generation > producer.generation:",
                "if producer is None:",
            ),
        ),
        {
            story(
                "coordinator/begin_of_a_stranger"
            ): "-begin p 1 -> UNKNOWN_PRODUCER producer_id=1",
        },
    ),
    Bug(
        "replaced-generation-goes-on",
        "I16: after InitProducer no begin, commit or one-shot of an older generation succeeds",
        (
            Edit(
                "oncelog_server.coordinator.identify:require_producer",
                "if identity.generation < producer.generation:",
                "if False:",
            ),
        ),
        {
            story("coordinator/fencing"): "-commit T2 p -> PRODUCER_FENCED generation=1.2",
        },
    ),
    Bug(
        "open-work-not-decided-first",
        "I16: the open transaction of an older generation is decided before the new one is granted",
        (
            Edit(
                "oncelog_server.coordinator.decide_producer:_take_over",
                "if producer.open_tx:",
                "if False:",
            ),
        ),
        {
            story("coordinator/fencing"): "open work of older generations is decided first (I16)",
        },
    ),
    Bug(
        "generation-not-rooted-in-etcd",
        "I17: the high half of a generation is the epoch that etcd granted, so a lost tail "
        "repeats none",
        (
            Edit(
                "oncelog_server.coordinator.decide_producer:next_generation",
                "compose_generation(epoch, counter + 1 if last_epoch == epoch else 1)",
                "compose_generation(last_epoch, counter + 1)",
            ),
        ),
        {
            story("coordinator/generations_grow"): "-@4 INIT p 2.1",
        },
    ),
    Bug(
        "replaced-instances-forgotten",
        "without it a late duplicate of an old InitProducer fences the living instance",
        (
            Edit(
                "oncelog_server.coordinator.decide_producer:decide_init",
                "producer.was_replaced(command.instance_id) or ",
                "",
            ),
        ),
        {
            story("coordinator/init_replaced_instances"): "-init p a -> PRODUCER_FENCED",
        },
    ),
    Bug(
        "request-id-ignored",
        "an ended request id returns its TxId and outcome; else task 1 gets a second "
        "TxId in the middle of a batch",
        (
            Edit(
                "oncelog_server.coordinator.decide_begin:begin",
                "if known is not None:",
                "if False:",
            ),
        ),
        {
            story("coordinator/begin_repeated"): "request ids grow",
        },
    ),
    Bug(
        "request-ids-outlive-their-generation",
        "request ids belong to a generation; else run B's Begin(7) gets run A's transaction",
        (
            Edit(
                "oncelog_server.coordinator.producers:Producer.take_over",
                "self.begins = []",
                "pass",
            ),
        ),
        {
            story("coordinator/begin_request_ids_of_a_generation"): "-@5 BEGIN T5 timeout=60000",
        },
    ),
    Bug(
        "commit-seq-not-stored",
        "I34: after a failover batch 1 is committed again",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine._committed",
                "if transaction.commit_seq is not None:",
                "if False:",
            ),
        ),
        {
            story("coordinator/commit_seq"): "-init p b -> P1 1.2 last=T2 seq=q:5",
        },
    ),
    Bug(
        "commit-seq-not-in-the-snapshot",
        "I35: `commit_seq`, request ids, generations are in the snapshot",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.encode",
                "sorted(self.producers, key=lambda p: p.producer_id)",
                "[msgspec.structs.replace(p, last_commit=None)"
                " for p in sorted(self.producers, key=lambda p: p.producer_id)]",
            ),
        ),
        {
            story(
                "coordinator/commit_seq_survives_failover"
            ): "-init p b -> P1 2.1 last=T2 visible seq=q:1",
        },
    ),
    Bug(
        "same-commit-seq-other-manifest",
        "same generation, same commit_seq, another manifest is DUPLICATE_COMMIT_SEQ",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:_is_committed_before",
                "if same and last.manifest_digest not in",
                "if False and last.manifest_digest not in",
            ),
        ),
        {
            story(
                "coordinator/commit_seq_duplicate"
            ): "-commit T4 p -> DUPLICATE_COMMIT_SEQ tx_id=4",
        },
    ),
    # --------------------------------------------------------------------------------- the manifest
    Bug(
        "announced-offsets-not-required",
        "offset partitions are in the manifest, else offsets are dropped and data committed",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:_require_announced",
                "if missing:",
                "if False:",
            ),
        ),
        {
            story(
                "coordinator/commit_offsets_announced"
            ): "-commit T2 p -> MANIFEST_MISMATCH offsets_partitions=3",
            story(
                "coordinator/commit_offsets_announced_by_question"
            ): "-commit T2 p -> MANIFEST_MISMATCH offsets_partitions=3",
        },
    ),
    Bug(
        "manifest-names-a-part-twice",
        "a manifest names each (partition, writer) once, else records come twice",
        (
            Edit(
                "oncelog_server.coordinator.wire:manifest",
                "if not manifest.names_each_once:",
                "if False:",
            ),
        ),
        {
            unit(
                "coordinator/test_service", "test_a_manifest_names_each_part_once"
            ): "assert 'NOT_LEADER' == 'MANIFEST_MISMATCH'",
        },
    ),
    Bug(
        "commit-after-abort",
        "I4: a transaction has one outcome",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:decide_commit",
                "if transaction.state is State.PREPARE_ABORT:",
                "if False:",
            ),
        ),
        {
            unit(
                "coordinator/test_precedence", "test_commit_in_order"
            ): "assert 'INVALID_ARGUMENT' == 'TRANSACTION_ENDED'",
        },
    ),
    # ------------------------------------------------------------------------- markers on their way
    Bug(
        "two-write-markers-in-flight",
        'I10, I11: T1 @2 and T2 @5 on their way, 5 first: 2 "is a repeat"',
        (
            Edit(
                "oncelog_server.coordinator.deliveries:Deliveries.sent",
                "self._ready.pop(participant, None)",
                "pass",
            ),
            Edit(
                "oncelog_server.coordinator.deliveries:Deliveries.sent",
                'assert participant not in self._under_way, "one unacknowledged group per '
                'participant"',
                "pass",
            ),
            Edit(
                "oncelog_server.coordinator.deliveries:Deliveries.check",
                "assert (participant in self._ready) != (participant in self._under_way)",
                "pass",
            ),
        ),
        {
            story("coordinator/markers_one_group_at_a_time"): "-markers to a/1: COMMITTED(T6@7 1)",
            unit(
                "coordinator/test_outbox",
                "test_i11_one_group_per_participant_and_the_next_carries_all_that_is_due",
            ): "one group at a time",
        },
    ),
    Bug(
        "marker-before-its-prepare-is-durable",
        "durable before any marker, else exposure of what is aborted later",
        (
            Edit(
                "oncelog_server.coordinator.deliveries:Deliveries._group",
                "if entry.prepare_offset >= below or",
                "if",
            ),
        ),
        {
            story("coordinator/markers_below_the_high_watermark"): "-nothing",
            unit(
                "coordinator/test_deliveries", "test_owed_is_below_the_high_watermark_only"
            ): "assert not {",
        },
    ),
    Bug(
        "refused-markers-taken-for-applied",
        '100 refused, 120 applied, the retry of 100 "is a repeat": never exposed',
        (
            Edit(
                "oncelog_server.coordinator.outbox:CoordinatorOutbox._answered",
                "MarkersAnswered(group.participant, answer.results)",
                "MarkersAnswered(group.participant,"
                " [MarkerResult(m.tx_id, MarkerStatus.APPLIED) for m in group.markers])",
            ),
        ),
        {
            unit(
                "coordinator/test_outbox", "test_the_rest_behind_a_refusal_is_sent_again_in_order"
            ): "it did not happen",
        },
    ),
    Bug(
        "what-was-decided-is-not-owed-after-a-failover",
        "a new leader asks the same question: owed work comes from state alone",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.decode",
                "self.deliveries.add(transaction)",
                "pass",
            ),
        ),
        {
            story("coordinator/markers_after_failover"): "markers are owed",
        },
    ),
    # ----------------------------------------------------------------------- questions and outcomes
    Bug(
        "loading-coordinator-answers",
        "a new leader owes, answers and serves nothing until the HW covers its EPOCH_START",
        (
            Edit(
                "oncelog_server.coordinator.ended_transactions:state_of",
                "if machine is None or replica.high_watermark <= machine.state.epoch_start:",
                "if machine is None:",
            ),
        ),
        {
            unit(
                "coordinator/test_service", "test_i04_nothing_is_told_before_epoch_start_is_durable"
            ): "DID NOT RAISE OncelogError",
        },
    ),
    Bug(
        "outcome-forgotten-early",
        "I4: the same question gets the same answer, or EXPIRED once its time is over",
        (
            Edit(
                "oncelog_server.coordinator.outcome_ages:OutcomeAges.saw",
                "aged_ms - retention_ms:",
                "aged_ms - retention_ms // 2:",
            ),
        ),
        {
            story(
                "coordinator/i04_outcome_age_while_the_clock_is_back"
            ): "-COMMITTED begin +0 end +0 prepare @82",
            unit(
                "coordinator/test_outcome_ages",
                "test_i4_an_outcome_is_told_for_as_long_as_is_said",
            ): "told too short",
        },
    ),
    Bug(
        "damaged-part-told-to-abort",
        "a damaged part stays until an operator resolves it; its question is not answered "
        "with abort",
        (
            Edit(
                "oncelog_server.coordinator.questions:verdict",
                "if partition in state.damaged.get(tx_id, ()):",
                "if False:",
            ),
        ),
        {
            story("coordinator/damaged"): "-ask T2 a/0 -> COMMITTED_WITH_YOU",
        },
    ),
    # --------------------------------------------------------------------------------------- timers
    Bug(
        "outcome-read-of-a-leadership-that-is-over",
        "I31: a call ends with a known error when its leadership ends between two turns",
        (
            Edit(
                "oncelog_server.coordinator.ended_transactions:EndedTransactions.outcome",
                "ages = state_of(self._replica)",
                "ages = self._replica.machine.state",
            ),
        ),
        {
            unit(
                "coordinator/test_service",
                "test_a_leadership_that_ends_before_an_outcome_is_looked_up_says_so",
            ): "has no attribute 'state'"
        },
    ),
    Bug(
        "decide-stops-a-timer",
        "decide changes nothing at all: what it decided may never become durable",
        (
            Edit(
                "oncelog_server.coordinator.decide_time:decide_tick",
                "causes[tx_id] = AbortCause.TIMEOUT",
                "causes[tx_id] = AbortCause.TIMEOUT\n"
                "    for tx_id in causes:\n"
                "        state.idle.cancel(tx_id)",
            ),
        ),
        {story("coordinator/idle_timeout"): "decide of Tick changes nothing"},
    ),
    Bug(
        "decide-turns-timers",
        "decide changes nothing at all, time that passed is a signal",
        (
            Edit(
                "oncelog_server.coordinator.decide_time:decide_tick",
                "causes: dict[TxId, AbortCause] = {}",
                "causes: dict[TxId, AbortCause] = {}\n    state.turn_timers(now.monotonic_ms)",
            ),
        ),
        {story("coordinator/lifetime"): "decide of Tick changes nothing"},
    ),
    Bug(
        "refusal-beside-the-decision",
        "no exception stands beside Decision: its caller would not wait for the HW",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine.decide",
                "return refuse(error)",
                "raise",
            ),
        ),
        {story("coordinator/commit_not_yours"): "gives a Decision, and raises"},
    ),
    Bug(
        "timer-not-restarted",
        "I30: a new leader restarts each open transaction's timer",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.forget_volatile",
                "t.tx_id: None for t in self.transactions if t.state is State.ONGOING",
                "",
            ),
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState._check_transaction",
                "assert timed,",
                "assert True,",
            ),
        ),
        {
            story("coordinator/timers_start_again"): "-@4 PREPARE_ABORT T2 TIMEOUT",
        },
    ),
    Bug(
        "no-lifetime",
        "I30: a hard transaction_lifetime_max under the idle time",
        (
            Edit(
                "oncelog_server.coordinator.decide_time:decide_tick",
                "for timers in (state.idle, state.lifetime):",
                "for timers in (state.idle,):",
            ),
        ),
        {
            story("coordinator/lifetime"): "PREPARE_ABORT T2 TIMEOUT parts=a/0",
        },
    ),
    Bug(
        "data-is-no-sign-of-life",
        "the timeout is idle time: data seen by a leader counts as life",
        (
            Edit(
                "oncelog_server.coordinator.state:CoordinatorState.partition_asked",
                "if signal.bytes_received and signal.tx_id in self.idle:",
                "if False:",
            ),
        ),
        {
            story("coordinator/idle_timeout_signs_of_life"): "-ask T2 a/0 -> ONGOING",
        },
    ),
    Bug(
        "staged-one-shot-times-out",
        "only the offset manager's answer ends a staged one-shot",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:decide_abort",
                "if transaction.state is State.STAGED:",
                "if False:",
            ),
        ),
        {
            story(
                "coordinator/staged_is_ended_by_the_offset_manager_only"
            ): "-abort T2 p -> CONCURRENT_TRANSACTION tx_id=2",
        },
    ),
    Bug(
        "late-end-of-an-old-stream-ends-the-session",
        "the producer came back on another stream; the end of the first one is heard late",
        (
            Edit(
                "oncelog_server.coordinator.sessions:Sessions.ended",
                "if self._held.get(session.producer.producer_id) == SessionOpened(*session):",
                "if session.producer.producer_id in self._held:",
            ),
        ),
        {
            story("coordinator/session_comes_back"): "-ONGOING",
        },
    ),
    # ------------------------------------------------------------------------------------ promises
    Bug(
        "visible-before-it-is",
        "I12: real-time order across groups is promised to whoever commits with wait=VISIBLE",
        (
            Edit(
                "oncelog_server.coordinator.service:CoordinatorService.commit_transaction",
                "exposed = await self._visible(replica, command.tx_id, call)",
                "exposed = ()",
            ),
        ),
        {
            unit("coordinator/test_service", "test_i12_wait_visible_says_where_it_can_be_read"): (
                "assert"
            ),
        },
    ),
    Bug(
        "refused-markers-not-sent-again",
        "I29: markers are retried for ever, across leadership changes",
        (
            Edit(
                "oncelog_server.coordinator.outbox:CoordinatorOutbox._refused",
                "self._spawn("
                "self._again(group.participant, disk_full=isinstance(error, DiskFull)))",
                "pass",
            ),
        ),
        {
            unit("coordinator/test_outbox", "test_a_call_that_fails_is_repeated"): "assert",
        },
    ),
    Bug(
        "repeated-abort-fenced",
        "I4: the same question gets the same answer, whatever happened to its producer",
        (
            Edit(
                "oncelog_server.coordinator.decide_end:decide_abort",
                "    if transaction.state is State.PREPARE_ABORT:",
                "    if command.producer is not None:\n"
                "        require_producer(state, command.producer)\n"
                "    if transaction.state is State.PREPARE_ABORT:",
            ),
        ),
        {story("coordinator/abort_repeated_after_the_fence"): "+abort T2 p1 -> PRODUCER_FENCED"},
    ),
    Bug(
        "latest-replaced-instances-forgotten",
        "an instance id that was replaced is PRODUCER_FENCED: the latest 1,000 are remembered",
        (
            Edit(
                "oncelog_server.coordinator.producers:Producer.take_over",
                "young[-keep_max:]",
                "young[:keep_max]",
            ),
        ),
        {
            unit(
                "coordinator/test_precedence",
                "test_of_replaced_instances_the_latest_are_remembered",
            ): "assert 'ProducerGranted' == 'PRODUCER_FENCED'"
        },
    ),
)
