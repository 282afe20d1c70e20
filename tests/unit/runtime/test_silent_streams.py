"""Streams between followers and their leader on which nothing is to be said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from oncelog_server.core.ids import BootId, Incarnation, PartitionId, TopicId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.replica.dialog import Told
from oncelog_server.runtime.replication.links import Links
from oncelog_server.runtime.replication.serving import STREAM_SILENT_MS, ReplicationService
from oncelog_server.runtime.target import Follow
from oncelogpb.errors import Unavailable
from oncelogpb.v1 import replication_pb2 as pb
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.etcd.world import Log, LoopClock

CLUSTER, BOOT = b"c" * 16, BootId(b"b" * 16)
PARTITION = PartitionId(TopicId(b"t" * 16), 0)
LEADER = Follow(Address("n1", BOOT, "host", 1, 3))


def service() -> ReplicationService:
    return ReplicationService(
        lambda partition: None, tuple, LoopClock(), cluster_id=CLUSTER, boot_id=BOOT
    )


def fatal(error: BaseException) -> None:
    raise error


class Direct:
    """The streams of a process that is next door."""

    def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        return service().follow(requests, None)  # type: ignore[arg-type]


class Ears:
    """A follower that has nothing to say."""

    def __init__(self) -> None:
        self.streams = 0

    def begun(self) -> None:
        self.streams += 1

    def told(self, told: Told) -> None:
        raise AssertionError("nobody says anything")


def test_a_follower_that_says_nothing_is_dropped_by_its_leader() -> None:
    loop = VirtualTimeLoop()

    async def silent() -> AsyncGenerator[pb.FollowRequest, None]:
        yield pb.FollowRequest(cluster_id=CLUSTER, leader_boot_id=BOOT)
        await asyncio.Event().wait()

    async def main() -> float:
        with pytest.raises(Unavailable, match="says nothing"):
            async for _ in service().follow(silent(), None):  # type: ignore[arg-type]
                pass
        return loop.time() * 1000

    began_ms = loop.time() * 1000
    assert run(main(), loop) - began_ms == pytest.approx(STREAM_SILENT_MS)


def test_a_follower_with_nothing_to_say_gives_signs_of_life() -> None:
    async def main() -> int:
        links = Links(Direct(), cluster_id=CLUSTER, node_id="n2", reporter=Log(), fatal=fatal)
        ears = Ears()
        links.follow(PARTITION, LEADER, Incarnation(b"i" * 16), ears)
        await asyncio.sleep(20 * STREAM_SILENT_MS / 1000)
        await links.stop()
        return ears.streams

    assert run(main(), VirtualTimeLoop()) == 1
