"""Histories of consumers that are members of a group: partitions come and go within their polls,
and the checker follows them (I14, I15, I21, I22)."""

from __future__ import annotations

import asyncio

import pytest

import oncelog.aio
import oncelog.testing
from oncelog.checker import check
from oncelog.checker.events import HistoryWriter
from oncelog.checker.recorder import RecordedLog
from oncelog.errors import OncelogError

pytestmark = pytest.mark.integration

# Records are fed until all others have left again.
ROUNDS = 80


async def copy(log: RecordedLog, group: str, seconds: float) -> None:
    """Each input to the output, in transactions; some are aborted."""
    consumer = await log.consumer(
        ["in"], group, batch_records_max=10, session_timeout_ms=2_000, start="earliest"
    )
    producer = await log.transactional_producer()
    end = asyncio.get_running_loop().time() + seconds
    count = 0
    while asyncio.get_running_loop().time() < end:
        batch = await consumer.poll(0.1)
        if batch is None:
            continue
        count += 1
        try:
            async with producer.transaction(consumer) as tx:
                for record in batch:
                    value = log.history.fresh("out").encode()
                    await tx.send("out", value, partition=0, of=record)
                if count % 7 == 0:
                    raise ValueError("aborts")
        except (OncelogError, ValueError):
            continue
    await consumer.close()


async def feed(log: RecordedLog) -> None:
    plain = await log.producer()
    for _ in range(ROUNDS):
        for number in range(40):
            await plain.send("in", log.history.fresh("in").encode(), partition=number % 4)
        await plain.flush()
        await asyncio.sleep(0.1)


async def story(bootstrap: str) -> None:
    history = HistoryWriter(None, client="members")
    async with oncelog.aio.connect(bootstrap) as inner:
        log = RecordedLog(inner, history)
        await inner.admin.create_topic("in", partitions=4)
        await inner.admin.create_topic("out", partitions=1)
        feeding = asyncio.create_task(feed(log))
        # One after the other joins, and leaves.
        first = asyncio.create_task(copy(log, "copiers", 12.0))
        await asyncio.sleep(0.3)
        await asyncio.gather(copy(log, "copiers", 3.0), copy(log, "copiers", 5.0))
        await feeding
        await first
        await log.settle()
        await log.read_everything(["in", "out"])
        moves = sum(event.get("do") == "position" for event in history.events)
        assert moves > 4, "partitions moved"
    report = check(history.events)
    assert report.clean, str(report)


def test_i14_i21_a_history_of_members_is_judged_as_it_happened() -> None:
    with oncelog.testing.cluster() as cluster:
        asyncio.run(asyncio.wait_for(story(cluster.bootstrap), 120))
