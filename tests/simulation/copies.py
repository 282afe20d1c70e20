"""What the replicas of a partition must hold, looked at while a day goes on. It sees all of them at
once, as nobody in the cluster does.

    advanced(name)   a high watermark (HW) moved there: whoever is in sync (ISR) holds all below it,
                     and those are min_insync_replicas nodes at least
    look()           now and then: so it still is, and every replica has, as far as it knows to be
                     durable, the frames that the first one had (I7)
    level()          at the end: everybody is in sync, and all journals are equal, byte by byte
    bears_loss_of()  whether a disk may be lost now: see below
    rotten()         replicas with a damaged frame that nobody has found: `unearthing` ends them

What may be demanded when disks are lost: an acknowledged record is on every member of the ISR, and
those are `min_insync_replicas` nodes at least. So as many disks, less one, may be lost before the
ISR names none of the lost any more, and nothing is lost. Here: one at a time, where the rest of the
ISR is intact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.roles import role_of
from oncelog_server.runtime.etcd.keys import (
    PARTITIONS,
    PartitionState,
    decode_partition,
    partition_key,
    partition_of_key,
)
from oncelog_server.runtime.etcd.port import KeyValue
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY, directory_of
from oncelog_server.runtime.storage.frames import FrameError, step
from oncelog_server.runtime.storage.journal import Journal

if TYPE_CHECKING:
    from tests.simulation.disk import FakeDisk
    from tests.simulation.world import World

# How often a day is looked at, and how long replicas may take to be in sync again, seconds.
LOOK_EVERY_S: Final = 0.25
LEVEL_WITHIN_S: Final = 60.0
# Of a frame: it covers all that stands behind it.
CRC_BEGIN, CRC_END = 4, 8


class Print(NamedTuple):
    """What tells one frame from another: where it ends, and its CRC."""

    end: int
    crc: bytes


class Replica(NamedTuple):
    """One that is open, of a process that lives."""

    name: str
    driver: Driver

    @property
    def journal(self) -> Journal:
        return self.driver.journal

    def __str__(self) -> str:
        return f"{self.name} {self.driver.partition}"


class _Walk:
    """Through the files of one journal, as a reader who trusts nobody: what is on the disk."""

    def __init__(self, replica: Replica, disk: FakeDisk) -> None:
        self.journal = replica.journal
        # Everything below was walked over, or is before the log.
        self.offset = replica.journal.log_start
        self._disk = disk
        # Where the next frame begins: in the segment of this base.
        self._base, self._position = -1, 0

    def go_to(self, below: int) -> Iterator[tuple[int, Print]]:
        """Frames that end at or below it."""
        segments = self.journal._segments.all
        for number, segment in enumerate(segments):
            until = segments[number + 1].base if number + 1 < len(segments) else below
            if until <= self.offset:
                continue
            if number == 0:
                # What was before it is gone.
                self.offset = max(self.offset, min(segment.base, below))
            if segment.base != self._base:
                self._base, self._position = segment.base, 0
            if not self._disk.exists(segment.path):
                # It was begun for the next frame, which was not written yet.
                return
            block = memoryview(self._disk.bytes_of(segment.path)[self._position :])
            at = 0
            try:
                while self.offset < min(until, below):
                    offset, end, size = step(block, at)
                    self.offset = end
                    yield offset, Print(end, bytes(block[at + CRC_BEGIN : at + CRC_END]))
                    at += size
            except FrameError:
                return
            self._position += at


class Copies:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The highest HW that a leader had.
        self._shown: dict[PartitionId, int] = {}
        # The frames that were known to be durable first, by journal offset.
        self._frames: dict[PartitionId, dict[int, Print]] = {}
        self._walks: dict[tuple[str, PartitionId], _Walk] = {}
        # As etcd has them, by key, with the revision of each.
        self._states: dict[str, tuple[int, PartitionState]] = {}
        # Incarnations, hex: those whose files are gone; and on which machine each one was.
        self._lost: set[str] = set()
        self._whose: dict[str, str] = {}
        # By incarnation, those of which a frame is damaged that no start looks at.
        self._rotten: dict[str, tuple[str, PartitionId, int]] = {}
        # Whose data log was damaged, and how many logs of that partition were put aside there then.
        self._lacking: dict[tuple[str, PartitionId], int] = {}
        # False while etcd is lost: nobody says who is in sync.
        self._etcd_stands = True
        # Those that were rebuilt, and have not had enough replicas in sync since.
        self._rebuilt: set[PartitionId] = set()
        # What did not hold, in words.
        self.wrong: list[str] = []

    # ------------------------------------------------------------------------------ what etcd says

    def states(self) -> Iterator[tuple[PartitionId, PartitionState]]:
        """Of every partition that has several replicas, as the store itself has it."""
        for kv in self._world.etcd.range(PARTITIONS):
            state = self._decoded(kv)
            if len(state.replicas) > 1:
                yield partition_of_key(kv.key), state

    def state(self, partition: PartitionId) -> PartitionState | None:
        kv = self._world.etcd.get(partition_key(partition))
        return None if kv is None else self._decoded(kv)

    def _decoded(self, kv: KeyValue) -> PartitionState:
        known = self._states.get(kv.key)
        if known is None or known[0] != kv.mod_revision:
            known = self._states[kv.key] = kv.mod_revision, decode_partition(kv.value)
        return known[1]

    def replicas(self, partition: PartitionId) -> list[Replica]:
        """Those that are open, on the nodes that it is assigned to."""
        role, state = role_of(partition.topic_id), self.state(partition)
        nodes = () if state is None else state.replicas
        found = []
        for name, process in self._world.processes.items():
            node_id = process.node.node_id
            if process.role == role and node_id in nodes and self._world.is_up(name):
                driver = process.node._hosting.find(partition)
                if driver is not None and driver.is_open:
                    replica = Replica(name, driver)
                    self._whose[replica.journal.incarnation.hex()] = name
                    found.append(replica)
        return found

    def whose(self, incarnation: str) -> str:
        """The machine that it is, or was, on."""
        if incarnation not in self._whose:
            for partition, _ in self.states():
                self.replicas(partition)
        return self._whose[incarnation]

    def followed(self, name: str) -> list[Driver]:
        """Those of a process that follow a leader; none where it could not start."""
        process = self._world.processes[name]
        replicas = process.node._hosting.replicas.get(process.role)
        drivers = {} if replicas is None else replicas._drivers
        return [driver for _, driver in sorted(drivers.items()) if driver.follows]

    def is_followed(self, name: str) -> bool:
        """It leads something of which there are followers."""
        node = self._world.processes[name].node
        return any(
            driver._epochs.leadership is not None and driver._epochs.leadership.followers._supplies
            for driver in node.led_replicas()
        )

    # ----------------------------------------------------------------------- what holds at any time

    def advanced(self, name: str) -> None:
        """A HW moved, at the process of that name."""
        for driver in self._world.processes[name].node.led_replicas():
            if driver.high_watermark > self._shown.get(driver.partition, 0):
                self._shown[driver.partition] = driver.high_watermark
                state = self.state(driver.partition) if self._etcd_stands else None
                if state is not None and len(state.replicas) > 1:
                    self._look_at_isr(driver.partition, state)

    def look(self) -> None:
        """See the module."""
        for partition, state in self.states() if self._etcd_stands else ():
            for replica in self._look_at_isr(partition, state):
                self._compare(replica, _known_durable(replica.driver))

    def _look_at_isr(self, partition: PartitionId, state: PartitionState) -> list[Replica]:
        shown, found = self._shown.get(partition, 0), self.replicas(partition)
        nodes = {self._whose.get(member, member) for member in state.isr}
        if len(nodes) >= self._wanted(state):
            self._rebuilt.discard(partition)
        elif shown and partition not in self._rebuilt:
            self._note(f"I25: {partition} has {len(nodes)} nodes in sync, and {shown} was shown")
        for replica in found:
            if replica.journal.incarnation.hex() in state.isr:
                synced_end = replica.journal.synced_end
                if synced_end < shown:
                    self._note(f"I25: {replica} is in sync at {synced_end}, and {shown} was shown")
        return found

    def _compare(self, replica: Replica, below: int) -> None:
        """What stands there below this journal offset is what stood there first."""
        journal, partition = replica.journal, replica.driver.partition
        if journal.incarnation.hex() in self._rotten:
            return
        below = min(below, journal.synced_end)
        walk = self._walks.get((replica.name, partition))
        if walk is None or walk.journal is not journal or walk.offset > journal.synced_end:
            disk = self._world.processes[replica.name].disk
            walk = self._walks[replica.name, partition] = _Walk(replica, disk)
        if max(walk.offset, journal.log_start) >= below:
            return
        known = self._frames.setdefault(partition, {})
        for offset, found in walk.go_to(below):
            first = known.setdefault(offset, found)
            if first != found:
                self._note(f"I7: {replica} has another frame at {offset}")
        if walk.offset != below:
            self._note(f"I26: {replica} cannot be read at {walk.offset}, below {below}")

    def etcd_is_lost(self) -> None:
        """In this step."""
        self._etcd_stands = False
        self._states.clear()

    def etcd_stands_again(self, *, rebuilt: bool) -> None:
        """What it held, or what was rebuilt: then one replica of each partition is in sync, which
        has all that was ever shown."""
        self._etcd_stands = True
        self._states.clear()
        if rebuilt:
            self._rebuilt.update(partition for partition, _ in self.states())

    def require_all_held(self) -> None:
        """Raises AssertionError."""
        assert not self.wrong, self.wrong[0]

    def _note(self, wrong: str) -> None:
        """Not raised: whose step this is would be made to bear it."""
        self.wrong.append(wrong)
        self._world.say(f"-- {wrong}")

    # --------------------------------------------------------------------------- what is at the end

    async def level(self) -> None:
        """When nobody asks for anything any more. Every replica is in sync again, and all of a
        partition are equal."""
        await self.in_sync_again()
        for replica in self.rotten():
            raise AssertionError(f"I26: {replica} rotted, and is under its name yet")
        self._walks.clear()
        for partition, _ in self.states():
            found = self.replicas(partition)
            [leader] = [replica for replica in found if replica.driver.leads]
            for replica in found:
                self._compare(replica, leader.journal.log_end)

    async def in_sync_again(self) -> None:
        """Every replica is open, and has all that its leader has. Raises AssertionError."""
        try:
            async with asyncio.timeout(LEVEL_WITHIN_S):
                while self._behind():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise AssertionError(f"I29: not level again: {self._behind()[:5]}") from None

    def _behind(self) -> list[str]:
        """Partitions of which a replica is not where the others are, in words."""
        found = []
        for partition, state in self.states():
            replicas = self.replicas(partition)
            incarnations = {replica.journal.incarnation.hex() for replica in replicas}
            ends = {replica.journal.synced_end for replica in replicas}
            ends |= {replica.journal.log_end for replica in replicas}
            if len(replicas) < len(state.replicas) or incarnations != set(state.isr):
                found.append(f"{partition}: {len(replicas)} live, {len(state.isr)} are in sync")
            elif len(ends) > 1 or not any(replica.driver.is_ready for replica in replicas):
                found.append(f"{partition}: logs end at {sorted(ends)}")
        return found

    # ---------------------------------------------------------------------------------- lost disks

    def bears_loss_of(self, name: str) -> bool:
        """Whether nothing that was acknowledged may be lost with the disk of that process."""
        process = self._world.processes[name]
        if not self._world.is_up(name) or not process.node.node_id:
            return False
        held = [
            (partition, state)
            for partition, state in self._all_states()
            if process.node.node_id in state.replicas
        ]
        return bool(held) and all(self._bears(name, partition, state) for partition, state in held)

    def _all_states(self) -> Iterator[tuple[PartitionId, PartitionState]]:
        for kv in self._world.etcd.range(PARTITIONS):
            yield partition_of_key(kv.key), self._decoded(kv)

    def _bears(self, name: str, partition: PartitionId, state: PartitionState) -> bool:
        is_open = any(replica.name == name for replica in self.replicas(partition))
        others = [member for member in state.isr if self._whose.get(member) != name]
        is_whole = not self._lost.intersection(state.isr)
        return is_open and is_whole and bool(others) and self._wanted(state) > 1

    def _wanted(self, state: PartitionState) -> int:
        """Nodes that have a record synced before it is acknowledged."""
        return min(self._world.cluster.min_insync_replicas, len(state.replicas))

    def bears_rot_of(self, name: str) -> list[PartitionId]:
        """Partitions of which the same may be said, one by one."""
        if not self._world.is_up(name):
            return []
        return [
            partition for partition, state in self.states() if self._bears(name, partition, state)
        ]

    def lost(self, name: str) -> None:
        """The disk of that process is lost in this step."""
        self._lost |= {one for one, whose in self._whose.items() if whose == name}

    def frames_of(self, name: str, partition: PartitionId) -> int:
        """About how many that replica holds."""
        return sum(
            replica.journal.log_end for replica in self.replicas(partition) if replica.name == name
        )

    def rots(self, name: str, partition: PartitionId) -> str:
        """That replica of it is damaged in this step. Its incarnation."""
        [replica] = [replica for replica in self.replicas(partition) if replica.name == name]
        incarnation = replica.journal.incarnation.hex()
        self._lost.add(incarnation)
        return incarnation

    def hides_rot(self, incarnation: str, name: str, partition: PartitionId, end: int) -> None:
        """Nobody finds it before he reads that very frame, which ends at this journal offset."""
        self._rotten[incarnation] = name, partition, end

    def lacks_blocks(self, name: str, partition: PartitionId) -> None:
        """Of what it has settled something is damaged or gone."""
        self._lacking[name, partition] = self._put_aside(name, partition)

    def may_lack_blocks(self, replica: Replica) -> bool:
        """It was not copied anew since. A log that begins where its leader's does has another
        incarnation, and its own blocks still."""
        which = replica.name, replica.driver.partition
        return self._lacking.get(which) == self._put_aside(*which)

    def _put_aside(self, name: str, partition: PartitionId) -> int:
        directory = directory_of(partition).rpartition("/")[2]
        listed = self._world.machines[name].disk.list(ORPHANS_DIRECTORY)
        return sum(one.startswith(directory) for one in listed)

    def rotten(self) -> list[Replica]:
        """Those of which nobody has found it so far, and that have it still: a log may begin behind
        it by now."""
        return [
            replica
            for incarnation, (name, partition, end) in self._rotten.items()
            for replica in self.replicas(partition)
            if replica.name == name
            and replica.journal.incarnation.hex() == incarnation
            and replica.journal.log_start < end
        ]


def _known_durable(driver: Driver) -> int:
    """As this replica itself knows it."""
    if driver.leads:
        return driver.high_watermark
    follows = driver._epochs.followership
    return 0 if follows is None else follows.high_watermark
