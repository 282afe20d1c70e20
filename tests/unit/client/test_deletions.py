"""Records that were deleted before they were read: what a consumer tells, passes over and counts
(I14, I15)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from oncelog._core.deletions import Deletions, Gap, gap_of
from oncelog._core.positions import After, Origin, Positions
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelog.options import ConsumerOptions
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport
from tests.unit.client.test_consuming import consuming, offsets_of, refusal, reply, wanted
from tests.unit.client.test_gathering import part_of
from tests.unit.client.test_transactions_across import described, unit

KEY = PartitionKey(TOPIC_ID, 0)
PLACE = TopicPartition("a", 0)


def deleted(start: int, end: int, *, partition: int = 0) -> leader.FetchReply:
    return refusal(partition, errors.OffsetOutOfRange("not there", start=start, end=end))


def committed(transport: ScriptedTransport) -> list[tuple[str | None, int, int]]:
    return [
        (one.WhichOneof("from"), one.from_offset, one.to_offset)
        for request in transport.requests
        if isinstance(request, offset_manager_pb2.CommitOffsetsRequest)
        for one in request.offsets.offsets
    ]


# ------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("error", "position", "gap"),
    [
        (errors.OffsetOutOfRange("x", start=5, end=9), 2, Gap(2, 5, 9)),
        (errors.OffsetOutOfRange("x", start=5, end=5), 4, Gap(4, 5, 5)),
        # The partition ends before it: nothing was deleted.
        (errors.OffsetOutOfRange("x", start=5, end=9), 5, None),
        (errors.OffsetOutOfRange("x", start=0, end=9), 12, None),
        (errors.OffsetOutOfRange("x"), 2, None),
        (errors.CorruptLog("x", start=5), 2, None),
    ],
)
def test_what_was_deleted_lies_below_the_start(
    error: errors.OncelogError, position: int, gap: Gap | None
) -> None:
    assert gap_of(error, position) == gap


def test_what_is_passed_over_is_counted_once_however_often_it_is_met() -> None:
    deletions = Deletions("earliest")
    names = {KEY: PLACE}
    assert deletions.counts(names) == {}
    said = deletions.pass_over(KEY, PLACE, Gap(2, 5, 9))
    assert "'a' partition 0: offsets 2 to 4 were deleted" in said
    # A transaction that began at 2 was aborted; meanwhile more went.
    deletions.pass_over(KEY, PLACE, Gap(2, 5, 9))
    deletions.pass_over(KEY, PLACE, Gap(2, 7, 9))
    assert deletions.counts(names) == {PLACE: 5}
    assert deletions.counts({}) == {}


def test_a_skip_is_covered_by_the_next_commit_and_undone_by_a_rewind() -> None:
    positions = Positions([KEY])
    positions.start(KEY, 10, 10, beyond=((1, 15), (2, 40)))
    edition = positions.edition
    positions.skip(KEY, 20)
    positions.check()
    assert positions.edition > edition, "what was gathered for the old position goes"
    assert positions.beyond(KEY) == ((2, 40),)
    [step] = positions.progress()
    assert (step.base, step.to, step.beyond) == (10, 20, ((2, 40),))
    [commit] = positions.offsets([step], producer_id=0, view=types_pb2.VIEW_COMMITTED)
    assert (commit.from_offset, commit.to_offset) == (10, 20)
    positions.rewind()
    assert (positions.position(KEY), positions.beyond(KEY)) == (10, ((1, 15), (2, 40)))
    positions.skip(KEY, 20)
    positions.committed(positions.progress(), After(7, 8))
    assert (positions.position(KEY), positions.since(KEY)) == (20, 20)
    positions.seek(KEY, 3)
    positions.skip(KEY, 20)
    assert positions.since(KEY) is Origin.ANY


def test_the_option_is_checked() -> None:
    with pytest.raises(errors.InvalidArgument, match="error, earliest, latest"):
        ConsumerOptions(if_deleted="skip").validate()


# ---------------------------------------------------------------------------------------- batches


def test_i14_by_default_a_consumer_passes_over_nothing_and_says_what_is_gone() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 2) == [0, 1]
        for _ in range(2):
            with pytest.raises(errors.OffsetOutOfRange) as caught:
                await consumer.poll(5.0)
            assert "offsets 2 to 4 of 'a' partition 0 were deleted" in caught.value.message
            assert "it begins at 5 now" in caught.value.message
            said = caught.value.metadata
            assert [said[name] for name in ("topic", "partition", "position", "start", "end")] == [
                "a", "0", "2", "5", "9"
            ]  # fmt: skip
        assert await consumer.position("a", 0) == 2
        assert consumer.skipped == {}
        await consumer.seek("a", 0, 5)
        assert await offsets_of(consumer, 2) == [5, 6]

    consuming(work, [reply(0, 0, 2), deleted(5, 9)], [deleted(5, 9)], [reply(0, 5, 2)])


def test_i15_earliest_goes_on_at_the_first_that_is_kept_and_counts_what_it_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        # What was read before it was deleted is given.
        assert await offsets_of(consumer, 1) == [0]
        assert await offsets_of(consumer, 1) == [1]
        assert consumer.skipped == {}
        batch = await consumer.poll(5.0)
        assert batch is not None, "it does not return empty-handed where it passes over"
        assert [record.offset for record in batch] == [5]
        assert wanted(transport) == [0, 5]
        assert consumer.skipped == {PLACE: 3}
        assert await offsets_of(consumer, 1) == [6]
        await consumer.commit()
        assert committed(transport) == [("from_offset", 0, 7)]

    streams = [reply(0, 0, 2), deleted(5, 9)], [reply(0, 5, 2)]
    with caplog.at_level(logging.WARNING, "oncelog.consumer"):
        consuming(
            work, *streams, group="g", committed=0, if_deleted="earliest", batch_records_max=1
        )
    (warning,) = caplog.messages
    assert "'a' partition 0: offsets 2 to 4 were deleted" in warning
    assert "goes on at 5" in warning


def test_latest_goes_on_at_the_end() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 2) == [9, 10]
        assert wanted(transport) == [0, 9]
        assert consumer.skipped == {PLACE: 9}

    consuming(work, [deleted(5, 9)], [reply(0, 9, 2)], if_deleted="latest", group="g", committed=0)


def test_where_all_was_deleted_a_poll_waits_and_the_position_has_moved() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await consumer.poll(5.0) is None
        assert await consumer.position("a", 0) == 9
        await consumer.commit()
        assert committed(transport) == [("from_offset", 0, 9)]

    _, seconds = consuming(work, [deleted(9, 9)], [], group="g", committed=0, if_deleted="earliest")
    assert seconds > 5, "it waited as long as it was told"


@pytest.mark.parametrize("if_deleted", ["error", "earliest", "latest"])
def test_a_partition_that_ends_before_the_position_is_nothing_that_was_deleted(
    if_deleted: str,
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.OffsetOutOfRange, match="not there"):
            await consumer.poll(5.0)
        assert await consumer.position("a", 0) == 7
        assert consumer.skipped == {}

    consuming(work, [deleted(2, 5)], group="g", committed=7, if_deleted=if_deleted)


def test_positions_in_a_journal_are_called_so() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.OffsetOutOfRange, match="journal offsets 0 to 4"):
            await consumer.poll(5.0)

    consuming(work, [deleted(5, 9)], isolation="uncommitted", group="g", committed=0)


def test_one_partition_that_lost_its_front_holds_back_no_other() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.OffsetOutOfRange, match="partition 1"):
            await consumer.poll(5.0)
        batch = await consumer.poll(5.0)
        assert batch is not None
        assert {(chunk.partition, chunk.first_offset) for chunk in batch.chunks} == {(0, 0)}

    consuming(
        work,
        [deleted(5, 9, partition=1)],
        [reply(0, 0, 2)],
        partitions=(5, 5),
        group="g",
        committed=0,
    )


def test_what_was_deleted_does_not_wait_for_anybody() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            found = [9 if query.latest else 5 for query in request.queries]
            listed = [
                leader.ListedOffset(partition=query.partition, offset=offset)
                for query, offset in zip(request.queries, found, strict=True)
            ]
            return leader.ListOffsetsReply(offsets=listed)

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        assert await consumer.lag() == {PLACE: 4}
        [row] = await consumer.positions()
        assert (row.position, row.end_offset, row.lag) == (2, 9, 4)
        await consumer.seek("a", 0, 7)
        assert await consumer.lag() == {PLACE: 2}

    consuming(work, group="g", committed=2)


@pytest.mark.parametrize("if_deleted", ["error", "earliest", "latest"])
@pytest.mark.parametrize("group", [None, "g"])
def test_i15_who_has_not_begun_yet_begins_at_the_first_that_is_kept(
    if_deleted: str, group: str | None
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        # It was 0 when it asked; what is kept began at 5, then at 6, when it fetched.
        assert await offsets_of(consumer, 2) == [6, 7]
        assert wanted(transport) == [0, 5, 6]
        assert consumer.skipped == {}
        [step] = consumer.feeding.progress()
        assert (step.base, step.to) == (6, 8)
        assert consumer._positions.since(KEY) is (Origin.ANY if group is None else Origin.NONE)
        # From here on it stands somewhere.
        consumer._positions.rewind()
        transport.streams = [[deleted(10, 12)]]
        if if_deleted == "error":
            with pytest.raises(errors.OffsetOutOfRange, match="were deleted"):
                await consumer.poll(5.0)
        else:
            assert await consumer.poll(5.0) is None
            assert consumer.skipped[PLACE] >= 2

    consuming(
        work, [deleted(5, 9)], [deleted(6, 9)], [reply(0, 6, 2)], group=group, if_deleted=if_deleted
    )


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_i14_who_sought_or_begins_at_the_end_is_told(start: str) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        if start == "earliest":
            await consumer.seek("a", 0, 0)
        with pytest.raises(errors.OffsetOutOfRange, match="offsets 0 to 4"):
            await consumer.poll(5.0)

    consuming(work, [deleted(5, 9)], start=start)


# ------------------------------------------------------------------------------ whole transactions


def test_i3_a_transaction_whose_end_was_deleted_is_not_given_as_if_it_were_whole() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        first = await transactions.poll(5.0)
        assert first is not None
        assert (first.tx_id, first.first_offset, first.record_count) == (1, 0, 1)
        # Of the second, offsets 1 and 2 came, then all below 5 went; the rest of it is kept.
        second = await transactions.poll(5.0)
        assert second is not None
        assert (second.tx_id, second.first_offset, second.record_count) == (2, 5, 1)
        assert [len(chunk.payload) > 0 for chunk in second.read().chunks] == [True]
        third = await transactions.poll(5.0)
        assert third is not None
        assert (third.tx_id, third.first_offset) == (3, 6)
        assert consumer.skipped == {PLACE: 4}

    consuming(
        work,
        [part_of(1, 0, end=9), part_of(2, 1, end=9), part_of(2, 2, end=9), deleted(5, 9)],
        [part_of(2, 5, end=9), part_of(3, 6, end=7)],
        if_deleted="earliest",
    )


def test_whole_transactions_are_told_by_default_as_well() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        for _ in range(2):
            with pytest.raises(errors.OffsetOutOfRange, match="offsets 0 to 4"):
                await transactions.poll(5.0)

    consuming(work, [deleted(5, 9)], [deleted(5, 9)], group="g", committed=0)


def test_i3_across_a_part_that_was_deleted_is_not_waited_for() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            listed = [leader.ListedOffset(partition=q.partition, offset=6) for q in request.queries]
            return leader.ListOffsetsReply(offsets=listed)

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        transport.handlers["coordinator.get_transaction"] = lambda _, request: described(
            request.tx_id, *((0, 1) if request.tx_id == 1 else (1,))
        )
        consumer._positions.seek(KEY, 0)
        consumer._positions.seek(PartitionKey(TOPIC_ID, 1), 0)
        transactions = consumer.transactions(across=True)
        given = [await transactions.poll(20.0) for _ in range(2)]
        shown = [
            (one.tx_id, [(part.partition, part.first_offset) for part in one.parts])
            for one in given
            if one is not None
        ]
        assert shown == [(1, [(0, 0)]), (2, [(1, 5)])]
        assert consumer.skipped == {TopicPartition("a", 1): 5}

    consuming(
        work,
        [unit(0, 1, 0), deleted(5, 6, partition=1)],
        [unit(1, 2, 5, end=6)],
        partitions=(5, 5),
        if_deleted="earliest",
    )


def one_away_for_a_while(transport: ScriptedTransport, *away: int) -> None:
    """The coordinator of these answers at the second question."""
    left = list(away)

    def answer(_: Endpoint, request: Any) -> Any:
        if request.tx_id in left:
            left.remove(request.tx_id)
            raise errors.Unavailable("it is starting")
        return described(request.tx_id, *((0, 1) if request.tx_id == 7 else (1,)))

    transport.handlers["coordinator.get_transaction"] = answer


@pytest.mark.parametrize("if_deleted", ["error", "earliest", "latest"])
def test_i3_across_what_was_read_before_a_gap_is_given_whole_before_it_is_told(
    if_deleted: str,
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        one_away_for_a_while(transport, 7)
        transactions = consumer.transactions(across=True)
        shown: list[object] = []
        while len(shown) < 2:
            try:
                one = await transactions.poll(20.0)
            except errors.OffsetOutOfRange as error:
                shown.append(error.metadata["position"])
                continue
            assert one is not None
            assert len(one.read()) == one.record_count
            shown.append([(part.partition, part.first_offset) for part in one.parts])
        assert shown[0] == [(0, 0), (1, 0)], "what was read is given, and whole"
        if if_deleted == "error":
            assert shown[1] == "1"
            assert consumer.skipped == {}
        else:
            assert shown[1] == [(1, 5)]
            assert consumer.skipped == {TopicPartition("a", 1): 4}

    consuming(
        work,
        [unit(0, 7, 0), unit(1, 7, 0), deleted(5, 5, partition=1)],
        [unit(1, 8, 5, end=6)],
        partitions=(5, 5),
        if_deleted=if_deleted,
    )


def test_i31_partitions_that_wait_for_what_lies_behind_their_gaps_do_not_wait_for_ever() -> None:
    other = (3 << 48) + 8

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.handlers["coordinator.get_transaction"] = lambda _, request: described(
            request.tx_id, 0, 1
        )

        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            listed = [
                leader.ListedOffset(partition=q.partition, offset=9 if q.latest else 0)
                for q in request.queries
            ]
            return leader.ListOffsetsReply(offsets=listed)

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        transactions = consumer.transactions(across=True)
        assert await transactions.poll(3.0) is None
        with pytest.raises(errors.OffsetOutOfRange, match="were deleted"):
            await transactions.poll(30.0)

    consuming(
        work,
        [unit(0, 7, 0), unit(1, other, 0), deleted(5, 9), deleted(5, 9, partition=1)],
        [deleted(5, 9, partition=1)],
        [],
        partitions=(5, 5),
        pending_timeout_ms=5_000,
    )
