"""A buffered consumer of a topic whose leader has settled it, and has no journal of what lies in
front any more: it reads that in commit order, and goes on with the journal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import ScriptedTransport, place
from tests.unit.client.test_buffering import (
    MEMORY,
    ORDER,
    WHOLE,
    committed_metadata,
    data,
    journal,
    marker,
    offsets_of,
)
from tests.unit.client.test_consuming import consuming, refusal

RAW, COMMITTED = leader.ISOLATION_RAW, leader.ISOLATION_COMMITTED


def settled(
    first: int, *tx_ids: int, end: int = 7, partition: int = 0, merged: bool = False
) -> leader.FetchReply:
    """Records of WHOLE from this offset on, in commit order: one of each of these transactions."""
    numbers = range(first, first + len(tx_ids))
    values = [b"%d" % ORDER[number] for number in numbers]
    if merged:
        payload = records.make_rows([None] * len(values), values, 0).SerializeToString()
        batch = leader.FetchedBatch(
            kind=leader.FetchedBatch.KIND_DATA,
            first_offset=first,
            record_count=len(values),
            encoding=records.ROWS,
            crc32c=records.checksum(payload),
            payload=payload,
            units=leader.Units(record_counts=[1], tx_ids=tx_ids),
        )
        batches = [batch]
    else:
        batches = [
            data(ORDER[number], 1, tx=tx) for number, tx in zip(numbers, tx_ids, strict=True)
        ]
        for number, batch in zip(numbers, batches, strict=True):
            batch.first_offset = number
    part = leader.FetchedPartition(partition=place(partition), end_offset=end, batches=batches)
    return leader.FetchReply(partitions=[part])


def begins(
    transport: ScriptedTransport,
    has_from: dict[int, int],
    points: dict[int, tuple[int, int, int]],
) -> None:
    """`has_from`, by partition: what a leader says of offsets below; `points`: of others."""

    def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
        found = leader.ListOffsetsReply()
        for query in request.queries:
            listed = found.offsets.add(partition=query.partition, offset=query.offset)
            first = has_from.get(query.partition.number, 0)
            if query.offset < first:
                listed.journal_has_from = first
            elif query.offset in points:
                earliest, iterator, given = points[query.offset]
                listed.journal_point.earliest = earliest
                listed.journal_point.iterator = iterator
                listed.journal_point.given = given
        return found

    transport.handlers["partition_leader.list_offsets"] = list_offsets


def asked(transport: ScriptedTransport) -> list[tuple[int, dict[int, int]]]:
    """The isolation of each stream, and from where each of its partitions was read."""
    return [
        (request.isolation, {part.partition.number: part.offset for part in request.partitions})
        for request in transport.requests
        if isinstance(request, leader.SubscribeRequest)
    ]


def test_i15_what_was_settled_is_read_in_commit_order_and_then_the_journal() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 3}, {3: (1, 7, 1)})
        assert await offsets_of(consumer, 7) == list(range(7))
        assert asked(transport) == [(COMMITTED, {0: 0}), (RAW, {0: 1})]
        await consumer.commit()
        assert committed_metadata(transport)[0] == (7, "oncelog-buffered/1 9 10 0")

    consuming(work, [settled(0, 0, 0, 6)], [journal(*WHOLE[1:])], group="g", committed=0, **MEMORY)


def test_i15_where_it_reads_further_than_it_must_it_asks_again_there() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 3}, {5: (1, 8, 1)})
        assert await offsets_of(consumer, 7) == list(range(7))
        assert asked(transport) == [(COMMITTED, {0: 0}), (RAW, {0: 1})]

    consuming(work, [settled(0, 0, 0, 6, 6, 5)], [journal(*WHOLE[1:])], **MEMORY)


def test_i14_who_seeks_back_reads_what_was_settled_again() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 3}, {3: (1, 7, 1), 5: (1, 8, 1)})
        assert await offsets_of(consumer, 7) == list(range(7))
        await consumer.seek("a", 0, 1)
        assert await offsets_of(consumer, 6) == [1, 2, 3, 4, 5, 6]
        await consumer.seek("a", 0, 5)
        assert await offsets_of(consumer, 2) == [5, 6]
        assert [(kind, at[0]) for kind, at in asked(transport)] == [
            (COMMITTED, 0), (RAW, 1), (COMMITTED, 1), (RAW, 1), (RAW, 1),
        ]  # fmt: skip

    consuming(
        work,
        [settled(0, 0, 0, 6)],
        [journal(*WHOLE[1:])],
        [settled(0, 0, 0, 6)],
        [journal(*WHOLE[1:])],
        [journal(*WHOLE[1:])],
        **MEMORY,
    )


def test_of_several_partitions_each_is_read_as_it_can_be() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 3}, {3: (1, 7, 1)})
        found: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, found.values())) < 14:
            batch = await consumer.poll(30.0)
            assert batch is not None
            for record in batch:
                assert record.value is not None
                assert record.value.rstrip(b"x") == b"%d" % ORDER[record.offset]
                found[record.partition].append(record.offset)
        assert found == {0: list(range(7)), 1: list(range(7))}
        # The first two end together: what was settled was read.
        assert dict(asked(transport)[:2]) == {COMMITTED: {0: 0}, RAW: {1: 0}}
        assert asked(transport)[2][0] == RAW

    both = journal(*WHOLE[1:])
    both.partitions.add(partition=place(1), batches=WHOLE)
    consuming(
        work,
        [1.0, settled(0, 0, 0, 6)],
        [],
        [both],
        partitions=(5, 5),
        **MEMORY,
    )


@pytest.mark.parametrize("merged", [False, True])
def test_i3_a_transaction_over_both_is_given_whole(merged: bool) -> None:
    """Its first record lies in front of what its leader has the journal of."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 3}, {3: (1, 7, 1)})
        transactions = consumer.transactions()
        shown = []
        for _ in range(4):
            one = await transactions.poll(5.0)
            assert one is not None
            shown.append((one.tx_id, [row.value.rstrip(b"x") for row in one.read() if row.value]))
        assert shown == [(0, [b"0"]), (0, [b"4"]), (6, [b"5", b"6"]), (5, [b"1", b"2", b"3"])]

    consuming(work, [settled(0, 0, 0, 6, merged=merged)], [journal(*WHOLE[1:])], **MEMORY)


