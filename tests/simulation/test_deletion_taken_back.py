"""An unclean election takes back a deletion that replicas have carried out in their data logs: what
is committed anew at these offsets is read, settled and outlives its journal, at each of them."""

from __future__ import annotations

import contextlib

import pytest

from oncelog.aio.log import Log
from oncelog.aio.transactions import Transaction
from oncelog_server.runtime.leadership.unclean import UncleanElection
from oncelog_server.runtime.replica import settling
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb import errors
from tests.simulation.dense import DenseOrders
from tests.simulation.disk import Tear
from tests.simulation.test_settling import (
    COPY,
    HOUR_MS,
    TOPIC,
    commit,
    committed_again,
    journals,
    play,
    read,
    replicas_of,
    until,
)
from tests.simulation.world import World

# What all have; what the one lacks that is to be elected; what is committed anew.
SHARED, LOST, ANEW = 10, 20, 40
# Of the journals of the others when they delete: by a state that the one has, too, or not.
WHOLE, GONE_BEFORE, GONE_SINCE = "whole", "gone before", "gone since"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs to which nobody writes get their last snapshot soon."""
    monkeypatch.setattr(settling, "SNAPSHOT_AFTER_MS", 1_000)
    monkeypatch.setattr(settling, "SNAPSHOT_AT_LAST_MS", 5_000)


def leaders(world: World) -> list[str]:
    return [it.name for it in replicas_of(world) if it.driver.leads]


async def elected_behind(world: World, client: Log, last: str, front: str) -> None:
    """By an operator: the other two have deleted all, in a log of which it has the beginning."""
    names = [it.name for it in replicas_of(world)]
    partition = replicas_of(world)[0].driver.partition
    await world.lose_power(last, Tear.NOTHING)
    producer = await client.transactional_producer()
    for number in range(LOST):
        await commit(producer, b"lost %d" % number)
    await until(lambda: all_settled(journals(world), SHARED + LOST), "it is settled")
    rested_on = [journal.allowed.at for journal in journals(world)]
    await client.admin.truncate(TOPIC, before=SHARED + LOST, partition=0)
    await until(
        lambda: all(journal.data.begin == SHARED + LOST for journal in journals(world)),
        "it is deleted",
    )
    others = [name for name in names if name != last]
    for name in others:
        await world.lose_power(name, Tear.NOTHING)
    await world.start(last)
    node = world.processes[last].node
    offline = f" {last}: partition offline "
    await until(lambda: any(offline in line for line in world.trace), "nobody can be elected")
    await node.unclean_elect(UncleanElection(partition, node.node_id))
    await until(lambda: leaders(world) == [last], "the operator's word")
    [journal] = journals(world)
    ends_before = [journal.log_end < allowed_at for allowed_at in rested_on]
    assert ends_before == [front == GONE_SINCE] * 2, "else this tests the same twice"
    for name in others:
        await world.start(name)
    await world.ready()


def all_settled(found: list[Journal], end: int) -> bool:
    return all(journal.data.settled_end >= end for journal in found)


async def hold(held: Transaction) -> None:
    """As long as it is open, journals have all frames from here on."""
    await held.send(TOPIC, b"held")
    await held.flush()


@pytest.mark.parametrize("front", [WHOLE, GONE_BEFORE, GONE_SINCE])
def test_i25_i32_what_an_unclean_election_undeletes_is_settled_again(front: str) -> None:
    """Wherever the journals begin of those who have deleted it: at 0, by a state that all had, or
    by one that is taken back, too."""

    async def story(world: World, client: Log) -> None:
        holder = await client.transactional_producer(transaction_timeout_ms=HOUR_MS)
        held = holder.transaction()
        await held.__aenter__()
        if front == WHOLE:
            await hold(held)
        producer = await client.transactional_producer()
        for number in range(SHARED):
            await commit(producer, b"shared %d" % number)
        await until(lambda: all_settled(journals(world), SHARED), "it is settled")
        if front == GONE_BEFORE:
            await until(
                lambda: all(journal.log_start > 0 for journal in journals(world)), "fronts go"
            )
            await hold(held)
        [first] = leaders(world)
        last = next(it.name for it in replicas_of(world) if it.name != first)
        await elected_behind(world, client, last, front)
        for number in range(ANEW):
            with contextlib.suppress(errors.OncelogError):
                await commit(await client.transactional_producer(), b"anew %d" % number)
        with contextlib.suppress(errors.OncelogError):
            await held.commit()
        await committed_again(client)
        while (seen := await read(client))[-1].value != b"again":
            pass
        assert [it.offset for it in seen] == list(range(len(seen))), "nothing is deleted"
        assert [it.value for it in seen[:SHARED]] == [b"shared %d" % n for n in range(SHARED)]
        assert sum((it.value or b"").startswith(b"anew") for it in seen) > LOST
        await until(lambda: all_settled(journals(world), len(seen)), "it is settled again")
        await world.copies.level()
        orders = DenseOrders(world)
        await orders.compare(seen)
        assert orders.compared == 3
        for _ in range(2):
            [name] = leaders(world)
            await world.lose_power(name, Tear.NOTHING)
            await until(lambda: leaders(world), "an election")
            assert await read(client) == seen, f"{leaders(world)} gives other records"
            await world.start(name)
            await world.ready()
            await world.copies.level()

    play(story, COPY, replicas=3)
