"""Bugs of the index of a committed log that is packed in memory."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_PACKED: Final = "oncelog_server.partition_leader.packed"


def _test(name: str) -> str:
    return unit("partition_leader/test_packed", name)


BUGS: Final = (
    Bug(
        "what-went-of-a-page-is-counted-as-if-it-were-there",
        "I35: rows that were let go of in front leave the others where they were",
        (Edit(f"{_PACKED}:Column.__getitem__", "at + self._skipped", "at"),),
        {_test("test_what_is_packed_is_what_was_there"): "assert column[at] == expected[at]"},
    ),
    Bug(
        "a-row-that-may-change-is-packed",
        "I35: only rows that are final are packed",
        (
            Edit(
                "oncelog_server.partition_leader.committed_log:CommittedLog.pack",
                "len(self.base.tail) // PAGE_ROWS - 1",
                "len(self.base.tail) // PAGE_ROWS",
            ),
        ),
        {
            _test("test_i31_rows_of_small_transactions_take_a_third_of_what_they_did"): (
                "what is new stays as it is"
            )
        },
    ),
    Bug(
        "an-index-is-never-packed",
        "I31: what stays in memory for each batch is small",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine.seen",
                "self.committed.pack()",
                "pass",
            ),
        ),
        {_test("test_i31_a_leader_packs_its_index_at_its_ticks"): "nothing was packed"},
    ),
    Bug(
        "an-index-is-loaded-as-it-was-written",
        "I31: a start does not hold more than what stays",
        (
            Edit(
                f"{_PACKED}:Column.load",
                "whole = len(table) // _VALUE_BYTES // columns // PAGE_ROWS * PAGE_ROWS * columns",
                "whole = 0",
            ),
        ),
        {_test("test_a_column_of_a_table_is_loaded_packed"): "assert"},
    ),
)
