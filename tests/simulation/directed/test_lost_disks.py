"""Disks that are lost, of three with `min_insync_replicas` two. A record that was acknowledged is
on two of them at least: one may go, whichever it is. Where two go, what was acknowledged may go
with them; then nobody leads, and it is said, until an operator accepts it."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest

from oncelog_server.runtime.leadership.unclean import UncleanElection
from tests.simulation.directed.stage import Stage, play

# Two leases are over: whoever could be elected is.
LEASES_S = 12.0
# By number: the leader, who is in sync with it, and who is not.
LEADER, MEMBER, OUTSIDER = range(3)
MEMBERS = {LEADER, MEMBER}
LOST = [lost for count in (1, 2, 3) for lost in combinations(range(3), count)]


async def one_record_on_two_disks(stage: Stage) -> list[str]:
    """The names, by number. "1" is everywhere, "2" where the members are."""
    await stage.begin()
    leader = stage.leader(stage.data)
    member, outsider = stage.others(stage.data)
    await stage.acknowledged(b"1", at=leader)
    for name in (member, outsider):
        await stage.follows(name, stage.data, leader=leader)
    stage.part_ways(outsider, leader, member)
    await stage.until(lambda: len(stage.state(stage.data).isr) == 2, "the third leaves")
    await stage.acknowledged(b"2", at=leader)
    return [leader, member, outsider]


async def lose(stage: Stage, names: list[str], lost: set[int]) -> None:
    """The power everywhere, and these disks; then all are up again, and reach each other."""
    for name in names:
        await stage.lose_power(name)
    for number in lost:
        stage.empty_machine(names[number])
    leader, member, outsider = names
    stage.let(*((outsider, name) for name in (leader, member)))
    stage.let(*((name, outsider) for name in (leader, member)))
    for name in names:
        await stage.start(name)


@pytest.mark.parametrize("lost", [one for one in LOST if not set(one) >= MEMBERS], ids=str)
def test_i5_i25_while_a_member_has_its_disk_nothing_acknowledged_is_lost(
    lost: tuple[int, ...],
) -> None:
    """It is elected by itself, and the others copy from it."""

    async def story(stage: Stage) -> None:
        names = await one_record_on_two_disks(stage)
        await lose(stage, names, set(lost))
        leader = await stage.next_leader(stage.data)
        assert names.index(leader) in MEMBERS - set(lost), "the others lack what was acknowledged"
        await stage.acknowledged(b"3", at=leader)
        assert await stage.end() == [b"1", b"2", b"3"]

    play(story)


@pytest.mark.parametrize("lost", [one for one in LOST if set(one) >= MEMBERS], ids=str)
def test_i5_where_every_member_lost_its_disk_nobody_leads_and_it_is_said(
    lost: tuple[int, ...],
) -> None:
    """Not the outsider either, whose log is sound and of the last epoch: it lacks a record. Writes
    are refused, each node says why, and who leads then is the operator's word."""

    async def story(stage: Stage) -> None:
        names = await one_record_on_two_disks(stage)
        epoch = stage.state(stage.data).epoch
        await lose(stage, names, set(lost))
        await asyncio.sleep(LEASES_S)
        assert stage.state(stage.data).epoch == epoch, "nobody has what was acknowledged"
        assert not stage.leader(stage.data)
        for name in names:
            assert said_offline(stage, name), f"{name} says nothing"
            refused = stage.write(b"refused", at=name)
            await stage.until(refused.task.done, "an answer")
            assert refused.why == "NOT_LEADER"

        outsider = names[OUTSIDER]
        node = stage.world.processes[outsider].node
        _, kept = await node.unclean_elect(UncleanElection(stage.data, node.node_id))
        left = [] if OUTSIDER in lost else [b"1"]
        assert bool(kept) == bool(left), "it says what it keeps"
        await stage.next_leader(stage.data)
        # What it does not have was given up.
        stage.writes = [write for write in stage.writes if write.value in left]
        assert await stage.end() == left
        assert stage.state(stage.data).unclean_epoch > epoch

    play(story)


def said_offline(stage: Stage, name: str) -> bool:
    """With the way out."""
    partition = f"partition={stage.data}"
    return any(
        f" {name}: partition offline " in line and partition in line and "unclean-elect" in line
        for line in stage.world.trace
    )
