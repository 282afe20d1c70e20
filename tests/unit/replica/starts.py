"""Where explorations begin: a partition that works, or one whose logs have parted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tests.unit.replica.parts import Bounds, Entry, Rules
from tests.unit.replica.world import World, members


def quiet(world: World) -> World:
    """Everything that is on its way has arrived, and all who may join have joined."""
    kinds = ("sync", "ack_arrives", "copy", "etcd_answers", "hear")
    while steps := [
        step
        for step in world.steps()
        if step[0] in kinds or (step[0] == "ask_etcd" and step[2] == b"")
    ]:
        world = world.take(steps[0])
    return world


def settled(
    bounds: Bounds,
    rules: Rules,
    *,
    isr: str = "abc",
    eager: tuple[str, ...] = (),
) -> World:
    """`a` leads epoch 1 with this ISR, and everybody has heard of it all."""
    world = World(Bounds(elections=1, changes=9, crashes=0, appends=0), rules)
    world = world.take(("stand", "a"))
    for node in isr[1:]:
        world = world.take(("follow", node, world.revision))
    world = quiet(world)
    assert members(world.state) == tuple(world.logs[node].incarnation for node in isr)
    world.left, world.eager = bounds, eager
    return world


def with_logs(
    logs: Mapping[str, tuple[int, ...]],
    bounds: Bounds,
    rules: Rules,
    *,
    isr: str = "abc",
    shown: int = 1,
    eager: tuple[str, ...] = (),
) -> World:
    """Nobody leads, and the logs hold frames of these epochs, synced: of each epoch its EPOCH_START
    and then records. So many frames were shown. The partition is in the last of these epochs."""
    world = World(bounds, rules, eager=eager)
    for node, epochs in logs.items():
        log = world.logs[node]
        log.entries = tuple(
            Entry(epoch, 0 if epoch not in epochs[:at] else 10 * epoch + at)
            for at, epoch in enumerate(epochs)
        )
        log.synced_end = len(epochs)
    world.shown = world.logs["a"].entries[:shown]
    world.leaders = tuple((epoch, "") for epoch in range(1, max(sum(logs.values(), ())) + 1))
    world._write(
        msgspec.structs.replace(
            world.state,
            isr=tuple(world.logs[node].incarnation.hex() for node in isr),
            epoch=len(world.leaders),
        )
    )
    return world
