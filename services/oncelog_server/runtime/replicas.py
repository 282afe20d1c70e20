"""The replicas of one role on this node: found by partition, opened, led, stepped down, put aside.

Invariants:
  * a journal is opened once per process, before its partition is a candidate in an election;
  * a replica that could not be opened (damage) or written is no candidate, and is named in the log;
  * nothing is deleted: a replica that etcd no longer knows moves to `orphans/`, and is not opened
    again; one that is being opened is moved when it is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import Directory, Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime.leadership.rules import Prepared
from oncelog_server.runtime.replica.driver import UNCLEAN_SKIP, Driver, Standing, Surroundings
from oncelog_server.runtime.replica.record import (
    ReplicaRecord,
    load_record,
    make_record,
    save_record,
)
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.tail import TailBudget
from oncelogpb.errors import NotLeader, UnknownPartition, UnknownTopic

# A replica at rest is ticked once in so many ticks: for what expires in minutes or days.
RESTING_TICKS: Final = 100
# Replicas that are saved, or closed, at once.
STOPS_AT_ONCE: Final = 8
# A snapshot at a stop must save the next start so much, for it costs several syncs itself.
CHECKPOINT_WORTH_BYTES: Final = 16 << 10

PARTITIONS_DIRECTORY: Final = "partitions"
ORPHANS_DIRECTORY: Final = "orphans"


def directory_of(partition: PartitionId) -> str:
    """partitions/<topic id>-<number>, relative to the data directory."""
    return f"{PARTITIONS_DIRECTORY}/{partition.topic_id.hex()}-{partition.number}"


def partition_of(name: str) -> PartitionId:
    """The inverse of `directory_of`, of the last path element. Raises ValueError."""
    topic_hex, _, number = name.partition("-")
    return PartitionId(TopicId(bytes.fromhex(topic_hex)), int(number))


class RoleReplicas:
    """The Replicas port for one role."""

    def __init__(
        self,
        role: Role[Any],
        disk: Disk,
        directory: Directory,
        around: Surroundings,
        make_outbox: Callable[[Driver], Outbox],
        segment_bytes: int,
        random_bytes: Callable[[int], bytes],
        tails: TailBudget,
    ) -> None:
        self._role = role
        self._disk = disk
        self._directory = directory
        self._around = around
        self._make_outbox = make_outbox
        self._segment_bytes = segment_bytes
        self._random_bytes = random_bytes
        # Of the node.
        self._tails = tails
        self._drivers: dict[PartitionId, Driver] = {}
        # What `replica.json` of each says.
        self._records: dict[PartitionId, ReplicaRecord] = {}
        # A replica is either being opened or being put aside.
        self._doors: defaultdict[PartitionId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ticks = 0
        # Partitions whose `replica.json` may say too little.
        self._unwritten: set[PartitionId] = set()
        # One writer of those files at a time.
        self._remembering = asyncio.Lock()

    # ------------------------------------------------------------------------- what services use

    def lead(self, partition: PartitionId) -> Driver:
        """See the Replicas port."""
        driver = self._drivers.get(partition)
        if driver is None or driver.standing not in (Standing.READY, Standing.LOADING):
            raise self._elsewhere(partition)
        driver.require_ready()
        return driver

    def led(self) -> Sequence[Driver]:
        return [
            driver
            for _, driver in sorted(self._drivers.items())
            if driver.standing is Standing.READY
        ]

    def is_ready(self, partition: PartitionId) -> bool:
        driver = self._drivers.get(partition)
        return driver is not None and driver.standing is Standing.READY

    def is_open(self, partition: PartitionId) -> bool:
        """Its journal was found sound, or recovered."""
        return partition in self._drivers

    def _elsewhere(self, partition: PartitionId) -> Exception:
        known = self._directory.partition(partition)
        if known is None:
            topic = self._directory.topic_by_id(partition.topic_id)
            if topic is None:
                return UnknownTopic(f"no topic with id {partition.topic_id.hex()}")
            if partition.number >= topic.partitions:
                return UnknownPartition(
                    f"topic {topic.name} has {topic.partitions} partitions, not {partition.number}"
                )
        leader = self._directory.leader_of(partition)
        if leader is None:
            return NotLeader(f"partition {partition} has no leader now; try again")
        return NotLeader(
            f"partition {partition} is led by node {leader.node_id}",
            leader_node=leader.node_id,
            leader_host=leader.host,
            leader_port=leader.port,
            epoch=leader.epoch,
        )

    # ---------------------------------------------------------------------- what elections drive

    async def prepare(self, partition: PartitionId) -> Prepared:
        """Opens the replica: its incarnation may stand in an election. Raises JournalDamaged,
        OSError; UnknownPartition where it was deleted meanwhile."""
        async with self._doors[partition]:
            if self._directory.partition(partition) is None:
                raise UnknownPartition(f"partition {partition} was deleted")
            driver = self._drivers.get(partition)
            if driver is None:
                driver = await self._open(partition)
            if driver.standing is Standing.FAILED:
                await driver.recover_from_failure()
            return Prepared(driver.journal.incarnation, driver.journal.last_epoch)

    async def _open(self, partition: PartitionId) -> Driver:
        opened: list[Journal] = []
        directory = directory_of(partition)

        def blocking() -> None:
            opened.append(
                Journal.open(
                    self._disk,
                    directory,
                    segment_bytes=self._segment_bytes,
                    random_bytes=self._random_bytes,
                    tails=self._tails,
                )
            )
            if (record := load_record(self._disk, directory)) is not None:
                self._records[partition] = record

        await self._around.offload(blocking)
        driver = Driver(partition, self._role, opened[0], self._around, self._make_outbox)
        self._drivers[partition] = driver
        return driver

    def lead_epoch(
        self, partition: PartitionId, epoch: int, *, unclean_epoch: int
    ) -> Coroutine[Any, Any, None]:
        """etcd granted `epoch` to this process: nothing earlier is led from this very turn. Run
        what this gives, to lead it. `unclean_epoch` is that of the last unclean election: a control
        journal that has not passed it yet skips offsets."""
        driver = self._drivers[partition]
        behind = driver.journal.last_epoch < unclean_epoch
        is_control = self._role.control_topic is not None
        driver.grant(epoch, skip=UNCLEAN_SKIP if is_control and behind else 0)
        return self._reach(partition, driver)

    async def _reach(self, partition: PartitionId, driver: Driver) -> None:
        try:
            await driver.reach()
        except (JournalDamaged, OSError) as error:
            # Rot that opening did not see, for it looks at the tail only. The others go on.
            self._around.reporter.event(
                "replica cannot be opened",
                level="error",
                partition=str(partition),
                error=str(error),
            )
            driver.step_down("its journal cannot be replayed")
            self._around.failed(partition, error)
            return
        self._unwritten.add(partition)
        await self.remember()

    def topics_changed(self, topic_ids: Collection[TopicId]) -> None:
        """What the directories of their replicas say may be out of date. Then call `remember`."""
        self._unwritten |= {
            partition for partition in self._drivers if partition.topic_id in topic_ids
        }

    async def remember(self) -> None:
        """Writes down, for `oncelog cluster recover`, what changed about the replicas led here, and
        what could not be written before."""
        async with self._remembering:
            for partition in sorted(self._unwritten):
                self._unwritten.discard(partition)
                if (driver := self._drivers.get(partition)) is not None:
                    await self._remember(partition, driver)

    async def _remember(self, partition: PartitionId, driver: Driver) -> None:
        if driver.standing not in (Standing.LOADING, Standing.READY):
            # The next election writes it.
            return
        record = make_record(
            partition,
            incarnation=driver.journal.incarnation,
            epoch=driver.epoch,
            topic=self._directory.topic_by_id(partition.topic_id),
        )
        known = self._records.get(partition)
        if known is not None and known.says_as_much_as(record):
            return
        try:
            await self._around.offload(
                lambda: save_record(self._disk, directory_of(partition), record)
            )
        except OSError as error:
            # The older record is true as well. It is tried again each second.
            self._unwritten.add(partition)
            self._around.reporter.event(
                "replica record not written",
                level="warning",
                partition=str(partition),
                error=str(error),
            )
        else:
            self._records[partition] = record

    def deposed(self, partition: PartitionId) -> None:
        """Leads no more, from this very turn."""
        driver = self._drivers.get(partition)
        if driver is not None:
            driver.step_down("deposed")

    def deleted(self, partition: PartitionId) -> Coroutine[Any, Any, None]:
        """etcd no longer knows it: it is led no more from this very turn. Run what this gives, to
        put it aside."""
        self.deposed(partition)
        return self._put_aside(partition)

    async def _put_aside(self, partition: PartitionId) -> None:
        async with self._doors[partition]:
            driver = self._drivers.pop(partition, None)
            self._records.pop(partition, None)
            if driver is not None:
                await driver.put_away()
            self._around.reporter.forget("partition", str(partition))
            try:
                await self._around.offload(lambda: put_aside(self._disk, directory_of(partition)))
            except OSError as error:
                # The next start does it.
                self._around.reporter.event(
                    "replica not put aside",
                    level="warning",
                    partition=str(partition),
                    error=str(error),
                )
        self._doors.pop(partition, None)

    def synced_end(self, partition: PartitionId) -> int:
        """What an unclean election keeps."""
        return self._drivers[partition].journal.synced_end

    # --------------------------------------------------------------------------------- the ticker

    def tick(self) -> None:
        self._ticks += 1
        for number, driver in enumerate(list(self._drivers.values())):
            # Those at rest in turn, so that no tick has all of them.
            if not driver.is_at_rest or (self._ticks + number) % RESTING_TICKS == 0:
                driver.tick()

    def wake(self) -> None:
        """Something changed in etcd. Who rests waits for nobody."""
        for driver in list(self._drivers.values()):
            if not driver.is_at_rest:
                driver.wake()

    def note_synced_ends(self) -> None:
        """About every second: what others may count on (docs/leadership.md, "Disks")."""
        for driver in list(self._drivers.values()):
            if not driver.is_at_rest:
                driver.journal.note_synced_end()
                driver.report()

    async def checkpoint(self) -> None:
        """At a clean stop: snapshots, so that the next start replays little."""
        await self._each(lambda driver: driver.checkpoint(worth_bytes=CHECKPOINT_WORTH_BYTES))

    async def step_down(self) -> None:
        """Leads nothing more. Afterwards nothing is appended."""
        for _, driver in sorted(self._drivers.items()):
            driver.step_down("stopping")
        for _, driver in sorted(self._drivers.items()):
            await driver.closed()

    async def close(self) -> None:
        """Closes every journal. Nothing may be on its way to the disk."""
        await self._each(lambda driver: self._around.offload(driver.journal.close))
        for driver in self._drivers.values():
            driver.journal.forget_tail()
        self._drivers.clear()

    async def _each(self, work: Callable[[Driver], Awaitable[None]]) -> None:
        """Of all replicas, some at a time."""
        places = asyncio.Semaphore(STOPS_AT_ONCE)

        async def one(driver: Driver) -> None:
            async with places:
                await work(driver)

        await asyncio.gather(*(one(driver) for _, driver in sorted(self._drivers.items())))


def put_aside(disk: Disk, path: str) -> None:
    """Moves a directory of a replica to `orphans/`, under a name that is free."""
    if not disk.exists(path):
        return
    disk.make_directory(ORPHANS_DIRECTORY)
    name = path.rsplit("/", 1)[-1]
    taken = set(disk.list(ORPHANS_DIRECTORY))
    target, attempt = name, 0
    while target in taken:
        attempt += 1
        target = f"{name}.{attempt}"
    disk.rename(path, f"{ORPHANS_DIRECTORY}/{target}")
