"""Leases lie: a process stops answering before etcd gives its key away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncelog_server.core.ids import BootId
from oncelog_server.runtime.etcd.keys import BootValue, boot_key
from oncelog_server.runtime.etcd.lease_clock import lease_clock_ms
from oncelog_server.runtime.etcd.port import Delete, EtcdUnavailable
from oncelog_server.runtime.leadership.lease import Membership, _Held
from tests.unit.etcd.world import LEASE_MS, Log, Node, World, loop_ms


def key_of(node: Node) -> str:
    return boot_key(node.membership.boot_id)


def test_i18_valid_ends_before_etcd_gives_the_key_away(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await asyncio.sleep(20)
        assert node.membership.valid()
        node.etcd.unavailable = True
        await World.until(lambda: not node.membership.valid())
        assert world.server.get(key_of(node)) is not None, "the key outlives our own deadline"
        await World.until(lambda: world.server.get(key_of(node)) is None)
        assert node.log.names() == ["lease not renewed in time"]

    world.run(story)


@pytest.mark.parametrize("how", ["not renewed", "ended"])
def test_those_who_wait_hear_once_that_the_lease_lapsed(world: World, how: str) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        heard: list[bool] = []
        node.membership.on_lapsed(lambda: heard.append(node.membership.valid()))
        await asyncio.sleep(20)
        assert heard == []
        if how == "ended":
            # It hears so, and then of nothing any more.
            node.membership.on_lost(lambda: setattr(node.etcd, "unavailable", True))
            world.server.expire(node.membership.lease)
            await World.until(lambda: node.membership.lost == 1)
        node.etcd.unavailable = True
        await asyncio.sleep(20)
        assert heard == [False]
        node.etcd.unavailable = False
        await World.until(node.membership.valid)
        await asyncio.sleep(20)
        assert heard == [False]
        node.etcd.unavailable = True
        await asyncio.sleep(20)
        assert heard == [False, False], "each time"

    world.run(story)


def test_the_deadline_counts_from_the_sending_of_the_keep_alive(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        node.etcd.latency_ms = 400
        await node.start(elections=False)
        await asyncio.sleep(9.9)
        node.etcd.unavailable = True
        # Each renewal is granted 400 ms after it was sent; etcd counts from there.
        await World.until(lambda: not node.membership.valid())
        ended_ms = loop_ms()
        await World.until(lambda: world.server.get(key_of(node)) is None)
        assert loop_ms() - ended_ms >= 400

    world.run(story)


def test_the_same_lease_renewed_late_makes_valid_again(world: World) -> None:
    """etcd extends leases over its own restart: the key stood all the time, so nobody else led."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        lease = node.membership.lease
        world.server._leases[lease].deadline_s += 60
        world.server._leases[lease].timer.cancel()
        node.etcd.unavailable = True
        await World.until(lambda: not node.membership.valid())
        node.etcd.unavailable = False
        await World.until(node.membership.valid)
        assert (node.membership.lost, node.membership.lease) == (0, lease)

    world.run(story)


