"""That transactions are over is journaled for many at once, a little later, and never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import pytest

from oncelog_server.coordinator import outbox
from oncelog_server.coordinator.commands import (
    FinishPlanned,
    FinishTransactions,
    OweFinish,
    ProducerIdentity,
    Transact,
)
from oncelog_server.coordinator.outbox import FINISH_DELAY_MS
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.values import OneShotBatch
from oncelog_server.core.ids import JournalOffset, PartitionId, TxId
from oncelogpb.records import checksum
from tests.unit.coordinator.harness import ORDERS, Coordinator, LedReplica
from tests.unit.coordinator.test_marker_pace import MOMENT_S, a_commit, a_producer, run, turns
from tests.unit.coordinator.test_outbox import is_over

DELAY_S = FINISH_DELAY_MS / 1000


@contextmanager
def noted(replica: LedReplica) -> Iterator[list[tuple[TxId, ...]]]:
    """The TxIds of each FinishTransactions that is taken."""
    taken: list[tuple[TxId, ...]] = []
    submit = replica.submit

    def submitted(command: object) -> Awaitable[object]:
        future = submit(command)
        if isinstance(command, FinishTransactions):
            taken.append(command.tx_ids)
        return future

    replica.submit = submitted  # type: ignore[method-assign]
    yield taken


async def a_one_shot(c: Coordinator, who: ProducerIdentity, number: int, payload: bytes) -> TxId:
    batch = OneShotBatch(PartitionId(ORDERS, 0), 1, 1, checksum(payload), 0, payload)
    answer = await c.replica.submit(Transact(who, number, (batch,), None))
    tx_id: TxId = answer.tx_id
    return tx_id


async def commits(c: Coordinator, who: ProducerIdentity, first: int, last: int) -> list[TxId]:
    """Each visible before the next one."""
    tx_ids = []
    for number in range(first, last + 1):
        tx_ids.append(await a_commit(c, who, number))
        await asyncio.sleep(MOMENT_S)
        await turns()
    return tx_ids


def test_those_of_one_delay_are_journaled_together() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        with noted(c.replica) as taken:
            tx_ids = await commits(c, who, 1, 10)
            assert all(map(c.state.deliveries.is_visible, tx_ids))
            assert taken == []
            await asyncio.sleep(DELAY_S)
            await turns()
            assert taken == [tuple(tx_ids)], "in one command, each once"
            assert is_over(c, *tx_ids)()
            more = await commits(c, who, 11, 12)
            await asyncio.sleep(DELAY_S)
            await turns()
            assert taken[1:] == [tuple(more)]

    run(story)


@pytest.mark.parametrize(("limit", "most"), [("FINISH_AT_ONCE", 3), ("FINISH_AT_ONCE_BYTES", 300)])
def test_many_are_journaled_at_once(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(outbox, limit, most)

    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        with noted(c.replica) as taken:
            tx_ids = []
            for number in (1, 2, 3):
                assert taken == []
                tx_ids.append(await a_one_shot(c, who, number, b"x" * 100))
                await asyncio.sleep(MOMENT_S)
                await turns()
            assert taken == [tuple(tx_ids)]
            # The timer of those is not the timer of this one.
            last = await a_one_shot(c, who, 4, b"")
            await asyncio.sleep(DELAY_S - MOMENT_S)
            await turns()
            assert len(taken) == 1
            await asyncio.sleep(2 * MOMENT_S)
            await turns()
            assert taken[1:] == [(last,)]

    run(story)


def test_what_cannot_be_journaled_is_tried_again_though_nothing_else_happens() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        tx_ids = await commits(c, who, 1, 3)
        c.replica.lapsed = True
        await asyncio.sleep(2 * DELAY_S)
        assert not is_over(c, *tx_ids)(), "the lease ran out"
        c.replica.lapsed = False
        await asyncio.sleep(2 * DELAY_S)
        await turns()
        assert is_over(c, *tx_ids)()

    run(story)


def test_what_is_planned_is_owed_no_more() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        await commits(c, who, 1, 3)
        machine, below = c.replica.machine, c.replica.high_watermark
        assert not [owed for owed in machine.owed(below) if isinstance(owed, OweFinish)]
        assert len(c.state.transactions) == 3
        machine.check()

    run(story)


def test_who_leads_next_asks_again_about_what_was_only_planned() -> None:
    async def story(c: Coordinator) -> None:
        who = await a_producer(c)
        tx_ids = await commits(c, who, 1, 3)
        machine = c.replica.machine
        machine.seen(FinishPlanned(tx_ids), c.around.now())
        restored = CoordinatorState(machine.state.journal_partition, machine.state.config)
        restored.decode(machine.state.encode())
        owed = restored.deliveries.due(JournalOffset(c.replica.high_watermark))
        assert [marker.tx_id for one in owed for marker in one.markers] == tx_ids

    run(story)
