"""Where a topic leaves it to its replicas (`materialization=auto`, the default) what is worth it is
settled, over the real driver and journal."""

from __future__ import annotations

import pytest

from oncelog_server.core.settling import Weight
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.runtime.replica import settling, settling_worth
from tests.simulation.disk import Tear
from tests.unit.partition_leader.messages import batch, plain, send
from tests.unit.partition_leader.settled import SETTLER
from tests.unit.partition_leader.test_over_the_journal import Process, story
from tests.unit.partition_leader.test_settling_over_the_journal import (
    commit_small,
    configure,
    turns,
    values_settled,
)
from tests.unit.partition_leader.test_settling_shown import described

PAYS = "settling pays: what is readable is copied"
PAYS_NOT = "settling does not pay: nothing more is copied"


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand transactions would take long here."""
    monkeypatch.setattr(settling_worth, "LEAST_BATCHES", 50)
    monkeypatch.setattr(settling, "LEAST_BATCHES", 50)
    monkeypatch.setattr(settling_worth, "LEAST_BYTES", 100_000)


async def commit_large(process: Process, *, count: int, first: int) -> list[bytes]:
    expected: list[bytes] = []
    for n in range(first, first + count):
        expected.append(b"%d " % n + b"x" * 40_000)
        await process.produce(send(2 * n, batch(expected[-1:])))
        await process.commit(2 * n, 1)
    return expected


def test_what_is_small_is_settled_and_what_is_large_is_not_and_both_can_be_read() -> None:
    async def tell(process: Process) -> None:
        await process.lead(1)
        expected = await commit_small(process, count=40)
        await turns(process, 30)
        assert process.driver.settled_end == 0, "too little to tell"
        told = described(process).settled
        assert (told.auto, told.wanted) == (True, False)
        assert "from 50 on they may be copied" in told.why
        expected += await commit_small(process, count=160, first=41)
        await turns(process, 30)
        small_end = process.driver.settled_end
        assert small_end > 100, "the first records are settled too"
        assert process.reporter.events.count(PAYS) == 1
        assert process.driver.log_start > 0, "and their journal goes"
        assert described(process).settled.wanted
        for first in range(1_000, 1_060, 10):
            expected += await commit_large(process, count=10, first=first)
            await turns(process, 5)
        assert process.reporter.events.count(PAYS_NOT) == 1
        end = process.driver.settled_end
        expected += await commit_large(process, count=10, first=2_000)
        await turns(process, 700)
        assert process.driver.settled_end == end, "nothing more"
        told = described(process).settled
        assert (told.wanted, told.mean_batch_bytes > 32_768) == (False, True)
        assert await process.values() == expected

    story(tell, 20_000)


def test_large_batches_that_are_not_settled_keep_a_few_small_ones_behind_them_from_it() -> None:
    """What is settled has no gaps, so all of it would be copied."""

    async def tell(process: Process) -> None:
        await process.lead(1)
        expected = await commit_large(process, count=60, first=1)
        expected += await commit_small(process, count=60, first=1_000)
        await turns(process, 60)
        assert process.driver.settled_end == 0, "all of it would be copied"
        expected += await commit_small(process, count=400, first=2_000)
        await turns(process, 60)
        assert process.driver.settled_end > 100, "now most of it is small"
        assert await process.values() == expected

    story(tell, 20_000)


def test_what_was_settled_before_a_restart_goes_on_and_what_was_not_is_weighed_anew() -> None:
    async def tell(process: Process) -> None:
        await process.lead(1)
        expected = await commit_small(process, count=200)
        await turns(process, 30)
        end = process.driver.settled_end
        assert end > 100
        again = process.lose_power(Tear.NOTHING)
        await again.lead(2)
        expected += await commit_small(again, count=10, first=300)
        await turns(again, 700)
        assert again.driver.settled_end == 210, "few, and in between it goes on as before"
        assert PAYS not in again.reporter.events, "nothing turned"
        assert await again.values() == expected

    story(tell, 20_000)


@pytest.mark.parametrize("before", ["copy", "reference"])
def test_a_topic_that_leaves_it_open_again_goes_on_as_it_was(before: str) -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization=before)
        await process.lead(1)
        expected = await commit_small(process, count=30)
        await turns(process, 700)
        assert process.driver.settled_end == (30 if before == "copy" else 0)
        configure(process, 2, materialization="auto")
        await turns(process, 2)
        expected += await commit_small(process, count=10, first=100)
        await turns(process, 700)
        assert process.driver.settled_end == (40 if before == "copy" else 0), "too little to turn"
        assert await process.values() == expected

    story(tell, 20_000)


def test_a_log_that_grows_slowly_gets_the_snapshot_that_is_weighed() -> None:
    async def tell(process: Process) -> None:
        await process.lead(1)
        expected = await commit_small(process, count=10)
        await turns(process, 2 * settling.SNAPSHOT_AT_LAST_MS // 1000)
        assert process.driver.journal.snapshot_offset == 0, "too little to be worth one"
        expected += await commit_small(process, count=45, first=100)
        await turns(process, settling.SNAPSHOT_AT_LAST_MS // 1000 + 60)
        assert await values_settled(process) == expected

    story(tell, 1 << 30)


def test_what_is_deleted_within_an_hour_is_not_copied() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, **{"retention.ms": "3599999"})
        await process.lead(1)
        await commit_small(process, count=200)
        await turns(process, 60)
        assert process.driver.settled_end == 0
        assert described(process).settled.why == "retention.ms is less than an hour"
        configure(process, 2, **{"retention.ms": "3600000"})
        await turns(process, 2)
        await commit_small(process, count=50, first=1_000)
        await turns(process, 60)
        assert process.driver.settled_end > 100

    story(tell, 20_000)


def test_batches_of_a_run_are_counted_each() -> None:
    """Else many tiny ones, plain or of one message a transaction, would look like a large one."""

    async def tell(process: Process) -> None:
        await process.lead(1)
        for sequence in range(200):
            await process.produce(plain(batch([b"tiny"], sequence=sequence)))
        machine = process.driver.machine
        assert isinstance(machine, PartitionMachine)
        await process.produce(send(2, batch([b"ends the run"])))
        await process.commit(2, 1)
        await process.produce(plain(batch([b"is the last row"], sequence=200)))
        rows = machine.snapshot().tables[SETTLER.table].rows
        (weight,) = SETTLER.weigh([rows])
        assert len(machine.committed) == 3
        size = machine.committed.payload_bytes[0] + machine.committed.payload_bytes[1]
        assert weight == Weight(0, 201, size)

    story(tell, 1 << 30)
