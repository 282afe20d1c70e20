"""The last committed value of each key: what a table shows of what it was given."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog._core.latest import ENTRY_BYTES, Keys, Latest, Values
from oncelogpb import errors

ROOM = 1 << 30


class Written(NamedTuple):
    """Records of one batch."""

    rows: tuple[tuple[bytes | None, bytes | None], ...]

    def keys_and_values(self) -> tuple[Keys, Values]:
        return [key for key, _ in self.rows], [value for _, value in self.rows]


class Table:
    """A Latest, and where each partition stands."""

    def __init__(self, *, partitions: int = 1, room: int = ROOM) -> None:
        self.latest = Latest(room)
        self.latest.remembers_removed = partitions > 1
        self.at = dict.fromkeys(range(partitions), 0)

    def add(
        self,
        *rows: tuple[bytes | None, bytes | None],
        tx: int = 0,
        partition: int = 0,
        time_ms: int = 1,
        is_last: bool = False,
    ) -> Table:
        first = self.at[partition]
        self.at[partition] += len(rows)
        self.latest.add(
            partition,
            Written(rows),
            tx_id=tx,
            time_ms=time_ms,
            first_offset=first,
            is_last=is_last,
        )
        return self

    @property
    def shown(self) -> dict[bytes, bytes]:
        return {key: value for key, (value, _) in self.latest.entries.items()}


def test_i33_the_last_value_counts_and_a_record_without_one_removes_its_key() -> None:
    table = Table().add((b"a", b"1"), (b"b", b"2")).add((b"a", b"3"), (b"c", b""))
    assert table.shown == {b"a": b"3", b"b": b"2", b"c": b""}
    table.add((b"a", None), (b"nobody", None), (b"c", b"4"))
    assert table.shown == {b"b": b"2", b"c": b"4"}
    assert table.add((b"a", b"5")).shown[b"a"] == b"5"


def test_records_without_a_key_are_counted_and_in_no_table() -> None:
    table = Table().add((None, b"1"), (b"a", b"2"), (None, None))
    # Those of a transaction, too, each, once it is whole.
    table.add((None, b"3"), (None, b"4"), tx=1).add((None, b"5"), tx=1)
    assert (table.shown, table.latest.without_key) == ({b"a": b"2"}, 2)
    table.add((b"b", b"6"), tx=1, is_last=True)
    assert (table.shown, table.latest.without_key) == ({b"a": b"2", b"b": b"6"}, 5)


def test_i3_a_table_shows_a_transactions_part_whole() -> None:
    table = Table().add((b"a", b"0"))
    table.add((b"a", b"1"), (b"b", b"1"), tx=7)
    assert table.shown == {b"a": b"0"}
    assert table.latest.shown_up_to(0, 3) == 1
    table.add((b"a", None), (b"c", b"1"), tx=7)
    table.add((b"d", b"1"), tx=7)
    assert table.shown == {b"a": b"0"}
    # The next one's first batch says that it is whole.
    table.add((b"d", b"2"), tx=8)
    assert table.shown == {b"b": b"1", b"c": b"1", b"d": b"1"}
    assert table.latest.shown_up_to(0, 7) == 6
    table.add((b"d", b"3"), tx=8, is_last=True)
    assert table.shown[b"d"] == b"3"
    assert table.latest.shown_up_to(0, 8) == 8
    # Another partition's does not end it.
    table = Table(partitions=2).add((b"a", b"1"), tx=7).add((b"b", b"1"), partition=1)
    assert table.shown == {b"b": b"1"}
    table.add((b"e", b"1"))
    assert table.shown == {b"a": b"1", b"b": b"1", b"e": b"1"}


@pytest.mark.parametrize("is_first", [0, 1])
def test_of_a_key_in_several_partitions_the_value_that_became_readable_last_counts(
    is_first: int,
) -> None:
    """In whatever order they are read: partition 1 has the later half of each key."""
    rows = (
        ((b"moved", b"old"), (b"removed", b"old")),
        ((b"moved", b"new"), (b"removed", None)),
    )
    table = Table(partitions=2)
    for partition in (is_first, 1 - is_first):
        table.add(*rows[partition], partition=partition, time_ms=10 + partition)
    assert table.shown == {b"moved": b"new"}
    # What is written again later stands again, wherever that is.
    table.add((b"moved", b"newer"), (b"removed", b"again"), time_ms=20)
    assert table.shown == {b"moved": b"newer", b"removed": b"again"}
    table.add((b"removed", None), partition=1, time_ms=30)
    assert table.shown == {b"moved": b"newer"}


def test_removed_keys_are_forgotten_when_all_that_could_be_older_was_read() -> None:
    table = Table(partitions=2).add((b"a", None), partition=1, time_ms=10)
    table.latest.mark_removed()
    table.add((b"b", None), partition=1, time_ms=11)
    assert table.latest.removed_count == 2
    table.latest.forget_removed()
    assert table.latest.removed_count == 1
    table.add((b"b", b"old"), time_ms=9)
    assert table.shown == {}
    table.latest.mark_removed()
    table.latest.forget_removed()
    assert (table.latest.removed_count, table.latest.bytes_held) == (0, 0)
    # One partition has nothing to remember.
    assert Table().add((b"a", None)).latest.removed_count == 0


def test_a_partition_whose_records_were_deleted_begins_anew() -> None:
    told: list[bytes | None] = []
    table = Table(partitions=2).add((b"a", b"1"), (b"b", b"1")).add((b"c", b"1"), partition=1)
    table.add((b"gone", None), time_ms=50).add((b"d", b"1"), tx=5)
    table.latest.on_changed = told.extend
    table.latest.drop(0)
    assert (table.shown, sorted(filter(None, told))) == ({b"c": b"1"}, [b"a", b"b"])
    # Nor is what was held, or removed, remembered.
    table.add((b"e", b"1"), tx=6, is_last=True).add((b"gone", b"old"), partition=1, time_ms=40)
    assert table.shown == {b"c": b"1", b"e": b"1", b"gone": b"old"}


def test_what_is_above_its_memory_is_refused_by_name() -> None:
    room = 3 * (ENTRY_BYTES + 10)
    table = Table(room=room)
    for number in range(3):
        table.add((b"key-%d" % number, b"12345"))
    assert table.latest.bytes_held == room
    table.add((b"key-0", b"54321"), (b"key-1", None), (b"key-9", b"1"))
    with pytest.raises(errors.TooLarge, match="memory_bytes_max = 798") as caught:
        table.add((b"key-5", b"12345"), (b"key-6", b""))
    assert caught.value.metadata["limit"] == "memory_bytes_max"
    # What of a transaction is not shown yet counts, too.
    table = Table(room=room).add(*[(b"key-%d" % n, b"1") for n in range(9)], tx=1)
    with pytest.raises(errors.TooLarge):
        table.add((b"key-0", b"1"), tx=1)


RECORDS = st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", None]), st.sampled_from([b"1", None]))
TRANSACTIONS = st.lists(
    st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=3), max_size=8
)


@settings(max_examples=200, deadline=None)
@given(TRANSACTIONS, st.data())
def test_i33_it_shows_what_a_dictionary_would_after_each_transaction(
    transactions: list[list[list[tuple[bytes | None, bytes | None]]]], data: st.DataObject
) -> None:
    table = Table()
    expected: dict[bytes, bytes] = {}
    for number, batches in enumerate(transactions):
        tx = data.draw(st.sampled_from([0, number + 1]))
        # The last of what can be read now; of another one, what follows says so.
        is_told = data.draw(st.booleans())
        before = dict(expected)
        for rows in batches:
            for key, value in rows:
                if key is not None and value is not None:
                    expected[key] = value
                elif key is not None:
                    expected.pop(key, None)
        for index, rows in enumerate(batches):
            if tx and index:
                assert table.shown == before
            table.add(*rows, tx=tx, is_last=is_told and index == len(batches) - 1)
        if tx and not is_told:
            assert table.shown == before
            table.latest.add(
                0, Written(()), tx_id=0, time_ms=1, first_offset=table.at[0], is_last=False
            )
        assert table.shown == expected
        size = sum(ENTRY_BYTES + len(key) + len(value) for key, value in expected.items())
        assert table.latest.bytes_held == size
