"""What goes wrong in a simulated day, by name. A plan says which of it, and how often.

A fault is over when its function returns: what was down is up again. Two faults never strike one
process at the same time, but for those in the middle of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from errno import EIO, ENOSPC
from typing import Final

from oncelog_server.core.roles import COORDINATOR
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.node_id import NODE_FILE
from tests.faults.cases import CASES
from tests.simulation.day import Day
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.losing_etcd import lose_etcd
from tests.simulation.losing_files import lose_files
from tests.simulation.machines import role_of_name
from tests.simulation.moments import (
    DISK_LOST,
    ROT_HIDDEN,
    ROTTED,
    WALL_JUMPED,
    WATCH_GAP,
    WATCH_STALE,
    WRITE_UNANSWERED,
)
from tests.simulation.network import Way
from tests.simulation.older_disks import bring_older_disk
from tests.simulation.rotting import Where, flip_a_bit
from tests.simulation.rotting_data import rot_data
from tests.simulation.striking import Striker
from tests.simulation.troubled_groups import move_groups, stop_a_client
from tests.simulation.world import Process

# How long a process is down, seconds: also for longer than a lease.
DOWN_S: Final = (0.01, 0.3, 1.5, 5.5)
# How long a process is stopped, etcd away, a way severed, a disk full, seconds.
AWAY_S: Final = (0.1, 0.5, 2.5, 6.0)
# How long keep-alives are lost: shorter and longer than a lease.
LEASES_LOST_S: Final = (0.5, 2.5, 6.5)
# How long it takes both sides of a connection to give it up over which they hear nothing.
NOTICED_S: Final = (0.0, 0.5, 5.0)
# What the delays of ways that are slow are stretched by.
SLOWER: Final = (30.0, 300.0)
# How far a wall clock jumps: seconds, an hour either way, more than anything is remembered.
WALL_JUMPS_MS: Final = (-3_600_000, -2_000, 2_000, 3_600_000, 30 * 86_400_000)
# In a line of the trace.
WAYS_SHOWN: Final = 6
SUPERVISED_EVERY_S: Final = 0.2
# How long a follower is down until its leader gives it up, or does not, seconds.
SILENT_S: Final = (0.0, 2.2, 4.0)
# How long a leader writes alone; how often others lead before it is back, and from when on.
ALONE_S: Final = (0.05, 0.3, 1.0)
SUCCEEDED: Final = 0.8
SUCCEEDED_S: Final = 0.5
# Where no disk may be lost, or nobody is followed.
LOOKED_AGAIN_S: Final = 0.5
# How long a strike waits for the passing that it needs, seconds.
STRIKE_WITHIN_S: Final = 1.0
# A journal of so many positions has some that are no EPOCH_START.
WORTH_ROTTING: Final = 8
# Below the floor that `swarm` sets, and not nothing.
LITTLE_LEFT_BYTES: Final = 60_000


def _both_ways(pairs: list[Way]) -> list[Way]:
    return [*pairs, *((to, source) for source, to in pairs)]


def _names(processes: list[Process]) -> str:
    return ",".join(process.name for process in processes)


class Trouble:
    """Of one day."""

    def __init__(self, day: Day, striker: Striker) -> None:
        self.day = day
        self.world = day.world
        self.random = day.random
        self.striker = striker
        # Processes that a fault has now.
        self._taken = striker.taken
        self._faults = 0

    async def last(self) -> None:
        """Faults until the plan's time is over, then everything is healed."""
        supervising = asyncio.create_task(self._supervise())
        end_s = self.world.loop.time() + self.day.plan.trouble_s
        try:
            await asyncio.gather(*(self._strike_until(end_s) for _ in range(self.day.plan.hands)))
            self.day.network_trouble = self.world.peer_trouble = 0.0
            await self.world.ready()
        finally:
            supervising.cancel()

    async def _strike_until(self, end_s: float) -> None:
        plan = self.day.plan
        while self.world.loop.time() < end_s and self._faults < plan.faults_max:
            self._faults += 1
            await asyncio.sleep(self.random.choice(plan.between_faults))
            self.day.network_trouble = self.random.choice(plan.client_calls)
            self.world.peer_trouble = self.random.choice(plan.process_calls)
            # A day that was made small may have none.
            name = self.random.choice(plan.faults or ("calm",))
            self.world.marks.add("fault", name)
            self.day.history.mark("fault", name=name)
            await FAULTS[name](self)

    # -------------------------------------------------------------------------- of the processes

    async def power(self) -> None:
        """Of one process, or of several at once."""
        async with self.taken(self.random.choice([1, 1, 2, 3])) as names:
            for name in names:
                await self.world.lose_power(name, self.random.choice(list(Tear)))
            await self.up(names)

    async def strike(self) -> None:
        """In the middle of a step."""
        # Places that were passed lately will be passed again soon; the others, some day.
        passed = [case for case in CASES if (case.role, case.point) in self.striker.passed]
        case = self.random.choice(CASES if self.random.random() < 0.2 else passed or CASES)
        self.striker.passed.clear()
        passing = self.random.choice([1, 1, 2, 3, 7])
        victim = await self.striker.strike(case, passing, STRIKE_WITHIN_S)
        if victim is None:
            return
        try:
            if victim.fell:
                self.world.marks.add("struck", case.point)
                await self.world.bury(victim.name)
                await self.up([victim.name])
        finally:
            self._taken.discard(victim.name)

    async def restart(self) -> None:
        """As an operator does it."""
        async with self.taken(1) as names:
            for name in names:
                self.world.say(f"-- {name} is stopped")
                await self.world.stop(name)
            await self.up(names)

    async def freeze(self) -> None:
        """SIGSTOP."""
        async with self.taken(1) as names:
            for name in names:
                self.world.freeze(name)
                await self._while()
                self.world.thaw(name)

    async def lost_disk(self) -> None:
        """One is replaced by an empty one, which is told the name of its node. Only where nothing
        that was acknowledged may be lost with it (`copies`)."""
        bears = self.world.copies.bears_loss_of
        free = [name for name in self.world.names if name not in self._taken and bears(name)]
        if not free:
            await asyncio.sleep(LOOKED_AGAIN_S)
            return
        name = self.random.choice(free)
        self._taken.add(name)
        try:
            self.world.say(f"-- the disk of {name} is lost")
            self.world.moments.add(DISK_LOST)
            self.world.copies.lost(name)
            await self.world.lose_power(name, Tear.NOTHING)
            machine = self.world.machines[name]
            machine.disk = machine.disk.reopen()
            machine.disk.lose_all(but=NODE_FILE)
            await self.up([name])
        finally:
            self._taken.discard(name)

    async def rot(self) -> None:
        """A bit of a journal flips while its process is down, where another replica has all of it.
        It is found when the log is opened, or, behind an index, when somebody reads that frame."""
        rotting = [
            (name, partition)
            for name in self.world.names
            if name not in self._taken
            for partition in self.world.copies.bears_rot_of(name)
        ]
        if not rotting:
            await asyncio.sleep(LOOKED_AGAIN_S)
            return
        # Most control partitions of a day have nothing but EPOCH_STARTs.
        full = [one for one in rotting if self.world.copies.frames_of(*one) >= WORTH_ROTTING]
        name, partition = self.random.choice(full or rotting)
        self._taken.add(name)
        try:
            incarnation = self.world.copies.rots(name, partition)
            await self.world.lose_power(name, Tear.NOTHING)
            machine = self.world.machines[name]
            machine.disk = machine.disk.reopen()
            wanted = self.random.choice(list(Where))
            rotted = flip_a_bit(machine.disk, directory_of(partition), self.random, wanted)
            if rotted is not None:
                self.world.say(f"-- {name} {partition} rots {rotted.where.value}")
                self.world.moments.add(ROTTED)
            if rotted is not None and rotted.where is Where.BEHIND_AN_INDEX:
                self.world.moments.add(ROT_HIDDEN)
                self.world.copies.hides_rot(incarnation, name, partition, rotted.end)
            await self.up([name])
        finally:
            self._taken.discard(name)

    # -------------------------------------------------------------------------------- of its clocks

    async def wall_clock(self) -> None:
        """Somebody sets one, and sets it right again; or does not."""
        name = self.random.choice(self.world.names)
        machine = self.world.machines[name]
        before_ms = machine.wall_ahead_ms
        machine.wall_ahead_ms = self.random.choice(WALL_JUMPS_MS)
        self.world.say(f"-- the wall clock of {name} is {machine.wall_ahead_ms} ms ahead")
        self.world.moments.add(WALL_JUMPED)
        await self._while()
        if self.random.random() < 0.7:
            machine.wall_ahead_ms = before_ms

    # ------------------------------------------------------------------------------------ of etcd

    def _some(self) -> list[Process]:
        """Some processes, or all."""
        names = self.world.names
        chosen = self.random.sample(names, self.random.randint(1, len(names)))
        return [self.world.processes[name] for name in chosen]

    async def etcd(self) -> None:
        """It is away, from some or from all."""
        away = self._some()
        self.world.say(f"-- etcd is away from {_names(away)}")
        for process in away:
            process.etcd.unavailable = True
        await self._while()
        for process in away:
            process.etcd.unavailable = False
        self.world.say("-- etcd is back")

    async def stale_watch(self) -> None:
        """Some hear of no change for a while; what they ask is answered."""
        behind = self._some()
        self.world.say(f"-- watches of {_names(behind)} are stale")
        revision = self.world.etcd.revision
        for process in behind:
            process.etcd.stale = True
        await self._while()
        if self.world.etcd.revision > revision:
            self.world.moments.add(WATCH_STALE)
        for process in behind:
            process.etcd.stale = False

    async def watch_gap(self) -> None:
        """Watches break, and when they are opened again, what happened meanwhile is compacted."""
        behind = self._some()
        self.world.say(f"-- watches of {_names(behind)} will miss changes")
        revision = self.world.etcd.revision
        for process in behind:
            process.etcd.stale = True
            process.etcd.break_watches()
        await self._while()
        if self.world.etcd.revision > revision:
            self.world.moments.add(WATCH_GAP)
        self.world.etcd.compact(self.world.etcd.revision)
        for process in behind:
            process.etcd.stale = False

    async def unanswered_writes(self) -> None:
        """A compare-and-set is applied and its answer lost, or it is applied later."""
        for _ in range(self.random.choice([1, 3])):
            etcd = self.world.processes[self.random.choice(self.world.names)].etcd
            if self.random.random() < 0.7:
                etcd.drop_next_txn_reply()
            else:
                etcd.hold_next_txn()
            await self._while()
            if etcd.answer_txns():
                self.world.moments.add(WRITE_UNANSWERED)
            etcd.release_held_txns()
        self.world.say("-- writes to etcd are answered again")

    async def unanswered_isr(self) -> None:
        """A follower falls, and of the changes of the ISR that come of it, one is not answered, or
        is applied when it is up again."""
        leads = [name for name in self.world.names if self.world.copies.is_followed(name)]
        if not leads:
            await asyncio.sleep(LOOKED_AGAIN_S)
            return
        leader = self.random.choice(leads)
        async with self.taken(1, besides=leader, of=role_of_name(leader)) as names:
            etcd = self.world.processes[leader].etcd
            for name in names:
                etcd.drop_next_txn_reply() if self.random.random() < 0.5 else etcd.hold_next_txn()
                await self.world.lose_power(name, self.random.choice(list(Tear)))
                await asyncio.sleep(self.random.choice(SILENT_S))
                await self.up([name])
            await self._while()
            etcd.answer_txns()
            etcd.release_held_txns()

    async def lone_tail(self) -> None:
        """What a leader writes reaches no follower for a moment, and it falls. What it alone has is
        cut when it is back, where others lead by then; else it leads on with it."""
        leads = [name for name in self.world.names if self.world.copies.is_followed(name)]
        free = [name for name in leads if name not in self._taken]
        if not free:
            await asyncio.sleep(LOOKED_AGAIN_S)
            return
        leader = self.random.choice(free)
        self._taken.add(leader)
        ways = [(leader, name) for name in self.world.names if name != leader]
        try:
            self.world.say(f"-- {leader} writes alone")
            self.world.network.cut_ways(ways, noticed_s=max(NOTICED_S))
            await asyncio.sleep(self.random.choice(ALONE_S))
            membership = self.world.processes[leader].node._membership
            await self.world.lose_power(leader, self.random.choice(list(Tear)))
            self.world.network.heal(ways)
            if membership is not None and self.random.random() < SUCCEEDED:
                # It waits for nothing: others lead at once.
                self.world.etcd.expire(membership.lease)
                await asyncio.sleep(SUCCEEDED_S)
            await self.up([leader])
        finally:
            self._taken.discard(leader)

    async def lease(self) -> None:
        """Keep-alives do not arrive: leases run out under processes that live and ask on."""
        losing = self._some()
        self.world.say(f"-- keep-alives of {_names(losing)} are lost")
        for process in losing:
            process.etcd.keep_alives_lost = True
        await asyncio.sleep(self.random.choice(LEASES_LOST_S))
        for process in losing:
            process.etcd.keep_alives_lost = False

    # ---------------------------------------------------------------------------- of the network

    async def calm(self) -> None:
        """Calls meet their fates, nothing else."""
        await asyncio.sleep(self.random.uniform(0.2, 1.5))

    async def reset(self) -> None:
        """Connections break: those of one client, or to one process."""
        for _ in range(self.random.choice([1, 3, 10])):
            if self.day.clients and self.random.random() < 0.5:
                caller = self.random.choice(list(self.day.clients))
                self.world.network.reset(caller=caller)
            else:
                name = self.random.choice(self.world.names)
                self.world.network.reset(port=self.world.processes[name].node.port)
            await asyncio.sleep(self.random.uniform(0.0, 0.1))

    async def breaking_calls(self) -> None:
        """The connections of some calls break, after the request or before the reply."""
        self.world.network.breaking = self.random.choice([0.02, 0.1, 0.3])
        await self._while()
        self.world.network.breaking = 0.0

    async def sever(self) -> None:
        """Two processes, or a client and a process, do not reach each other."""
        name = self.random.choice(self.world.names)
        caller = self.random.choice(self._everybody())
        if caller != name:
            await self._cut("do not reach each other", _both_ways([(caller, name)]))

    async def one_way(self) -> None:
        """What goes from one to the other does not arrive; the way back is open."""
        name = self.random.choice(self.world.names)
        other = self.random.choice([one for one in self._everybody() if one != name])
        way = self.random.choice([(name, other), (other, name)])
        await self._cut("is a way that is cut", [way])

    async def ring(self) -> None:
        """Each reaches its neighbours in a ring, and nobody else."""
        names = self.random.sample(self.world.names, len(self.world.names))
        apart = [
            (names[one], names[other])
            for one in range(len(names))
            for other in range(one + 2, len(names))
            if (one, other) != (0, len(names) - 1)
        ]
        if not apart:
            apart = [(names[0], names[-1])]
        await self._cut("are not neighbours in the ring", _both_ways(apart))

    async def split(self) -> None:
        """Two sides, with processes and clients on each, do not reach each other."""
        everybody = self._everybody()
        there = self.random.sample(everybody, self.random.randint(1, len(everybody) - 1))
        here = [one for one in everybody if one not in there]
        await self._cut(
            "are on two sides", _both_ways([(one, other) for one in here for other in there])
        )

    async def slow_ways(self) -> None:
        """What goes to and from one of them takes long."""
        name = self.random.choice(self._everybody())
        ways = _both_ways([(name, other) for other in self._everybody() if other != name])
        self.world.say(f"-- the ways of {name} are slow")
        self.world.network.slow_down(ways, self.random.choice(SLOWER))
        await self._while()
        self.world.network.slow_down(ways, 1.0)

    async def _cut(self, how: str, ways: list[Way]) -> None:
        shown = " ".join(f"{source}>{to}" for source, to in ways[:WAYS_SHOWN])
        self.world.say(f"-- {shown} {how}")
        self.world.moments.cut(ways)
        self.world.network.cut_ways(ways, noticed_s=self.random.choice(NOTICED_S))
        await self._while()
        self.world.network.heal(ways)
        self.world.say(f"-- {shown} heals")

    def _everybody(self) -> list[str]:
        """Processes, and clients of now."""
        return [*self.world.names, *self.day.clients]

    async def client(self) -> None:
        """The processes of applications die."""
        for _ in range(self.random.choice([1, 2, 4])):
            if self.day.clients:
                await self.day.kill(self.random.choice(list(self.day.clients.values())))
            await asyncio.sleep(self.random.uniform(0.0, 0.3))

    # ------------------------------------------------------------------------------ of the disks

    async def eio(self) -> None:
        disk = self._disk()
        disk.fail_next(EIO, after=self.random.randrange(6))
        await asyncio.sleep(0.5)
        # Not left for the days that must be good.
        disk.fail_next(0)

    async def short(self) -> None:
        self._disk().short_write_next()
        await asyncio.sleep(0.5)

    async def floor(self) -> None:
        """Data is refused, the rest goes on."""
        name = self.random.choice(self.world.names)
        self.world.say(f"-- the disk of {name} has little room")
        self._disk_of(name).left_bytes = LITTLE_LEFT_BYTES
        await self._while()
        self._disk_of(name).left_bytes = None

    async def full(self) -> None:
        """Not a byte."""
        name = self.random.choice(self.world.names)
        self.world.say(f"-- the disk of {name} is full")
        self._disk_of(name).full = True
        await self._while()
        self._disk_of(name).full = False

    async def slots(self) -> None:
        """Outcomes cannot be written, and nothing else is wrong."""
        errno = self.random.choice([EIO, ENOSPC])
        names = [name for name in self.world.names if role_of_name(name) == COORDINATOR]
        name = self.random.choice(names)
        self.world.say(f"-- slots of {name} cannot be written: {errno}")
        self._disk_of(name).fail_files(".slots", errno)
        await self._while()
        self._disk_of(name).fail_files("", 0)

    def _disk_of(self, name: str) -> FakeDisk:
        """Of its process as it is now."""
        return self.world.processes[name].disk

    def _disk(self) -> FakeDisk:
        name = self.random.choice(self.world.names)
        self.world.say(f"-- the disk of {name}")
        return self.world.processes[name].disk

    # --------------------------------------------------------------------------------- up and down

    @asynccontextmanager
    async def taken(
        self, count: int, *, besides: str = "", of: str = ""
    ) -> AsyncIterator[list[str]]:
        """So many processes that no other fault has now, or fewer, of a role where one is named."""
        free = [
            name
            for name in self.world.names
            if name not in self._taken and name != besides and name.startswith(of)
        ]
        names = self.random.sample(free, min(count, len(free)))
        self._taken.update(names)
        try:
            yield names
        finally:
            self._taken.difference_update(names)

    async def up(self, names: list[str]) -> None:
        """They start, each after a while; what cannot start is started again, as a supervisor
        does it."""
        for name in names:
            await asyncio.sleep(self.random.choice(DOWN_S))
            while not await self._starts(name):
                await asyncio.sleep(SUPERVISED_EVERY_S)

    async def _starts(self, name: str) -> bool:
        try:
            await self.world.start(name)
        except (OSError, EtcdUnavailable) as error:
            self.world.say(f"-- {name} did not start: {error}")
            self.world.marks.add("did not start", type(error).__name__)
            await self.world.stop(name)
            return False
        return True

    async def _supervise(self) -> None:
        """Starts a process again whose node gave up."""
        watched: dict[str, tuple[object, asyncio.Future[None]]] = {}
        while True:
            await asyncio.sleep(SUPERVISED_EVERY_S)
            for name in self.world.names:
                node = self.world.processes[name].node
                if name in self._taken:
                    continue
                if name not in watched or watched[name][0] is not node:
                    watched[name] = node, asyncio.ensure_future(node.failed())
                    # Its process may end otherwise before anybody looks.
                    watched[name][1].add_done_callback(lambda it: it.cancelled() or it.exception())
                failed = watched[name][1]
                if failed.done():
                    self.world.say(f"-- {name} gave up: {failed.exception()!r}")
                    self.world.marks.add("gave up", type(failed.exception()).__name__)
                    self._taken.add(name)
                    await self.world.stop(name)
                    await self.up([name])
                    self._taken.discard(name)

    async def _while(self) -> None:
        await asyncio.sleep(self.random.choice(AWAY_S))


