"""Changes of the ISR in etcd: compare-and-sets of one key, by its leader, in its epoch."""

from __future__ import annotations

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.etcd.keys import LeaderValue, PartitionState, partition_key
from oncelog_server.runtime.leadership.isr import change_isr
from oncelog_server.runtime.target import Isr
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
        assert seen == Isr(revision(world), (A, B))
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
        assert seen == Isr(now, (A,)), "there and back looks like no change"
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
