"""etcd is not what it was: wiped, emptied, or restored from a backup."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.runtime.etcd.port import DeletePrefix
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY
from tests.simulation.directed.stage import Stage, play

# The highest revision is remembered within this, and etcd is looked at.
A_WHILE_S = 3.0


@pytest.mark.parametrize("how", ["restored", "wiped", "emptied"])
def test_i18_an_etcd_that_went_back_is_obeyed_by_nobody(how: str) -> None:
    """It would give epochs out again, and name replicas in sync that were dropped since. All
    processes end, and none starts on it; with the right etcd they go on."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        await stage.acknowledged(b"1", at=first)
        old, epochs = stage.world.etcd.backup(), stage.epochs()
        await stage.lose_power(first)
        await stage.acknowledged(b"2", at=await stage.next_leader(stage.data))
        await stage.start(first)
        await stage.all_in_sync()
        await asyncio.sleep(A_WHILE_S)
        newest = stage.world.etcd.backup()
        if how == "restored":
            stage.world.etcd.restore(old)
        elif how == "wiped":
            stage.world.etcd.wipe()
        else:
            # `etcdctl del --prefix`: the watch tells it, in one revision.
            stage.world.etcd.txn([], [DeletePrefix("")])
        await asyncio.sleep(A_WHILE_S)
        for name in stage.world.names:
            assert isinstance(stage.failure(name), EtcdRefused), f"{name} obeys"
            machine = stage.world.machines[name]
            assert not machine.disk.exists(ORPHANS_DIRECTORY), "it put logs aside"
            await stage.lose_power(name)
        for name in stage.world.names:
            with pytest.raises(EtcdRefused):
                await stage.start(name)
            await stage.lose_power(name)
        if how == "restored":
            assert {of: stage.state(of).epoch for of in epochs} == epochs, "none is given out again"
        stage.world.etcd.restore(newest)
        for name in stage.world.names:
            await stage.start(name)
        assert await stage.end() == [b"1", b"2"]

    play(story)
