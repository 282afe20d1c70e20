"""What goes wrong for consumer groups: members that are stopped, offset managers that fall
(`trouble` has the other faults)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oncelog_server.core.roles import OFFSET_MANAGER
from tests.simulation.disk import Tear
from tests.simulation.machines import role_of_name

if TYPE_CHECKING:
    from tests.simulation.trouble import Trouble

# How long a process of an application is stopped: shorter and longer than sessions last.
STOPPED_S: Final = (0.5, 2.0, 4.0, 8.0)
LOOKED_AGAIN_S: Final = 0.5


async def stop_a_client(trouble: Trouble) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    clients = trouble.day.clients
    if not clients:
        await asyncio.sleep(LOOKED_AGAIN_S)
        return
    client = trouble.random.choice(list(clients.values()))
    trouble.world.say(f"-- {client.name} is stopped")
    trouble.world.freeze(client.name)
    await asyncio.sleep(trouble.random.choice(STOPPED_S))
    if clients.get(client.name) is client:
        # Else it was killed.
        trouble.world.thaw(client.name)


async def move_groups(trouble: Trouble) -> None:
    """Who leads most of their partitions loses power, and mostly others lead before it is back."""
    world = trouble.world
    managers = [name for name in world.names if role_of_name(name) == OFFSET_MANAGER]
    leads = {name: len(list(world.processes[name].node.led_replicas())) for name in managers}
    async with trouble.taken(1, of=max(managers, key=leads.__getitem__)) as names:
        for name in names:
            await world.lose_power(name, trouble.random.choice(list(Tear)))
            await trouble.up(names)
    await asyncio.sleep(LOOKED_AGAIN_S)
