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

from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from tests.faults.cases import CASES
from tests.simulation.day import Day
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.striking import Striker

# How long a process is down, seconds: also for longer than a lease.
DOWN_S: Final = (0.01, 0.3, 1.5, 5.5)
# How long a process is stopped, etcd away, a way severed, a disk full, seconds.
AWAY_S: Final = (0.1, 0.5, 2.5, 6.0)
SUPERVISED_EVERY_S: Final = 0.2
# How long a strike waits for the passing that it needs, seconds.
STRIKE_WITHIN_S: Final = 1.0
# Below the floor that `swarm` sets, and not nothing.
LITTLE_LEFT_BYTES: Final = 60_000
# Files that are made again from the journal where they are lost.
REMADE: Final = ("index", "epochs", "snapshot", "rows", "replica.json")


class Trouble:
    """Of one day."""

    def __init__(self, day: Day, striker: Striker) -> None:
        self.day = day
        self.world = day.world
        self.random = day.random
        self.striker = striker
        # Roles whose process a fault has now.
        self._taken: set[str] = set()

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
        while self.world.loop.time() < end_s:
            await asyncio.sleep(self.random.choice(plan.between_faults))
            self.day.network_trouble = self.random.choice(plan.client_calls)
            self.world.peer_trouble = self.random.choice(plan.process_calls)
            name = self.random.choice(plan.faults)
            self.world.marks.add("fault", name)
            self.day.history.mark("fault", name=name)
            await FAULTS[name](self)

    # -------------------------------------------------------------------------- of the processes

    async def power(self) -> None:
        """Of one process, or of several at once."""
        async with self.taken(self.random.choice([1, 1, 2, 3])) as roles:
            for role in roles:
                await self.world.lose_power(role, self.random.choice(list(Tear)))
            await self._up(roles)

    async def strike(self) -> None:
        """In the middle of a step."""
        # Places that were passed lately will be passed again soon; the others, some day.
        passed = [case for case in CASES if (case.role, case.point) in self.striker.passed]
        case = self.random.choice(CASES if self.random.random() < 0.2 else passed or CASES)
        self.striker.passed.clear()
        if case.role in self._taken:
            return
        self._taken.add(case.role)
        try:
            passing = self.random.choice([1, 1, 2, 3, 7])
            fallen = await self.striker.strike(case, passing, STRIKE_WITHIN_S)
            if fallen:
                self.world.marks.add("struck", case.point)
                await self.world.bury(fallen)
                await self._up([fallen])
        finally:
            self._taken.discard(case.role)

    async def restart(self) -> None:
        """As an operator does it."""
        async with self.taken(1) as roles:
            for role in roles:
                self.world.say(f"-- {role} is stopped")
                await self.world.stop(role)
            await self._up(roles)

    async def freeze(self) -> None:
        """SIGSTOP."""
        async with self.taken(1) as roles:
            for role in roles:
                self.world.freeze(role)
                await self._while()
                self.world.thaw(role)

    async def lost_files(self) -> None:
        """Files that can be made again are gone when a process starts again."""
        async with self.taken(1) as roles:
            for role in roles:
                await self.world.lose_power(role, self.random.choice(list(Tear)))
                process = self.world.processes[role]
                process.disk = process.disk.reopen()
                self._lose(process.disk)
            await self._up(roles)

    def _lose(self, disk: FakeDisk) -> None:
        for replica in disk.list("partitions"):
            directory = f"partitions/{replica}"
            newest = [name for name in disk.list(directory) if name.startswith("snapshot-")][-1:]
            rows = [f"tables/{name}" for name in disk.list(f"{directory}/tables")]
            indexes = [name for name in disk.list(directory) if name.endswith(".index")]
            for name in [*newest, *rows, *indexes, "epochs", "replica.json"]:
                if disk.exists(f"{directory}/{name}") and self.random.random() < 0.3:
                    disk.remove(f"{directory}/{name}")
                    self.world.say(f"-- lost {directory}/{name}")
                    kind = next(kind for kind in REMADE if kind in name)
                    self.world.marks.add("lost file", kind)

    async def etcd(self) -> None:
        """It is away, from some or from all."""
        roles = self.random.sample(ROLES, self.random.randint(1, len(ROLES)))
        self.world.say(f"-- etcd is away from {roles}")
        away = [self.world.processes[role].etcd for role in roles]
        for etcd in away:
            etcd.unavailable = True
        await self._while()
        for etcd in away:
            etcd.unavailable = False
        self.world.say("-- etcd is back")

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
                role = self.random.choice(ROLES)
                self.world.network.reset(port=self.world.processes[role].node.port)
            await asyncio.sleep(self.random.uniform(0.0, 0.1))

    async def sever(self) -> None:
        """Two processes, or a client and a process, do not reach each other."""
        role = self.random.choice(ROLES)
        caller = self.random.choice([*self.day.clients, *ROLES])
        self.world.say(f"-- {caller} does not reach {role}")
        self.world.network.sever(caller, self.world.processes[role].node.port)
        await self._while()
        self.world.network.heal()

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
        role = self.random.choice(ROLES)
        self.world.say(f"-- the disk of {role} has little room")
        self._disk_of(role).left_bytes = LITTLE_LEFT_BYTES
        await self._while()
        self._disk_of(role).left_bytes = None

    async def full(self) -> None:
        """Not a byte."""
        role = self.random.choice(ROLES)
        self.world.say(f"-- the disk of {role} is full")
        self._disk_of(role).full = True
        await self._while()
        self._disk_of(role).full = False

    async def slots(self) -> None:
        """Outcomes cannot be written, and nothing else is wrong."""
        errno = self.random.choice([EIO, ENOSPC])
        self.world.say(f"-- slots cannot be written: {errno}")
        self._disk_of("coordinator").fail_files(".slots", errno)
        await self._while()
        self._disk_of("coordinator").fail_files("", 0)

    def _disk_of(self, role: str) -> FakeDisk:
        """Of its process as it is now."""
        return self.world.processes[role].disk

    def _disk(self) -> FakeDisk:
        role = self.random.choice(ROLES)
        self.world.say(f"-- the disk of {role}")
        return self.world.processes[role].disk

    # --------------------------------------------------------------------------------- up and down

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[list[str]]:
        """So many roles that no other fault has now, or fewer."""
        free = [role for role in ROLES if role not in self._taken]
        roles = self.random.sample(free, min(count, len(free)))
        self._taken.update(roles)
        try:
            yield roles
        finally:
            self._taken.difference_update(roles)

    async def _up(self, roles: list[str]) -> None:
        """They start, each after a while; what cannot start is started again, as a supervisor
        does it."""
        for role in roles:
            await asyncio.sleep(self.random.choice(DOWN_S))
            while not await self._starts(role):
                await asyncio.sleep(SUPERVISED_EVERY_S)

    async def _starts(self, role: str) -> bool:
        try:
            await self.world.start(role)
        except (OSError, EtcdUnavailable) as error:
            self.world.say(f"-- {role} did not start: {error}")
            self.world.marks.add("did not start", type(error).__name__)
            await self.world.stop(role)
            return False
        return True

    async def _supervise(self) -> None:
        """Starts a process again whose node gave up."""
        watched: dict[str, tuple[object, asyncio.Future[None]]] = {}
        while True:
            await asyncio.sleep(SUPERVISED_EVERY_S)
            for role in ROLES:
                node = self.world.processes[role].node
                if role in self._taken:
                    continue
                if role not in watched or watched[role][0] is not node:
                    watched[role] = node, asyncio.ensure_future(node.failed())
                failed = watched[role][1]
                if failed.done():
                    self.world.say(f"-- {role} gave up: {failed.exception()!r}")
                    self.world.marks.add("gave up", type(failed.exception()).__name__)
                    self._taken.add(role)
                    await self.world.stop(role)
                    await self._up([role])
                    self._taken.discard(role)

    async def _while(self) -> None:
        await asyncio.sleep(self.random.choice(AWAY_S))


FAULTS: Final[Mapping[str, Callable[[Trouble], Awaitable[None]]]] = {
    "power": Trouble.power,
    "strike": Trouble.strike,
    "restart": Trouble.restart,
    "freeze": Trouble.freeze,
    "lost files": Trouble.lost_files,
    "etcd": Trouble.etcd,
    "calm": Trouble.calm,
    "reset": Trouble.reset,
    "sever": Trouble.sever,
    "client": Trouble.client,
    "eio": Trouble.eio,
    "short": Trouble.short,
    "floor": Trouble.floor,
    "full": Trouble.full,
    "slots": Trouble.slots,
}
