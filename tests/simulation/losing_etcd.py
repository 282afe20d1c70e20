"""A fault of simulated days: etcd is wiped, or is as it was some time before. All processes end,
and `oncelog cluster recover` rebuilds it from their data directories, in one run or in several.

Where a recovery would be in doubt (a replica was damaged or emptied, and had not been in sync
since), nothing is demanded of it: etcd comes back as it was when it was lost. Everywhere else no
loss was accepted, so nothing that was acknowledged may be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncelog_server.runtime.cluster_recovery.inventory import RecoveryRefused
from oncelog_server.runtime.cluster_recovery.perform import Replace
from oncelog_server.runtime.etcd.memory import Backup, MemoryEtcd
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.moments import ETCD_BROUGHT_BACK, ETCD_REBUILT
from tests.simulation.recovering import recover, require_no_doubts

if TYPE_CHECKING:
    from tests.simulation.trouble import Trouble

# How long processes live after etcd was lost, and before, since the backup; seconds.
LIVED_ON_S: Final = (0.0, 0.0, 0.3, 3.0)
BETWEEN_DEATHS_S: Final = (0.0, 0.0, 0.3, 1.5)
OLDER_BY_S: Final = (0.1, 1.0, 4.0)
# Where not every process is up, or an earlier fault still has one.
LOOKED_AGAIN_S: Final = 0.2
LOOKS: Final = 20
# A command that failed is run again: disks may be full for a while.
REPEATED_AFTER_S: Final = 0.5
RUNS_MAX: Final = 60
# Of a replica that began a moment ago.
UNKNOWN: Final = "never noted to be in sync"


async def lose_etcd(trouble: Trouble) -> None:
    """See the module."""
    world = trouble.world
    for _ in range(LOOKS):
        async with trouble.taken(len(world.names)) as names:
            if len(names) == len(world.names):
                await _Loss(trouble).happen()
                return
        await asyncio.sleep(LOOKED_AGAIN_S)


class _Loss:
    """One of them, while no other fault has a process."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._world = trouble.world
        self._random = trouble.random

    async def happen(self) -> None:
        world, chance = self._world, self._random
        old = world.etcd.backup() if chance.random() < 0.5 else None
        if old is not None:
            await asyncio.sleep(chance.choice(OLDER_BY_S))
        newest = world.etcd.backup()
        lived_on_s = chance.choice(LIVED_ON_S)
        if lived_on_s:
            self._lose(old)
            await asyncio.sleep(lived_on_s)
        # Who dies first may lack what the others acknowledge without him.
        for name in chance.sample(world.names, len(world.names)):
            await world.lose_power(name, chance.choice(list(Tear)))
            await asyncio.sleep(chance.choice(BETWEEN_DEATHS_S))
        if not lived_on_s:
            newest = world.etcd.backup()
            self._lose(old)
        if await self._is_in_doubt():
            world.etcd.restore(newest)
            world.moments.add(ETCD_BROUGHT_BACK)
            world.copies.etcd_stands_again(rebuilt=False)
            await self._trouble.up(chance.sample(world.names, len(world.names)))
            return
        await self._rebuild()

    def _lose(self, old: Backup | None) -> None:
        world = self._world
        world.copies.etcd_is_lost()
        if old is not None:
            world.say("-- etcd is as it was some time before")
            world.etcd.restore(old)
            return
        world.say("-- etcd is wiped")
        world.etcd.wipe(cluster_id=self._random.choice([None, self._random.randrange(1 << 60)]))

    async def _is_in_doubt(self) -> bool:
        for _ in range(RUNS_MAX):
            try:
                await require_no_doubts(self._disks(self._world.names), self._etcd())
                return False
            except RecoveryRefused as refused:
                self._world.say(f"-- not to be rebuilt: {refused}")
                return True
            except OSError as error:
                self._world.say(f"-- the command failed, it is run again: {error}")
                await asyncio.sleep(REPEATED_AFTER_S)
        raise AssertionError("the data directories cannot be read")

    async def _rebuild(self) -> None:
        """From directories in some order, several of them in one run of the command."""
        chance, left = self._random, self._random.sample(self._world.names, len(self._world.names))
        all_at_once = chance.random() < 0.4
        while left:
            count = len(left) if all_at_once else chance.randint(1, len(left))
            names, left = left[:count], left[count:]
            try:
                await self._run(names)
            except RecoveryRefused as refused:
                if UNKNOWN not in str(refused) or count == len(self._world.names):
                    raise
                # Nobody among these knows who else has a replica: all directories do, together.
                self._world.say(f"-- not from {','.join(names)} alone: {refused}")
                left = []
                await self._run(self._world.names)
        self._world.moments.add(ETCD_REBUILT)
        self._world.copies.etcd_stands_again(rebuilt=True)
        await self._trouble.up(chance.sample(self._world.names, len(self._world.names)))

    async def _run(self, names: Sequence[str]) -> None:
        for _ in range(RUNS_MAX):
            try:
                mode = await recover(self._disks(names), self._etcd(), Replace.EVERYTHING)
            except (OSError, EtcdUnavailable) as error:
                self._world.say(f"-- the command failed, it is run again: {error}")
                await asyncio.sleep(REPEATED_AFTER_S)
            else:
                self._world.say(f"-- etcd is rebuilt from {','.join(names)}: {mode.value}")
                return
        raise AssertionError(f"no recovery of {names} ended well")

    def _disks(self, names: Sequence[str]) -> list[FakeDisk]:
        """Of machines whose processes are down."""
        disks = []
        for name in names:
            machine = self._world.machines[name]
            machine.disk = machine.disk.reopen()
            disks.append(machine.disk)
        return disks

    def _etcd(self) -> MemoryEtcd:
        return MemoryEtcd(self._world.etcd)
