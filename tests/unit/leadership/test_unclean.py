"""What a process judges by itself when an operator lets its replica lead."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.leadership.unclean import Seen, UncleanElection
from oncelog_server.runtime.target import Candidate
from oncelogpb.errors import InvalidArgument, UnknownOutcome
from tests.unit.etcd.world import Node, World
from tests.unit.leadership.test_election import P0, put_state, put_topic, state_of

OURS = b"i" * 16
AS_IT_IS = Seen(4, frozenset({"ee" * 16}), OURS.hex(), 3, 90)


async def offline(world: World, *isr: str, node: Node | None = None) -> Node:
    """A node whose replica is synced to 90 in epoch 3, of a partition that was led up to 4."""
    node = node or world.node("n1")
    put_topic(world, "n1", "n2")
    put_state(world, PartitionState(("n1", "n2"), isr=isr, epoch=4))
    node.host.default = Candidate(OURS, 3, 90)
    return await node.start()


def test_i5_a_replica_that_is_in_sync_is_not_elected_uncleanly(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        # It would be, before anybody asks.
        node.elections.withdraw()
        await offline(world, OURS.hex(), "ee" * 16, node=node)
        with pytest.raises(InvalidArgument, match="elected by itself"):
            await node.elections.unclean_elect(UncleanElection(P0, "n1"))
        assert state_of(world).isr == (OURS.hex(), "ee" * 16), "who has the records is forgotten"

    world.run(story)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 3},
        {"isr": frozenset({"dd" * 16})},
        {"incarnation": "ff" * 16},
        {"last_epoch": 4},
        {"synced_end": 91},
    ],
    ids=str,
)
def test_i5_what_changed_since_it_was_seen_is_refused(world: World, change: Any) -> None:
    async def story() -> None:
        node = await offline(world, "ee" * 16)
        seen = AS_IT_IS._replace(**change)
        with pytest.raises(InvalidArgument, match="look again"):
            await node.elections.unclean_elect(UncleanElection(P0, "n1", seen))
        assert state_of(world).epoch == 4
        # What it got since is none the worse.
        more = AS_IT_IS._replace(synced_end=80)
        assert await node.elections.unclean_elect(UncleanElection(P0, "n1", more)) == (5, 90)

    world.run(story)


def test_i5_a_demand_that_comes_twice_elects_once(world: World) -> None:
    async def story() -> None:
        node = await offline(world, "ee" * 16)
        asked = UncleanElection(P0, "n1", AS_IT_IS)
        assert await node.elections.unclean_elect(asked) == (5, 90)
        await node.elections.resign(P0)
        with pytest.raises(InvalidArgument):
            await node.elections.unclean_elect(asked)
        assert state_of(world).unclean_epoch == 5

    world.run(story)


def test_who_asked_and_what_he_was_told_stands_in_the_log_of_the_process(world: World) -> None:
    async def story() -> None:
        node = await offline(world, "ee" * 16)
        asked = UncleanElection(P0, "n1", AS_IT_IS, by="root", told="a lot")
        await node.elections.unclean_elect(asked)
        (said,) = [f for name, f in node.log.events if name.startswith("elected uncleanly")]
        assert (said["by"], said["told"], said["kept_end"]) == ("root", "a lot", 90)

    world.run(story)


def test_an_election_that_etcd_did_not_answer_leaves_word_of_who_asked(world: World) -> None:
    async def story() -> None:
        node = await offline(world, "ee" * 16)
        node.etcd.drop_next_txn_reply()
        asked = UncleanElection(P0, "n1", AS_IT_IS, by="root", told="a lot")
        with pytest.raises(UnknownOutcome):
            await node.elections.unclean_elect(asked)
        # It took place.
        await World.until(lambda: node.leads(P0) == 5)
        said = [f for name, f in node.log.events if name.startswith("unclean election asked for")]
        assert [(f["by"], f["told"], f["epoch"]) for f in said] == [("root", "a lot", 5)], (
            "nobody knows who gave records up"
        )

    world.run(story)
