"""How many records wait for each group, as its leaders tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from oncelog_server.core.ids import BootId, PartitionId, TopicId
from oncelog_server.core.ports import Address, TopicInfo
from oncelog_server.core.wire import partition_id
from oncelog_server.offset_manager.commands import CommitOffsets, OffsetCommit, View
from oncelog_server.offset_manager.lag import FIRST_LOOK_MS, LagWatch
from oncelogpb.errors import Unavailable, UnknownTopic, to_status
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.offset_manager.fakes import FakeMetadata, FakeReporter, Outside

ORDERS, CLICKS = TopicId(b"orders.........."), TopicId(b"clicks..........")
EVERY_MS = 10_000
Tell = Callable[["Watched"], Coroutine[Any, Any, None]]


class Metadata(FakeMetadata):
    """Two topics of three partitions; the third of each is led by another node."""

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        return TopicInfo("t", topic_id, 3, 1, {}, 0) if topic_id in (ORDERS, CLICKS) else None

    def leader_of(self, partition: PartitionId) -> Address | None:
        node = "b" if partition.number == 2 else "a"
        return Address(node, BootId(node.encode() * 16), node, 1, 1)


class Peers:
    """Leaders: every partition begins at 5 and ends at 100 + its number, in the journal at 1,000
    more. `down` does not answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        self.down = ""

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        assert method == "partition_leader.list_offsets"
        self.asked.append((to.node_id, [q.partition.number for q in request.queries]))
        if to.node_id == self.down:
            raise Unavailable("down")
        more = 1_000 if request.isolation == pb.ISOLATION_UNCOMMITTED else 0
        return pb.ListOffsetsReply(
            offsets=[
                pb.ListedOffset(
                    partition=q.partition,
                    offset=5 if q.earliest else 100 + q.partition.number + more,
                )
                for q in request.queries
            ]
        )


class Reporter(FakeReporter):
    """The rows of the last `replace`."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[tuple[str, str], float] = {}

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        assert name == "group_lag"
        self.rows = {(labels["group"], labels["partition"]): lag for labels, lag in rows}


class Watched:
    """One led partition of `__consumer_offsets` and its watch."""

    def __init__(self, *, series_max: int = 100) -> None:
        outside = Outside(0)
        self.metadata, self.peers, self.reporter = Metadata(), Peers(), Reporter()
        self.replica = outside.replicas.by_number[0]
        self.env = outside.env.__class__(
            clock=outside.clock,
            metadata=self.metadata,  # type: ignore[arg-type]
            topics=None,  # type: ignore[arg-type]
            peers=self.peers,
            replicas=None,  # type: ignore[arg-type]
            reporter=self.reporter,
            random_bytes=bytes,
        )
        self.watch = LagWatch(
            self.replica,  # type: ignore[arg-type]
            self.env,
            every_ms=EVERY_MS,
            series_max=series_max,
        )

    async def commit(self, group: str, *steps: OffsetCommit) -> None:
        await self.replica.submit(CommitOffsets(group, steps))

    async def look(self) -> dict[tuple[str, str], float]:
        self.reporter.rows = {}
        await asyncio.sleep(EVERY_MS / 1000)
        return self.reporter.rows


def told(tell: Tell, *, series_max: int = 100) -> None:
    async def story() -> None:
        watched = Watched(series_max=series_max)
        try:
            await tell(watched)
        finally:
            await watched.watch.stop()

    run(story(), VirtualTimeLoop())


def step(topic: TopicId, number: int, to: int, view: View = View.COMMITTED) -> OffsetCommit:
    return OffsetCommit(PartitionId(topic, number), -2, to, view)


def test_each_partition_of_the_topics_concerned_is_shown() -> None:
    async def tell(watched: Watched) -> None:
        await watched.commit("g", step(ORDERS, 0, 60), step(ORDERS, 1, 101))
        await watched.commit("h", step(CLICKS, 2, 3))
        await asyncio.sleep(2 * FIRST_LOOK_MS / 1000)
        orders, clicks = ORDERS.hex(), CLICKS.hex()
        assert watched.reporter.rows == {
            ("g", f"{orders}/0"): 40,
            ("g", f"{orders}/1"): 0,
            # Nothing was committed: all that is kept waits.
            ("g", f"{orders}/2"): 97,
            ("h", f"{clicks}/0"): 95,
            ("h", f"{clicks}/1"): 96,
            # What it had not read before the first that is kept does not wait any more.
            ("h", f"{clicks}/2"): 97,
        }
        # One call to each leader.
        assert sorted(node for node, _ in watched.peers.asked) == ["a", "b"]

    told(tell)


def test_the_journals_view_has_its_own_ends() -> None:
    async def tell(watched: Watched) -> None:
        await watched.commit("g", step(ORDERS, 0, 60, View.JOURNAL))
        assert (await watched.look())["g", f"{ORDERS.hex()}/0"] == 1_040

    told(tell)


def test_a_leader_that_does_not_answer_leaves_a_gap_until_the_next_look() -> None:
    async def tell(watched: Watched) -> None:
        await watched.commit("g", step(ORDERS, 0, 60))
        watched.peers.down = "b"
        assert [place[-1] for _, place in await watched.look()] == ["0", "1"]
        watched.peers.down = ""
        assert len(await watched.look()) == 3

    told(tell)


def test_a_refused_partition_and_a_topic_that_is_gone_are_left_out() -> None:
    async def tell(watched: Watched) -> None:
        gone = TopicId(b"gone............")
        await watched.commit("g", step(ORDERS, 0, 60), step(gone, 0, 1))
        answer = watched.peers.call

        async def refusing(to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
            reply = await answer(to, method, request, timeout_ms=timeout_ms)
            for offset in reply.offsets:
                if partition_id(offset.partition).number == 1:
                    offset.error.CopyFrom(to_status(UnknownTopic("no")))
            return reply

        watched.peers.call = refusing  # type: ignore[method-assign]
        assert [place[-1] for _, place in await watched.look()] == ["0", "2"]

    told(tell)


def test_the_groups_that_changed_last_are_shown_up_to_the_limit() -> None:
    async def tell(watched: Watched) -> None:
        for name in ("old", "newer", "newest"):
            await watched.commit(name, step(ORDERS, 0, 60))
        shown = await watched.look()
        assert [group for group, _ in shown] == ["newest"] * 3 + ["newer"]
        left_out = watched.reporter.gauges["group_lag_left_out", "__consumer_offsets/0"]
        assert left_out == 2
        await watched.commit("old", step(ORDERS, 0, 61))
        assert {group for group, _ in await watched.look()} == {"old", "newest"}

    told(tell, series_max=4)


def test_who_leads_no_more_shows_nothing() -> None:
    async def tell(watched: Watched) -> None:
        await watched.commit("g", step(ORDERS, 0, 60))
        assert await watched.look()
        await watched.watch.stop()
        assert watched.reporter.rows == {}
        assert not await watched.look()

    told(tell)


def test_a_fault_in_a_look_costs_that_look_alone() -> None:
    async def tell(watched: Watched) -> None:
        await watched.commit("g", step(ORDERS, 0, 60))
        real, watched.metadata.topic_by_id = watched.metadata.topic_by_id, None  # type: ignore
        assert not await watched.look()
        assert watched.reporter.events == ["lag not measured"]
        watched.metadata.topic_by_id = real  # type: ignore[method-assign]
        assert await watched.look()

    told(tell)
