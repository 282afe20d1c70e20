"""The rules: one function per promise, whose docstring is the promise in words that a history can
break. A rule yields findings; it never decides which line is wrong, only that they contradict.

    atomicity   I1 to I7     visible or not, whole or not, one outcome, one position
    order       I8 to I15    the committed sequence, and readers of it
    fencing     I16 to I20   generations, leaders, markers
    offsets     I21 to I24   positions of consumer groups
    groups      I23          their members
    deletion    I32          what is deleted of a partition
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from oncelog.checker.report import Finding
from oncelog.checker.rules import atomicity, deletion, fencing, groups, offsets, order
from oncelog.checker.rules.case import Case

Rule: TypeAlias = Callable[[Case], Iterator[Finding]]

RULES: Final[Mapping[int, Rule]] = {
    1: atomicity.i1_nothing_aborted_is_read,
    2: atomicity.i2_nothing_is_read_before_its_commit_is_asked,
    3: atomicity.i3_whole_or_not_at_all,
    4: atomicity.i4_one_outcome_for_ever,
    5: atomicity.i5_acknowledged_is_durable,
    6: atomicity.i6_no_duplicates_no_phantoms,
    7: atomicity.i7_one_record_per_position,
    8: order.i8_commit_order_of_plain_records_and_reads,
    9: order.i9_transactions_are_contiguous_in_send_order,
    10: order.i10_program_order_of_a_producer,
    11: order.i11_one_order_of_a_transaction_group,
    12: order.i12_real_time_order_of_visible_commits,
    13: order.i13_plain_and_transactional_interleave,
    14: order.i14_positions_grow_without_gaps,
    15: order.i15_resumes_where_it_stopped,
    16: fencing.i16_an_older_generation_is_fenced,
    17: fencing.i17_generations_are_unique_and_grow,
    18: fencing.i18_one_leader_per_epoch,
    19: fencing.i19_no_transaction_has_both_markers,
    20: fencing.i20_nothing_after_the_marker,
    21: offsets.i21_consumed_exactly_once,
    22: offsets.i22_no_offset_of_an_open_or_aborted_transaction,
    23: groups.i23_only_owners_commit,
    24: offsets.i24_committed_offsets_survive,
    32: deletion.i32_only_what_may_go_is_deleted,
}

assert set(RULES) == {*range(1, 25), 32}, "every promise that clients can see has a rule"
