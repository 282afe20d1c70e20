"""Where the oldest open transactions began, in etcd, for tools."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, PartitionId
from oncelog_server.runtime.etcd.keys import hint_key
from oncelog_server.runtime.hints import Hints
from tests.unit.etcd.world import World


@pytest.fixture
def world() -> World:
    return World()


def hints(world: World, began: Iterator[int]) -> Hints:
    """Of a node that leads one journal; each look finds that its oldest transaction began later."""
    role = SimpleNamespace(checkpoint=lambda machine: next(began))
    driver = SimpleNamespace(machine=None, epoch=3, partition=PartitionId(CONSUMER_OFFSETS_ID, 5))
    return Hints(world.node("n1").etcd, lambda: [cast(Any, (role, driver))])


def test_i5_no_hint_is_left_in_an_etcd_that_was_wiped(world: World) -> None:
    """`oncelog cluster recover` would take it for somebody else's."""

    async def story() -> None:
        made = hints(world, itertools.count(7))
        await made.tell()
        assert world.server.get(hint_key(5)) is not None
        world.server.wipe()
        await made.tell()
        assert world.server.range("") == []

    world.run(story)
