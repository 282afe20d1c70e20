"""A topic that is deleted and made again while it is read."""

from __future__ import annotations

import asyncio
from typing import Final

from oncelog.checker.recorded_transport import RecordedTransport
from oncelog.checker.recorder import RecordedLog
from oncelogpb import errors
from tests.simulation.applications.consuming import POLL_S
from tests.simulation.day import Day

TOPIC: Final = "fleeting"
# After so many errors a reader takes another consumer.
PATIENCE: Final = 3


class Garden:
    """What the two applications know of each other."""

    def __init__(self) -> None:
        # How often the topic was made, and of which making something was read.
        self.plantings = 0
        self.seen = 0

    async def plant(self, day: Day, log: RecordedLog) -> None:
        """Leaves the topic in place when it goes."""
        unrecorded(log)
        admin = log.admin.inner
        while day.goes_on("gardener") and not day.is_tired():
            try:
                await admin.delete_topic(TOPIC)
            except errors.UnknownTopic:
                day.world.say("gardener: it is gone already")
            await day.pause()
            try:
                replicas = day.plan.replicas_of_topic(TOPIC)
                await admin.create_topic(TOPIC, 1, replication_factor=replicas)
            except errors.TopicExists:
                day.world.say("gardener: it is there already")
            self.plantings += 1
            await self._grow(day, log)
            while day.healed and self.seen < self.plantings and not day.stopping:
                # Who reads has all the time, and must find it.
                await asyncio.sleep(POLL_S)
            day.succeeded("gardener")
            await day.pause()

    async def _grow(self, day: Day, log: RecordedLog) -> None:
        producer = await log.log.producer(**day.producer_options())
        for number in range(day.random.randint(1, 5)):
            await producer.send(TOPIC, b"%d %d" % (self.plantings, number), partition=0)
        await producer.close()

    async def visit(self, day: Day, log: RecordedLog) -> None:
        """Who reads it is given records, or told what is wrong: it is never left with nothing."""
        unrecorded(log)
        consumer = await log.log.consumer([TOPIC], start="earliest")
        told = 0
        while day.goes_on("gardener") and told < PATIENCE:
            try:
                for record in await consumer.poll(POLL_S) or ():
                    self.seen = int((record.value or b"").split()[0])
            except errors.OncelogError as error:
                # It must go on saying so, or be well again: never be silent for ever.
                day.world.say(f"visitor: {error.reason} {error.message}")
                told += 1
        await consumer.close()


def unrecorded(log: RecordedLog) -> None:
    """Nothing of this client's calls is in the history, which knows topics by name, and would take
    the next one of a name for the last; nor does it know tombstones."""
    transport = log.log.protocol.transport
    if isinstance(transport, RecordedTransport):
        log.log.protocol.transport = transport.inner
