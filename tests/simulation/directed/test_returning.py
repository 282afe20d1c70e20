"""A node comes back without what it had acknowledged: it wins nothing before somebody who has it
is there, whichever way it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog_server.runtime.replica.in_sync import InSync
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.frames import MAGIC
from oncelog_server.runtime.storage.segment import base_of
from tests.simulation.directed.stage import Stage, play

# What is synced is noted within this, and a lease is over.
NOTED_S = 3.0
LEASE_S = 7.0

Damage = Callable[[Stage, str], None]


def segment(stage: Stage, name: str) -> str:
    directory = directory_of(stage.data)
    disk = stage.reopened(name)
    [newest] = [file for file in disk.list(directory) if base_of(file) is not None][-1:]
    return f"{directory}/{newest}"


def cut(stage: Stage, name: str) -> None:
    """The last frame's bytes are gone, as if nobody had ever written them."""

    def drop(content: bytearray) -> None:
        record = content.rindex(b"acknowledged")
        start = content.rindex(MAGIC, 0, record)
        content[start:] = bytes(len(content) - start)

    stage.reopened(name).damage(segment(stage, name), drop)


def rot(stage: Stage, name: str) -> None:
    """A bit of the last frame flips."""

    def flip(content: bytearray) -> None:
        content[content.rindex(b"acknowledged")] ^= 1

    stage.reopened(name).damage(segment(stage, name), flip)


def empty(stage: Stage, name: str) -> None:
    stage.empty_machine(name)


@pytest.mark.parametrize("damage", [empty, cut, rot], ids=lambda damage: damage.__name__)
def test_i5_who_lost_what_it_acknowledged_wins_nothing(damage: Damage) -> None:
    """All lose power; the leader's node comes back first, of the same name, without its last
    acknowledged record. It waits for the others, then becomes what they are."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"before", at=first)
        await stage.acknowledged(b"acknowledged", at=first)
        before = stage.state(stage.data)
        assert len(before.isr) == 3
        await asyncio.sleep(NOTED_S)
        for name in (second, third, first):
            await stage.lose_power(name)
        damage(stage, first)
        await stage.start(first)
        await asyncio.sleep(LEASE_S)
        assert stage.state(stage.data).epoch == before.epoch, "it lacks what was acknowledged"
        stage.bar(first)
        await stage.start(second)
        await stage.start(third)
        await stage.acknowledged(b"after", at=await stage.next_leader(stage.data))
        await stage.heal()
        assert not set(stage.state(stage.data).isr) <= set(before.isr), "it has another name"
        assert await stage.end() == [b"before", b"acknowledged", b"after"]

    play(story)


def test_i5_what_a_follower_acknowledged_counts_though_it_heard_of_no_high_watermark() -> None:
    """It has synced x, and was not told that x is durable. It loses x to rot: that is damage, not a
    torn tail, and it wins nothing."""

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"before", at=first)
        end = stage.replica(first, stage.data).log_end
        write = stage.write(b"acknowledged", at=first)
        await stage.until(lambda: stage.replica(second, stage.data).log_end > end, "it is copied")
        stage.hold((first, second))
        await stage.until(lambda: write.is_acknowledged, "an answer")
        await asyncio.sleep(NOTED_S - 1)
        epoch = stage.state(stage.data).epoch
        for name in (second, third, first):
            await stage.lose_power(name)
        rot(stage, second)
        await stage.start(second)
        await asyncio.sleep(LEASE_S)
        assert stage.state(stage.data).epoch == epoch, "it lacks what was acknowledged"
        await stage.empty_disk(second)
        assert await stage.end() == [b"before", b"acknowledged"]

    play(story)


def test_i29_a_leader_gives_up_its_own_older_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost its disk and joined under a new name; before the old one is dropped, its leader dies,
    and it is elected. What it was itself never acknowledges anything: it must not wait for it."""
    # Its leader does not see yet that the old one is gone.
    monkeypatch.setattr(InSync, "_are_silent_gone", lambda self, living: False)

    async def story(stage: Stage) -> None:
        await stage.begin()
        first = stage.leader(stage.data)
        second, third = stage.others(stage.data)
        await stage.acknowledged(b"1", at=first)
        before = stage.state(stage.data).isr
        etcd = stage.etcd(first)
        etcd.stale = True
        etcd.drop_next_txn_reply()
        await stage.empty_disk(third)
        await stage.start(third)
        await stage.until(lambda: len(stage.state(stage.data).isr) == 4, "it joins by another name")
        etcd.unavailable = True
        stage.bar(second)
        await stage.lose_power(first)
        await stage.ready(third, stage.data)
        assert stage.in_sync(stage.data) == sorted([second, third])
        [kept] = set(before) & set(stage.state(stage.data).isr)
        assert kept == stage.replica(second, stage.data).journal.incarnation.hex()
        await stage.acknowledged(b"2", at=third)
        assert await stage.end() == [b"1", b"2"]

    play(story)
