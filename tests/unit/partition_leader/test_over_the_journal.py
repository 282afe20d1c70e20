"""The handlers over the real driver and journal on a disk that loses power: what was acknowledged
is read again, at the same positions, from snapshot and replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.role import at_once
from oncelog_server.participant.handler import ParticipantHandler
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.role import PartitionLeaderRole
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.env import ReplicaEnv, Replication
from oncelog_server.runtime.replica.follower import CATCH_UP_BYTES_MAX, Room
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.target import Lead
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.partition_leader.fakes import FIRST, FakeCall, FakeReporter, World
from tests.unit.partition_leader.messages import batch, commit, fetch, plain, send, values_of
from tests.unit.partition_leader.test_reads import decoded
from tests.unit.runtime.bench import nobody

CALL = FakeCall()


async def unchanged(*asked: object) -> None:
    """It is the only replica."""


class Process:
    """One run of a process that leads one partition."""

    def __init__(self, loop: VirtualTimeLoop, disk: FakeDisk, snapshot_every_bytes: int) -> None:
        self.world = World()
        self.loop = loop
        self.disk = disk
        self.snapshot_every_bytes = snapshot_every_bytes
        self.reporter = FakeReporter()
        self.has_room = self.may_settle = True
        role = PartitionLeaderRole(PartitionLeaderConfig())
        around = ReplicaEnv(
            clock=loop,
            commit=GroupCommit(disk, ahead_bytes=1),
            reporter=self.reporter,
            lease_valid=lambda: True,
            has_room=lambda: self.has_room,
            may_settle=lambda: self.may_settle,
            offload=at_once,
            places=asyncio.Semaphore(8),
            opened=lambda partition: None,
            snapshot_every_bytes=snapshot_every_bytes,
            replication=Replication(
                "n1",
                1,
                1_000,
                unchanged,
                nobody,
                Room(CATCH_UP_BYTES_MAX),
                lambda *asked: None,
                asyncio.Semaphore(1),
            ),
            fatal=vital.complain,
            failed=lambda partition, error: None,
        )
        journal = Journal.open(disk, "partitions/p", segment_bytes=1 << 16)

        async def open_log() -> Journal:
            return journal

        async def put_aside() -> None: ...

        self.driver = Driver(
            FIRST,
            role,
            around,
            open_log=open_log,
            put_aside=put_aside,
            begin_anew=put_aside,
            led=lambda: None,
            stirred=lambda driver: None,
            make_outbox=lambda driver: role.outbox(driver, self.world.env),
        )
        env = replace(self.world.env, replicas=_One(self.driver))
        self.service = PartitionLeaderService(env, self.world.config)
        self.participant = ParticipantHandler(env)

    async def lead(self, epoch: int) -> None:
        self.driver.aim(Lead(epoch))
        await self.driver.settled()
        while self.driver.stage is Stage.LOADING:
            await asyncio.sleep(0.001)

    async def produce(self, request: pb.ProduceRequest) -> list[tuple[int, bool]]:
        reply = await self.service.produce(request, CALL)
        assert not any(result.HasField("error") for result in reply.results), reply
        return [(result.journal_offset, result.duplicate) for result in reply.results]

    async def commit(self, tx_id: int, records: int) -> None:
        reply = await self.participant.write_markers(commit(tx_id, tx_id, records), CALL)
        (result,) = reply.groups[0].results
        assert result.exposed, result

    async def values(
        self, isolation: pb.Isolation.ValueType = pb.ISOLATION_COMMITTED
    ) -> list[bytes]:
        """All pages."""
        read: list[bytes] = []
        offset = 0
        while True:
            request = fetch(offset, isolation=isolation, max_bytes=500)
            (page,) = decoded(await self.service.fetch(request, CALL)).partitions
            if not page.batches:
                return read
            read += values_of(page)
            offset = page.batches[-1].first_offset + page.batches[-1].record_count

    def lose_power(self, tear: Tear) -> Process:
        self.disk.crash(tear)
        return Process(self.loop, self.disk.reopen(), self.snapshot_every_bytes)


class _One:
    """The Replicas port, of one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def lead(self, partition: PartitionId) -> Driver:
        assert partition == FIRST
        self._driver.require_ready()
        return self._driver

    def led(self) -> Sequence[Driver]:
        return [self._driver]


def story(tell: Callable[[Process], Coroutine[Any, Any, None]], snapshot_every_bytes: int) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Process(loop, FakeDisk(seed=3), snapshot_every_bytes))

    run(main(), loop)


@pytest.mark.parametrize("tear", list(Tear))
@pytest.mark.parametrize("snapshot_every_bytes", [1 << 30, 2_000, 1])
def test_i05_i06_i35_what_was_acknowledged_survives_a_loss_of_power(
    tear: Tear, snapshot_every_bytes: int
) -> None:
    async def tell(process: Process) -> None:
        expected: list[bytes] = []
        sequence = 0
        for epoch in range(1, 8, 2):
            await process.lead(epoch)
            for n in range(8):
                value = b"%d.%d" % (epoch, n)
                await process.produce(plain(batch([value], sequence=sequence)))
                sequence += 1
                expected.append(value)
                tx_id = epoch * 100 + n
                await process.produce(send(tx_id, batch([b"tx", value])))
                if n % 2:
                    await process.commit(tx_id, 2)
                    expected += [b"tx", value]
            open_tx_id = epoch * 100 + 50
            opened = await process.produce(send(open_tx_id, batch([b"open"])))
            assert await process.values() == expected

            # Acknowledged by nobody: it stands afterwards or not, and its repeat decides.
            doubt = plain(batch([b"in doubt"], sequence=sequence))
            unanswered = asyncio.create_task(process.produce(doubt))
            await asyncio.sleep(0)
            process = process.lose_power(tear)
            unanswered.cancel()
            await process.lead(epoch + 1)
            assert (await process.values())[: len(expected)] == expected
            await process.produce(doubt)
            sequence += 1
            expected.append(b"in doubt")

            ((position, _),) = opened
            again = await process.produce(send(open_tx_id, batch([b"open"])))
            assert again == [(position, True)], "a repeat gets its original position"
            await process.commit(open_tx_id, 1)
            expected.append(b"open")
            assert await process.values() == expected
            process = process.lose_power(tear)

    story(tell, snapshot_every_bytes)
