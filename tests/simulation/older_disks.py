"""A fault of simulated days: a machine gets a backup of its disk back, of before its last start.
Only where nothing that was acknowledged may be lost with what it held since (`copies`): it counts
as new, and gets that from the others. Often these fall, too, and are back later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oncelog_server.runtime.etcd.identity import load_remembered
from oncelog_server.runtime.etcd.keys import directory_key, directory_value
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.machines import NODES_MAX, role_of_name
from tests.simulation.moments import DISK_OLDER

if TYPE_CHECKING:
    from tests.simulation.trouble import Trouble

# How long it works on after the backup, seconds.
OLDER_BY_S: Final = (0.0, 0.3, 2.0)
# How long etcd may be away until it hears what the directory has noted: of so many looks.
LOOKED_AGAIN_S: Final = 0.2
LOOKS: Final = 20
# How often it is the first one back of its role, and for how long: most leases end meanwhile.
OFTEN_FIRST: Final = 0.5
FIRST_BY_S: Final = (1.0, 6.0)


async def bring_older_disk(trouble: Trouble) -> None:
    """Of one process."""
    async with trouble.taken(1) as names:
        for name in names:
            await trouble.world.lose_power(name, trouble.random.choice(list(Tear)))
            backup = trouble.world.machines[name].disk.copied()
            await trouble.up([name])
            if await _is_known_to_hold_more(trouble, name, backup):
                await asyncio.sleep(trouble.random.choice(OLDER_BY_S))
                others = NODES_MAX if trouble.random.random() < OFTEN_FIRST else 0
                async with trouble.taken(others, besides=name, of=role_of_name(name)) as fallen:
                    await _bring_back(trouble, name, backup, fallen)


async def _is_known_to_hold_more(trouble: Trouble, name: str, backup: FakeDisk) -> bool:
    world, revision = trouble.world, load_remembered(backup).revision
    for _ in range(LOOKS):
        mark = world.etcd.get(directory_key(world.processes[name].node.node_id))
        if mark is not None and directory_value(mark.value).revision > revision:
            return True
        await asyncio.sleep(LOOKED_AGAIN_S)
    return False


async def _bring_back(trouble: Trouble, name: str, backup: FakeDisk, fallen: list[str]) -> None:
    world = trouble.world
    if not world.copies.bears_loss_of(name):
        return
    world.say(f"-- {name} gets an older disk back")
    world.moments.add(DISK_OLDER)
    world.copies.lost(name)
    for one in (name, *fallen):
        await world.lose_power(one, Tear.NOTHING)
    world.machines[name].disk = backup
    await trouble.up([name])
    if fallen:
        await asyncio.sleep(trouble.random.choice(FIRST_BY_S))
        await trouble.up(fallen)
