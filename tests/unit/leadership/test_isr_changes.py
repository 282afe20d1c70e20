"""Many changes of the ISR at once: few transactions, and each leader is told what became of its own
partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.keys import TXN_KEYS_MAX, LeaderValue, PartitionState
from oncelog_server.runtime.etcd.port import TxnResult
from oncelog_server.runtime.leadership.isr_changes import IsrChanges
from oncelog_server.runtime.target import Isr
from tests.unit.etcd.world import Node, World
from tests.unit.leadership.test_election import TOPIC, put_state, put_topic, state_of
from tests.unit.leadership.test_isr import A, B, C

MANY = 2 * TXN_KEYS_MAX + 1


class Led:
    """A process that leads `count` partitions in epoch 3, and knows it by its view."""

    def __init__(self, world: World, node: Node, count: int) -> None:
        self.world, self.node, self.count = world, node, count
        boot = node.membership.boot_id.hex()
        self.fatal: list[BaseException] = []
        self.changes = IsrChanges(node.etcd, node.view, own_boot=boot, on_fatal=self.fatal.append)
        self.leader = LeaderValue("n1", boot, "localhost", 7401)
        put_topic(world, "n1", "n2", partitions=count)
        for number in range(count):
            self.put(number)
        # Puts of each transaction that was sent.
        self.sent: list[int] = []
        real = node.etcd.txn

        async def txn(compares: Any, puts: Sequence[Any]) -> TxnResult:
            self.sent.append(len(puts))
            await asyncio.sleep(0.001)
            return await real(compares, puts)

        node.etcd.txn = txn  # type: ignore[method-assign, assignment]

    def put(self, number: int, isr: tuple[str, ...] = (A.hex(),)) -> None:
        put_state(self.world, PartitionState(("n1", "n2"), isr, self.leader, 3), number)

    def partition(self, number: int) -> PartitionId:
        return PartitionId(TOPIC, number)

    def revision(self, number: int) -> int:
        found = self.world.server.get(keys.partition_key(self.partition(number)))
        assert found is not None
        return found.mod_revision

    def ask(self, number: int, *, epoch: int = 3) -> asyncio.Task[Isr | None]:
        return asyncio.ensure_future(
            self.changes.change(
                self.partition(number),
                epoch=epoch,
                members=(A, B),
                compared_revision=self.revision(number),
            )
        )


def story(world: World, count: int, tell: Callable[[Led], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        node = world.node("n1")
        led = Led(world, node, count)
        await node.start(elections=False)
        await asyncio.sleep(0.1)
        led.sent.clear()
        await tell(led)
        assert not led.fatal
        await led.changes.stop()

    world.run(main)


def test_many_changes_take_few_transactions(world: World) -> None:
    async def tell(led: Led) -> None:
        seen = await asyncio.gather(*(led.ask(number) for number in range(MANY)))
        assert led.sent == [TXN_KEYS_MAX, TXN_KEYS_MAX, 1]
        for number, isr in enumerate(seen):
            assert isr is not None
            assert (isr.revision, isr.members) == (led.revision(number), (A, B))
            assert state_of(led.world, led.partition(number)).isr == (A.hex(), B.hex())

    story(world, MANY, tell)


def test_i5_one_that_was_late_is_refused_and_takes_nobody_with_it(world: World) -> None:
    async def tell(led: Led) -> None:
        asked = [led.ask(number) for number in range(5)]
        # Before the view shows it.
        led.put(2, (A.hex(), C.hex()))
        seen = await asyncio.gather(*asked)
        assert state_of(led.world, led.partition(2)).isr == (A.hex(), C.hex())
        assert [None if isr is None else isr.members for isr in seen] == [
            (A, B),
            (A, B),
            (A, C),
            (A, B),
            (A, B),
        ], "each is told what stands there"

    story(world, 5, tell)


def test_of_a_transaction_that_was_not_answered_nobody_knows(world: World) -> None:
    async def tell(led: Led) -> None:
        led.node.etcd.drop_next_txn_reply()
        assert await asyncio.gather(*(led.ask(number) for number in range(3))) == [None] * 3
        assert state_of(led.world, led.partition(1)).isr == (A.hex(), B.hex()), "it was done"
        again = await led.ask(1)
        assert again is not None, "whoever asks next is answered"

    story(world, 3, tell)


def test_who_stopped_leading_asks_nothing_any_more(world: World) -> None:
    async def tell(led: Led) -> None:
        first, second, third = (led.ask(number) for number in range(3))
        await asyncio.sleep(0)
        second.cancel()
        assert await led.ask(0, epoch=2) is None, "another epoch is led"
        await asyncio.gather(first, third)
        assert led.sent == [2]
        assert state_of(led.world, led.partition(1)).isr == (A.hex(),)

    story(world, 3, tell)