def test_i14_what_was_deleted_of_what_was_settled_is_told() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 5}, {5: (1, 8, 1)})
        assert await offsets_of(consumer, 1) == [0]
        with pytest.raises(errors.OffsetOutOfRange, match="offsets 1 to 2 of 'a'"):
            await consumer.poll(5.0)
        await consumer.seek_to_beginning()
        assert consumer.skipped == {}

    gone = refusal(0, errors.OffsetOutOfRange("gone", start=3, end=7))
    consuming(work, [settled(0, 0), gone], **MEMORY)


def test_i14_what_was_deleted_is_told_though_another_partition_reads_its_journal() -> None:
    """Two streams are open then: what one of them met is told once, and is no end of the other."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 5}, {5: (1, 8, 1)})
        assert await offsets_of(consumer, 1) == [0]
        with pytest.raises(errors.OffsetOutOfRange, match="offsets 1 to 2 of 'a'"):
            await consumer.poll(5.0)
        await asyncio.sleep(5.0)
        await consumer.seek("a", 0, 3)
        assert await offsets_of(consumer, 2) == [3, 4]

    gone = refusal(0, errors.OffsetOutOfRange("gone", start=3, end=7))
    idle: list[list[Any]] = [[], []]
    streams = [[settled(0, 0), gone], [], *idle, [settled(3, 6, 5)], []]
    consuming(work, *streams, partitions=(5, 5), **MEMORY)


def test_i14_it_goes_on_behind_what_was_deleted_as_it_was_told_to() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 5}, {5: (1, 8, 1)})
        assert await offsets_of(consumer, 5) == [0, 3, 4, 5, 6]
        assert consumer.skipped == {TopicPartition("a", 0): 2}
        assert [kind for kind, _ in asked(transport)] == [COMMITTED, COMMITTED, RAW]

    gone = refusal(0, errors.OffsetOutOfRange("gone", start=3, end=7))
    consuming(
        work,
        [settled(0, 0), gone],
        [settled(3, 6, 5)],
        [journal(*WHOLE[1:])],
        if_deleted="earliest",
        **MEMORY,
    )


def test_at_the_end_it_waits_for_what_comes_as_any_other() -> None:
    """All is settled, and nothing is open: the journal begins where nothing is yet."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        begins(transport, {0: 7}, {7: (9, 10, 0)})
        assert await offsets_of(consumer, 7) == list(range(7))
        assert await consumer.poll(5.0) is None
        batch = await consumer.poll(30.0)
        assert batch is not None
        assert [record.offset for record in batch] == [7]
        assert [(kind, at[0]) for kind, at in asked(transport)] == [(COMMITTED, 0), (RAW, 9)]

    late: list[Any] = [journal(WHOLE[-1]), 10.0, journal(marker(10, 7, 1))]
    consuming(work, [settled(0, 0, 0, 6, 6, 5, 5, 5)], late, **MEMORY)
