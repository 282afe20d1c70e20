"""Bugs of the partition leader: markers, idempotence, verdicts."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    # -------------------------------------------------------------------------------------- markers
    Bug(
        "marker-applied-twice",
        "I6: a marker at or below the last PREPARE offset is a repeat, OK and does nothing",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "is_new = marker.prepare_offset > last_committed",
                "is_new = True",
            ),
        ),
        {
            story("partition_leader/repeated_marker_does_nothing"): "decide lets no repeat through",
        },
    ),
    Bug(
        "one-shot-payload-appended-again",
        "one-shot payload and marker are one frame, else a retry appends the payload again",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "is_new = marker.prepare_offset > last_committed",
                "is_new = marker.batch is not None or marker.prepare_offset > last_committed",
            ),
            Edit(
                "oncelog_server.participant.marker_order:MarkerOrder.committed",
                "assert prepare_offset > seen.prepare_offset,",
                "assert prepare_offset >= seen.prepare_offset,",
            ),
        ),
        {
            story("partition_leader/one_shot_is_one_frame"): "decide lets no repeat through",
        },
    ),
    Bug(
        "aborted-marker-moves-the-prepare-offset",
        "T1's COMMITTED @2 is delayed, T2's ABORTED @4 first, then @2 is a repeat: T1 loses a part",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._apply_marker",
                "self.order.saw(journal_partition, marker.coordinator_epoch)",
                "self.order.saw(journal_partition, marker.coordinator_epoch).prepare_offset"
                " = marker.prepare_offset",
            ),
        ),
        {
            story(
                "partition_leader/aborted_marker_does_not_move_the_order"
            ): "-@5 COMMITTED t5 p1.1 prepare=12 epoch=1 0*2",
        },
    ),
    Bug(
        "aborted-marker-obeys-the-prepare-offset",
        "ABORTED markers neither move nor obey that offset",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "is_new = held is not None or (",
                "is_new = marker.prepare_offset > last_committed and held is not None or (\n"
                "                    marker.prepare_offset > last_committed and",
            ),
        ),
        {
            story(
                "partition_leader/aborted_marker_does_not_obey_the_order"
            ): "-@4 ABORTED t5 p1.1 prepare=8 epoch=1",
        },
    ),
    Bug(
        "refused-marker-swallowed-by-the-watermark",
        '100 refused, 120 applied, the retry of 100 "is a repeat": never exposed',
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "        if refusal is not None:\n            break",
                "        if refusal is not None:\n            refusal = None\n            continue",
            ),
        ),
        {
            story("partition_leader/markers_stop_at_the_first_refusal"): "+@5 COMMITTED t7",
        },
    ),
    Bug(
        "payload-marker-skipped-on-a-full-disk",
        "I28: a payload-carrying marker waits on a full disk, and those behind it",
        (
            Edit(
                "oncelog_server.participant.handler:_with_room",
                "        for marker in command.markers:\n"
                "            if marker.batch is not None:\n",
                "        for marker in command.markers:\n"
                "            if marker.batch is not None and marker is command.markers[-1]:\n",
            ),
        ),
        {
            unit(
                "partition_leader/test_markers",
                "test_on_a_full_disk_markers_with_records_wait_and_those_behind_them",
            ): "assert [5, 9, 6] == [5]",
        },
    ),
    Bug(
        "ended-by-the-highest-txid",
        '"ended" for a marker is decided by (TxId, partition), else a COMMITTED marker is '
        "dropped after a later local abort",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "is_new = marker.prepare_offset > last_committed",
                "is_new = marker.prepare_offset > last_committed and marker.tx_id > "
                "fences.highest_ended(marker.producer_id, command.journal_partition)",
            ),
        ),
        {
            story(
                "partition_leader/committed_marker_after_a_later_local_abort"
            ): "-@5 COMMITTED t5 p1.1 prepare=7 epoch=1 0*2",
        },
    ),
    Bug(
        "marker-fenced-by-generation",
        "markers are never fenced by generation, else InitProducer waits for ever",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "        previous = marker.prepare_offset\n",
                "        previous = marker.prepare_offset\n"
                "        refusal = fences.refusal(\n"
                "            tx_id=1 << 63, producer_id=marker.producer_id,\n"
                "            generation=marker.generation)\n"
                "        if refusal is not None:\n"
                "            break\n",
            ),
        ),
        {
            story("partition_leader/markers_are_not_fenced_by_generation"): "-@3 COMMITTED t5",
        },
    ),
    Bug(
        "damage-holds-up-the-order",
        "a mismatch is DAMAGED, and order moves on, else one wrong manifest blocks everybody",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._apply_marker",
                "self.damage.add(marker.tx_id, held, marker.parts)",
                "self.damage.add(marker.tx_id, held, marker.parts)\n            return",
            ),
        ),
        {
            story("partition_leader/damaged_counts_as_applied"): "-@4 EPOCH_START 2",
        },
    ),
    Bug(
        "aborted-records-exposed",
        "I1: no READ_COMMITTED read returns a record of an aborted transaction",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._apply_marker",
                "if marker.control is ControlCode.ABORTED:",
                "if marker.control is ControlCode.ABORTED:\n"
                "            for writer, columns in held.writers.items() if held else ():\n"
                "                self._expose(held, [WriterPart(writer, columns.records)], at)",
            ),
        ),
        {
            story(
                "partition_leader/i01_aborted_records_are_never_read"
            ): "-plain x1 1+1 -> @6 offset 1",
        },
    ),
    # ------------------------------------------------------------------- batches: fences, sequences
    Bug(
        "aborted-marker-without-batches-forgotten",
        "I20: a marker that finds nothing here keeps out the batches that come late",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "is_new = held is not None or (",
                "is_new = held is not None and (",
            ),
        ),
        {
            story(
                "partition_leader/i20_aborted_marker_without_batches_keeps_late_ones_out"
            ): "-@1 ABORTED t5 p1.1 prepare=6 epoch=1",
        },
    ),
    Bug(
        "highest-ended-not-kept-durably",
        "the highest ended TxId is kept durably, in the snapshot too (I20)",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine.snapshot",
                "self.fences,",
                "Fences({\n"
                "                p: type(s)(s.generation, s.last_ms)\n"
                "                for p, s in self.fences.producers.items()\n"
                "            }),",
            ),
        ),
        {
            story(
                "partition_leader/i20_batch_after_the_marker_is_refused"
            ): "-send t8 p1 1+1 -> TRANSACTION_ENDED tx_id=8",
        },
    ),
    Bug(
        "txid-shared-by-producers",
        "a batch whose (producer, generation) differs from the TxId's first one is refused",
        (
            Edit(
                "oncelog_server.partition_leader.pending:OpenTransaction.refusal",
                "if self.is_of(batch.producer_id, batch.generation):",
                "if True:",
            ),
        ),
        {
            story(
                "partition_leader/first_batch_binds_the_txid"
            ): "-send t5 p2.1 0+1 -> PRODUCER_MISMATCH tx_id=5",
        },
    ),
    Bug(
        "repeat-appended",
        "I6: an acknowledged record stands at exactly one position",
        (
            Edit(
                "oncelog_server.partition_leader.sequences:judge",
                "if base == expected:",
                "if base <= expected:",
            ),
        ),
        {
            story(
                "partition_leader/i06_a_repeat_gets_its_original_positions"
            ): "decide lets no gap through",
        },
    ),
    Bug(
        "sequences-run-on-over-transactions",
        'a late batch 0 of aborted T1 arrives; T2\'s batch 0 is "its repeat"',
        (
            Edit(
                "oncelog_server.partition_leader.admission:_expectation",
                "if not batch.tx_id:",
                "if True:",
            ),
            Edit(
                "oncelog_server.partition_leader.admission:_find",
                "if not first.tx_id:",
                "if True:",
            ),
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._apply_pending",
                "if self.pending.append(frame, at):",
                "self.plain.remember(\n"
                "            frame, journal_offset=at.offset, offset=0, aged_ms=self.age.aged_ms)\n"
                "        if self.pending.append(frame, at):",
            ),
        ),
        {
            story(
                "partition_leader/i10_transactions_of_a_producer_keep_their_order"
            ): "-@3 t7 p1.1 0+1",
        },
    ),
    Bug(
        "plain-producer-starts-anywhere",
        "without state only sequence 0, else a retry after expiry is appended twice",
        (
            Edit(
                "oncelog_server.partition_leader.sequences:judge",
                "if base == expected:",
                "if base == expected or (expected == 0 and not batch.tx_id):",
            ),
        ),
        {
            story(
                "partition_leader/plain_producer_without_state_starts_at_zero"
            ): "-plain x1 5+1 -> UNKNOWN_PRODUCER expected=0",
        },
    ),
    Bug(
        "gap-accepted",
        "a gap is OUT_OF_ORDER_SEQUENCE (I9: a transaction's records stand in send order)",
        (
            Edit(
                "oncelog_server.partition_leader.sequences:judge",
                "if base > expected:",
                "if base > expected > 0:\n        return None\n    if base > expected:",
            ),
        ),
        {
            story("partition_leader/plain_sequences_have_no_gaps"): "decide lets no gap through",
        },
    ),
    Bug(
        "disk-full-is-no-obstacle",
        "I28: below the floor new data is refused (DISK_FULL)",
        (
            Edit(
                "oncelog_server.partition_leader.producing:_no_room",
                "return full",
                "return None",
            ),
        ),
        {
            unit(
                "partition_leader/test_produce", "test_i28_a_full_disk_refuses_data_and_says_so"
            ): "== ['DISK_FULL', 'ok']",
        },
    ),
    Bug(
        "batches-of-a-stream-overtake",
        "I9: what is judged in a thread is not overtaken by the next batch of its stream",
        (
            Edit(
                "oncelog_server.partition_leader.lanes:Turn.wait",
                "if self._before is not None and not self._before.done():",
                "if False:",
            ),
        ),
        {
            unit(
                "partition_leader/test_produce",
                "test_batches_of_a_stream_are_submitted_in_the_order_they_came",
            ): "== ['ok', 'ok', 'ok']",
        },
    ),
    Bug(
        "second-marker-of-a-call-applied",
        "what one marker of a call has ended, the next one of it finds ended",
        (Edit("oncelog_server.participant.marker_walk:walk", "ended.add(marker.tx_id)", "pass"),),
        {
            story(
                "partition_leader/markers_of_one_transaction_twice_in_a_call"
            ): "+@4 ABORTED t5 p1.1 prepare=13"
        },
    ),
    Bug(
        "stranger-writes-on-after-the-marker",
        "I20: nothing of a TxId is accepted after its marker, whoever wrote under it",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._end",
                "        self.fences.ended(held.producer_id, held.generation, tx_id, aged_ms)\n",
                "",
            ),
        ),
        {
            story(
                "partition_leader/i20_a_stranger_under_the_txid_is_kept_out_too"
            ): "-send t5 p2 1+1 -> TRANSACTION_ENDED"
        },
    ),
    Bug(
        "one-shot-leaves-what-a-stranger-wrote",
        "I20: a one-shot's frame is its marker, too: nothing of its TxId stays open",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._apply_one_shot",
                "self._end(frame.tx_id, frame.producer_id, frame.generation)",
                "self.fences.ended(\n"
                "            frame.producer_id, frame.generation, frame.tx_id, self.age.aged_ms\n"
                "        )",
            ),
        ),
        {
            story(
                "partition_leader/i20_a_stranger_under_the_txid_is_kept_out_too"
            ): "is open after its marker (I20)"
        },
    ),
    Bug(
        "one-shot-shows-no-coordinator-epoch",
        "I19: every marker shows its coordinator's epoch, and an older one is refused after it",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._apply_one_shot",
                "LeaderEpoch(frame.writer),",
                "LeaderEpoch(0),",
            ),
        ),
        {
            story(
                "partition_leader/one_shot_of_an_older_coordinator"
            ): "-markers commit@20/t16/p1/0*0 epoch=2 -> NOT_LEADER"
        },
    ),
    Bug(
        "limit-counts-one-request-only",
        "batches_per_part_max counts what stands already",
        (
            Edit(
                "oncelog_server.partition_leader.admission:_expectation",
                "limit - len(columns)",
                "limit",
            ),
        ),
        {story("partition_leader/room_counts_what_stands"): "+@5 t5 p1.1 4+1"},
    ),
    Bug(
        "one-writer-too-many",
        "limits are exact: writers_per_transaction_max",
        (
            Edit(
                "oncelog_server.partition_leader.admission:_producer_refusal",
                "len(transaction.writers) >= limit",
                "len(transaction.writers) > limit",
            ),
        ),
        {
            story(
                "partition_leader/room_counts_what_stands"
            ): "-send t5 p1 0+1 w=9 -> LIMIT_EXCEEDED"
        },
    ),
    Bug(
        "living-plain-producer-forgotten",
        "plain state expires 7 days after the last frame, not after the first",
        (
            Edit(
                "oncelog_server.partition_leader.sequences:PlainSequences.remember",
                "producer.last_ms = aged_ms",
                "pass",
            ),
        ),
        {
            story(
                "partition_leader/fences_of_living_plain_producers_are_kept"
            ): "in the order of their last frames"
        },
    ),
    Bug(
        "forgotten-at-seven-days-sharp",
        "plain producer state expires when it is older than 7 days",
        (
            Edit(
                "oncelog_server.partition_leader.sequences:PlainSequences.forget_before",
                "item[1].last_ms < aged_ms",
                "item[1].last_ms <= aged_ms",
            ),
        ),
        {
            story(
                "partition_leader/fences_of_living_plain_producers_are_kept"
            ): "+plain x3 1+1 -> UNKNOWN_PRODUCER"
        },
    ),
    Bug(
        "repeat-found-inside-a-batch",
        "I6: an acknowledged record stands at exactly one position",
        (
            Edit(
                "oncelog_server.partition_leader.pending:WriterColumns.find",
                "if index == len(self.sequence) or self.sequence[index] != base_sequence:",
                "if index == len(self.sequence):",
            ),
        ),
        {
            story(
                "partition_leader/i06_a_batch_cut_otherwise_is_no_repeat"
            ): "-send t5 p1 1+5 -> DUPLICATE_SEQUENCE"
        },
    ),
    Bug(
        "subscribers-are-not-counted",
        "whoever reads nothing costs no more than a limit",
        (
            Edit(
                "oncelog_server.partition_leader.fetching:Fetching.subscribe",
                "min(budget, max(call.room_left(), SUBSCRIBE_BYTES_LEAST))",
                "budget",
            ),
        ),
        {
            unit(
                "partition_leader/test_reads",
                "test_a_subscription_reads_no_more_than_its_caller_has_room_for[0-1]",
            ): "assert 3 == 1",
        },
    ),
)
