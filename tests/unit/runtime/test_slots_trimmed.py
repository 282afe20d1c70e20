"""Files of slots go where nobody asks for them any more: leading, following, after a crash."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from oncelog_server.core.frame import At
from oncelog_server.core.ids import JournalOffset, PartitionId
from oncelog_server.core.ports import Slots
from oncelog_server.runtime.storage import slots as slot_files
from tests.unit.runtime.bench import DIRECTORY, Bench
from tests.unit.runtime.counter import Add, Added, CounterMachine, CounterRole
from tests.unit.runtime.test_followers import Trio
from tests.unit.runtime.test_trimming import EVERY_BYTES, add, alone, live, played, three

RANGE: Final = 16
# Slots that the machine says are asked for.
TOLD: Final = 20


class TellsSome(CounterMachine):
    """All frames are wanted, and the last few slots."""

    def slots_from(self) -> JournalOffset:
        return JournalOffset(max(0, self.next_offset - TOLD))


class WritesSlots(CounterRole):
    def __init__(self) -> None:
        super().__init__()
        self.slots: Slots | None = None

    def machine(self, partition: PartitionId) -> CounterMachine:
        return TellsSome()

    def projection(self, partition: PartitionId, slots: Callable[[str, int], Slots]) -> WritesSlots:
        self.slots = slots("numbers", 8)
        return self

    def project(self, record: Added, at: At) -> None:
        assert self.slots is not None
        self.slots.write(at.offset, record.number.to_bytes(8, "big"))


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_files, "SLOT_RANGE_OFFSETS", RANGE)


def firsts(bench: Bench) -> list[int]:
    names = bench.disk.list(f"{DIRECTORY}/slots/numbers")
    return [int(name.removesuffix(".slots")) for name in names]


def require_told(bench: Bench, begin: int, end: int) -> None:
    slots = bench.journal.slots.open("numbers", 8)
    told = [slots.read(offset) is not None for offset in range(max(1, begin), end)]
    assert all(told), "told too short"


def test_a_leader_removes_slots_that_nobody_asks_for() -> None:
    async def tell(bench: Bench) -> None:
        played(bench, WritesSlots())
        await bench.lead()
        await add(bench, 100)
        await live(bench, seconds=30)
        assert bench.journal.log_start == 0, "its frames are wanted"
        kept_from = bench.driver.high_watermark - TOLD
        assert firsts(bench), "files were written"
        assert firsts(bench)[0] + RANGE > kept_from, "a file stays behind"
        end = bench.driver.high_watermark
        require_told(bench, kept_from, end)
        after = played(bench.lose_power(), WritesSlots())
        await after.lead(2)
        await live(after, seconds=30)
        assert firsts(after)[0] + RANGE > kept_from
        require_told(after, after.driver.high_watermark - TOLD, end)

    alone(tell, snapshot_every_bytes=EVERY_BYTES)


def test_i4_what_may_be_lost_lets_go_of_no_slot() -> None:
    async def tell(bench: Bench) -> None:
        played(bench, WritesSlots())
        await bench.lead()
        await add(bench, TOLD)
        bench.disk.hold_commits()
        waiting = [bench.driver.submit(Add(1)) for _ in range(60)]
        await live(bench, seconds=3)
        end = bench.driver.high_watermark
        assert bench.journal.log_end > end
        require_told(bench, end - TOLD, end)
        bench.disk.let_commits()
        for answer in waiting:
            await answer

    alone(tell)


def followed(tell: Callable[[Trio], Coroutine[Any, Any, None]]) -> None:
    three(tell, WritesSlots)


def test_a_follower_removes_slots_that_nobody_asks_for() -> None:
    async def tell(trio: Trio) -> None:
        leader, second, third = trio.benches
        await trio.elect(leader, 1, second, third)
        await add(leader, 100, second, third)
        await live(leader, second, third, seconds=60)
        for bench in (second, third):
            kept_from = bench.journal.snapshot_offset - TOLD
            assert kept_from > 2 * RANGE
            assert firsts(bench)[0] + RANGE > kept_from, "a file stays behind"

    followed(tell)
