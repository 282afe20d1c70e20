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
from oncelog_server.coordinator.marker_pace import MOMENT_MS
from oncelog_server.coordinator.values import Manifest, TopicParts
from oncelog_server.core.ids import TxId
from oncelogpb.v1 import participant_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.simulation.virtual_time import VirtualTimeLoop
from tests.unit.coordinator.calls import begin, commit, init
from tests.unit.coordinator.harness import ORDERS, Coordinator, apply_all

MOMENT_S = MOMENT_MS / 1000


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


async def a_commit(c: Coordinator, who: ProducerIdentity, number: int) -> TxId:
    begun = await c.replica.submit(BeginTransaction(who, number))
    parts = TopicParts(ORDERS, (0,), (0,), (1,))
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
