"""`log.table` against scripted leaders: what is shown, waited for, told and refused."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio import following as following_module
from oncelog.aio import table_view
from oncelog.aio.table_view import TableView
from oncelog.batch import TopicPartition
from oncelog.errors import Closed
from oncelog.options import TableOptions
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, place, protocol_over
from tests.unit.client.test_consuming import refusal, wanted
from tests.unit.client.test_deletions import deleted

Rows = Sequence[tuple[bytes | None, bytes | None]]
Work = Callable[[TableView, ScriptedTransport], Awaitable[Any]]


def written(
    rows: Rows,
    at: int,
    *,
    end: int | None = None,
    tx: int = 0,
    partition: int = 0,
    time_ms: int = 1,
    is_arrow: bool = False,
    flip: bool = False,
) -> leader.FetchReply:
    """One batch; `end` is what can be read, this batch's end where None."""
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    if is_arrow:
        payload = records.encode_arrow(records.make_batch(keys, values, 0)).to_pybytes()
    else:
        payload = records.make_rows(keys, values, 0).SerializeToString()
    batch = leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA,
        first_offset=at,
        record_count=len(rows),
        encoding=types_pb2.ENCODING_ARROW_V1 if is_arrow else records.ROWS,
        crc32c=records.checksum(payload) ^ flip,
        payload=payload,
        tx_id=tx,
        time_ms=time_ms,
    )
    end = at + len(rows) if end is None else end
    part = leader.FetchedPartition(partition=place(partition), end_offset=end, batches=[batch])
    return leader.FetchReply(partitions=[part])


def following(
    work: Work,
    *streams: list[Any],
    partitions: tuple[int, ...] = (5,),
    ends: dict[int, int] | None = None,
    configs: dict[str, str] | None = None,
    **options: Any,
) -> tuple[Any, float]:
    """`ends`: what leaders say of the ends of partitions, where not 0."""

    async def main() -> Any:
        transport = ScriptedTransport(*partitions)
        transport.streams = list(streams)
        transport.configs = configs or {}

        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            told = leader.ListOffsetsReply()
            for query in request.queries:
                end = (ends or {}).get(query.partition.number, 0)
                told.offsets.add(partition=query.partition, offset=end if query.latest else 0)
            return told

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        protocol = protocol_over(transport)
        table = TableView(protocol, await protocol.topic("a"), TableOptions(**options))
        try:
            return await work(table, transport)
        finally:
            await table.close()
            await protocol.close()

    return on_virtual_time(main)


A1, B1, B2 = (b"a", b"1"), (b"b", b"1"), (b"b", b"2")


@pytest.mark.parametrize("is_arrow", [False, True])
def test_i33_it_is_a_dictionary_of_what_was_committed_last(is_arrow: bool) -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        assert wanted(transport) == [0]
        assert table == {b"a": b"1", b"b": b"2", b"d": b""}
        assert table[b"b"] == b"2"
        assert b"c" not in table
        assert table.get(b"c") is None
        assert table.get(b"c", b"0") == b"0"
        assert len(table) == 3
        assert list(table) == list(table.keys()) == [b"a", b"b", b"d"]
        assert list(table.values()) == [b"1", b"2", b""]
        assert dict(table.items()) == table.snapshot()
        assert table.snapshot([b"c", b"a"]) == {b"a": b"1"}
        shown = table.to_arrow()
        assert shown.schema.types == [pa.binary(), pa.binary()]
        assert shown.to_pydict() == {"key": [b"a", b"b", b"d"], "value": [b"1", b"2", b""]}
        assert table.positions == {TopicPartition("a", 0): 6}
        assert (table.skipped, table.without_key) == ({}, 0)
        assert 0 < table.memory_bytes < 2_000
        with pytest.raises(KeyError, match="c"):
            table[b"c"]
        text: Any = "a"
        for look in (table.get, table.__contains__, lambda key: table.snapshot([key])):
            with pytest.raises(errors.InvalidArgument, match="key is str, not bytes"):
                look(text)

    first = [A1, B1, (b"c", b"1")]
    second = [B2, (b"c", None), (b"d", b"")]
    replies = [
        written(first, 0, end=6, is_arrow=is_arrow),
        written(second, 3, is_arrow=is_arrow),
    ]
    following(work, replies, ends={0: 6})


