"""Bugs of a consumer that gives transactions over several partitions."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

ACROSS: Final = "oncelog._core.across:Across"

BUGS: Final = (
    Bug(
        "across-keeps-all-that-it-gave",
        "I28: what was given behind a front that waits costs nothing, however much it is",
        (
            Edit(
                "oncelog._core.across:_Line.give",
                "if self.given <= GIVEN_KEPT + 2 * (len(self.entries) - self.given):",
                "if self.given:",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i28_what_was_given_behind_a_front_that_waits_costs_nothing",
            ): "<= ",
        },
    ),
    Bug(
        "across-given-before-its-parts-came",
        "I3: a transaction is given when all its parts are there",
        (
            Edit(
                f"{ACROSS}._next",
                "            if first is not None and next(self._missing(first), None) is None:",
                "            if first is not None:",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i3_a_transaction_is_given_when_all_its_parts_are_there",
            ): "assert",
        },
    ),
    Bug(
        "across-in-the-order-of-txids",
        "I11: the transactions of a group are given in the order of their commits",
        (
            Edit(
                f"{ACROSS}._push",
                "(place, next(self._numbers), gathered)",
                "(gathered.tx_id, next(self._numbers), gathered)",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i11_the_transactions_of_a_group_come_in_the_order_of_their_commits",
            ): "assert",
        },
    ),
    Bug(
        "across-passes-what-was-not-told",
        "I11: what lies before in a partition is given before, also where it was not told yet",
        (
            Edit(
                f"{ACROSS}._first",
                "            if before.told is None:\n                return None",
                "            if before.told is None:\n                break",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i11_what_was_not_told_yet_holds_back_what_lies_behind_it",
            ): "in the order of the partition",
        },
    ),
    Bug(
        "across-waits-for-removed-parts",
        "I31: a part that cannot come any more is not waited for",
        (
            Edit(
                f"{ACROSS}._may_come",
                "        return end is None or line.end < end",
                "        return True",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i31_a_part_that_cannot_come_any_more_is_not_waited_for",
            ): "assert",
        },
    ),
    Bug(
        "across-waits-though-later-ones-came",
        "I31: where something later of its group came, a part comes no more",
        (
            Edit(
                f"{ACROSS}._see",
                "            seen[number] = max(seen.get(number, 0), place)",
                "            seen[number] = 0",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i31_a_part_that_cannot_come_any_more_is_not_waited_for",
            ): "assert",
        },
    ),
    Bug(
        "across-tears-what-is-paused",
        "I3: a part in a partition that is paused is waited for",
        (
            Edit(
                f"{ACROSS}._may_come",
                "            return True",
                "            return False",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_a_paused_partition_is_waited_for",
            ): "assert",
        },
    ),
    Bug(
        "across-stops-at-a-part-exposed-late",
        "I31: a part that an operator exposed late stops nobody",
        (
            Edit(
                f"{ACROSS}._first",
                "                self._part_late(first, partition)",
                "                return None",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i11_a_part_that_an_operator_exposed_late_stops_nobody",
            ): "assert",
        },
    ),
    Bug(
        "across-gives-again-what-lay-beyond",
        "I21: what was given beyond a position is not given again",
        (
            Edit(
                f"{ACROSS}.add",
                "        if tx_id and unit.first_offset < line.given_to.get(journal_of(tx_id), 0):",
                "        if False:",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i21_what_was_given_beyond_a_position_is_not_given_again",
            ): "assert",
        },
    ),
    Bug(
        "across-holds-back-what-is-waited-for",
        "I31: where a part is waited for, reading goes on",
        (
            Edit(
                f"{ACROSS}.far_ahead",
                "                ahead.difference_update(missing)",
                "                pass",
            ),
        ),
        {
            unit(
                "client/test_across",
                "test_i28_who_reads_ahead_is_held_back_where_nobody_waits_for_a_part",
            ): "assert",
        },
    ),
    Bug(
        "across-reads-ahead-without-a-bound",
        "I28: who is far ahead of the others is fetched no further",
        (
            Edit(
                "oncelog.aio.across:TransactionsAcross._hold_back",
                "        self._prefetcher.hold_back(self._held_back)",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i28_who_is_ahead_of_a_partition_that_lags_is_fetched_no_further",
            ): "assert",
        },
    ),
    Bug(
        "across-commits-positions-alone",
        "I21: a commit says what was given beyond its positions",
        (
            Edit(
                "oncelog.aio.offsets:Offsets.commits",
                "            offset.metadata = beyond.encode(step.beyond, offset.metadata)",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i14_a_commit_says_what_was_given_beyond_a_position",
            ): "assert",
        },
    ),
    Bug(
        "across-commits-only-what-moved",
        "I21: what was given beyond a position is committed though that does not move",
        (
            Edit(
                "oncelog._core.positions:Positions.progress",
                "if to != base and",
                "if to[0] != base[0] and",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_i21_what_was_given_beyond_a_position_goes_with_its_commit_and_its_rewind",
            ): "assert",
        },
    ),
    Bug(
        "across-rewound-in-part",
        "I21: what was given beyond a position comes again after a rewind",
        (
            Edit(
                "oncelog._core.positions:Positions.rewind",
                "            place.beyond = place.base_beyond",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_i21_what_was_given_beyond_a_position_goes_with_its_commit_and_its_rewind",
            ): "assert",
        },
    ),
    Bug(
        "across-forgotten-by-others",
        "I21: who gives record by record gives nothing twice that was given beyond a position",
        (
            Edit(
                "oncelog._core.positions:Positions.given",
                "        if place.beyond:",
                "        if False:",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_i21_who_gives_record_by_record_does_not_go_on_where_some_were_given_beyond",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-forgotten-when-it-is-too-late",
        "I21: who gives record by record looks at all partitions before it takes anything",
        (
            Edit(
                "oncelog.aio.consumer:Consumer._give",
                "        self._positions.require_plain()",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_read_across_before",
                "test_i21_who_gives_record_by_record_moves_nothing_where_some_were_given_beyond",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-forgotten-by-partition",
        "I21: who gives transactions of each partition looks before it takes one",
        (
            Edit(
                "oncelog.aio.units:Transactions._give",
                "        self._positions.require_plain()",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_read_across_before",
                "test_i21_who_gives_by_partition_moves_nothing_where_some_were_given_beyond",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-forgotten-by-a-sign-of-life",
        "I21: a sign of life leaves what was given beyond a position as it is",
        (
            Edit(
                "oncelog._core.positions:Positions.standing",
                'place.beside or ""',
                '""',
            ),
        ),
        {
            unit(
                "client/test_read_across_before",
                "test_i21_a_sign_of_life_says_what_was_given_beyond",
            ): "assert",
        },
    ),
    Bug(
        "across-rewound-without-a-word",
        "I21: what was given beyond a position comes again also where nothing was read since",
        (
            Edit(
                "oncelog._core.positions:Positions.rewind",
                " or place.beyond != place.base_beyond:",
                ":",
            ),
        ),
        {
            unit(
                "client/test_read_across_before",
                "test_i21_what_was_given_beyond_before_a_pause_comes_again_after_an_abort",
            ): "assert",
        },
    ),
    Bug(
        "across-commits-half-of-what-is-named",
        "I21: offsets that are named do not commit a part of a whole transaction",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.commit",
                "            self.feeding.require_named()",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_read_across_before",
                "test_i21_offsets_that_are_named_and_refused_do_not_go_with_the_commit",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-sends-offsets-that-are-named",
        "I21: offsets that are named do not commit a part of a whole transaction",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.add",
                "            group.feeding.require_named()",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_read_across_before",
                "test_i21_offsets_that_are_named_and_refused_do_not_go_with_the_commit",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-one-coordinator-stops-all",
        "I31: a coordinator that does not answer stops no other group",
        (
            Edit(
                "oncelog.aio.inquiry:Inquiry.go_on",
                "asking[number] < ASKED_MAX:",
                "asking.total() < ASKED_MAX:",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i31_a_group_whose_coordinator_does_not_help_stops_no_other",
            ): "assert",
        },
    ),
    Bug(
        "across-asks-on-after-a-fault",
        "a fault of the client is raised, not repeated for ever",
        (
            Edit(
                "oncelog.aio.inquiry:Inquiry._until_answered",
                "            # A fault of ours.\n            self._troubles[gathered] = error",
                "            del error",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_a_fault_of_this_client_is_raised",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-takes-late-parts-for-removed",
        "I3: where a partition ends is asked after its part can be read",
        (
            Edit(
                "oncelog.aio.inquiry:Inquiry._ask_again",
                "            if partition not in told.unreadable "
                "and partition not in gathered.ends:",
                "            if partition not in gathered.ends:",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i3_where_a_partition_ends_is_asked_after_its_part_can_be_read",
            ): "assert",
        },
    ),
    Bug(
        "across-waits-without-a-word",
        "I31: a part that does not come is named",
        (
            Edit(
                "oncelog.aio.across:TransactionsAcross._require_progress",
                "                raise self._pending(gathered, read[0])",
                "                pass",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i31_a_part_that_does_not_come_is_named",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "across-waits-for-damaged-parts",
        "I31: a damaged part is not waited for",
        (
            Edit(
                "oncelog.aio.inquiry:told_of",
                "        frozenset(participants - damaged),",
                "        frozenset(participants),",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i31_a_damaged_part_is_not_waited_for",
            ): "assert",
        },
    ),
    Bug(
        "across-commits-what-is-named",
        "I21: an offset that is named does not hide what was given beyond it",
        (
            Edit(
                "oncelog._core.positions:Positions.progress_to",
                "            if place.beyond or place.base_beyond:",
                "            if False:",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_i21_an_offset_that_is_named_does_not_hide_what_was_given_beyond",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "small-parts-go-to-disk-all-at-once",
        "a loop does not stand still while very many small parts go to disk, each a file",
        (
            Edit(
                "oncelog._held:HeldBatches.make_room",
                "                SPILLED_AT_ONCE_MAX, self._resident,",
                "                1 << 30, self._resident,",
            ),
        ),
        {
            unit(
                "client/test_held", "test_of_many_small_parts_only_some_go_to_disk_at_once"
            ): "assert",
        },
    ),
    Bug(
        "place-of-a-commit-is-not-told",
        "I11: what is decided is described with its place in the order of commits",
        (
            Edit(
                "oncelog_server.coordinator.describe:over",
                "        prepare_offset=outcome.prepare_offset,",
                "        prepare_offset=0,",
            ),
        ),
        {
            unit(
                "coordinator/test_service",
                "test_i11_what_is_decided_is_described_with_its_place_in_the_order_of_commits",
            ): "assert",
        },
    ),
)
