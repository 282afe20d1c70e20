"""Batches that a leader has merged from several: what a reader of whole transactions, and a table,
makes of them is what it made of the several."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncelog._core.merged import Merged, Run, moments
from oncelog._core.units import Written
from oncelog.aio.consumer import Consumer
from oncelog.aio.table_view import TableView
from oncelog.batch import Record
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2
from tests.unit.client.scripted import ScriptedTransport, place
from tests.unit.client.test_consuming import consuming
from tests.unit.client.test_table_view import following
from tests.unit.client.test_transactions_across import everywhere


class Sent(NamedTuple):
    """One unit."""

    tx_id: int
    record_count: int
    time_ms: int = 5


def test_units_that_differ_in_nothing_but_their_places_are_all_counted() -> None:
    """Batches of one transaction: each other column says once what holds for all of them."""
    one = leader.Units(record_counts=[2], tx_ids=[7], times_ms=[5])
    one.journal_offsets.extend([10, 12, 17])
    assert [(run.start, run.record_count) for run in Merged(one, 6).runs(0, 6)] == [(0, 6)]
    other = leader.Units(record_counts=[2], base_sequences=[0, 2, 4])
    assert [run.record_count for run in Merged(other, 6).runs(1, 4)] == [1, 2, 1]


def head(first: int, rows: list[tuple[bytes | None, bytes | None]], *, is_arrow: bool) -> Any:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    times = list(range(first, first + len(rows)))
    if is_arrow:
        payload = records.encode_arrow(records.make_batch(keys, values, times)).to_pybytes()
    else:
        payload = records.make_rows(keys, values, times).SerializeToString()
    return leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA,
        first_offset=first,
        record_count=len(rows),
        encoding=types_pb2.ENCODING_ARROW_V1 if is_arrow else records.ROWS,
        crc32c=records.checksum(payload),
        payload=payload,
    )


def rows_of(first: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Some keys again and again, some null, some tombstones."""
    return [
        (
            None if offset % 11 == 10 else b"key-%d" % (offset * 7 % 13),
            None if offset % 5 == 4 else b"%d" % offset,
        )
        for offset in range(first, first + count)
    ]


def as_sent(first: int, units: list[Sent], *, is_arrow: bool = False) -> list[Any]:
    batches = []
    for unit in units:
        batch = head(first, rows_of(first, unit.record_count), is_arrow=is_arrow)
        batch.tx_id, batch.time_ms = unit.tx_id, unit.time_ms
        batch.producer.producer_id = batch.producer.generation = 100 + unit.tx_id
        batches.append(batch)
        first += unit.record_count
    return batches


def merged(first: int, units: list[Sent], *, is_arrow: bool = True) -> Any:
    count = sum(unit.record_count for unit in units)
    batch = head(first, rows_of(first, count), is_arrow=is_arrow)
    batch.time_ms = units[-1].time_ms
    batch.units.record_counts.extend(unit.record_count for unit in units)
    batch.units.tx_ids.extend(unit.tx_id for unit in units)
    batch.units.producer_ids.extend(100 + unit.tx_id for unit in units)
    batch.units.generations.extend(100 + unit.tx_id for unit in units)
    batch.units.times_ms.extend(unit.time_ms for unit in units)
    return batch


def reply(batches: list[Any], *, end: int, partition: int = 0) -> leader.FetchReply:
    part = leader.FetchedPartition(partition=place(partition), end_offset=end, batches=batches)
    return leader.FetchReply(partitions=[part])


Given = tuple[int, int, int, int, int, list[Record]]


