"""What operators are shown of a topic that is settled: how far it is, and how far behind; what it
takes; what is in its way."""

from __future__ import annotations

import asyncio

from oncelog_server.runtime.replication.describing import add_disk_use, describe
from oncelogpb.v1 import replication_pb2
from tests.unit.partition_leader.fakes import FIRST
from tests.unit.partition_leader.messages import batch, plain
from tests.unit.partition_leader.test_over_the_journal import Process, story
from tests.unit.partition_leader.test_settling_over_the_journal import FILLING, configure


def described(process: Process) -> replication_pb2.ReplicaDescription:
    return describe(FIRST, process.driver, process.loop.now().monotonic_ms)


async def write(process: Process, count: int, *, sequence: int) -> None:
    for number in range(sequence, sequence + count):
        await process.produce(plain(batch([FILLING], sequence=number)))
        process.driver.report()
        await asyncio.sleep(0.2)


async def heard(process: Process, *, is_wanted: bool) -> None:
    """Its settings are looked at now and then."""
    for _ in range(120):
        process.world.clock.monotonic_ms += 1_000
        process.driver.tick()
        await asyncio.sleep(1)
        if described(process).settled.wanted == is_wanted:
            return
    raise AssertionError("it does not hear of its settings")


def shown(process: Process, name: str) -> float:
    """A gauge."""
    process.driver.report()
    return process.reporter.counted[name]


LAGS = ("settling_lag", "settling_lag_bytes", "settling_lag_ms")


def test_what_is_settled_and_how_far_it_is_behind_is_shown() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="reference")
        await process.lead(1)
        await write(process, 10, sequence=0)
        assert not described(process).HasField("settled"), "nothing is, and nothing shall be"
        assert "settled_end" not in process.reporter.counted
        configure(process, 2, materialization="copy")
        await heard(process, is_wanted=True)
        await write(process, 30, sequence=10)
        settled = described(process).settled
        data = process.driver.journal.data
        assert 0 < settled.end == data.settled_end < settled.readable_end == 40
        assert (settled.wanted, settled.waits) == (True, "")
        assert shown(process, "settled_end") == settled.end
        assert shown(process, "settling_lag") == 40 - settled.end
        behind = process.driver.journal.bytes_from(process.driver.journal.snapshot_offset)
        assert shown(process, "settling_lag_bytes") >= behind > 0
        before_ms = shown(process, "settling_lag_ms")
        assert before_ms > 0
        await asyncio.sleep(5)
        assert shown(process, "settling_lag_ms") >= before_ms + 5_000, "nothing was settled since"
        told = described(process)
        await add_disk_use(told, process.driver)
        assert told.disk.data_bytes == data.disk_bytes() > settled.end * len(FILLING)
        assert 0 < process.reporter.counted["data_log_bytes"] <= told.disk.data_bytes

    story(tell, 20_000)


def test_all_that_is_readable_is_settled_in_the_end_and_no_lag_is_left() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await write(process, 30, sequence=0)
        assert shown(process, "settling_lag") > 0
        for _ in range(2_000):
            process.driver.report()
            await asyncio.sleep(1)
        assert [shown(process, name) for name in LAGS] == [0, 0, 0]
        settled = described(process).settled
        assert (settled.end, settled.readable_end) == (30, 30)

    story(tell, 20_000)


def test_what_is_in_its_way_is_told_until_it_is_gone() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await write(process, 1, sequence=0)
        process.has_room = process.may_settle = False
        for _ in range(700):
            process.driver.report()
            await asyncio.sleep(1)
        assert "disk_free_floor" in described(process).settled.waits
        assert shown(process, "settling_waits") == 1
        assert shown(process, "settling_lag") == 1
        process.has_room = process.may_settle = True
        for _ in range(60):
            process.driver.report()
            await asyncio.sleep(1)
        assert described(process).settled.waits == ""
        assert (shown(process, "settling_waits"), shown(process, "settling_lag")) == (0, 0)

    story(tell, 20_000)


def test_a_topic_that_is_settled_no_more_has_no_lag() -> None:
    async def tell(process: Process) -> None:
        configure(process, 1, materialization="copy")
        await process.lead(1)
        await write(process, 30, sequence=0)
        configure(process, 2, materialization="reference")
        await heard(process, is_wanted=False)
        await write(process, 10, sequence=30)
        settled = described(process).settled
        assert (settled.wanted, settled.end > 0) == (False, True)
        assert [shown(process, name) for name in LAGS] == [0, 0, 0]

    story(tell, 20_000)