def test_i3_no_look_shows_half_of_a_transactions_part() -> None:
    """Whatever was read ahead of it, and however many records are taken at a time."""
    many = [(b"key-%d" % n, b"1") for n in range(following_module.RECORDS_MAX + 1)]
    looks: list[int] = []

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        waiting = asyncio.create_task(table.caught_up())
        while not waiting.done():
            looks.append(len(table))
            await asyncio.sleep(0.001)
        await waiting
        looks.append(len(table))
        assert set(looks) == {0, 1, len(many) + 3}

    end = len(many) + 3
    replies = [
        written([A1], 0, end=1),
        written([B1], 1, end=end, tx=7),
        0.5,
        written(many, 2, end=end, tx=7),
        0.5,
        written([(b"c", b"1")], end - 1, tx=7),
    ]
    following(work, replies, ends={0: end})
    assert looks.count(1) > 2


def test_i3_a_batch_that_is_taken_in_pieces_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(b"key-%d" % n, b"1") for n in range(3 * following_module.RECORDS_MAX)]
    looks: list[int] = []
    after_a_step = TableView._wake_all

    def look(table: TableView) -> None:
        if table.is_following:
            looks.append(len(table))
        after_a_step(table)

    monkeypatch.setattr(TableView, "_wake_all", look)

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        # Where it begins, and after each piece.
        assert looks == [0, 0, 0, len(many)]

    following(work, [written(many, 0, tx=7)], ends={0: len(many)})


def test_caught_up_waits_for_what_could_be_read_when_it_was_called() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.Unavailable, match="partition 0 is at offset 1 of 3") as caught:
            await table.caught_up(timeout_s=5.0)
        assert "within 5.0 s" in caught.value.message
        assert table == {b"a": b"1"}
        await table.caught_up(timeout_s=10.0)
        assert table == {b"a": b"1", b"b": b"2"}

    _, seconds = following(work, [written([A1], 0), 8.0, written([B1, B2], 1)], ends={0: 3})
    assert 8 < seconds < 9


def test_an_empty_topic_is_caught_up_with_as_soon_as_it_has_begun() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        listed = transport.handlers["partition_leader.list_offsets"]

        async def slow(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            if request.queries[0].earliest:
                await asyncio.sleep(5.0)
            return listed(to, request)

        transport.handlers["partition_leader.list_offsets"] = slow
        await table.caught_up()
        assert table == {}

    _, seconds = following(work)
    assert 5 < seconds < 6


def test_partitions_that_are_added_are_shown() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        assert table == {b"a": b"1"}
        transport.partitions.append(6)
        await table.caught_up()
        assert table == {b"a": b"1", b"b": b"2"}
        assert list(table.positions) == [TopicPartition("a", 0), TopicPartition("a", 1)]

    second = [written([B2], 0, partition=1)]
    following(work, [written([A1], 0)], second, ends={0: 1, 1: 1})


def test_what_changes_is_told_of_one_moment_and_the_latest_only() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        changes = table.changes()
        assert await changes.poll(0.1) is None
        assert await changes.poll(1.0) == {b"a": b"1", b"b": b"1"}
        # Of the transaction nothing, while it is half there.
        assert await changes.poll(1.0) is None
        assert await changes.poll(2.0) == {b"a": None, b"b": b"2"}
        late = table.changes()
        await asyncio.sleep(2.0)
        assert await changes.poll() == await late.poll() == {b"a": b"4"}
        del late
        gc.collect()
        assert len(table._changes) == 1
        told: list[dict[bytes, bytes | None]] = []

        async def listen() -> None:
            async for changed in changes:
                told.append(changed)

        listening = asyncio.create_task(listen())
        await asyncio.sleep(2.0)
        await table.close()
        await listening
        assert told == [{b"b": None}]

    replies = [
        0.5,
        written([A1, B1, (None, b"9")], 0),
        0.5,
        written([(b"a", None)], 3, end=5, tx=7),
        2.0,
        written([B2], 4, tx=7),
        1.0,
        written([(b"a", b"3")], 5),
        written([(b"a", b"4")], 6),
        2.0,
        written([(b"b", None)], 7),
    ]
    following(work, replies)


def test_what_waits_for_who_never_asks_is_bounded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_view, "CHANGES_KEYS_MAX", 2)

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        changes = table.changes()
        await table.caught_up()
        for _ in range(2):
            with pytest.raises(errors.TooLarge, match="changes_keys_max = 2"):
                await changes.poll()
        assert not changes._keys
        assert await table.changes().poll() is None

    following(work, [written([A1, B1, (b"c", b"1")], 0)], ends={0: 3})


