"""Plain commits of a consumer: each is checked by the group, and a lost answer is neither believed
nor repeated blindly (I15, I21, I24)."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport
from tests.unit.client.test_consuming import consuming, offsets_of, reply

COMMIT = "offset_manager.commit_offsets"


class Group:
    """An offset manager. `weather`, one for each commit: ok, lost request, lost answer, late (it
    takes effect when it is looked for), or somebody (else commits 99 first)."""

    def __init__(self, transport: ScriptedTransport, *weather: str) -> None:
        self.at: dict[int, int] = {}
        self.late: list[offsets.OffsetCommit] = []
        self.weather = list(weather)
        self.commits: list[list[tuple[str | None, int, int, int]]] = []
        self.views: set[int] = set()
        transport.handlers[COMMIT] = self.commit
        transport.handlers["offset_manager.fetch_offsets"] = self.fetch

    def commit(self, to: Endpoint, request: Any) -> Any:
        storm = self.weather.pop(0) if self.weather else "ok"
        commits = list(request.offsets.offsets)
        self.commits.append(
            [
                (c.WhichOneof("from"), c.from_offset, c.to_offset, c.partition.number)
                for c in commits
            ]
        )
        self.views |= {commit.view for commit in commits}
        if storm == "somebody":
            self.at = {commit.partition.number: 99 for commit in commits}
        if storm == "late":
            self.late = commits
        if storm in ("ok", "lost answer", "somebody"):
            for commit in commits:
                number = commit.partition.number
                stands = self.at.get(number)
                if commit.HasField("from_any") or stands == (
                    commit.from_offset if commit.HasField("from_offset") else None
                ):
                    continue
                raise errors.StalePosition(f"it stands at {stands}")
            self.take(commits)
        if storm.startswith("lost") or storm == "late":
            raise errors.UnknownOutcome(storm)
        return offsets.CommitOffsetsReply()

    def take(self, commits: list[offsets.OffsetCommit]) -> None:
        self.at |= {commit.partition.number: commit.to_offset for commit in commits}

    def fetch(self, to: Endpoint, request: Any) -> Any:
        found = [
            offsets.CommittedOffset(partition=p, offset=self.at.get(p.number))
            for p in request.partitions
        ]
        self.take(self.late)
        self.late = []
        return offsets.FetchOffsetsReply(offsets=found)


def committing(work: Any, *weather: str, partitions: int = 1, **options: Any) -> Group:
    kept: list[Group] = []

    async def started(consumer: Consumer, transport: ScriptedTransport) -> None:
        kept.append(Group(transport, *weather))
        await work(consumer, kept[0])

    streams = [reply(number, 0, 10) for number in range(partitions)]
    consuming(started, streams, partitions=(5,) * partitions, group="g", **options)
    return kept[0]


async def read_and_commit(consumer: Consumer, group: Group) -> None:
    await offsets_of(consumer, 10)
    await consumer.commit()
    assert group.at == {0: 10}


@pytest.mark.parametrize(
    ("weather", "asked"),
    [
        (["ok"], 1),
        (["lost request"], 2),
        (["lost answer"], 1),
        (["late"], 2),
        (["late", "late"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_i21_a_commit_whose_answer_is_lost_is_repeated_only_where_it_did_not_happen(
    weather: list[str], asked: int
) -> None:
    group = committing(read_and_commit, *weather)
    assert group.commits == [[("from_none", 0, 10, 0)]] * asked


@pytest.mark.parametrize(
    ("weather", "told"),
    [
        (["somebody"], errors.StalePosition),
        # Ours may have been the first of the two: nobody can say.
        (["lost request", "somebody"], errors.UnknownOutcome),
    ],
)
def test_i21_who_lost_the_race_is_told_and_asks_the_group(
    weather: list[str], told: type[errors.OncelogError]
) -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        await offsets_of(consumer, 10)
        with pytest.raises(told):
            await consumer.commit()
        assert await consumer.position("a", 0) == 99

    committing(work, *weather)


def test_an_answer_that_is_lost_again_and_again_is_told_and_the_group_is_asked() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        await offsets_of(consumer, 10)
        with pytest.raises(errors.UnknownOutcome):
            await consumer.commit()
        assert len(group.commits) == 3
        assert await consumer.position("a", 0) == 0

    committing(work, *["lost request"] * 9)


def test_a_commit_that_stands_in_one_partition_of_two_is_repeated() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        await offsets_of(consumer, 20)

        def half(to: Endpoint, request: Any) -> Any:
            group.at = {0: 10}
            with pytest.raises(errors.StalePosition):
                group.commit(to, request)
            raise errors.UnknownOutcome("x")

        consumer._protocol.transport.handlers[COMMIT] = half  # type: ignore[attr-defined]
        with pytest.raises(errors.UnknownOutcome):
            await consumer.commit()
        assert len(group.commits) == 3

    committing(work, partitions=2)


def test_each_commit_starts_where_the_last_one_ended_and_nothing_new_asks_nobody() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        for _ in range(2):
            await consumer.poll(1.0)
            await consumer.commit()
            await consumer.commit()
        assert group.commits == [[("from_none", 0, 5, 0)], [("from_offset", 5, 10, 0)]]

    committing(work, batch_records_max=5)


@pytest.mark.parametrize(
    ("isolation", "view"),
    [("committed", types.VIEW_COMMITTED), ("uncommitted", types.VIEW_JOURNAL)],
)
def test_positions_say_of_which_view_they_are(isolation: str, view: int) -> None:
    assert committing(read_and_commit, isolation=isolation).views == {view}


def test_what_was_prefetched_and_not_given_is_given_after_an_abort() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.commit()
        consumer.feeding.rewind()
        consumer._protocol.transport.streams = [[reply(0, 4, 6)]]  # type: ignore[attr-defined]
        assert await offsets_of(consumer, 6) == [4, 5, 6, 7, 8, 9]

    committing(work, batch_records_max=4)


def test_a_group_without_an_offset_has_none_and_not_zero() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        assert await consumer.committed("a", 0) is None
        group.at = {0: 0}
        assert await consumer.committed("a", 0) == 0
        key = PartitionKey(TOPIC_ID, 0)
        assert consumer._positions.since(key) is None, "nobody started"

    committing(work)


def test_i21_a_part_of_a_batch_is_committed_and_the_rest_is_not_skipped() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.commit({TopicPartition("a", 0): 3})
        assert (await consumer.committed("a", 0), await consumer.position("a", 0)) == (3, 4)
        # Then all that was given; and back, for who wants some of it again.
        await consumer.commit()
        assert group.at == {0: 4}
        await consumer.commit({("a", 0): 2})
        assert group.at == {0: 2}
        await consumer.commit()
        assert group.at == {0: 4}
        assert group.commits[-1] == [("from_offset", 2, 4, 0)]

    committing(work, batch_records_max=4)


def test_i21_what_was_not_given_is_not_committed() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        for offset in (5, -1):
            with pytest.raises(errors.InvalidArgument, match="0 to 4"):
                await consumer.commit({("a", 0): offset})
        with pytest.raises(errors.InvalidArgument, match="not assigned"):
            await consumer.commit({("a", 7): 1})
        assert group.commits == []

    committing(work, batch_records_max=4)


def test_i21_a_rewind_after_a_commit_of_a_part_goes_back_to_that_part() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.commit({("a", 0): 2})
        consumer.feeding.rewind()
        assert await consumer.position("a", 0) == 2

    committing(work, batch_records_max=4)


def test_i21_committed_waits_for_a_transaction_in_flight() -> None:
    async def work(consumer: Consumer, group: Group) -> None:
        pending = [1, 1]
        group.at = {0: 7}

        def fetch(to: Endpoint, request: Any) -> Any:
            if request.stable and pending.pop():
                raise errors.PendingTransaction("it moves", tx_id="0000000000000007")
            return group.fetch(to, request)

        def unknown(to: Endpoint, request: Any) -> Any:
            raise errors.UnknownTransaction("nobody knows whose")

        handlers = consumer._protocol.transport.handlers  # type: ignore[attr-defined]
        handlers["offset_manager.fetch_offsets"] = fetch
        handlers["coordinator.get_transaction"] = unknown
        pending.insert(0, 0)
        assert await consumer.committed("a", 0) == 7
        assert pending == []
        pending.extend([1] * 1_000)
        with pytest.raises(errors.PendingTransaction, match="it moves"):
            await consumer.committed("a", 0)

    committing(work, pending_timeout_ms=2_000)


def test_an_offset_of_a_partition_that_it_does_not_read_is_refused_by_name() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        group = Group(transport)
        await offsets_of(consumer, 2)
        gone = TopicPartition("a", 7)
        with pytest.raises(errors.InvalidArgument) as refused:
            await consumer.commit({TopicPartition("a", 0): 1, gone: 1})
        assert "offsets names 'a' partition 7, which this consumer does not read" in str(
            refused.value
        )
        assert "the others are not committed yet" in str(refused.value)
        assert group.commits == []
        await consumer.commit({TopicPartition("a", 0): 1})
        assert group.at == {0: 1}

    consuming(work, [reply(0, 0, 2)], group="g")