def given_of(*replies: leader.FetchReply, count: int, **options: Any) -> list[Given]:
    """Whole transactions, until so many records were given."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> list[Given]:
        transactions = consumer.transactions()
        found: list[Given] = []
        left = count
        while left > 0:
            one = await transactions.poll(5.0)
            assert one is not None, "nothing more comes"
            rows = list(one.read())
            assert [row.offset for row in rows] == list(
                range(one.first_offset, one.first_offset + one.record_count)
            )
            left -= one.record_count
            written = one.tx_id, one.producer_id, one.generation, one.committed_ms
            found.append((*written, one.first_offset, rows))
        assert consumer._positions.position(next(iter(consumer._positions.assigned))) == count
        asked = [one for one in transport.requests if isinstance(one, leader.SubscribeRequest)]
        assert all(one.with_units for one in asked)
        return found

    found, _ = consuming(work, list(replies), **options)
    return list(found)


# -------------------------------------------------------------------------------------- the rules


def units_of(*units: Sent) -> Merged:
    batch = merged(0, list(units))
    return Merged(batch.units, batch.record_count)


def test_i9_neighbours_of_one_transaction_are_one_run_and_plain_batches_are_not() -> None:
    found = units_of(Sent(0, 1), Sent(0, 2), Sent(7, 1), Sent(7, 3), Sent(8, 1), Sent(7, 1))
    shown = [(run.written.tx_id, run.start, run.record_count) for run in found.runs(0, 9)]
    assert shown == [(0, 0, 1), (0, 1, 2), (7, 3, 4), (8, 7, 1), (7, 8, 1)]
    # Of a part of the records, the same.
    shown = [(run.written.tx_id, run.start, run.record_count) for run in found.runs(2, 3)]
    assert shown == [(0, 2, 1), (7, 3, 2)]
    assert list(found.runs(9, 0)) == []


def test_a_column_may_hold_for_all_or_be_absent() -> None:
    units = leader.Units(record_counts=[1, 2, 3], tx_ids=[9], times_ms=[4, 5, 6])
    [run] = Merged(units, 6).runs(0, 6)
    assert run == Run(Written(9, 0, 0, 4), 0, 6)
    units = leader.Units(record_counts=[2], tx_ids=[1, 2, 3])
    assert [run.start for run in Merged(units, 6).runs(0, 6)] == [0, 2, 4]
    # Writers say how many there are, too.
    units = leader.Units(record_counts=[2], writers=[1, 2])
    assert len(list(Merged(units, 4).runs(0, 4))) == 2


@pytest.mark.parametrize(
    "units",
    [
        leader.Units(record_counts=[1, 2]),
        leader.Units(),
        leader.Units(record_counts=[1, 1, 1, 1], tx_ids=[1, 2]),
    ],
)
def test_units_that_are_not_the_batch_are_refused(units: leader.Units) -> None:
    with pytest.raises(errors.CorruptBatch):
        Merged(units, 4)


def test_what_lies_between_is_joined_by_moments() -> None:
    sent = [Sent(1, 1, 5), Sent(2, 1, 5), Sent(0, 1, 5), Sent(3, 2, 6), Sent(4, 1, 7)]
    shown = [
        (run.written.tx_id, run.written.time_ms, run.start, run.record_count)
        for run in moments(units_of(*sent).runs(0, 6))
    ]
    assert shown == [(1, 5, 0, 1), (0, 5, 1, 2), (0, 6, 3, 2), (4, 7, 5, 1)]
    for few in ([], sent[:1], sent[:2]):
        count = sum(unit.record_count for unit in few)
        runs = list(units_of(*few).runs(0, count)) if few else []
        assert list(moments(iter(runs))) == runs


# -------------------------------------------------------------------------------- who reads whole


@pytest.mark.parametrize("is_arrow", [False, True])
def test_i3_whole_transactions_of_a_merged_batch_are_those_that_were_sent(is_arrow: bool) -> None:
    # Transaction 9 goes on over three batches, and is larger than rows are cut for.
    first = [Sent(0, 2), Sent(7, 1), Sent(0, 1), Sent(8, 3, 6), Sent(8, 1, 6), Sent(9, 20, 7)]
    second = [Sent(9, 2, 7), Sent(9, 40, 7)]
    third = [Sent(9, 1, 7), Sent(10, 1, 8), Sent(11, 2, 9)]
    batches = [merged(0, first, is_arrow=is_arrow), merged(28, second, is_arrow=is_arrow)]
    found = given_of(
        reply(batches, end=74), reply([merged(70, third, is_arrow=is_arrow)], end=74), count=74
    )
    assert found == given_of(reply(as_sent(0, first + second + third), end=74), count=74)
    shown = [(tx_id, at, len(rows)) for tx_id, _, _, _, at, rows in found]
    assert shown == [
        (0, 0, 2), (7, 2, 1), (0, 3, 1), (8, 4, 4), (9, 8, 63), (10, 71, 1), (11, 72, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_i3_however_a_log_was_merged_the_same_is_given(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    sent: list[Sent] = []
    for tx_id in range(1, 40):
        many = chance.choice([1, 1, 1, 4])
        sent += [Sent(chance.choice([0, tx_id]), chance.randint(1, 30), tx_id)] * many
    end = sum(unit.record_count for unit in sent)
    batches, at, left = [], 0, list(sent)
    while left:
        size = min(len(left), chance.choice([1, 2, 3, 10]))
        units, left = left[:size], left[size:]
        count = sum(unit.record_count for unit in units)
        is_arrow = chance.random() < 0.5
        some = as_sent(at, units) if chance.random() < 0.3 else [merged(at, units)]
        if len(some) == 1 and not is_arrow and some[0].HasField("units"):
            some = [merged(at, units, is_arrow=False)]
        batches += some
        at += count
    expected = given_of(reply(as_sent(0, sent), end=end), count=end)
    # With little memory, too: what is gathered goes to disk.
    options: dict[str, Any] = {"buffer_memory_bytes": 64 * 1024, "buffer_dir": tmp_path}
    assert given_of(reply(batches, end=end), count=end, **options) == expected


def test_i15_who_begins_in_the_middle_is_given_the_rest(tmp_path: Path) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        await consumer.seek("a", 0, 5)
        transactions = consumer.transactions()
        shown = []
        while (one := await transactions.poll(1.0)) is not None:
            assert [row.value for row in one.read()] == [
                value for _, value in rows_of(one.first_offset, one.record_count)
            ]
            shown.append((one.tx_id, one.first_offset, one.record_count))
            if one.tx_id == 8:
                # What follows in the batch is not given any more.
                await consumer.seek("a", 0, 9)
                transport.streams = [[reply([batch], end=10)]]
        assert shown == [(7, 5, 1), (8, 6, 2), (0, 9, 1)]

    batch = merged(0, [Sent(0, 2), Sent(7, 4), Sent(8, 2), Sent(9, 1), Sent(0, 1)])
    consuming(work, [reply([batch], end=10)])


def test_i14_a_transaction_of_which_records_were_compacted_away_keeps_its_offsets() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        shown = []
        while (one := await transactions.poll(1.0)) is not None:
            at = await consumer.position("a", 0)
            shown.append((one.tx_id, one.record_count, at, [row.offset for row in one.read()]))
        assert shown == [(7, 4, 10, [1, 2, 5, 9]), (8, 1, 13, [12])]

    batches = []
    for first, units in (
        (1, [Sent(7, 2)]),
        (5, [Sent(7, 1)]),
        (9, [Sent(7, 1)]),
        (12, [Sent(8, 1)]),
    ):
        batches += as_sent(first, units)
    consuming(work, [reply(batches, end=13)])


def test_i3_across_partitions_a_merged_batch_is_what_was_sent() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        everywhere(transport, 0, 1, end=3)
        transactions = consumer.transactions(across=True)
        shown = []
        for _ in range(3):
            whole = await transactions.poll(5.0)
            assert whole is not None
            shown.append(
                (whole.tx_id, [(p.partition, p.first_offset, p.record_count) for p in whole.parts])
            )
            assert len(whole.read()) == whole.record_count
        assert shown == [
            (1, [(0, 0, 1), (1, 0, 1)]),
            (2, [(0, 1, 1), (1, 1, 1)]),
            (3, [(0, 2, 1), (1, 2, 1)]),
        ]

    units = [Sent(1, 1), Sent(2, 1), Sent(3, 1)]
    consuming(
        work,
        [
            reply([merged(0, units)], end=3),
            reply(as_sent(0, units[:2]), end=3, partition=1),
            reply(as_sent(2, units[2:]), end=3, partition=1),
        ],
        partitions=(5, 5),
    )


@pytest.mark.parametrize("is_arrow", [False, True])
def test_i33_a_table_of_merged_batches_shows_what_one_of_those_that_were_sent_does(
    is_arrow: bool,
) -> None:
    shown: list[dict[bytes, bytes]] = []

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        # The last transaction has begun in the merged batch.
        await table.caught_up()
        shown.append(dict(table))
        assert table.without_key == 5

    units = [Sent(0, 3, 1), Sent(7, 20, 1), Sent(8, 4, 2), Sent(0, 1, 3), Sent(9, 22, 4)]
    rest = [Sent(9, 5, 4)]
    for first in (as_sent(0, units), [merged(0, units, is_arrow=is_arrow)]):
        replies: list[Any] = [reply(first, end=55), 1.0, reply(as_sent(50, rest), end=55)]
        following(work, replies, ends={0: 55})
    assert shown[0] == shown[1]
    assert len(shown[0]) > 5


def test_i3_of_a_transaction_that_goes_on_a_table_shows_nothing_of_the_merged_batch() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        changes = table.changes()
        assert await changes.poll(0.5) == {b"key-0": b"0"}
        assert await changes.poll(0.5) is None
        assert await changes.poll(2.0) == {b"key-7": b"1", b"key-1": b"2"}

    replies = [
        reply([merged(0, [Sent(0, 1), Sent(9, 1)])], end=3),
        2.0,
        reply(as_sent(2, [Sent(9, 1)]), end=3),
    ]
    following(work, replies, ends={0: 3})
