"""What etcd answers late: to an adoption, a resignation, an unclean election, and about leases that
are over. Each is compared with what happened meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.etcd.port import Compare, KeyValue, TxnResult
from oncelog_server.runtime.leadership.unclean import UncleanElection
from oncelog_server.runtime.target import Candidate
from oncelogpb.errors import Unavailable
from tests.unit.etcd.world import LEASE_MS, Node, World, loop_ms
from tests.unit.leadership.test_election import (
    P0,
    TOPIC,
    elected,
    leader,
    put_state,
    put_topic,
    state_of,
)

P1 = PartitionId(TOPIC, 1)


def hold_next_read(node: Node, partition: PartitionId = P0) -> Callable[[], None]:
    """The next read of its key is answered, but not heard until the returned function is called."""
    heard, ask, held = asyncio.Event(), node.etcd.get, [keys.partition_key(partition)]

    async def get(key: str) -> tuple[KeyValue | None, int]:
        answer = await ask(key)
        if key in held:
            held.clear()
            await heard.wait()
        return answer

    node.etcd.get = get  # type: ignore[method-assign]
    return heard.set


def test_i18_an_adoption_heard_after_the_key_was_lost_is_void(world: World) -> None:
    async def story() -> None:
        one = await world.node("n1").start()
        put_topic(world, "n1", "n2")
        one.etcd.drop_next_txn_reply()
        hear = hold_next_read(one)
        await World.until(lambda: leader(world) == "n1")
        # The round asks whether it was elected.
        await asyncio.sleep(1)
        one.etcd.unavailable = True
        world.server.expire(one.membership.lease)
        two = world.node("n2")
        two.host.default = one.host.default
        await two.start()
        await World.until(lambda: two.leads(P0) == 2)
        one.etcd.unavailable = False
        await World.until(lambda: one.membership.lost == 1 and one.membership.valid())
        hear()
        await asyncio.sleep(1)
        assert ("elected", P0, 1) not in one.host.told, "etcd named it before it lost its key"

    world.run(story)


def test_i18_an_epoch_that_the_log_knows_already_is_not_adopted(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        node.etcd.drop_next_txn_reply()
        hear = hold_next_read(node)
        await World.until(lambda: leader(world) == "n1")
        await asyncio.sleep(1)
        # Somebody wrote under it: it is not continued.
        node.host.default = node.host.default._replace(last_epoch=1)
        hear()
        await World.until(lambda: node.leads(P0) == 2)
        assert elected(node) == [2]

    world.run(story)


def test_a_replica_that_was_replaced_adopts_nothing(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        node.etcd.drop_next_txn_reply()
        hear = hold_next_read(node)
        await World.until(lambda: leader(world) == "n1")
        await asyncio.sleep(1)
        node.host.default = Candidate(b"another directory", 0)
        hear()
        await asyncio.sleep(10)
        assert elected(node) == [], "it lacks what may be acknowledged in that epoch"
        assert leader(world) == "", "resigned, so that the old directory may come back"

    world.run(story)


@pytest.mark.parametrize("now", [None, Candidate(b"another directory", 0)])
def test_i29_who_cannot_lead_any_more_when_it_hears_that_it_won_lets_others_stand(
    world: World, now: Candidate | None
) -> None:
    """A write that hung failed while etcd was asked; or the log was damaged, and begins anew."""

    async def story() -> None:
        one, two = world.node("n1"), world.node("n2")
        put_topic(world, "n1", "n2")
        in_sync = tuple(node.host.default.incarnation.hex() for node in (one, two))
        put_state(world, PartitionState(("n1", "n2"), isr=in_sync, epoch=4))
        await one.start()
        one.etcd.hold_next_txn_reply()
        await World.until(lambda: leader(world) == "n1")
        one.host.candidates[P0] = now
        one.etcd.release_held_replies()
        await two.start()
        await asyncio.sleep(5)
        assert elected(one) == [], "it would try to open its log for ever"
        assert (leader(world), two.leads(P0)) == ("n2", 6), "nobody else can stand"

    world.run(story)


def test_i29_an_unanswered_election_of_who_cannot_lead_any_more_is_resigned(world: World) -> None:
    async def story() -> None:
        one, two = world.node("n1"), world.node("n2")
        put_topic(world, "n1", "n2")
        in_sync = tuple(node.host.default.incarnation.hex() for node in (one, two))
        put_state(world, PartitionState(("n1", "n2"), isr=in_sync, epoch=4))
        await one.start()
        one.etcd.drop_next_txn_reply()
        hear = hold_next_read(one)
        await World.until(lambda: leader(world) == "n1")
        await asyncio.sleep(1)
        one.host.candidates[P0] = None
        hear()
        await two.start()
        await asyncio.sleep(5)
        assert elected(one) == []
        assert (leader(world), two.leads(P0)) == ("n2", 6), "nobody else can stand"

    world.run(story)


def test_i18_a_resignation_heard_late_does_not_end_the_next_epoch(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        hear = hold_next_read(node)
        resigning = asyncio.create_task(node.elections.resign(P0))
        # The round does it meanwhile, and wins again.
        await World.until(lambda: node.leads(P0) == 2)
        hear()
        await resigning
        await asyncio.sleep(5)
        assert node.leads(P0) == 2
        assert (leader(world), elected(node)) == ("n1", [1, 2])

    world.run(story)


def test_an_unclean_election_that_was_adopted_before_its_answer_is_won_once(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_topic(world, "n1")
        put_state(world, PartitionState(("n1",), isr=("ee" * 16,), epoch=4))
        await node.start()
        await asyncio.sleep(1)
        node.etcd.hold_next_txn_reply()
        electing = asyncio.create_task(node.elections.unclean_elect(UncleanElection(P0, "n1")))
        await World.until(lambda: node.leads(P0) == 5)
        node.etcd.release_held_replies()
        assert await electing == (5, 0)
        assert elected(node) == [5]

    world.run(story)


def test_an_unclean_election_does_not_go_below_an_epoch_of_the_log(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_topic(world, "n1")
        put_state(world, PartitionState(("n1",), isr=("ee" * 16,), epoch=4))
        await node.start()
        node.host.default = node.host.default._replace(last_epoch=9)
        with pytest.raises(Unavailable, match="etcd shows epoch 4"):
            await node.elections.unclean_elect(UncleanElection(P0, "n1"))
        assert state_of(world).epoch == 4

    world.run(story)


def test_i29_a_partition_that_cannot_be_won_holds_back_no_other(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        ask = node.etcd.txn

        async def txn(compares: Any, then: Any) -> TxnResult:
            """As if somebody changed its key all the time."""
            spoiled = [
                Compare(c.key, -1) if c.key == keys.partition_key(P1) else c for c in compares
            ]
            return await ask(spoiled, then)

        node.etcd.txn = txn  # type: ignore[method-assign]
        await node.start()
        put_topic(world, "n1", partitions=2)
        await World.until(lambda: node.leads(P0) == 1)
        assert node.leads(P1) == 0

    world.run(story)


def test_who_has_not_compared_what_it_leads_stands_for_nothing(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        node.membership.on_regained(asyncio.Event().wait)  # type: ignore[arg-type]
        world.server.expire(node.membership.lease)
        await World.until(lambda: node.membership.lost == 1)
        put_topic(world, "n1")
        await asyncio.sleep(5)
        assert not node.membership.valid()
        assert elected(node) == []

    world.run(story)


def test_i18_after_a_new_lease_another_epoch_of_this_boot_deposes_too(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        # The view shows it later: only the comparison can tell.
        node.etcd.stale = True
        put_state(world, msgspec.structs.replace(state_of(world), epoch=3))
        led_at_confirmation: list[int] = []

        async def look() -> None:
            # Registered last, so it is asked after Elections has compared.
            led_at_confirmation.append(node.leads(P0))

        node.membership.on_regained(look)
        world.server.expire(node.membership.lease)
        await World.until(lambda: node.membership.lost == 1 and node.membership.valid())
        assert led_at_confirmation == [0], "deposed before the new lease counts"

    world.run(story)


# ------------------------------------------------------------------------------------------ leases


def test_i18_the_first_deadline_counts_from_the_asking_for_the_lease(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        await node.view.start()
        node.etcd.latency_ms = 400
        asked_ms = loop_ms()
        await node.membership.start()
        node.etcd.unavailable = True
        await World.until(lambda: not node.membership.valid())
        assert loop_ms() - asked_ms <= LEASE_MS, "etcd may have counted from the asking on"

    world.run(story)


def test_the_end_of_an_old_lease_heard_late_leaves_the_new_one(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        old = node.membership._held
        assert old is not None
        world.server.expire(node.membership.lease)
        await World.until(lambda: node.membership.lost == 1 and node.membership.valid())
        # The thread that renews may have been told so twice; and the watch comes to the deletion.
        node.membership._lose(old)
        held = node.membership._held
        assert held is not None
        node.membership._key_gone(held.revision - 1)
        assert (node.membership.lost, node.membership.valid()) == (1, True)

    world.run(story)
