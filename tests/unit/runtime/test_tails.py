"""While a thread cuts what memory holds of a log, the loop takes nothing of that for others: all of
a node share one budget, and who needs room drops what is oldest, also of other logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog_server.runtime.storage.tail import MemoryTail
from oncelogpb.errors import UnknownOutcome
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.unit.runtime.bench import Bench
from tests.unit.runtime.counter import Add
from tests.unit.runtime.test_followers import Trio
from tests.unit.runtime.test_receiving import WithSlots, begin_in_the_middle, follow


async def abandoned(trio: Trio) -> None:
    """A write fails."""
    one, *_ = trio.benches
    await trio.elect(one, 1)
    await one.driver.submit(Add(1))
    one.disk.fail_next()
    with pytest.raises(UnknownOutcome):
        await one.driver.submit(Add(2))
    await one.driver.settled()


async def cut(trio: Trio) -> None:
    """It has frames of its own when another one is elected."""
    one, two, three = trio.benches
    await trio.elect(one, 1)
    for wire in trio.wires:
        wire.is_cut = True
    one.driver.submit(Add(1))
    await asyncio.sleep(0.1)
    one.depose()
    await trio.elect(two, 2, one, three)
    await asyncio.sleep(1)
    assert "log cut" in one.reporter.events


async def begun(trio: Trio) -> None:
    """It ends before the leader's log begins."""
    one, two, three = trio.benches
    for bench in trio.benches:
        bench.role = WithSlots()
        bench.driver = bench._open()
    begin_in_the_middle(one)
    await trio.elect(two, 1, followers=0)
    three.driver.aim(follow(two))
    await asyncio.sleep(1)
    two.depose()
    await trio.elect(one, 3, followers=0)
    three.driver.aim(follow(one))
    await asyncio.sleep(5)
    assert "log begins with the leader's snapshot" in three.reporter.events


@pytest.mark.parametrize("what", [abandoned, cut, begun])
def test_i6_no_tail_is_in_the_budget_while_a_thread_cuts_it(
    what: Callable[[Trio], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = VirtualTimeLoop()
    # Of each cut by a thread: whether the loop might ask that tail for room meanwhile.
    shared: list[bool] = []

    async def main() -> None:
        trio = Trio(loop)
        homes = {id(bench.journal._tail): bench.journal._tail._budget for bench in trio.benches}
        in_thread = False

        def offload_of(bench: Bench) -> Callable[[Callable[[], None]], Coroutine[Any, Any, None]]:
            async def offload(work: Callable[[], None]) -> None:
                nonlocal in_thread
                in_thread = True
                try:
                    work()
                finally:
                    in_thread = False

            return offload

        original = MemoryTail.cut

        def cut_tail(tail: MemoryTail, end: int) -> None:
            home = homes.get(id(tail))
            if in_thread:
                assert home is not None
                shared.append(tail._budget is home or id(tail) in home._tails)
            original(tail, end)

        monkeypatch.setattr(MemoryTail, "cut", cut_tail)
        for bench in trio.benches:
            bench.offload = offload_of(bench)
        await what(trio)
        assert shared, "nothing was cut"
        assert not any(shared), "the loop drops frames of it meanwhile"
        for bench in trio.benches:
            tail = bench.journal._tail
            assert tail._budget is homes[id(tail)], "what it holds counts again"
            assert tail._budget.bytes == tail._held_bytes
            assert not bench.fatal, str(bench.fatal)

    run(main(), loop)