FAULTS: Final[Mapping[str, Callable[[Trouble], Awaitable[None]]]] = {
    "power": Trouble.power,
    "strike": Trouble.strike,
    "restart": Trouble.restart,
    "freeze": Trouble.freeze,
    "lost files": lose_files,
    "lost disk": Trouble.lost_disk,
    "older disk": bring_older_disk,
    "rot": Trouble.rot,
    "rotten blocks": rot_data,
    "wall clock": Trouble.wall_clock,
    "etcd": Trouble.etcd,
    "stale watch": Trouble.stale_watch,
    "watch gap": Trouble.watch_gap,
    "unanswered writes": Trouble.unanswered_writes,
    "unanswered ISR": Trouble.unanswered_isr,
    "lone tail": Trouble.lone_tail,
    "lease": Trouble.lease,
    "calm": Trouble.calm,
    "reset": Trouble.reset,
    "breaking calls": Trouble.breaking_calls,
    "sever": Trouble.sever,
    "one way": Trouble.one_way,
    "ring": Trouble.ring,
    "split": Trouble.split,
    "slow ways": Trouble.slow_ways,
    "client": Trouble.client,
    "stopped client": stop_a_client,
    "moved groups": move_groups,
    "eio": Trouble.eio,
    "short": Trouble.short,
    "floor": Trouble.floor,
    "full": Trouble.full,
    "slots": Trouble.slots,
    "lost etcd": lose_etcd,
}
