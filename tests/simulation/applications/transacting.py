"""One transaction, as careless programs make them: small or large, one-shot or begun early,
committed, aborted, interrupted in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from oncelog.batch import Record
from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedTransaction,
    RecordedTransactionalProducer,
)
from tests.simulation.day import TRANSACTION_TIMEOUT_MS, Day

# A key of this size makes a transaction overflow the one-shot limit: begin_next.
LARGE_KEY: Final = b"k" * 150_000
# Of several of these a small batch is full.
MIDDLING_KEY: Final = b"m" * 300
TARGETS: Final = ("out", "out", "side")


class ChangedMind(Exception):
    """The application aborts."""


async def transact(
    day: Day,
    name: str,
    producer: RecordedTransactionalProducer,
    consumer: RecordedConsumer | None,
    inputs: Sequence[Record | None],
    *,
    commit_seq: tuple[str, int] | None = None,
    early: bool = False,
) -> bool:
    """One record for each input. `early`: it begins before its end, so its commit begins the next
    one (`begin_next`). True: its commit was answered. Raises OncelogError."""
    # After healing everybody means what they do: who rests between two attempts has few of them.
    wavers = not day.healed
    wait = "visible" if day.happens(day.spice.visible) else "prepared"
    limit_s = (
        day.random.uniform(0.0001, 0.05) if wavers and day.happens(day.spice.interrupt) else 60.0
    )
    tx = producer.transaction(consumer, wait=wait, commit_seq=commit_seq)
    try:
        async with asyncio.timeout(limit_s), tx:
            await _fill(day, tx, inputs)
            if early:
                await tx.flush()
            if day.happens(day.spice.slow):
                await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000 * 1.5)
            if wavers and day.happens(day.spice.abort):
                raise ChangedMind
    except (ChangedMind, TimeoutError) as error:
        day.world.say(f"{name}: {type(error).__name__}")
        return False
    finally:
        if tx.inner.tx_id:
            day.known_tx_ids.append(tx.inner.tx_id)
    day.succeeded(name)
    return True


async def _fill(day: Day, tx: RecordedTransaction, inputs: Sequence[Record | None]) -> None:
    large = day.happens(day.spice.large)
    for source in inputs:
        topic = day.random.choice(TARGETS)
        key = LARGE_KEY if large else day.random.choice([None, b"k", MIDDLING_KEY])
        await tx.send(topic, day.value("t"), key=key, partition=day.partition(topic), of=source)
        if day.happens(day.spice.flush):
            await tx.flush()
        if day.happens(0.05):
            await day.pause()