def test_where_records_were_deleted_it_shows_what_a_new_table_would() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        changes = table.changes()
        await table.caught_up()
        assert table == {b"a": b"2", b"d": b"1"}
        assert table.skipped == {TopicPartition("a", 0): 3}
        told: dict[bytes, bytes | None] = {}
        while changed := await changes.poll():
            told |= changed
        assert told == {b"a": b"2", b"b": None, b"d": b"1", b"e": None}

    following(
        work,
        [written([A1, B1], 0, end=9), written([(b"c", b"1")], 2, end=9, tx=3), deleted(6, 9)],
        [written([(b"a", b"2")], 6, end=9), written([(b"d", b"1"), (b"e", None)], 7)],
        ends={0: 9},
    )


def test_where_records_were_deleted_it_may_be_told_to_end() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        changes = table.changes()
        with pytest.raises(errors.OffsetOutOfRange, match="offsets 1 to 4"):
            await table.caught_up()
        for look in (len, dict, list, lambda one: one.get(b"a"), lambda one: b"a" in one):
            with pytest.raises(errors.OffsetOutOfRange, match="offsets 1 to 4"):
                look(table)
        with pytest.raises(errors.OffsetOutOfRange, match="offsets 1 to 4"):
            await changes.poll()
        with pytest.raises(errors.OffsetOutOfRange, match="offsets 1 to 4"):
            table.changes()

    following(work, [written([A1], 0, end=9), deleted(5, 9)], ends={0: 9}, if_deleted="error")


def test_a_topic_that_was_deleted_ends_it() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        transport.partitions.clear()
        await asyncio.sleep(60.0)
        with pytest.raises(errors.UnknownTopic, match="'a' was deleted"):
            table[b"a"]
        with pytest.raises(errors.UnknownTopic, match="'a' was deleted"):
            await table.caught_up()

    gone = refusal(0, errors.UnknownTopic("gone"))
    following(work, [written([A1], 0), 5.0, gone], ends={0: 1})


def test_too_little_memory_ends_it_by_name() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.TooLarge, match="memory_bytes_max = 300"):
            await table.caught_up()
        with pytest.raises(errors.TooLarge, match="memory_bytes_max = 300"):
            table.get(b"a")
        assert table.memory_bytes == 0

    following(work, [written([A1], 0), written([B1], 1)], ends={0: 2}, memory_bytes_max=300)


def test_what_may_pass_is_waited_for_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "oncelog.table")

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.Unavailable, match="it met: the batch at offset 1 does not"):
            await table.caught_up(timeout_s=0.2)
        # What it has is shown meanwhile.
        assert table == {b"a": b"1"}
        await table.caught_up()
        assert table == {b"a": b"1", b"b": b"2"}

    bad = [written([B2], 1, flip=True)]
    following(work, [written([A1], 0, end=2), *bad], bad, bad, [written([B2], 1)], ends={0: 2})
    assert caplog.text.count("the table of 'a' waits: the batch at offset 1") == 1


def test_records_without_a_key_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "oncelog.table")

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        assert (dict(table), table.without_key) == ({b"a": b"1"}, 2)

    following(work, [written([A1, (None, b"1")], 0), written([(None, b"1")], 2)], ends={0: 3})
    assert caplog.text.count("has records without a key") == 1


def test_removed_keys_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_view, "REMOVED_MAX", 1)

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await asyncio.sleep(1.0)
        # The other partition may still have older values of them.
        assert (dict(table), table._latest.removed_count) == ({}, 2)
        await asyncio.sleep(4.0)
        assert (dict(table), table._latest.removed_count) == ({b"a": b"1"}, 0)

    removed = written([(b"b", None), (b"c", None)], 0, time_ms=20)
    kept = written([A1, B1], 0, partition=1, time_ms=10)
    streams: list[list[Any]] = [[removed], [3.0, kept]]
    following(work, *streams, partitions=(5, 6), ends={0: 2, 1: 2})


def test_a_table_that_is_closed_says_so() -> None:
    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        waiting = asyncio.create_task(table.changes().poll(60.0))
        await asyncio.sleep(1.0)
        await table.close()
        await table.close()
        assert table.closed
        for look in (len, dict, lambda one: one[b"a"], lambda one: one.positions):
            with pytest.raises(Closed, match="this table is closed"):
                look(table)
        with pytest.raises(Closed):
            await table.caught_up()
        with pytest.raises(Closed):
            await waiting
        assert table.memory_bytes == 0

    _, seconds = following(work, [written([A1], 0)], ends={0: 1})
    assert seconds < 5


def test_the_options_are_checked() -> None:
    with pytest.raises(errors.InvalidArgument, match="allowed: error, earliest"):
        TableOptions(if_deleted="latest").validate()
    with pytest.raises(errors.InvalidArgument, match="memory_bytes_max is 0"):
        TableOptions(memory_bytes_max=0).validate()
