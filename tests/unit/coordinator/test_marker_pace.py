"""Markers go at once where none went in this moment or somebody waits, else together at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oncelog_server.coordinator.commands import (
    BeginTransaction,
    CommitTransaction,
    InitProducer,
    ProducerIdentity,
)
from oncelog_server.coordinator.deliveries import MARKERS_PER_GROUP_MAX
from oncelog_server.coordinator.marker_pace import (
    MOMENT_MS,
    UNWATCHED_MOMENT_MS,
    WATCHED_FOR_S,
)
from oncelog_server.coordinator.values import Manifest, TopicParts
from oncelog_server.core.ids import TxId
from oncelogpb.errors import DiskFull, to_status
from oncelogpb.v1 import participant_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.simulation.virtual_time import VirtualTimeLoop
from tests.unit.coordinator.calls import begin, commit, init
from tests.unit.coordinator.harness import ORDERS, Coordinator, apply_all
from tests.unit.coordinator.test_visibility import ask

MOMENT_S = MOMENT_MS / 1000
UNWATCHED_S = UNWATCHED_MOMENT_MS / 1000


def run(story: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def told() -> None:
        coordinator = Coordinator()
        await story(coordinator)
        coordinator.replica.host.machine.check()
        await coordinator.step_down()

    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(told())
    finally:
        loop.close()


async def a_producer(c: Coordinator) -> ProducerIdentity:
    granted = await c.replica.submit(InitProducer("g", "p", b"instance-of-p..."))
    who: ProducerIdentity = granted.producer
    return who


async def a_commit(
    c: Coordinator, who: ProducerIdentity, number: int, partitions: tuple[int, ...] = (0,)
) -> TxId:
    begun = await c.replica.submit(BeginTransaction(who, number))
    one_each = (1,) * len(partitions)
    parts = TopicParts(ORDERS, partitions, (0,) * len(partitions), one_each)
    await c.replica.submit(CommitTransaction(begun.tx_id, who, Manifest((parts,))))
    tx_id: TxId = begun.tx_id
    return tx_id


async def turns(count: int = 50) -> None:
    """All that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


def sent(c: Coordinator) -> list[list[int]]:
    """The TxIds in each message, whatever the number of their participants."""
    return [
        list(dict.fromkeys(marker.tx_id for group in request.groups for marker in group.markers))
        for method, request in c.around.calls
        if method == "participant.write_markers"
    ]


def test_one_that_comes_alone_goes_at_once() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        loop = asyncio.get_running_loop()
        for number in (1, 2, 3):
            began = loop.time()
            tx_id = await a_commit(c, who, number)
            await turns()
            assert sent(c)[-1] == [tx_id]
            assert loop.time() == began, "it is not held back"
            await asyncio.sleep(MOMENT_S)

    run(story)


def test_those_that_come_soon_after_it_go_together_within_a_moment() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        tx_ids = []
        for number in range(1, 11):
            tx_ids.append(await a_commit(c, who, number))
            await turns()
        assert sent(c) == [tx_ids[:1]]
        await asyncio.sleep(MOMENT_S)
        await turns()
        assert sent(c) == [tx_ids[:1], tx_ids[1:]], "all, in PREPARE order, in one message"
        # The moment in which they went has begun anew.
        late = await a_commit(c, who, 11)
        await turns()
        assert len(sent(c)) == 2
        await asyncio.sleep(MOMENT_S)
        await turns()
        assert sent(c)[2:] == [[late]]

    run(story)


def test_who_waits_until_it_is_visible_waits_for_no_moment() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = await begin(c, who, 1)
        await commit(c, who, first)
        held_back = await begin(c, who, 2)
        await commit(c, who, held_back)
        await turns()
        assert sent(c) == [[first]]
        waited_for = await begin(c, who, 3)
        reply = await commit(c, who, waited_for, wait=types.WAIT_VISIBLE)
        assert reply.visible
        assert loop.time() == began
        assert sent(c)[1:] == [[held_back, waited_for]], "what was held back goes along"

    run(story)


def test_who_asks_whether_it_is_visible_waits_for_no_longer_moment() -> None:
    """As who takes over a consumer's partitions does, whose last transaction came just before."""

    async def story(c: Coordinator) -> None:
        c.around.markers = unwatched
        who = await init(c)
        await commit(c, who, await begin(c, who, 1))
        await at_the_beginning_of_a_longer_moment()
        first = await begin(c, who, 2)
        await commit(c, who, first)
        await turns()
        held_back = await begin(c, who, 3)
        await commit(c, who, held_back)
        await turns()
        assert sent(c)[1:] == [[first]]
        assert not (await ask(c, held_back)).visible
        await asyncio.sleep(1.01 * MOMENT_S)
        assert sent(c)[2:] == [[held_back]], "who asks waits"
        assert (await ask(c, held_back)).visible

    run(story)


