"""Bugs of what protects leaders of topics and offset managers alike: fences, order of markers."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story

BUGS: Final = (
    Bug(
        "older-coordinator-obeyed",
        "§6, I19: markers of an older coordinator epoch are refused",
        (
            Edit(
                "services.participant.marker_order:MarkerOrder.refusal",
                "if seen is None or coordinator_epoch >= seen.coordinator_epoch:",
                "if True:",
            ),
        ),
        {
            story(
                "partition_leader/marker_of_an_older_coordinator_is_refused"
            ): "-markers commit@9/t6/p2/0*1 epoch=1 -> NOT_LEADER epoch=2 journal_",
            story(
                "offset_manager/marker_of_an_older_coordinator"
            ): "-markers 3 1 3.5:7:c:100:1 -> NOT_LEADER epoch=2 journal_partition",
        },
    ),
    Bug(
        "batch-accepted-after-its-marker",
        "I20: nothing of a TxId is accepted after its marker",
        (
            Edit(
                "services.participant.fences:Fences.refusal",
                "if tx_id <= seen.ended.get(journal_partition_of(tx_id), 0):",
                "if False:",
            ),
        ),
        {
            story(
                "partition_leader/i20_batch_after_the_marker_is_refused"
            ): "-send t8 p1 1+1 -> TRANSACTION_ENDED tx_id=8",
            story(
                "offset_manager/i20_offsets_after_the_marker"
            ): "-pend 3.5 100 1 g orders/0:10>20 -> TRANSACTION_ENDED tx_id=3.5",
            story(
                "offset_manager/i20_survives_failover"
            ): "-pend 3.5 100 1 g orders/0:none>10 -> TRANSACTION_ENDED tx_id=3.5",
        },
    ),
    Bug(
        "replaced-generation-still-writes",
        "I16: batches of a generation below the highest seen are PRODUCER_FENCED",
        (
            Edit(
                "services.participant.fences:Fences.refusal",
                "if generation < seen.generation:",
                "if False:",
            ),
        ),
        {
            story(
                "partition_leader/i16_a_replaced_generation_is_fenced"
            ): "-send t5 p1.1 1+1 -> PRODUCER_FENCED generation=1.2",
            story(
                "offset_manager/i16_lower_generation_is_fenced"
            ): "-pend 3.9 100 1 g orders/1:none>10 -> PRODUCER_FENCED generation=0",
        },
    ),
)
