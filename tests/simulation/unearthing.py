"""The end of what rotted in a day where no start looks: whoever reads it must say so, and then the
replica is copied anew from another one.

    it leads      it is read as a reader does: it gives the partition up, as others have all of it
    it follows    it is read, which fails; its indexes are lost, and it starts again: it is refused
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncelog_server.runtime.replicas import directory_of
from oncelogpb.errors import CorruptLog, NotLeader, OncelogError
from tests.simulation.copies import Replica
from tests.simulation.disk import Tear
from tests.simulation.moments import ROT_READ
from tests.simulation.rotting import drop_indexes

if TYPE_CHECKING:
    from tests.simulation.world import World

READ_BYTES: Final = 1 << 20


async def unearth(world: World) -> None:
    """When nobody asks for anything any more. One after the other, each when all replicas are in
    sync: a start closes every replica of its process. Raises AssertionError."""
    asked = set[bytes]()
    await world.copies.in_sync_again()
    while rotten := world.copies.rotten():
        replica = rotten[0]
        incarnation = replica.journal.incarnation
        assert incarnation not in asked, f"I26: {replica} rotted, and is under its name yet"
        asked.add(incarnation)
        error = await _read(replica)
        assert error is not None, f"I26: {replica} rotted, and all of it is read"
        world.say(f"-- {replica} is read: {error.reason}")
        world.moments.add(ROT_READ)
        if not isinstance(error, NotLeader):
            assert not replica.driver.leads, f"I26: {replica} keeps what it cannot read"
            await world.lose_power(replica.name, Tear.NOTHING)
            machine = world.machines[replica.name]
            machine.disk = machine.disk.reopen()
            drop_indexes(machine.disk, directory_of(replica.driver.partition))
            await world.start(replica.name)
        await world.copies.in_sync_again()


async def _read(replica: Replica) -> OncelogError | None:
    """All of it, as far as it is synced, by whoever may: what it says; None where it gives it."""
    driver, journal = replica.driver, replica.journal
    position = journal.log_start
    below = driver.high_watermark if driver.leads else journal.synced_end
    try:
        while position < below:
            if driver.leads:
                frames = await driver.read(position, READ_BYTES, below=below)
            else:
                frames = await journal.read(position, READ_BYTES, below=below)
            assert frames, f"{replica} has nothing at {position}, below {below}"
            position = frames[-1].end
    except (CorruptLog, NotLeader) as error:
        return error
    return None
