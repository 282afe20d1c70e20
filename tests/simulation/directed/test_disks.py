"""Disks under several replicas: snapshots of what is cut later, no space anywhere, syncs that fail
at the leader, at a follower, and at both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.simulation.directed.stage import TOPIC, Stage, play

SNAPSHOT_BYTES = 4_000
FLOOR_BYTES = 64 << 10
# What was captured would be written within this; free space is looked at.
LOOKED_S = 2.5


def test_i35_no_snapshot_outlives_what_is_cut() -> None:
    """The leader takes a snapshot of what nobody else has, and is deposed. Its log is cut, and
    grows past the snapshot's place; then it is all that is left, and leads."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        stage.hold((first, second), (first, third))
        x = stage.write(b"x" * 2 * SNAPSHOT_BYTES, at=first)
        await stage.until(lambda: stage.is_synced(first, stage.data), "x is on one disk")
        await asyncio.sleep(LOOKED_S)
        stage.cut_off_from_etcd(first)
        stage.end_lease(first)
        stage.bar(first, third)
        await stage.ready(second, stage.data)
        for value in (b"2", b"3", b"4"):
            await stage.acknowledged(value, at=second)
        stage.reconnect(first)
        stage.let((first, second), (first, third))
        await stage.follows(first, stage.data, leader=second)
        assert not x.is_acknowledged
        await stage.until(lambda: len(stage.in_sync(stage.data)) == 3, "it is in sync again")
        stage.unbar(first)
        stage.bar(second)
        for name in (second, third):
            await stage.lose_power(name)
        await stage.start(third)
        await stage.acknowledged(b"5", at=await stage.next_leader(stage.data))
        assert stage.leader(stage.data) == first
        assert await stage.end() == [b"1", b"2", b"3", b"4", b"5"]

    play(story, f"node.snapshot_every_bytes={SNAPSHOT_BYTES}")


def test_i28_where_all_disks_are_full_data_is_refused_and_transactions_end() -> None:
    """Every machine of the cluster at once. Leaders stay, reads go on, what was begun is committed,
    and when there is room again writes succeed."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        leader = stage.leader(stage.data)
        await stage.acknowledged(b"1", at=leader)
        producer = await stage.client.transactional_producer("billing")
        transaction = producer.transaction()
        await transaction.__aenter__()
        await transaction.send(TOPIC, b"2")
        await transaction.flush()
        before = stage.epochs()
        for name in stage.world.names:
            disk = stage.disk(name)
            disk.capacity_bytes = disk.used_bytes() + FLOOR_BYTES // 2
        await asyncio.sleep(LOOKED_S)
        write = stage.write(b"refused", at=leader)
        await stage.until(lambda: write.task.done(), "an answer")
        assert write.why == "DISK_FULL"
        await transaction.commit()
        await producer.close()
        assert await stage.read() == [[b"1", b"2"]]
        assert stage.epochs() == before, "no space ends no epoch"
        for name in stage.world.names:
            stage.disk(name).capacity_bytes = None
        await asyncio.sleep(LOOKED_S)
        await stage.acknowledged(b"3", at=leader)
        assert await stage.end() == [b"1", b"2", b"3"]

    play(story, f"node.disk_free_floor_bytes={FLOOR_BYTES}")


ROLES = ("leader", "follower")


@pytest.mark.parametrize("fails", [*((role,) for role in ROLES), ROLES], ids=" and ".join)
def test_i5_i25_what_could_not_be_synced_is_not_acknowledged(fails: Sequence[str]) -> None:
    """The third is away, so that both that are left are needed. The syncs of one of them, or of
    both, hang and then fail: what was acknowledged is on two disks, whoever leads then."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.lose_power(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the dead one left")
        end = stage.replica(first, stage.data).log_end
        failing = [name for role, name in zip(ROLES, (first, second), strict=True) if role in fails]
        for name in failing:
            stage.disk(name).hold_commits()
        x = stage.write(b"x", at=first)
        await stage.until(lambda: stage.replica(second, stage.data).log_end > end, "x is copied")
        await asyncio.sleep(1.0)
        assert not x.is_acknowledged, "it is on one disk at most"
        for name in failing:
            stage.disk(name).fail_next()
            stage.disk(name).let_commits()
        await stage.until(lambda: x.task.done(), "an answer")
        leader = await stage.next_leader(stage.data)
        assert x.is_acknowledged == ("leader" not in fails)
        await stage.acknowledged(b"2", at=leader)
        # The power goes everywhere at once.
        for name in (first, second):
            await stage.lose_power(name)
        assert await stage.end() in ([b"1", b"2"], [b"1", b"x", b"2"])

    play(story)
