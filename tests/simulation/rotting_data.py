"""What a replica has settled rots or is lost while its process is down, where another replica in
sync is whole: a bit of a block flips, or a file of the data log is gone.

What must hold: nothing of it is served otherwise than it was (I26); who leads without it, and
without its journal, gives the partition up, and is copied anew; and a follower refuses exactly what
it lacks, until it is copied anew (`dense`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.data_file import data_base_of
from oncelog_server.runtime.storage.data_log import DATA_DIRECTORY
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.moments import DATA_LOST, DATA_ROTTED

if TYPE_CHECKING:
    from oncelog_server.core.ids import PartitionId
    from tests.simulation.trouble import Trouble

# Where nothing is settled that another one has, too.
LOOKED_AGAIN_S: Final = 0.5
LOOKS_MAX: Final = 8


async def rot_data(trouble: Trouble) -> None:
    """Of one replica, whose process loses power."""
    for _ in range(LOOKS_MAX):
        if found := _settled(trouble):
            break
        await asyncio.sleep(LOOKED_AGAIN_S)
    else:
        return
    name, partition = trouble.random.choice(found)
    async with trouble.taken(1, of=name):
        world = trouble.world
        world.copies.rots(name, partition)
        await world.lose_power(name, Tear.NOTHING)
        machine = world.machines[name]
        machine.disk = machine.disk.reopen()
        if _damage(trouble, machine.disk, f"{directory_of(partition)}/{DATA_DIRECTORY}"):
            world.copies.lacks_blocks(name, partition)
        await trouble.up([name])


def _settled(trouble: Trouble) -> list[tuple[str, PartitionId]]:
    copies = trouble.world.copies
    return [
        (name, partition)
        for name in trouble.world.names
        if name not in trouble.striker.taken
        for partition in copies.bears_rot_of(name)
        for replica in copies.replicas(partition)
        if replica.name == name and replica.journal.data.settled_end > replica.journal.data.begin
    ]


def _damage(trouble: Trouble, disk: FakeDisk, directory: str) -> bool:
    chance, world = trouble.random, trouble.world
    files = [
        path
        for name in disk.list(directory)
        if data_base_of(name) is not None and disk.bytes_of(path := f"{directory}/{name}")
    ]
    if not files:
        return False
    path = chance.choice(files)
    if chance.random() < 0.5:
        disk.remove(path)
        world.say(f"-- lost {path}")
        world.moments.add(DATA_LOST)
        return True
    byte, bit = chance.randrange(len(disk.bytes_of(path))), chance.randrange(8)

    def flip(content: bytearray) -> None:
        content[byte] ^= 1 << bit

    disk.damage(path, flip)
    world.say(f"-- {path} rots at byte {byte}")
    world.moments.add(DATA_ROTTED)
    return True