def test_i5_a_process_leaves_no_key_in_an_etcd_that_was_wiped(world: World) -> None:
    """It may lose its lease before it sees that this is another etcd; its key would make `oncelog
    cluster recover` believe that somebody works with it."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.wipe()
        await World.until(lambda: node.membership.lost == 1)
        await asyncio.sleep(3 * LEASE_MS / 1000)
        assert world.server.range("") == []
        assert not node.membership.valid()

    world.run(story)


def test_a_new_lease_is_valid_only_when_leadership_was_compared(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        gate, seen = asyncio.Event(), []

        async def confirm() -> None:
            seen.append(("confirming", node.membership.valid()))
            if len(seen) < 3:
                raise EtcdUnavailable("asked again")
            await gate.wait()

        node.membership.on_lost(lambda: seen.append(("lost", node.membership.valid())))
        node.membership.on_regained(confirm)
        world.server.expire(node.membership.lease)
        await asyncio.sleep(10)
        assert seen == [("lost", False), ("confirming", False), ("confirming", False)]
        assert world.server.get(key_of(node)) is not None, "the new key stands before it is asked"
        assert not node.membership.valid()
        gate.set()
        await World.until(node.membership.valid)
        assert node.membership.lost == 1

    world.run(story)


def test_a_lease_lost_while_confirming_starts_over(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        rounds = []

        async def confirm() -> None:
            rounds.append(node.membership.lease)
            if len(rounds) == 1:
                world.server.expire(node.membership.lease)
                await asyncio.sleep(1)

        node.membership.on_regained(confirm)
        world.server.expire(node.membership.lease)
        await World.until(lambda: node.membership.lost == 2 and node.membership.valid())
        assert len(set(rounds)) == 2

    world.run(story)


def test_a_removed_key_is_a_lost_lease(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        world.server.txn([], [Delete(key_of(node))])
        await World.until(lambda: node.membership.lost == 1)
        await World.until(node.membership.valid)
        assert world.server.get(key_of(node)) is not None

    world.run(story)


def test_a_delayed_write_of_the_old_lease_does_not_replace_the_new_key(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        node.etcd.hold_next_txn()
        world.server.expire(node.membership.lease)
        await World.until(lambda: node.membership.lost == 1 and node.membership.valid())
        before = world.server.get(key_of(node))
        node.etcd.release_held_txns()
        await asyncio.sleep(LEASE_MS / 1000 * 3)
        assert world.server.get(key_of(node)) == before
        assert (node.membership.lost, node.membership.valid()) == (1, True)

    world.run(story)


def test_a_clean_stop_gives_the_key_back_at_once(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.membership.stop()
        assert not node.membership.valid()
        assert world.server.get(key_of(node)) is None

    world.run(story)


@pytest.mark.parametrize(("node_id", "buried"), [("n1", True), ("n2", False)])
def test_a_restart_removes_the_dead_boots_key_of_its_own_node_only(
    world: World, node_id: str, buried: bool
) -> None:
    async def story() -> None:
        dead = await world.node("n1").start(elections=False)
        await dead.crash()
        assert world.server.get(key_of(dead)) is not None
        again = world.node(node_id)
        await again.start(previous=dead.membership.boot_id, elections=False)
        assert (world.server.get(key_of(dead)) is None) is buried
        assert again.log.names() == ([] if buried else ["previous boot kept"])

    world.run(story)


class Renewals:
    """Keep-alives of a lease thread, counted."""

    def __init__(self) -> None:
        self.sent = 0
        self.arrived = threading.Event()
        self.closed = threading.Event()

    def keep_alive(self, lease: int, timeout_ms: int) -> int:
        self.sent += 1
        self.arrived.set()
        return LEASE_MS

    def close(self) -> None:
        self.closed.set()


def threaded(world: World, renewals: Renewals, now_ms: Callable[[], int]) -> Membership:
    """A member whose lease a thread renews."""
    world.found()
    return Membership(
        Node(world.server, "n1", "b").etcd,
        boot_id=BootId(b"b" * 16),
        node=BootValue("n1", "localhost", 1, (), "0"),
        lease_ms=500,
        reporter=Log(),
        renewals=lambda: renewals,
        now_ms=now_ms,
    )


def test_i18_the_thread_counts_from_the_sending_of_the_keep_alive_too() -> None:
    world, now_ms = World(), 0

    class Slow(Renewals):
        def keep_alive(self, lease: int, timeout_ms: int) -> int:
            nonlocal now_ms
            if self.sent:
                raise EtcdUnavailable("no more of them")
            now_ms += 200
            return super().keep_alive(lease, timeout_ms)

    async def story() -> None:
        renewals = Slow()
        member = threaded(world, renewals, lambda: now_ms)
        await member.start()
        assert await asyncio.to_thread(renewals.arrived.wait, 10)
        await member.stop()
        held = member._held or last_held[0]
        assert held.deadline_ms <= 500, "it was sent at 0 and answered at 200"
        world.server.close()

    last_held: list[Any] = []
    register = Membership._register

    async def keep(self: Membership) -> Any:
        last_held.append(await register(self))
        return last_held[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "_register", keep)
        asyncio.run(story())


def test_a_lease_that_the_thread_finds_ended_is_lost() -> None:
    world = World()

    class Ended(Renewals):
        def keep_alive(self, lease: int, timeout_ms: int) -> int:
            super().keep_alive(lease, timeout_ms)
            return 0 if self.sent == 1 else LEASE_MS

    async def story() -> None:
        renewals = Ended()
        member = threaded(world, renewals, lease_clock_ms)
        await member.start()
        first = member.lease
        # Nobody else notices: the key stands on.
        world.server._leases[first].timer.cancel()
        assert await asyncio.to_thread(renewals.arrived.wait, 10)
        for _ in range(1_000):
            if member.lost and member.valid():
                break
            await asyncio.sleep(0.01)
        assert member.lost == 1, "the thread was told, and nobody heard of it"
        assert member.lease != first
        await member.stop()
        world.server.close()

    asyncio.run(story())


def test_the_lease_thread_renews_only_while_the_loop_ticks() -> None:
    world, renewals = World(), Renewals()
    now_ms = 0

    async def story() -> None:
        nonlocal now_ms
        member = threaded(world, renewals, lambda: now_ms)
        await member.start()
        assert await asyncio.to_thread(renewals.arrived.wait, 10)
        # The loop hangs for longer than half a lease: this call does not return to it.
        now_ms += 10_000
        sent = renewals.sent
        assert not threading.Event().wait(0.3)
        assert renewals.sent <= sent + 1, "one may have been under way"
        assert not member.valid()
        # It lives again.
        renewals.arrived.clear()
        assert await asyncio.to_thread(renewals.arrived.wait, 10)
        await member.stop()
        assert renewals.closed.is_set()
        world.server.close()

    asyncio.run(story())


def test_i29_a_renewal_that_failed_is_tried_again_soon() -> None:
    """A machine that died took a member of etcd with it: the next one may answer."""
    world = World()
    pauses: list[float] = []

    class Away(Renewals):
        def keep_alive(self, lease: int, timeout_ms: int) -> int:
            if super().keep_alive(lease, timeout_ms) and self.sent <= 2:
                raise EtcdUnavailable("its machine died")
            return LEASE_MS

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.append(timeout)
            return len(pauses) > 4

    async def story() -> None:
        member = threaded(world, Away(), lambda: 0)
        await member.start()
        await member.stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member, "_stopping", Stopping())
            patch.setattr(member, "_renewable", lambda: _Held(1, 0))
            member._renew(asyncio.get_running_loop(), Away())
        world.server.close()

    asyncio.run(story())
    usual, after_first, after_second, *rest = pauses
    assert (after_first, after_second) == (usual / 5, usual / 5)
    assert rest == [usual, usual]
