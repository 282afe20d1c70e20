"""`oncelog cluster recover` after etcd is lost: of the logs that are left, one leads. It must be
one that has all that anybody was shown."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.runtime.cluster_recovery.choosing import RECOVERY_EPOCHS
from oncelog_server.runtime.cluster_recovery.perform import Mode, Replace
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from tests.simulation.directed.stage import Stage, play
from tests.simulation.recovering import recover

# A lease is over, and somebody is elected.
LEASE_S = 7.0
# The highest revision is remembered within this, and etcd is looked at.
A_WHILE_S = 3.0
# Elections of which one replica alone knows.
LONE_EPOCHS = 3


async def recovered(stage: Stage, *names: str, replace: Replace = Replace.NOTHING) -> Mode:
    """All processes are down; the command runs over the disks of these."""
    disks = [stage.reopened(name) for name in names]
    return await recover(disks, MemoryEtcd(stage.world.etcd), replace)


async def lose_power_everywhere(stage: Stage, *down: str) -> None:
    """`down` are down already."""
    for name in stage.world.names:
        if name not in down:
            await stage.lose_power(name)


@pytest.mark.parametrize("shown", [False, True], ids=["epoch not covered", "epoch covered"])
def test_i5_what_was_shown_of_an_older_epoch_outlives_a_recovery(shown: bool) -> None:
    """Raft's figure 8, through a recovery. x, of epoch 1, is on two disks when the third replica is
    elected, alone, three times: its log is longer, and of later epochs. Then the first one leads
    again. It may show x once its own epoch is on the second disk, too: from then on the log with x
    wins. Before, the other one does, and x is gone."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        lone, second = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        for name in (lone, second):
            await stage.follows(name, stage.data, leader=first)
        stage.hold((first, lone), (second, first))
        x = stage.write(b"x", at=first)
        end = stage.replica(first, stage.data).log_end
        await stage.until(
            lambda: stage.replica(second, stage.data).journal.synced_end > end, "x is copied"
        )
        assert not x.is_acknowledged, "the lone one has not got it"
        await stage.lose_power(first)
        stage.hold((lone, second), (second, lone))
        stage.bar(first, second)
        for left in reversed(range(LONE_EPOCHS)):
            await stage.elected(lone, stage.data)
            await stage.synced(lone, stage.data)
            await stage.lose_power(lone)
            if left:
                await stage.start(lone)
        stage.let((first, lone), (second, first))

        if not shown:
            # What comes from now on is not synced there.
            stage.disk(second).hold_commits()
        await stage.start(first)
        stage.unbar(first)
        await stage.elected(first, stage.data)
        await stage.until(
            lambda: stage.in_sync(stage.data) == sorted([first, second]), "the dead one leaves"
        )
        if shown:
            await stage.ready(first, stage.data)
            assert await stage.read_now() == [[b"1", b"x"]]
        else:
            await asyncio.sleep(A_WHILE_S)
            assert await stage.fetch(first, position=1) == "LOADING", "x is shown, and may be lost"

        await lose_power_everywhere(stage, lone)
        stage.empty_machine(first)
        stage.world.etcd.wipe()
        there = [name for name in stage.world.names if name != first]
        assert await recovered(stage, *there) is Mode.FOUND
        stage.unbar(second)
        found = await stage.end()
        assert found == ([b"1", b"x"] if shown else [b"1"]), "the log of the latest epoch leads"

    play(story)


def test_i5_i18_after_an_etcd_of_the_past_a_recovery_finds_the_log_that_has_all() -> None:
    """The backup is of the same epoch, and names a replica in sync that was dropped since: no log
    shows that. Everybody refuses it; the command takes the logs for what is true."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        old, epochs = stage.world.etcd.backup(), stage.epochs()
        assert stage.in_sync(stage.data) == sorted([first, second, third])
        stage.part_ways(third, first, second)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the third leaves")
        await stage.acknowledged(b"2", at=first)
        await asyncio.sleep(A_WHILE_S)
        assert stage.state(stage.data).epoch == epochs[stage.data], "no log tells the two apart"
        stage.world.etcd.restore(old)
        await asyncio.sleep(A_WHILE_S)
        for name in stage.world.names:
            assert isinstance(stage.failure(name), EtcdRefused), f"{name} obeys"
        await lose_power_everywhere(stage)
        with pytest.raises(EtcdRefused):
            await stage.start(third)
        await stage.lose_power(third)

        mode = await recovered(stage, *stage.world.names, replace=Replace.WHAT_IS_REFUSED)
        assert mode is Mode.FOUND, "it is not taken for the etcd that they know"
        await stage.start(third)
        await asyncio.sleep(LEASE_S)
        assert not stage.leader(stage.data), "the dropped one lacks what was acknowledged"
        for name in stage.world.names:
            if name != third:
                await stage.start(name)
        await stage.acknowledged(b"3", at=await stage.next_leader(stage.data))
        assert all(stage.state(of).epoch > RECOVERY_EPOCHS for of in epochs), "none is repeated"
        assert await stage.end() == [b"1", b"2", b"3"]

    play(story)
