"""What two logs of one partition hold in which epoch, and who may say so: the rules of
docs/leadership.md, each in the order of events in which a record is lost without it."""

from __future__ import annotations

import asyncio
import contextlib

from oncelog_server.core.frame import FrameKind
from oncelogpb import errors
from tests.simulation.directed.stage import Stage, play

# A lease is over, and somebody is elected.
LEASE_S = 7.0


def test_i5_nobody_follows_by_an_old_view_after_a_restart() -> None:
    """The third is elected, makes the second cut x, loses its EPOCH_START in a crash, and comes
    back with a view of before. Were it to follow the old leader again, x would count as
    acknowledged by both: that leader asks etcd only whether the third one's process lives."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.follows(second, stage.data, leader=first)
        await stage.follows(third, stage.data, leader=first)
        old = stage.etcd(first).listing()
        stage.hold((first, third))
        x = stage.write(b"x", at=first)
        end = stage.replica(first, stage.data).log_end
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.synced_end > end, "x is copied"
        )
        # etcd gives the first one's lease up early; it believes to have it for some seconds. Its
        # watch is behind, while its reads are answered: so it finds that the third one lives.
        stage.etcd(first).stale = True
        stage.etcd(first).keep_alives_lost = True
        stage.bar(second)
        stage.disk(third).hold_commits()
        stage.end_lease(first)
        await stage.elected(third, stage.data)
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.last_epoch == 2, "x is cut"
        )
        await stage.lose_power(third)
        stage.let((first, third))
        starting = asyncio.create_task(stage.start(third, view=old))
        await asyncio.sleep(2.0)
        assert not x.is_acknowledged, "the second one has cut it"
        stage.etcd(third).stale = False
        with contextlib.suppress(errors.OncelogError):
            await starting
        await stage.lose_power(first)
        assert await stage.end() == [b"1"]

    play(story)


def test_i18_a_leader_whose_sync_failed_never_leads_that_epoch_again() -> None:
    """x is at the follower, and not on the leader's disk. The leader writes y in its place: were
    it in the same epoch, the acknowledgement of x would count for y."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.lose_power(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the dead one left")
        end = stage.replica(first, stage.data).log_end
        stage.bar(second)
        stage.disk(first).hold_commits()
        stage.disk(first).fail_next()
        x = stage.write(b"x", at=first)
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.synced_end > end, "x is copied"
        )
        stage.disk(first).let_commits()
        await stage.until(lambda: stage.is_synced(first, stage.data), "x is gone")
        await stage.ready(first, stage.data)
        await stage.acknowledged(b"y", at=first)
        await stage.empty_disk(first)
        stage.unbar(second)
        await stage.elected(second, stage.data)
        assert await stage.end() == [b"1", b"y"]
        assert x.why == "UNKNOWN_OUTCOME"

    play(story)


def test_i18_a_new_lease_gives_no_leadership_back() -> None:
    """Its key lapses, another one is elected and commits; its next keep-alive makes a new lease,
    while its view is still of before."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        stage.bar(third)
        stage.etcd(first).stale = True
        stage.etcd(first).keep_alives_lost = True
        stage.end_lease(first)
        await stage.ready(second, stage.data)
        await stage.acknowledged(b"2", at=second)
        stage.etcd(first).keep_alives_lost = False
        await stage.until(lambda: stage.regained(first), "a new lease")
        assert await stage.fetch(first, position=1) == "NOT_LEADER", "it would say: nothing there"
        old = stage.write(b"old", at=first)
        await stage.until(lambda: old.task.done(), "an answer")
        assert old.why == "NOT_LEADER"
        assert await stage.end() == [b"1", b"2"]

    play(story)


def test_i7_logs_are_compared_until_their_epochs_agree() -> None:
    """[1 2 4] and [1 3 5] have epoch 1 in common, not 2 (KIP-279): four elections, of each of which
    only one replica knows."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        await stage.follows(second, stage.data, leader=first)
        await stage.follows(third, stage.data, leader=first)
        stage.part_ways(second, third)
        await stage.lose_power(first)
        stage.bar(first, second, third)
        for name in (second, third, second, third):
            stage.unbar(name)
            await stage.elected(name, stage.data)
            stage.bar(name)
            await stage.synced(name, stage.data)
            await stage.lose_power(name)
            await stage.start(name)
            await stage.synced(name, stage.data)
        epochs = {
            name: [
                f.at.epoch
                for f in stage.frames(name, stage.data)
                if f.frame.kind is FrameKind.EPOCH_START
            ]
            for name in (second, third)
        }
        assert epochs == {second: [1, 2, 4], third: [1, 3, 5]}
        stage.unbar(third)
        await stage.elected(third, stage.data)
        assert await stage.end() == [b"1"]

    play(story)