def test_who_waits_is_not_held_back_behind_what_is_under_way() -> None:
    async def story(c: Coordinator) -> None:
        gate = asyncio.Event()

        async def slow(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            await gate.wait()
            return apply_all(request)

        c.around.markers = slow
        who = await init(c)
        began = asyncio.get_running_loop().time()
        await commit(c, who, await begin(c, who, 1))
        waited_for = await begin(c, who, 2)
        visible = asyncio.ensure_future(commit(c, who, waited_for, wait=types.WAIT_VISIBLE))
        await turns()
        assert len(sent(c)) == 1, "one unacknowledged group per participant"
        gate.set()
        await visible
        assert asyncio.get_running_loop().time() == began

    run(story)


def unwatched(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
    """Participants that nobody reads."""
    reply = apply_all(request)
    for group in reply.groups:
        group.unwatched = True
    return reply


async def at_the_beginning_of_a_longer_moment() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep((loop.time() // UNWATCHED_S + 1.01) * UNWATCHED_S - loop.time())


def test_where_nobody_reads_more_of_them_go_together() -> None:
    async def story(c: Coordinator) -> None:
        c.around.markers = unwatched
        who = await a_producer(c)
        loop = asyncio.get_running_loop()
        await at_the_beginning_of_a_longer_moment()
        began = loop.time()
        tx_ids = []
        for number in range(1, 6):
            tx_ids.append(await a_commit(c, who, number))
            await asyncio.sleep(0.9 * MOMENT_S)
        assert sent(c) == [tx_ids[:1]], "the first is alone, and goes at once"
        await asyncio.sleep(began + 1.01 * UNWATCHED_S - loop.time())
        await turns()
        assert sent(c) == [tx_ids[:1], tx_ids[1:]]

    run(story)


def test_who_begins_to_read_is_heard_of_with_the_next_answer() -> None:
    async def story(c: Coordinator) -> None:
        c.around.markers = unwatched
        who = await a_producer(c)
        await at_the_beginning_of_a_longer_moment()
        await a_commit(c, who, 1)
        await turns()
        # From here on somebody reads: the answer to what goes next says so, after others are due.
        gate = asyncio.Event()

        async def slow(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            await gate.wait()
            return apply_all(request)

        c.around.markers = slow
        await asyncio.sleep(UNWATCHED_S)
        second = await a_commit(c, who, 2)
        await turns()
        assert sent(c)[1:] == [[second]]
        held_back = await a_commit(c, who, 3, (1,))
        await turns()
        gate.set()
        await asyncio.sleep(1.01 * MOMENT_S)
        assert sent(c)[2:] == [[held_back]], "who reads waits for no longer moment"
        # And for a while moments are short, though an answer in between says otherwise.
        c.around.markers = unwatched
        for number in (4, 5):
            tx_id = await a_commit(c, who, number)
            await asyncio.sleep(1.01 * MOMENT_S)
            assert sent(c)[-1] == [tx_id]
        await asyncio.sleep(WATCHED_FOR_S)
        await a_commit(c, who, 6)
        late = await a_commit(c, who, 7)
        await asyncio.sleep(1.01 * MOMENT_S)
        assert late not in sent(c)[-1], "nobody has read there for a while"
        await asyncio.sleep(UNWATCHED_S)
        assert sent(c)[-1] == [late]

    run(story)


def test_where_much_waits_moments_are_short() -> None:
    """A message holds no more of it, so a longer moment would only hold up what comes behind."""

    async def story(c: Coordinator) -> None:
        c.around.markers = unwatched
        who = await a_producer(c)
        await a_commit(c, who, 1)
        await at_the_beginning_of_a_longer_moment()
        partitions = tuple(range(MARKERS_PER_GROUP_MAX // 2))
        await a_commit(c, who, 2)
        held_back = await a_commit(c, who, 3, partitions)
        await asyncio.sleep(1.01 * MOMENT_S)
        assert held_back not in sent(c)[-1], "it waits for a longer moment"
        much = await a_commit(c, who, 4, partitions)
        await asyncio.sleep(1.01 * MOMENT_S)
        assert {held_back, much} == set(sent(c)[-1]), "much waits for a short one"

    run(story)


def test_a_refusal_says_nothing_of_readers() -> None:
    async def story(c: Coordinator) -> None:
        def full(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            reply = unwatched(request)
            for group, result in zip(request.groups, reply.groups, strict=True):
                if group.partition.number == 1:
                    refused = pb.MarkerGroupResult(error=to_status(DiskFull("full")))
                    result.CopyFrom(refused)
            return reply

        c.around.markers = full
        who = await a_producer(c)
        await a_commit(c, who, 1, (0, 1))
        await at_the_beginning_of_a_longer_moment()
        await a_commit(c, who, 2)
        held_back = await a_commit(c, who, 3)
        await asyncio.sleep(1.01 * MOMENT_S)
        assert held_back not in sent(c)[-1]

    run(story)


def test_one_that_is_read_is_enough() -> None:
    async def story(c: Coordinator) -> None:
        def first_is_read(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            reply = unwatched(request)
            for group, result in zip(request.groups, reply.groups, strict=True):
                result.unwatched = group.partition.number != 0
            return reply

        c.around.markers = first_is_read
        who = await a_producer(c)
        for number in range(1, 5):
            tx_id = await a_commit(c, who, number, (0, 1))
            await asyncio.sleep(1.01 * MOMENT_S)
            assert sent(c)[-1] == [tx_id]

    run(story)


def test_nothing_is_sent_once_it_was_stopped() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        for number in (1, 2):
            await a_commit(c, who, number)
            await turns()
        assert len(sent(c)) == 1
        await c.outbox.stop()
        await asyncio.sleep(1)
        assert len(sent(c)) == 1

    run(story)
