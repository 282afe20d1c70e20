"""What etcd says, late, in one instant, or only to those who ask again."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.runtime.replica.state import Stage as ReplicaStage
from tests.simulation.directed.stage import Stage, play

SNAPSHOT_BYTES = 4_000
# A reader that waits at who was deposed comes to the new leader within this.
MOVES_WITHIN_S = 10.0


def test_i18_two_leases_end_in_one_instant_and_the_third_missed_it() -> None:
    """The leader and a follower lose their leases together. The third one's watch was broken, and
    what it missed is compacted: a new listing shows that the leader is gone; it is elected."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        for name in (first, second):
            stage.cut_off_from_etcd(name)
        stage.etcd(third).stale = True
        stage.etcd(third).break_watches()
        stage.end_lease(first)
        stage.end_lease(second)
        stage.world.etcd.compact(stage.world.etcd.revision)
        stage.etcd(third).stale = False
        await stage.elected(third, stage.data)
        for name in (first, second):
            stage.reconnect(name)
        await stage.ready(third, stage.data)
        await stage.acknowledged(b"2", at=third)
        old = stage.write(b"old", at=first)
        await stage.until(lambda: old.task.done(), "an answer")
        assert not old.is_acknowledged
        assert await stage.end() == [b"1", b"2"]

    play(story)


@pytest.mark.parametrize("order", ["granted, deposed", "deposed, granted"])
def test_i18_granted_and_deposed_in_one_turn_while_the_last_epoch_closes(order: str) -> None:
    """A snapshot holds up the end of the first epoch. Meanwhile its leader is elected again, and
    somebody else after it: it hears of both in one turn, and leads nothing."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        stage.bar(second, third)
        stage.world.gate.clear()
        await stage.acknowledged(b"1" * 2 * SNAPSHOT_BYTES, at=first)
        node = stage.world.processes[first].node
        assert node._elections is not None
        stage.etcd(first).keep_alives_lost = True
        stage.bar(first)
        await node._elections.resign(stage.data)
        assert stage.replica(first, stage.data).stage is ReplicaStage.CLOSING

        # Elected again; the answer is on its way, and so is all that happens after it.
        etcd = stage.etcd(first)
        etcd.hold_next_txn_reply()
        stage.unbar(first)
        await stage.until(lambda: stage.state(stage.data).epoch == 2, "it is elected")
        etcd.stale = True
        stage.end_lease(first)
        stage.unbar(second)
        await stage.until(lambda: stage.state(stage.data).epoch == 3, "another one is elected")
        assert stage.replica(first, stage.data).stage is ReplicaStage.CLOSING

        def grant() -> None:
            etcd.release_held_replies()

        def depose() -> None:
            etcd.stale = False

        for tell in (grant, depose) if order.startswith("granted") else (depose, grant):
            tell()
        await stage.elected(second, stage.data)
        stage.world.gate.set()
        await stage.until(
            lambda: stage.replica(first, stage.data).stage is not ReplicaStage.CLOSING, "it closed"
        )
        assert stage.replica(first, stage.data).epoch == 1, "it never led epoch 2"
        await stage.until(lambda: stage.replica(first, stage.data).follows, "it follows")
        await stage.acknowledged(b"2", at=await stage.next_leader(stage.data))
        await stage.end()

    play(story, f"node.snapshot_every_bytes={SNAPSHOT_BYTES}")


def test_a_reader_that_waits_at_a_deposed_leader_is_sent_on() -> None:
    """The leader is cut off from etcd and its peers, not from its clients. A consumer stands at its
    end; nothing comes there any more, and no call of it fails. The records are elsewhere."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        await stage.acknowledged(b"1", at=first)
        consumer = await stage.client.consumer(["payments"], start="earliest")
        assert [one.value for one in await stage.poll(consumer)] == [b"1"]
        # The leader's replica rests.
        await asyncio.sleep(60)
        stage.cut_off_from_etcd(first)
        others = [name for name in stage.world.names if name != first]
        stage.part_ways(first, *others)
        await stage.until(lambda: stage.leader(stage.data) not in ("", first), "another leader")
        second = await stage.next_leader(stage.data)
        await stage.acknowledged(b"2", at=second)
        assert stage.replica(first, stage.data).is_ready, "it heard of nothing"
        batch = await consumer.poll(MOVES_WITHIN_S)
        assert batch is not None, "it waits where nothing comes any more"
        assert [record.value for record in batch.records()] == [b"2"]
        await consumer.close()
        await stage.end()

    play(story)
