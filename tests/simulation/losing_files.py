"""Files that are made again from the journal are gone when a process starts again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncelog_server.runtime.storage.identity import SyncedEnd
from tests.simulation.disk import FakeDisk, Tear

if TYPE_CHECKING:
    from tests.simulation.trouble import Trouble

# What a lost file is called in marks.
REMADE: Final = ("index", "epochs", "snapshot", "rows", "replica.json")
LOST_OFTEN: Final = 0.3


async def lose_files(trouble: Trouble) -> None:
    """Of one process, which loses power."""
    async with trouble.taken(1) as names:
        for name in names:
            await trouble.world.lose_power(name, trouble.random.choice(list(Tear)))
            machine = trouble.world.machines[name]
            machine.disk = machine.disk.reopen()
            for replica in machine.disk.list("partitions"):
                _lose(trouble, machine.disk, f"partitions/{replica}")
        await trouble.up(names)


def _lose(trouble: Trouble, disk: FakeDisk, directory: str) -> None:
    for name in _remade(disk, directory):
        if disk.exists(f"{directory}/{name}") and trouble.random.random() < LOST_OFTEN:
            disk.remove(f"{directory}/{name}")
            trouble.world.say(f"-- lost {directory}/{name}")
            trouble.world.marks.add("lost file", next(kind for kind in REMADE if kind in name))


def _remade(disk: FakeDisk, directory: str) -> list[str]:
    """Of a log that begins later than it did nothing else tells what was before it: not its
    snapshots, nor what they count, nor in which epochs that was."""
    noted = SyncedEnd(disk, directory).noted
    indexes = [name for name in disk.list(directory) if name.endswith(".index")]
    if noted is not None and noted.log_start > 0:
        return [*indexes, "replica.json"]
    newest = [name for name in disk.list(directory) if name.startswith("snapshot-")][-1:]
    rows = [f"tables/{name}" for name in disk.list(f"{directory}/tables")]
    return [*newest, *rows, *indexes, "epochs", "replica.json"]
