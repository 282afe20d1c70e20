"""What a process does all its life, with etcd: where it ends by a bug, the process ends too. It was
a line in the log, and the process stood there and took part in no election, or saw no change."""

from __future__ import annotations

import asyncio
from errno import EIO

from oncelog_server.core.ids import BootId
from oncelog_server.runtime.etcd.keys import BootValue
from oncelog_server.runtime.leadership.lease import Membership
from tests.unit.etcd.world import Log, Node, World
from tests.unit.leadership.test_election import put_topic


class Bug(Exception):
    """Nobody expects it."""


def raising(*given: object) -> None:
    raise Bug


def test_a_round_of_elections_that_fails_ends_the_process(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        node.host.aim = raising  # type: ignore[assignment]
        await node.start()
        put_topic(world, "n1")
        await asyncio.sleep(5)
        assert [type(error) for error in node.refused] == [Bug]

    world.run(story)


def test_a_change_of_the_view_that_nobody_can_take_ends_the_process(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        await node.start()
        node.view.on_change(raising)
        put_topic(world, "n1")
        await asyncio.sleep(5)
        assert [type(error) for error in node.refused] == [Bug]

    world.run(story)


def test_a_lease_that_cannot_be_renewed_any_more_ends_the_process(world: World) -> None:
    class Broken:
        def keep_alive(self, lease: int, timeout_ms: int) -> int:
            raise OSError(EIO, "no socket left")

        def close(self) -> None: ...

    async def story() -> None:
        failed = asyncio.get_running_loop().create_future()
        world.found()
        member = Membership(
            Node(world.server, "n1", "b").etcd,
            boot_id=BootId(b"b" * 16),
            node=BootValue("n1", "localhost", 1, (), "0"),
            lease_ms=500,
            reporter=Log(),
            renewals=Broken,
            on_fatal=failed.set_result,
        )
        await member.start()
        assert isinstance(await asyncio.wait_for(failed, 60), OSError)
        await member.stop()

    asyncio.run(story())
