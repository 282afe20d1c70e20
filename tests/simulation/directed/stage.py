"""A stage for directed cases: three processes of each role, three replicas of everything, and
`min_insync_replicas` of two, over the real nodes. A story says what happens, step by step; the end
is always the same: all heals, and what was acknowledged is there, once, on replicas that agree byte
for byte.

    leader, others = stage.leader(stage.data), stage.others(stage.data)
    stage.hold(leader, others[0])          what is sent this way waits, until `let`
    await stage.write(b"x", at=leader)     a plain record; `acknowledged` once it was answered
    await stage.lose_power(leader)
    stage.bar(others[1])                   wins no election, until `unbar`
    await stage.elected(others[0])

Who leads is what etcd says. Times are virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from oncelog._core.routing import Endpoint
from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog.batch import Record
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import PLAIN_PRODUCER_BIT, PartitionId, TopicId
from oncelog_server.runtime.etcd.keys import (
    PartitionState,
    boot_key,
    decode_partition,
    partition_key,
)
from oncelog_server.runtime.etcd.port import KeyValue
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.storage.node_id import NODE_FILE
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.hand import rows
from tests.simulation.callers import SimTransport
from tests.simulation.directed.held_world import REPLICAS, StageEtcd, StageWorld
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Process

TOPIC: Final = "payments"
# What the network calls the client of a stage.
CLIENT: Final = "client"
SETTINGS: Final = (
    # Nobody hands over to whoever stands first in the list of replicas.
    "node.balance_after_ms=0",
    "node.min_insync_replicas=2",
    f"node.control_replication_factor={REPLICAS}",
    # Who says nothing for so long is not in sync: shorter than a lease.
    "node.replica_lag_ms=3000",
)
# What is waited for comes within this.
WAIT_S: Final = 60.0
LOOK_EVERY_S: Final = 0.002
# A call that is held back is given up after so long.
CALL_S: Final = 120.0
# Nobody notices that a way is held.
NEVER_S: Final = 1e6


@dataclass
class Write:
    """A record that was sent to a process, by a client that sends it once."""

    value: bytes
    task: asyncio.Task[Any]

    @property
    def is_acknowledged(self) -> bool:
        if not self.task.done() or self.task.exception() is not None:
            return False
        return not self.task.result().results[0].HasField("error")

    @property
    def why(self) -> str:
        """The reason why it was refused; "" where it was not."""
        if not self.task.done():
            return ""
        error = self.task.exception()
        if isinstance(error, errors.OncelogError):
            return error.reason
        [result] = self.task.result().results
        return errors.from_status(result.error).reason if result.HasField("error") else ""


class Stage:
    """See the module."""

    def __init__(self, world: StageWorld) -> None:
        self.world = world
        self.data = PartitionId(TopicId(bytes(16)), 0)
        self.client: Log
        self.writes: list[Write] = []
        self._transport = SimTransport(world.network, caller="writer")
        # Ways that are held, or cut.
        self._held: list[tuple[str, str]] = []
        self._down: list[str] = []
        self._frozen: set[str] = set()

    async def begin(self, *, partitions: int = 1) -> None:
        """All are up, and a topic has three replicas in sync."""
        await self.world.start_all()
        self.client = self.world.client()
        await self.create_topic(partitions=partitions)
        await self.all_in_sync()

    async def create_topic(self, *, partitions: int = 1) -> None:
        topic = await self.client.admin.create_topic(TOPIC, partitions, replication_factor=REPLICAS)
        self.data = PartitionId(TopicId(bytes.fromhex(topic.topic_id)), 0)

    # ------------------------------------------------------------------------------- what there is

    def state(self, partition: PartitionId) -> PartitionState:
        """As etcd has it."""
        found = self.world.etcd.get(partition_key(partition))
        assert found is not None, f"etcd knows no {partition}"
        return decode_partition(found.value)

    def boots(self, partition: PartitionId) -> dict[int, set[str]]:
        """Who was named in each epoch so far, in whatever turn."""
        named: dict[int, set[str]] = {}
        key, etcd = partition_key(partition), self.world.etcd
        for revision in range(2, etcd.revision + 1):
            for event in etcd.events(key, revision):
                state = None if event.value is None else decode_partition(event.value)
                if event.key == key and state is not None and state.leader is not None:
                    named.setdefault(state.epoch, set()).add(state.leader.boot_id)
        return named

    def leader(self, partition: PartitionId) -> str:
        """Whom etcd names, and who lives; "" for nobody."""
        leader = self.state(partition).leader
        if leader is None or self.world.etcd.get(boot_key(leader.boot_id)) is None:
            return ""
        named = [p.name for p in self._all() if p.node.boot_id.hex() == leader.boot_id]
        return next((name for name in named if name not in self._down), "")

    def others(self, partition: PartitionId) -> list[str]:
        """Who has a replica and does not lead it, in order."""
        leader = self.leader(partition)
        return [name for name in self.holders(partition) if name != leader]

    def holders(self, partition: PartitionId) -> list[str]:
        nodes = self.state(partition).replicas
        return [process.name for process in self._all() if process.node.node_id in nodes]

    def in_sync(self, partition: PartitionId) -> list[str]:
        """Of those who live, by name; a replica whose log is not open is not found."""
        isr = self.state(partition).isr
        return [
            name
            for name in self.holders(partition)
            if name not in self._down
            and (replica := self.find(name, partition)) is not None
            and replica.is_open
            and replica.journal.incarnation.hex() in isr
        ]

    def find(self, name: str, partition: PartitionId) -> Driver | None:
        return self.world.processes[name].node._hosting.find(partition)

    def replica(self, name: str, partition: PartitionId) -> Driver:
        found = self.find(name, partition)
        assert found is not None, f"{name} has no replica of {partition}"
        return found

    def frames(self, name: str, partition: PartitionId) -> list[StoredFrame]:
        """All that a replica's log holds."""
        journal = self.replica(name, partition).journal
        return list(journal.replay(journal.log_start))

    def pending_offsets(self, name: str, partition: PartitionId) -> int:
        """Of all groups, at a leader of theirs."""
        machine = self.replica(name, partition).machine
        return sum(len(group.pending) for group in machine._state.groups.values())

    def failure(self, name: str) -> BaseException | None:
        """What its process ends of; None: it goes on."""
        failed = self.world.processes[name].node._failure
        return failed.exception() if failed is not None and failed.done() else None

    def etcd(self, name: str) -> StageEtcd:
        session = self.world.processes[name].etcd
        assert isinstance(session, StageEtcd), "stages make their sessions"
        return session

    def disk(self, name: str) -> FakeDisk:
        return self.world.processes[name].disk

    def _all(self) -> list[Process]:
        return [self.world.processes[name] for name in self.world.names]

    # ------------------------------------------------------------------------------- what happens

    def hold(self, *ways: tuple[str, str]) -> None:
        """What goes these ways waits until they are let; nobody notices."""
        self.world.say(f"-- held: {ways}")
        self._held += ways
        self.world.network.cut_ways(ways, noticed_s=NEVER_S)

    def let(self, *ways: tuple[str, str]) -> None:
        self.world.say(f"-- let: {ways}")
        for way in ways:
            self._held.remove(way)
        self.world.network.heal(ways)

    def part_ways(self, one: str, *others: str) -> None:
        """Nothing goes between them, and both sides notice."""
        ways = [way for other in others for way in ((one, other), (other, one))]
        self._held += ways
        self.world.network.cut_ways(ways, noticed_s=0.0)

    def bar(self, *names: str) -> None:
        """They win no election until they are unbarred, whichever process has their name."""
        self.world.barred.update(names)
        for name in names:
            self.etcd(name).barred = True

    def unbar(self, *names: str) -> None:
        for name in names:
            self.world.barred.discard(name)
            self.etcd(name).barred = False

    def cut_off_from_etcd(self, name: str) -> None:
        """It hears of nothing, and renews nothing, any more."""
        self.etcd(name).stale = True
        self.etcd(name).unavailable = True

    def reconnect(self, name: str) -> None:
        self.etcd(name).stale = False
        self.etcd(name).unavailable = False

    def epochs(self) -> dict[PartitionId, int]:
        """Of all partitions."""
        return {partition: self.state(partition).epoch for partition in self._partitions()}

    def end_lease(self, name: str) -> None:
        """etcd ends it now."""
        self.world.etcd.expire(self._membership(name).lease)

    def lease_left_s(self, name: str) -> float:
        """For so long its process believes that it may answer; 0 or less: no more."""
        membership = self._membership(name)
        assert membership._held is not None, "it has a lease"
        return (membership._held.deadline_ms - membership._now_ms()) / 1000

    def regained(self, name: str) -> bool:
        """It lost a lease, and has another one, under which it may answer."""
        return self._membership(name).lost > 0 and self._membership(name).valid()

    def _membership(self, name: str) -> Membership:
        membership = self.world.processes[name].node._membership
        assert membership is not None, "started"
        return membership

    def is_synced(self, name: str, partition: PartitionId) -> bool:
        """Its log is open, and all of it is on the disk."""
        replica = self.find(name, partition)
        if replica is None or not replica.is_open:
            return False
        return replica.journal.synced_end == replica.journal.log_end

    def freeze(self, name: str) -> None:
        """SIGSTOP, until `thaw`."""
        self._frozen.add(name)
        self.world.freeze(name)

    def thaw(self, *names: str) -> None:
        for name in names:
            self._frozen.discard(name)
            self.world.thaw(name)

    def thaw_all(self) -> None:
        self.thaw(*sorted(self._frozen))

    async def lose_power(self, name: str, tear: Tear = Tear.NOTHING) -> None:
        await self.world.lose_power(name, tear)
        self._down.append(name)

    async def stop(self, name: str) -> None:
        """SIGTERM."""
        await self.world.stop(name)
        self._down.append(name)
        self.reopened(name)

    async def start(
        self,
        name: str,
        *,
        view: tuple[list[KeyValue], int] | None = None,
        held: bool = False,
    ) -> None:
        """Again, on what its disk holds. `view`: its watch is behind, since that listing. `held`:
        its syncs are held from the beginning."""
        if view is not None:
            self.world.views[name] = view
        if name in self._down:
            self._down.remove(name)
        if held:
            self.world.held.add(name)
        await self.world.start(name)

    async def empty_disk(self, name: str) -> None:
        """Its machine loses power, and its data directory."""
        await self.lose_power(name)
        self.empty_machine(name)

    def empty_machine(self, name: str) -> None:
        """Its process is down: it comes back as the same node, with nothing else."""
        node_id = self.reopened(name).bytes_of(NODE_FILE)
        disk = FakeDisk(seed=1)
        disk.replace_file(NODE_FILE, node_id)
        self.world.machines[name].disk = disk

    def reopened(self, name: str) -> FakeDisk:
        """The disk of a machine whose process is down."""
        machine = self.world.machines[name]
        machine.disk = machine.disk.reopen()
        return machine.disk

    def write(self, value: bytes, *, at: str, partition: PartitionId | None = None) -> Write:
        """Sends a plain record to this process, whether it leads or not."""
        to = Endpoint("127.0.0.1", self.world.processes[at].node.port)
        where = self.data if partition is None else partition
        place = pb.Partition(topic_id=where.topic_id, number=where.number)
        request = log_pb.ProduceRequest(
            producer=pb.Producer(producer_id=PLAIN_PRODUCER_BIT + len(self.writes) + 1),
            batches=[rows(place, value)],
        )
        call = self._transport.call(to, "partition_leader.produce", request, int(CALL_S * 1000))
        write = Write(value, asyncio.ensure_future(call))
        # One that nobody looks at again must not make asyncio complain.
        write.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.writes.append(write)
        return write

    async def acknowledged(self, value: bytes, *, at: str) -> Write:
        """Sends it, and waits for the answer."""
        write = self.write(value, at=at)
        await self.until(lambda: write.task.done(), f"an answer to {value!r}")
        assert write.is_acknowledged, f"{value!r} was refused: {write.why}"
        return write

    async def fetch(self, name: str, *, position: int) -> str:
        """A fetch of committed records that waits for nothing: why it is refused, or ""."""
        to = Endpoint("127.0.0.1", self.world.processes[name].node.port)
        place = pb.Partition(topic_id=self.data.topic_id, number=self.data.number)
        request = log_pb.FetchRequest(
            partitions=[log_pb.FetchPartition(partition=place, offset=position)]
        )
        try:
            reply = await self._transport.call(to, "partition_leader.fetch", request, 2_000)
        except errors.OncelogError as error:
            return error.reason
        [fetched] = reply.partitions
        return errors.from_status(fetched.error).reason if fetched.HasField("error") else ""

    @staticmethod
    async def poll(consumer: Consumer) -> list[Record]:
        """The next batch's records; waits for one."""
        async with asyncio.timeout(WAIT_S):
            while (batch := await consumer.poll(1.0)) is None:
                pass
        return list(batch.records())

    # --------------------------------------------------------------------------- what is waited for

    async def until(self, done: Callable[[], Any], what: str) -> None:
        """Looks every few milliseconds."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not done():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise AssertionError(f"never came: {what}") from None

    async def elected(self, name: str, partition: PartitionId) -> None:
        """etcd names it, and it has heard so."""
        await self.until(
            lambda: self.leader(partition) == name and self.replica(name, partition).leads,
            f"{name} leads {partition}",
        )

    async def ready(self, name: str, partition: PartitionId) -> None:
        await self.elected(name, partition)
        await self.until(
            lambda: self.replica(name, partition).is_ready, f"{name} answers for {partition}"
        )

    async def next_leader(self, partition: PartitionId) -> str:
        """Whoever answers, once somebody does."""

        def answers() -> bool:
            name = self.leader(partition)
            return bool(name) and self.replica(name, partition).is_ready

        await self.until(answers, f"a leader of {partition}")
        return self.leader(partition)

    async def follows(self, name: str, partition: PartitionId, *, leader: str) -> None:
        """It has all that the leader has, synced."""
        await self.until(
            lambda: self._has_all(name, partition, leader), f"{name} has all that {leader} has"
        )

    def _has_all(self, name: str, partition: PartitionId, leader: str) -> bool:
        replica, led = self.find(name, partition), self.replica(leader, partition)
        if replica is None or not replica.follows:
            return False
        journal, other = replica.journal, led.journal
        return journal.synced_end == other.log_end and journal.last_epoch == other.last_epoch

    async def synced(self, name: str, partition: PartitionId) -> None:
        await self.until(lambda: self.is_synced(name, partition), f"{name} has synced {partition}")

    async def all_in_sync(self) -> None:
        """Every partition has three replicas in sync and a leader that answers."""
        partitions = self._partitions()
        await self.until(
            lambda: all(self._is_whole(partition) for partition in partitions), "all are in sync"
        )

    def _partitions(self) -> list[PartitionId]:
        return sorted(
            {
                partition
                for process in self._all()
                for replicas in process.node._hosting.replicas.values()
                for partition in replicas._drivers
                if self.world.etcd.get(partition_key(partition)) is not None
            }
        )

    def _is_whole(self, partition: PartitionId) -> bool:
        leader = self.leader(partition)
        if not leader or not self.replica(leader, partition).is_ready:
            return False
        isr = self.state(partition).isr
        return len(self.in_sync(partition)) == len(isr) == REPLICAS

    # -------------------------------------------------------------------------------------- the end

    async def end(self) -> list[bytes]:
        """All heals; then what was acknowledged is there, once, in one order on all replicas. What
        readers see, of all partitions."""
        await self.heal()
        found = await self.read()
        seen = [value for of in found for value in of]
        for write in self.writes:
            if write.is_acknowledged:
                assert seen.count(write.value) == 1, f"{write.value!r} was acknowledged: {seen}"
        assert len(seen) == len(set(seen)), f"each is there once: {seen}"
        await self.agree()
        self.world.check()
        for write in self.writes:
            write.task.cancel()
        await self.client.close()
        await self._transport.close()
        await self.world.stop_all()
        return seen

    async def heal(self) -> None:
        self.let(*tuple(self._held))
        self.unbar(*tuple(self.world.barred))
        self.world.gate.set()
        for name in self.world.names:
            session = self.etcd(name)
            session.stale = session.keep_alives_lost = False
            if name not in self._down:
                session.unavailable = False
                self.disk(name).let_commits()
        for name in tuple(self._down):
            await self.start(name)
        await self.all_in_sync()

    async def read(self) -> list[list[bytes]]:
        """By partition, what a new reader sees, once no transaction is open."""
        client = self.world.client()
        async with asyncio.timeout(WAIT_S):
            while await client.admin.transactions():
                await asyncio.sleep(0.1)
        await client.close()
        return await self.read_now()

    async def read_now(self) -> list[list[bytes]]:
        """By partition, what a new reader sees."""
        client = self.world.client()
        async with asyncio.timeout(WAIT_S):
            ends = await client.admin.offsets(TOPIC)
            found: list[list[bytes]] = [[] for _ in ends]
            consumer = await client.consumer([TOPIC], start="earliest")
            while any(len(of) < end for of, end in zip(found, ends, strict=True)):
                batch = await consumer.poll(5)
                assert batch is not None, f"not all of {ends} came: {found}"
                for record in batch.records():
                    found[record.partition].append(record.value or b"")
        await consumer.close()
        await client.close()
        return found

    async def agree(self) -> None:
        """All replicas of each partition hold the same frames."""
        for partition in self._partitions():
            for name in self.others(partition):
                leader = self.leader(partition)
                await self.follows(name, partition, leader=leader)
                assert self.frames(name, partition) == self.frames(leader, partition), (
                    f"{name} and {leader} differ in {partition}"
                )


def play(
    story: Callable[[Stage], Coroutine[Any, Any, None]], *settings: str, seed: int = 1
) -> None:
    """On a stage that has not begun."""
    loop = VirtualTimeLoop()
    world = StageWorld(seed, loop, (*SETTINGS, *settings))

    async def tell() -> None:
        stage = Stage(world)
        try:
            await story(stage)
        finally:
            # What is frozen could not be cancelled.
            stage.thaw_all()

    run(tell(), loop)
