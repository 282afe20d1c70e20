"""The replicas of one role on this node: found by partition, told where elections want them, and
where their files are.

Invariant: nothing is deleted. A replica that etcd no longer knows moves to `orphans/`, and is not
opened again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import ClusterMetadata, Outbox
from oncelog_server.core.role import Role
from oncelog_server.runtime.agenda import Agenda
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.record import ReplicaRecord, make_record
from oncelog_server.runtime.replica.records import Records
from oncelog_server.runtime.storage.data_file import OpenDataFiles
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.tail import TailBudget
from oncelog_server.runtime.target import Candidate, Close, Isr, Leave, StandBy, Target
from oncelogpb.errors import NotLeader, UnknownPartition, UnknownTopic

# Files of data logs that a node's readers keep open, each with its index (256 KiB at most).
OPEN_DATA_FILES_MAX: Final = 256
# Replicas that are saved at once.
CHECKPOINTS_AT_ONCE: Final = 8
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
        metadata: ClusterMetadata,
        around: ReplicaEnv,
        make_outbox: Callable[[Driver], Outbox],
        segment_bytes: int,
        random_bytes: Callable[[int], bytes],
        tails: TailBudget,
        agenda: Agenda,
    ) -> None:
        """`tails` and `agenda` are the node's."""
        self._role = role
        self._disk = disk
        self._metadata = metadata
        self._around = around
        self._make_outbox = make_outbox
        self._segment_bytes = segment_bytes
        self._random_bytes = random_bytes
        self._tails = tails
        self._agenda = agenda
        self._open_data = OpenDataFiles(OPEN_DATA_FILES_MAX)
        self._drivers: dict[PartitionId, Driver] = {}
        # Where replicas should be that are being put aside, and were wanted again meanwhile.
        self._wanted_again: dict[PartitionId, Target] = {}
        self._records = Records(disk, self._record_of, around)

    # ------------------------------------------------------------------------- what services use

    def lead(self, partition: PartitionId) -> Driver:
        """See the Replicas port."""
        driver = self._drivers.get(partition)
        if driver is None or not driver.leads:
            raise self._elsewhere(partition)
        driver.require_ready()
        return driver

    def led(self) -> Sequence[Driver]:
        return [driver for _, driver in sorted(self._drivers.items()) if driver.is_ready]

    def is_ready(self, partition: PartitionId) -> bool:
        driver = self._drivers.get(partition)
        return driver is not None and driver.is_ready

    def is_settled(self, partition: PartitionId) -> bool:
        """It answers, or follows who does."""
        driver = self._drivers.get(partition)
        return driver is not None and (driver.is_ready or driver.follows)

    def is_open(self, partition: PartitionId) -> bool:
        """Its journal was found sound, or recovered."""
        driver = self._drivers.get(partition)
        return driver is not None and driver.is_open

    def _elsewhere(self, partition: PartitionId) -> Exception:
        known = self._metadata.partition(partition)
        if known is None:
            topic = self._metadata.topic_by_id(partition.topic_id)
            if topic is None:
                return UnknownTopic(f"no topic with id {partition.topic_id.hex()}")
            if partition.number >= topic.partitions:
                return UnknownPartition(
                    f"topic {topic.name} has {topic.partitions} partitions, not {partition.number}"
                )
        leader = self._metadata.leader_of(partition)
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

    def aim(self, partition: PartitionId, target: Target) -> None:
        """Where elections want a replica: it is made at the first word of it."""
        driver = self._drivers.get(partition)
        if driver is None:
            driver = self._drivers[partition] = self._make(partition)
            self._stirred(driver)
        elif driver.leaves and not isinstance(target, Close):
            self._want_again(partition, target)
            return
        driver.aim(target)

    def _want_again(self, partition: PartitionId, target: Target) -> None:
        """While it is put aside: another replica, in a directory of its own, comes after it. Who
        wants one says "stand by" first; an election that was heard late wants none."""
        if isinstance(target, Leave):
            self._wanted_again.pop(partition, None)
        elif isinstance(target, StandBy) or partition in self._wanted_again:
            self._wanted_again[partition] = target

    def find(self, partition: PartitionId) -> Driver | None:
        """The replica, whatever its stage; None where there is none."""
        return self._drivers.get(partition)

    def isr_seen(self, partition: PartitionId, epoch: int, isr: Isr) -> None:
        """What etcd shows of an epoch that this process leads."""
        if (driver := self._drivers.get(partition)) is not None:
            driver.isr_seen(epoch, isr)

    def candidate(self, partition: PartitionId) -> Candidate | None:
        """What an election asks of it; None while it may not stand in one."""
        driver = self._drivers.get(partition)
        return None if driver is None else driver.candidate

    async def opened(self, partition: PartitionId) -> Candidate:
        """Waits for it. Raises JournalDamaged, OSError."""
        if partition not in self._drivers:
            self.aim(partition, StandBy())
        return await self._drivers[partition].opened()

    def _make(self, partition: PartitionId) -> Driver:
        return Driver(
            partition,
            self._role,
            self._around,
            open_log=functools.partial(self._open_log, partition),
            put_aside=functools.partial(self._put_aside, partition),
            begin_anew=functools.partial(self._begin_anew, partition),
            led=lambda: self._records.changed([partition]),
            stirred=self._stirred,
            make_outbox=self._make_outbox,
        )

    async def _open_log(self, partition: PartitionId) -> Journal:
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
                    open_data=self._open_data,
                )
            )
            self._records.load(partition, directory)

        await self._around.offload(blocking)
        return opened[0]

    async def _put_aside(self, partition: PartitionId) -> None:
        self._around.reporter.forget("partition", str(partition))
        try:
            await self._begin_anew(partition)
        except OSError as error:
            # The next start does it.
            self._around.reporter.event(
                "replica not put aside",
                level="warning",
                partition=str(partition),
                error=str(error),
            )
        self._drivers.pop(partition, None)
        self._agenda.drop(partition)
        wanted = self._wanted_again.pop(partition, None)
        if wanted is not None:
            self.aim(partition, wanted)

    async def _begin_anew(self, partition: PartitionId) -> None:
        """Moves its directory away. Raises OSError."""
        self._records.forget(partition)
        await self._around.offload(lambda: put_aside(self._disk, directory_of(partition)))

    # ------------------------------------------------------- what directories say of themselves

    def topics_changed(self, topic_ids: Collection[TopicId]) -> None:
        """What the directories of their replicas say may be out of date; and leaders tell their
        machines what the topics' settings say now."""
        changed = [partition for partition in self._drivers if partition.topic_id in topic_ids]
        for partition in changed:
            self._stirred(self._drivers[partition])
        self._records.changed(changed)

    def partitions_changed(self, partitions: Iterable[PartitionId]) -> None:
        """Who has replicas of them, or is in sync."""
        self._records.changed([partition for partition in partitions if partition in self._drivers])

    async def remember(self) -> None:
        """Writes down what could not be written before."""
        await self._records.write()

    def _record_of(self, partition: PartitionId) -> tuple[str, ReplicaRecord] | None:
        """Where, and what; None where it neither leads nor is in sync: what it said stays true."""
        driver = self._drivers.get(partition)
        if driver is None or not driver.is_open or driver.leaves:
            return None
        known, incarnation = self._metadata.partition(partition), driver.journal.incarnation
        is_in_sync = known is not None and incarnation.hex() in known.isr
        if not driver.leads and not is_in_sync:
            return None
        return directory_of(partition), make_record(
            partition,
            incarnation=incarnation,
            epoch=driver.epoch if driver.leads or known is None else known.epoch,
            topic=self._metadata.topic_by_id(partition.topic_id),
            known=known,
        )

    # -------------------------------------------------------------------------------- who is busy

    def _stirred(self, driver: Driver) -> None:
        if self._drivers.get(driver.partition) is driver:
            self._agenda.stir(driver)

    def review(self) -> None:
        """Nodes came or are about to go."""
        for driver in list(self._drivers.values()):
            driver.review()

    def keeping_up(self, partition: PartitionId) -> frozenset[str]:
        """Nodes that could take over a partition that is led here."""
        driver = self._drivers.get(partition)
        return frozenset() if driver is None else driver.keeping_up()

    def incarnation(self, partition: PartitionId) -> str:
        """Hex, of the replica here; "": its log is not open."""
        driver = self._drivers.get(partition)
        if driver is None or not driver.is_open:
            return ""
        return bytes(driver.journal.incarnation).hex()

    async def checkpoint(self) -> None:
        """At a clean stop: snapshots, so that the next start replays little."""
        places = asyncio.Semaphore(CHECKPOINTS_AT_ONCE)

        async def one(driver: Driver) -> None:
            async with places:
                await driver.checkpoint(worth_bytes=CHECKPOINT_WORTH_BYTES)

        await asyncio.gather(*(one(driver) for driver in self._drivers.values()))

    async def close(self) -> None:
        """Leads nothing more, and closes every log."""
        for _, driver in sorted(self._drivers.items()):
            driver.aim(Close(), why="stopping")
        for driver in list(self._drivers.values()):
            await driver.settled()
        await self._records.stop()


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
