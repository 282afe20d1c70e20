"""Bugs against the order of output over a handover: who goes on from a position that a transaction
moved before that one is visible everywhere (ADR 72)."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "mover-forgotten-behind-a-plain-commit",
        "I21: a plain commit behind a transaction hides it from who takes the position over",
        (
            Edit(
                "oncelog_server.offset_manager.group:Group.commit",
                "TxId(0) if before is None else before.mover",
                "TxId(0)",
            ),
        ),
        {
            unit(
                "offset_manager/test_moved_by",
                "test_i21_an_offset_names_who_moved_it_also_behind_plain_commits",
            ): "assert 0 == 7",
        },
    ),
    Bug(
        "visible-though-an-earlier-one-is-not",
        "I21: the last transaction of a producer is visible, an earlier one waits in another "
        "partition",
        (
            Edit(
                "oncelog_server.coordinator.deliveries:Deliveries.first_invisible",
                "if transaction.prepare_offset > upto:",
                "if transaction.prepare_offset != upto:",
            ),
        ),
        {
            unit(
                "coordinator/test_visibility",
                "test_i21_an_earlier_one_of_its_producer_counts_wherever_it_waits",
            ): "assert None == (1, [",
        },
    ),
    Bug(
        "second-producer-waits-for-nobody",
        "I21: one consumer feeds two producers, which have no order",
        (
            Edit(
                "oncelog.aio.feeding:Feeding.follow_others",
                "after.producer_id != producer_id",
                "False",
            ),
        ),
        {
            unit(
                "client/test_visibility",
                "test_i21_a_second_producer_of_one_consumer_waits_for_the_first[one-shot]",
            ): "not enough values to unpack",
            unit(
                "client/test_visibility",
                "test_i21_a_second_producer_of_one_consumer_waits_for_the_first[open]",
            ): "not enough values to unpack",
        },
    ),
)
