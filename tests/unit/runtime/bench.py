"""A driver over a fake disk, with switches for what surrounds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import Address
from oncelog_server.core.role import at_once
from oncelog_server.runtime.replica.dialog import Dialog, OpenDialog, Said, SnapshotPart
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.env import FetchPart, ReplicaEnv, Replication
from oncelog_server.runtime.replica.follower import CATCH_UP_BYTES_MAX, Room
from oncelog_server.runtime.replica.in_sync import IsrChange
from oncelog_server.runtime.replica.leading import Leadership
from oncelog_server.runtime.replica.state import Stage
from oncelog_server.runtime.replicas import put_aside
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import PartOf
from oncelog_server.runtime.target import ALONE, Isr, Lead, StandBy
from oncelogpb.errors import Unavailable
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.counter import CounterRole, Quiet, Silent

DIRECTORY = "partitions/p"
PARTITION = PartitionId(TopicId(b"c" * 16), 0)


class Nobody:
    """A leader that is never reached."""

    def say(self, said: Said) -> None: ...

    async def fetch(self, wanted: PartOf) -> SnapshotPart:
        raise Unavailable("nobody is there")

    def close(self) -> None: ...


def nobody(*asked: object) -> Dialog:
    return Nobody()


async def done_at_once(change: IsrChange, compared_revision: int) -> Isr | None:
    """etcd does it."""
    return Isr(compared_revision + 1, change.isr, change.assignment)


async def _no_part(to: Address, *asked: object) -> SnapshotPart:
    raise Unavailable("nobody is there")


class Bench:
    """See the module."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        disk: FakeDisk | None = None,
        *,
        snapshot_every_bytes: int = 1 << 30,
        min_insync_replicas: int = 1,
        node_id: str = "n1",
        segment_bytes: int = 1 << 16,
    ) -> None:
        self.loop = loop
        self.disk = disk or FakeDisk(seed=1)
        self.role = CounterRole()
        self.reporter = Silent()
        self.outboxes: list[Quiet] = []
        self.failures: list[Exception] = []
        # What must end the process.
        self.fatal: list[BaseException] = []
        self.lease_valid = True
        self.has_room = self.may_settle = True
        self.snapshot_every_bytes = snapshot_every_bytes
        self.min_insync_replicas = min_insync_replicas
        self.node_id = node_id
        self.segment_bytes = segment_bytes
        # How its leader is reached.
        self.follow: OpenDialog = nobody
        # What hears that something is to be done for the replica.
        self.stirred: Callable[[Driver], None] = lambda driver: None
        self.copies = 1
        # Processes of the other replicas, and how they are asked.
        self.others: Callable[[PartitionId, int], Sequence[Address]] = lambda *asked: ()
        self.fetch: FetchPart = _no_part
        # What the leader asked etcd to make of the ISR, with the revision that it compared; and
        # what etcd shows then.
        self.changes: list[tuple[IsrChange, int]] = []
        # What it asked for while it stopped leading.
        self.handed_over: list[tuple[IsrChange, int]] = []
        self.etcd_says: Callable[[IsrChange, int], Awaitable[Isr | None]] = done_at_once
        self.commits = 0
        # What the next attempts to open the log meet.
        self.failing_opens: list[Exception] = []
        self.offload: Callable[[Callable[[], None]], Awaitable[None]] = at_once
        self.around = self._surroundings()
        self.journal = self._open_journal()
        self.driver = self._open()

    def _surroundings(self) -> ReplicaEnv:
        def commit_done(stats: object) -> None:
            self.commits += 1

        return ReplicaEnv(
            clock=self.loop,
            commit=GroupCommit(self.disk, ahead_bytes=1, on_commit=commit_done),
            reporter=self.reporter,
            lease_valid=lambda: self.lease_valid,
            has_room=lambda: self.has_room,
            may_settle=lambda: self.may_settle,
            offload=lambda work: self.offload(work),
            places=asyncio.Semaphore(8),
            snapshot_every_bytes=self.snapshot_every_bytes,
            replication=Replication(
                node_id=self.node_id,
                min_insync_replicas=self.min_insync_replicas,
                replica_lag_ms=1_000,
                change_isr=self._change_isr,
                follow=lambda *asked: self.follow(*asked),
                catch_up=Room(CATCH_UP_BYTES_MAX),
                end_move=self._end_move,
                replaying=asyncio.Semaphore(1),
                others=lambda *asked: self.others(*asked),
                copies=lambda partition: self.copies,
                fetch=lambda *asked: self.fetch(*asked),
            ),
            opened=lambda partition: None,
            failed=lambda partition, error: self.failures.append(error),
            fatal=self.fatal.append,
        )

    def _open_journal(self) -> Journal:
        return Journal.open(self.disk, DIRECTORY, segment_bytes=self.segment_bytes)

    def _open(self) -> Driver:
        async def open_log() -> Journal:
            if self.failing_opens:
                raise self.failing_opens.pop()
            return self.journal

        async def nothing() -> None: ...

        async def begin_anew() -> None:
            put_aside(self.disk, DIRECTORY)
            self.journal = self._open_journal()

        return Driver(
            PARTITION,
            self.role,
            self.around,
            open_log=open_log,
            put_aside=nothing,
            begin_anew=begin_anew,
            led=lambda: None,
            stirred=lambda driver: self.stirred(driver),
            make_outbox=self._make_outbox,
        )

    async def _change_isr(
        self, partition: PartitionId, epoch: int, change: IsrChange, compared_revision: int
    ) -> Isr | None:
        self.changes.append((change, compared_revision))
        return await self.etcd_says(change, compared_revision)

    def _end_move(
        self, partition: PartitionId, epoch: int, change: IsrChange, compared_revision: int
    ) -> None:
        self.handed_over.append((change, compared_revision))
        self.depose()

    def _make_outbox(self, driver: Driver) -> Quiet:
        self.outboxes.append(Quiet())
        return self.outboxes[-1]

    @property
    def leadership(self) -> Leadership:
        assert self.driver._epochs.leadership is not None
        return self.driver._epochs.leadership

    def grant(
        self, epoch: int, *, unclean_epoch: int = 0, isr: Isr = ALONE, replication_factor: int = 1
    ) -> None:
        """As elections say it; nothing of it has happened yet."""
        self.driver.aim(Lead(epoch, unclean_epoch, isr, replication_factor))

    def depose(self) -> None:
        self.driver.aim(StandBy())

    async def lead(self, epoch: int = 1, *, unclean_epoch: int = 0) -> None:
        """Returns when it answers, or has given up."""
        self.grant(epoch, unclean_epoch=unclean_epoch)
        await self.driver.settled()
        while self.driver.stage is Stage.LOADING:
            await asyncio.sleep(0.001)

    def lose_power(self, tear: Tear = Tear.NOTHING) -> Bench:
        """What the next process finds."""
        self.disk.crash(tear)
        return Bench(
            self.loop,
            self.disk.reopen(),
            snapshot_every_bytes=self.snapshot_every_bytes,
            segment_bytes=self.segment_bytes,
        )


def story(tell: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        await tell(Bench(loop))

    run(main(), loop)
