"""Changes of the ISR in etcd: compare-and-sets of one key, by its leader, in its epoch."""

from __future__ import annotations

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState, partition_key
from oncelog_server.runtime.leadership.isr import change_isr
from oncelog_server.runtime.target import Assignment, Isr
from tests.unit.etcd.world import World
from tests.unit.leadership.test_election import P0, put_state, state_of

A, B, C = (Incarnation(name * 16) for name in (b"a", b"b", b"c"))
LEADER = LeaderValue("n1", "aa" * 16, "localhost", 7401)


def put(world: World, *isr: Incarnation, epoch: int = 3) -> int:
    """The revision."""
    members = tuple(member.hex() for member in isr)
    put_state(world, PartitionState(("n1", "n2"), members, LEADER, epoch))
    return revision(world)


def revision(world: World) -> int:
    found = world.server.get(partition_key(P0))
    assert found is not None
    return found.mod_revision


def test_the_isr_is_changed_and_nothing_else(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        compared = put(world, A)
        before = state_of(world)
        seen = await change_isr(
            node.etcd,
            P0,
            own_boot=LEADER.boot_id,
            epoch=3,
            members=(A, B),
            compared_revision=compared,
        )
        assert seen == Isr(revision(world), (A, B), Assignment(("n1", "n2")))
        after = state_of(world)
        assert after.isr == (A.hex(), B.hex())
        assert (after.leader, after.epoch) == (before.leader, before.epoch)

    world.run(story)


def test_i5_revisions_are_compared_and_what_was_changed_meanwhile_is_told(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        compared = put(world, A)
        put(world, A, C)
        now = put(world, A)
        seen = await change_isr(
            node.etcd,
            P0,
            own_boot=LEADER.boot_id,
            epoch=3,
            members=(A, B),
            compared_revision=compared,
        )
        assert seen == Isr(now, (A,), Assignment(("n1", "n2"))), (
            "there and back looks like no change"
        )
        assert state_of(world).isr == (A.hex(),)

    world.run(story)


def test_i18_who_is_not_named_in_this_epoch_changes_nothing(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        compared = put(world, A, epoch=4)
        for boot, epoch in ((LEADER.boot_id, 3), ("bb" * 16, 4)):
            seen = await change_isr(
                node.etcd,
                P0,
                own_boot=boot,
                epoch=epoch,
                members=(A, B),
                compared_revision=compared,
            )
            assert seen is None
        assert revision(world) == compared

    world.run(story)


def test_where_etcd_does_not_answer_nobody_knows(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        compared = put(world, A)
        node.etcd.drop_next_txn_reply()
        seen = await change_isr(
            node.etcd,
            P0,
            own_boot=LEADER.boot_id,
            epoch=3,
            members=(A, B),
            compared_revision=compared,
        )
        assert seen is None
        assert state_of(world).isr == (A.hex(), B.hex()), "it was done"

    world.run(story)


def test_the_end_of_a_move_leaves_those_that_are_wanted(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        state = PartitionState(
            ("n1", "n2", "n3"),
            (A.hex(), B.hex(), C.hex()),
            LEADER,
            3,
            adding=("n3",),
            target=("n3", "n1"),
        )
        put_state(world, state)
        there = Assignment(("n3", "n1"))
        await change_isr(
            node.etcd,
            P0,
            own_boot=LEADER.boot_id,
            epoch=3,
            members=(A, C),
            compared_revision=revision(world),
            assignment=there,
        )
        after = PartitionState(("n3", "n1"), (A.hex(), C.hex()), LEADER, 3)
        assert state_of(world) == after

    world.run(story)


def test_i18_a_leader_that_has_no_replica_after_a_move_leads_no_more(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_state(
            world, PartitionState(("n1", "n2"), (A.hex(), B.hex()), LEADER, 3, target=("n2",))
        )
        await change_isr(
            node.etcd,
            P0,
            own_boot=LEADER.boot_id,
            epoch=3,
            members=(B,),
            compared_revision=revision(world),
            assignment=Assignment(("n2",)),
        )
        assert state_of(world) == PartitionState(("n2",), (B.hex(),), None, 3)

    world.run(story)
