"""Moves of replicas: what an operator's word makes of a partition's key, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState, partition_key
from oncelog_server.runtime.leadership.moving import begin_move, move
from oncelog_server.runtime.target import Assignment, StandBy
from oncelogpb.errors import InvalidArgument
from tests.unit.etcd.world import World
from tests.unit.leadership.test_election import P0, put_state, put_topic, state_of

LEADER = LeaderValue("a", "aa" * 16, "localhost", 7401)
ISR = ("01" * 16,)


def placed(
    replicas: str, adding: str = "", target: str = "", *, epoch: int = 3, led: bool = True
) -> PartitionState:
    """Nodes have one letter."""
    return PartitionState(
        tuple(replicas),
        ISR if epoch else (),
        LEADER if led else None,
        epoch,
        adding=tuple(adding),
        target=tuple(target),
    )


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        (placed("a"), "abc", placed("abc", "bc", "abc")),
        (placed("abc"), "def", placed("abcdef", "def", "def")),
        (placed("abc"), "ca", placed("abc", "", "ca")),
        (placed("abc"), "cab", placed("cab")),
        (placed("abc"), "abc", placed("abc")),
        # Another word while it moves.
        (placed("abcd", "d", "abd"), "abe", placed("abcde", "de", "abe")),
        # Called back.
        (placed("abcd", "d", "abd"), "abc", placed("abcd", "d", "abc")),
        # Nobody was ever elected.
        (placed("ab", epoch=0, led=False), "cd", placed("cd", epoch=0, led=False)),
    ],
    ids=str,
)
def test_i5_everybody_who_has_the_records_stays_a_replica(
    before: PartitionState, target: str, after: PartitionState
) -> None:
    assert begin_move(before, tuple(target)) == after, "who has the records is no replica any more"


def test_how_many_must_be_in_sync_does_not_count_those_being_added() -> None:
    assert Assignment(("a", "b", "c"), ("b", "c"), ("a", "b", "c")).replication_factor == 1


def test_a_move_needs_nodes_each_once(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        for target in ((), ("n1", "n1")):
            with pytest.raises(InvalidArgument):
                await move(node.etcd, P0, target)

    world.run(story)


def test_a_move_goes_between_the_changes_of_others(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_state(world, placed("ab"))
        ask = node.etcd.get
        asked: list[str] = []

        async def get(key: str) -> object:
            found = await ask(key)
            if not asked:
                # Somebody is elected between the reading and the writing.
                put_state(world, PartitionState(("a", "b"), ISR, LEADER, 4))
            asked.append(key)
            return found

        node.etcd.get = get  # type: ignore[method-assign, assignment]
        assert (await move(node.etcd, P0, ("a", "c"))).replicas == ("a", "b", "c")
        assert state_of(world) == PartitionState(
            ("a", "b", "c"), ISR, LEADER, 4, adding=("c",), target=("a", "c")
        )

    world.run(story)


def test_i18_who_hands_over_has_stopped_answering_before_etcd_is_asked(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: node.leads(P0) == 1)
        state = state_of(world)
        member = Incarnation(b"2" * 16)
        isr = (*state.isr, member.hex())
        put_state(world, PartitionState(("n1", "n2"), isr, state.leader, 1, target=("n2",)))
        found = world.server.get(partition_key(P0))
        assert found is not None
        compared = found.mod_revision
        answers: list[bool] = []
        ask = node.etcd.txn

        async def watched(compares: object, then: object) -> object:
            answers.append(node.host.targets[P0] != StandBy())
            return await ask(compares, then)  # type: ignore[arg-type]

        node.etcd.txn = watched  # type: ignore[method-assign, assignment]
        await node.elections.end_move(
            P0,
            1,
            members=(member,),
            assignment=Assignment(("n2",)),
            compared_revision=compared,
        )
        assert answers
        assert not any(answers), "it answers while another may lead"
        assert state_of(world) == PartitionState(("n2",), (member.hex(),), None, 1)
        await asyncio.sleep(5)
        assert node.leads(P0) == 0

    world.run(story)


def test_a_hand_over_that_comes_too_late_is_a_resignation(world: World) -> None:
    """The key was changed meanwhile: the next leader ends the move."""

    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: node.leads(P0) == 1)
        await node.elections.end_move(
            P0,
            1,
            members=(Incarnation(b"2" * 16),),
            assignment=Assignment(("n2",)),
            compared_revision=1,
        )
        await World.until(lambda: node.leads(P0) == 2)
        assert state_of(world).replicas == ("n1", "n2")

    world.run(story)
