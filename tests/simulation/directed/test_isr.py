"""Who is in sync: what counts while it changes, and below which number it never goes."""

from __future__ import annotations

import asyncio

from tests.simulation.directed.stage import Stage, play

# Longer than `replica_lag_ms` and a tick.
LAGS_S = 5.0


def test_i25_nothing_is_acknowledged_that_one_disk_has() -> None:
    """One follower dies, the other one is cut off: the leader is left with its own disk, where the
    high watermark stands, and then it loses that."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.lose_power(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the dead one left")
        await stage.acknowledged(b"2", at=first)
        stage.part_ways(first, second)
        alone = stage.write(b"alone", at=first)
        await asyncio.sleep(LAGS_S)
        refused = stage.write(b"refused", at=first)
        await stage.until(lambda: refused.task.done(), "an answer")
        assert refused.why == "NOT_ENOUGH_REPLICAS"
        assert not alone.is_acknowledged, "one disk has it"
        assert len(stage.state(stage.data).isr) == 2, "it never shrinks below two"

        await stage.empty_disk(first)
        await stage.start(first)
        await stage.elected(second, stage.data)
        assert await stage.end() == [b"1", b"2"]

    play(story)


def test_i5_a_joiner_counts_though_nobody_said_that_it_joined() -> None:
    """Its compare-and-set is done and the answer lost; the leader's watch is behind. What it
    acknowledges without the joiner is gone once the joiner is all that is left."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.lose_power(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the dead one left")
        etcd = stage.etcd(first)
        etcd.stale = True
        etcd.drop_next_txn_reply()
        await stage.start(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 3, "it has joined")
        etcd.unavailable = True
        stage.hold((first, third))
        write = stage.write(b"1", at=first)
        await asyncio.sleep(1.0)
        # Acknowledged or not, it must be there.
        await stage.lose_power(first)
        await stage.lose_power(second)
        await stage.elected(third, stage.data)
        await stage.start(second)
        await stage.next_leader(stage.data)
        assert not write.is_acknowledged, "who joins has not got it"
        await stage.end()

    play(story)


def test_i5_a_change_that_is_on_its_way_counts_until_it_cannot_happen_any_more() -> None:
    """ "Add the third" times out at the leader, and is applied later, when the leader acknowledged
    something without it, and is dead."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.lose_power(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the dead one left")
        etcd = stage.etcd(first)
        etcd.hold_next_txn()
        await stage.start(third)
        await stage.follows(third, stage.data, leader=first)
        await stage.until(etcd.answer_txns, "the change is sent")
        etcd.unavailable = True
        stage.hold((first, third))
        write = stage.write(b"1", at=first)
        await asyncio.sleep(1.0)
        etcd.release_held_txns()
        assert len(stage.state(stage.data).isr) == 3, "it joins after all"
        await stage.lose_power(first)
        await stage.lose_power(second)
        await stage.elected(third, stage.data)
        await stage.start(second)
        await stage.next_leader(stage.data)
        assert not write.is_acknowledged, "who joins has not got it"
        await stage.end()

    play(story)


def test_i5_an_empty_replica_joins_when_it_has_what_was_shown() -> None:
    """A new leader knows of no high watermark yet. Were it to add an empty replica, and die, that
    one could be elected. But it need not wait for members that are dead: once the empty one has
    caught up, the two of them go on."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.follows(second, stage.data, leader=first)
        await stage.empty_disk(third)
        await stage.lose_power(first)
        stage.bar(third)
        await stage.elected(second, stage.data)
        await stage.start(third, held=True)
        await asyncio.sleep(2.0)
        assert stage.in_sync(stage.data) == [second], "the third is empty"
        assert not stage.replica(second, stage.data).is_ready
        stage.disk(third).let_commits()
        await stage.ready(second, stage.data)
        assert stage.in_sync(stage.data) == sorted([second, third])
        await stage.acknowledged(b"2", at=second)
        assert await stage.end() == [b"1", b"2"]

    play(story)


def test_i5_who_is_not_in_sync_is_not_elected() -> None:
    """The third lags and leaves; the two that go on without it die. It waits for one of them."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        stage.part_ways(third, first, second)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the third leaves")
        await stage.acknowledged(b"2", at=first)
        epoch = stage.state(stage.data).epoch
        await stage.lose_power(first)
        await stage.lose_power(second)
        await asyncio.sleep(2 * LAGS_S)
        assert stage.state(stage.data).epoch == epoch, "it lacks what was acknowledged"
        await stage.start(second)
        await stage.elected(second, stage.data)
        assert await stage.end() == [b"1", b"2"]

    play(story)
