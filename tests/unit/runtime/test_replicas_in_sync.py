"""A leader with followers: what waits for them, what is refused without them, and what it asks etcd
to make of the replicas in sync (ISR)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replica.followers import ISR_RETRY_MS
from oncelog_server.runtime.replica.in_sync import IsrChange, Why
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.replica.supply import Supply
from oncelog_server.runtime.target import Assignment, Isr
from oncelogpb.errors import NotEnoughReplicas, NotLeader, UnknownOutcome
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add

B, C = Incarnation(b"b" * 16), Incarnation(b"c" * 16)
REVISION = 7


def story(tell: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Bench(loop, min_insync_replicas=2))

    run(main(), loop)


def own(bench: Bench) -> Incarnation:
    return Incarnation(bench.journal.incarnation)


async def lead(
    bench: Bench, *others: Incarnation, epoch: int = 1, revision: int = REVISION
) -> None:
    """With these in the ISR beside itself; returns with EPOCH_START synced here."""
    isr = Isr(revision, (own(bench), *others))
    bench.grant(epoch, isr=isr, replication_factor=3)
    await bench.driver.settled()
    await bench.around.commit.flush()


def acknowledge(bench: Bench, who: Incarnation, end: int | None = None) -> None:
    """It has synced everything, or what is below `end`, in the epoch that is led."""
    bench.leadership.followers.acknowledged(
        who,
        node=who.hex()[:2],
        epoch=bench.driver.epoch,
        synced_end=bench.journal.log_end if end is None else end,
    )


def test_i5_an_answer_waits_for_all_who_are_in_sync() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B, C)
        acknowledge(bench, B)
        answered_before = bench.driver.is_ready
        acknowledge(bench, C)
        assert (answered_before, bench.driver.is_ready) == (False, True)
        answer = bench.driver.submit(Add(5))
        await bench.around.commit.flush()
        acknowledge(bench, C)
        assert not answer.done()
        acknowledge(bench, B)
        assert await answer == 5

    story(tell)


def test_i5_an_acknowledgement_after_the_lease_answers_nobody() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B)
        acknowledge(bench, B)
        answer = bench.driver.submit(Add(5))
        await bench.around.commit.flush()
        bench.lease_valid = False
        acknowledge(bench, B)
        with pytest.raises(UnknownOutcome):
            await answer

    story(tell)


def test_i5_with_too_few_in_sync_nothing_is_appended() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B)
        acknowledge(bench, B)
        book, now = bench.leadership.followers.book, bench.loop.now
        assert book is not None
        book.closed(B, now_ms=now().monotonic_ms)
        await asyncio.sleep(2)
        end = bench.journal.log_end
        with pytest.raises(NotEnoughReplicas):
            bench.driver.submit(Add(5))
        assert bench.journal.log_end == end
        assert await bench.driver.submit(Add(0)) == 0, "what writes nothing is answered"
        bench.driver.tick()
        assert bench.changes == [], "the ISR never has fewer than min_insync_replicas"
        book.opened(B, node=B.hex()[:2], now_ms=now().monotonic_ms)
        acknowledge(bench, B)
        answer = bench.driver.submit(Add(5))
        await bench.around.commit.flush()
        acknowledge(bench, B)
        assert await answer == 5

    story(tell)


def test_who_has_caught_up_joins_and_counts_from_the_question_on() -> None:
    async def tell(bench: Bench) -> None:
        asked = bench.loop.create_future()

        async def later(change: IsrChange, compared_revision: int) -> Isr:
            await asked
            return Isr(compared_revision + 1, change.isr)

        bench.etcd_says = later
        await lead(bench, B)
        acknowledge(bench, B)
        acknowledge(bench, C)
        await asyncio.sleep(0)
        [(change, compared)] = bench.changes
        assert (change.why, change.who, compared) == (Why.JOIN, C, REVISION)
        answer = bench.driver.submit(Add(5))
        await bench.around.commit.flush()
        acknowledge(bench, B)
        assert not answer.done(), "who joins counts already"
        acknowledge(bench, C)
        assert await answer == 5
        asked.set_result(None)
        await asyncio.sleep(1)
        assert len(bench.changes) == 1

    story(tell)


def test_who_is_dead_when_the_epoch_begins_does_not_hold_it_up_for_ever() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B, C)
        for _ in range(20):
            acknowledge(bench, B)
            await asyncio.sleep(0.1)
            bench.driver.tick()
        assert [(change.why, change.who) for change, _ in bench.changes] == [(Why.LAGS, C)]
        assert bench.driver.stage is Stage.READY

    story(tell)


def test_i5_a_change_whose_answer_was_lost_counts_until_a_later_revision_is_seen() -> None:
    async def tell(bench: Bench) -> None:
        async def lost(change: IsrChange, compared_revision: int) -> None:
            return None

        bench.etcd_says = lost
        await lead(bench, B)
        acknowledge(bench, B)
        acknowledge(bench, C)
        await asyncio.sleep(2 * ISR_RETRY_MS / 1000)
        bench.driver.tick()
        await asyncio.sleep(0)
        assert len(bench.changes) == 2, "it asks again"
        answer = bench.driver.submit(Add(5))
        await bench.around.commit.flush()
        acknowledge(bench, B)
        bench.driver.isr_seen(1, Isr(REVISION, (own(bench), B)))
        assert not answer.done(), "it may have joined, or join yet"
        bench.driver.isr_seen(1, Isr(REVISION + 1, (own(bench), B)))
        assert await answer == 5

    story(tell)


def test_i4_what_only_this_replica_has_synced_is_not_shown_by_its_next_epoch() -> None:
    async def tell(bench: Bench) -> None:
        await lead(bench, B)
        acknowledge(bench, B)
        answer = bench.driver.submit(Add(1))
        await bench.around.commit.flush()
        acknowledge(bench, B)
        assert await answer == 1
        lost = bench.driver.submit(Add(10))
        await bench.around.commit.flush()
        bench.depose()
        with pytest.raises(UnknownOutcome):
            await lost
        await lead(bench, B, epoch=2, revision=REVISION + 1)
        assert (2, 10) not in bench.role.projected, "another log may win, and lacks the second one"
        assert bench.driver.high_watermark == 2
        acknowledge(bench, B)
        assert bench.role.projected[-1] == (2, 10)

    story(tell)


def test_a_change_ends_with_its_epoch() -> None:
    async def tell(bench: Bench) -> None:
        never = bench.loop.create_future()

        async def hang(change: IsrChange, compared_revision: int) -> Isr:
            await never
            raise AssertionError("nobody waits for it")

        bench.etcd_says = hang
        await lead(bench, B)
        acknowledge(bench, B)
        acknowledge(bench, C)
        await asyncio.sleep(0)
        assert len(bench.changes) == 1
        bench.depose()
        await bench.driver.settled()
        assert bench.driver.stage is Stage.STANDBY

    story(tell)


# ------------------------------------------------------------------------------ moving replicas


def moving(bench: Bench, *target: str, revision: int = REVISION) -> Isr:
    """From `n1` and `b` to `target`; all of them are in sync."""
    return Isr(revision, (own(bench), B, C), Assignment(("n1", "b", "c"), ("c",), target))


def follow(bench: Bench, who: Incarnation, node: str) -> Supply:
    """It has a dialog, and has synced everything."""
    supply = bench.leadership.followers.supply(
        who, node=node, stream=Room(1 << 20), tell=lambda told: None
    )
    bench.leadership.followers.opened(who, node=node)
    bench.leadership.followers.acknowledged(
        who, node=node, epoch=bench.driver.epoch, synced_end=bench.journal.log_end
    )
    return supply


def test_i18_a_leader_that_is_not_wanted_hands_over() -> None:
    async def tell(bench: Bench) -> None:
        bench.grant(1, isr=moving(bench, "b", "c"), replication_factor=2)
        await bench.driver.settled()
        await bench.around.commit.flush()
        for who, node in ((B, "b"), (C, "c")):
            follow(bench, who, node)
        change = IsrChange((B, C), Why.MOVED, own(bench), Assignment(("b", "c")))
        assert bench.handed_over == [(change, REVISION)]
        assert bench.changes == [], "it is not asked for by a leader"
        await bench.driver.settled()
        assert bench.driver.stage is Stage.STANDBY

    story(tell)


def test_who_was_moved_away_is_supplied_no_more() -> None:
    async def tell(bench: Bench) -> None:
        bench.grant(1, isr=moving(bench, "n1", "c"), replication_factor=2)
        await bench.driver.settled()
        await bench.around.commit.flush()
        supplies = [follow(bench, who, node) for who, node in ((B, "b"), (C, "c"))]
        await asyncio.sleep(1)
        assert [change.why for change, _ in bench.changes] == [Why.MOVED]
        assert [supply.is_over for supply in supplies] == [True, False]
        with pytest.raises(NotLeader):
            bench.leadership.followers.supply(
                B, node="b", stream=Room(1 << 20), tell=lambda told: None
            )

    story(tell)
