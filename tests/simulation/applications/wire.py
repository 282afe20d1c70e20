"""Applications that speak the wire themselves, and not as our client does."""

from __future__ import annotations

import asyncio
from typing import Final

from oncelog.checker.recorder import RecordedLog
from oncelogpb import errors
from tests.simulation.applications.hand import Hand, HandTransaction
from tests.simulation.day import Day

# One-shots in flight at most.
SHOTS_MAX: Final = 6
# How far above a TxId that stands a forged one lies: some are given out to somebody soon.
FORGED_ABOVE: Final = (1, 2, 3, 5, 20, 1_000_000)
# Between two looks whether a forged transaction has ended, seconds, and how long that may take when
# all is well.
LOOK_S: Final = 0.5
PROVED_WITHIN_S: Final = 30.0


async def write_late(day: Day, log: RecordedLog) -> None:
    """Batches on their way while the transaction is committed without them: what arrives before the
    marker is acknowledged, and belongs to nothing (I3)."""
    hand = Hand(log, day.history.fresh("late"))
    await hand.register()
    while day.goes_on("late writer") and not day.is_tired():
        tx = await hand.begin()
        places = [("out", day.partition("out")), ("side", day.partition("side"))]
        for place in places:
            await tx.produce(*place, day.value("w"))
        late = [asyncio.create_task(_late(day, tx, place)) for place in places]
        try:
            await tx.commit()
        finally:
            await asyncio.gather(*late)
        day.succeeded("late writer")
        await day.pause()


async def _late(day: Day, tx: HandTransaction, place: tuple[str, int]) -> None:
    """On its way before its commit is answered, or after."""
    await asyncio.sleep(day.random.choice([0.0001, 0.001, 0.003, 0.01]))
    try:
        await tx.produce(*place, day.value("w"))
    except errors.OncelogError as error:
        day.world.say(f"late writer: {error.reason}")


async def repeat_numbers(day: Day, log: RecordedLog) -> None:
    """Another payload under a request number that was answered: it is refused, or the caller is
    told that it was a repeat. It is never "committed" (I4)."""
    hand = Hand(log, day.history.fresh("repeater"))
    await hand.register()
    number = 0
    while day.goes_on("repeater") and not day.is_tired():
        number += 1
        topic = day.random.choice(["out", "side"])
        first = await hand.transact(number, topic, day.partition(topic), day.value("r"))
        if day.happens(0.5):
            try:
                again = await hand.transact(number, topic, day.partition(topic), day.value("r"))
            except errors.OncelogError as error:
                day.world.say(f"repeater: {error.reason}")
            else:
                assert getattr(again, "duplicate", False), (
                    f"I4: another payload under number {number} is told to be committed, as "
                    f"{again.tx_id:x} (the first is {first.tx_id:x})"
                )
        day.succeeded("repeater")
        await day.pause()


async def volley(day: Day, log: RecordedLog) -> None:
    """Several one-shots in flight, the first of them with offsets: they are decided in the order in
    which they were asked for (I10)."""
    name = day.history.fresh("volley")
    hand = Hand(log, name)
    await hand.register()
    group = day.group(name, "in")
    number = since = 0
    while day.goes_on("volley") and not day.is_tired():
        topic = day.random.choice(["out", "side"])
        partition = day.partition(topic)
        shots = []
        for shot in range(day.random.randint(2, SHOTS_MAX)):
            number += 1
            step = (group, since) if shot == 0 and day.happens(0.7) else None
            since += step is not None
            work = hand.transact(number, topic, partition, day.value("v"), step)
            shots.append(asyncio.create_task(work))
        told = await asyncio.gather(*shots, return_exceptions=True)
        for error in told:
            if isinstance(error, BaseException):
                # A number is missing, or nobody knows: this producer ends here.
                raise error
        day.succeeded("volley")
        await day.pause()


async def forge(day: Day, log: RecordedLog) -> None:
    """Batches under TxIds that nobody has given out, or not yet. They are proved away in the end,
    and no committed read shows them (I30, I1)."""
    hand = Hand(log, day.history.fresh("forger"))
    await hand.register()
    while day.goes_on("forger") and not day.is_tired():
        standing = [hand.producer.producer_id, *day.known_tx_ids[-3:]]
        forged = day.random.choice(standing) + day.random.choice(FORGED_ABOVE)
        tx = HandTransaction(hand, day.history.fresh("tx"), forged)
        place = ("out", day.partition("out"))
        await tx.produce(*place, day.value("x"))
        await _proved_away(day, tx, place)
        day.succeeded("forger")
        await day.pause()


async def _proved_away(day: Day, tx: HandTransaction, place: tuple[str, int]) -> None:
    """Until nothing more is taken under it."""
    since_s = day.world.loop.time()
    while not day.stopping:
        if not day.healed:
            since_s = day.world.loop.time()
        await asyncio.sleep(LOOK_S)
        try:
            await tx.produce(*place, day.value("x"))
        except errors.TryAgain as error:
            day.world.say(f"forger: {error.reason}")
        except errors.OncelogError as error:
            day.world.say(f"forger: {error.reason} {error.message}")
            return
        waited_s = day.world.loop.time() - since_s
        assert waited_s < PROVED_WITHIN_S, f"I30: {tx.tx_id:x}, given out by nobody, stays open"
