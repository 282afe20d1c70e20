"""A follower whose disk does not give back what stands in its log: its leader has all of it."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.target import Close
from tests.unit.runtime.bench import DIRECTORY
from tests.unit.runtime.test_followers import Trio, fill, story


@pytest.mark.parametrize("name", ["00000000000000000000.log", "synced_end"])
def test_i26_a_follower_whose_disk_cannot_read_its_log_has_all_anew(name: str) -> None:
    """A bad sector in the tail, or in the note of what was promised."""

    async def tell(trio: Trio) -> None:
        one, two, _ = trio.benches
        await trio.elect(one, 1)
        await fill(one)
        await asyncio.sleep(5)
        follow = two.driver._state.target
        two.driver.aim(Close())
        await two.driver.settled()
        path = f"{DIRECTORY}/{name}"
        end = len(two.disk.bytes_of(path).rstrip(b"\0"))
        two.disk.cannot_read(path, 0 if name == "synced_end" else end - 10, end)
        incarnation = two.journal.incarnation
        try:
            two.journal = two._open_journal()
        except JournalDamaged as damaged:
            two.failing_opens = [damaged]
        two.driver = two._open()
        two.driver.aim(follow)
        await asyncio.sleep(5)
        assert two.driver.follows
        assert trio.frames(two) == trio.frames(one)
        assert two.journal.incarnation != incarnation

    story(tell)
