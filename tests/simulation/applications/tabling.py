"""Applications around `log.table`: a topic of keys, some of which are removed again, and tables
that follow it.

    shared keys   anybody writes them: a table shows what a reader of the whole log finds last
    own keys      one life writes each of them: what was acknowledged last is there, or what came
                  behind it and was not

Not in the history, which knows no tombstones. Each look at a table is kept with the positions that
the table told for it, and judged at the end: what it showed is what the committed log below those
positions says, no more and no less. So no look has a part of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from oncelog.aio.table_view import TableView
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import Record, TopicPartition
from oncelog.checker.recorder import RecordedLog
from oncelogpb import errors
from tests.simulation.applications.gardening import unrecorded
from tests.simulation.applications.producing import FATAL
from tests.simulation.applications.settling import COPY
from tests.simulation.applications.transacting import ChangedMind
from tests.simulation.day import SILENT_S, Day
from tests.simulation.moments import TABLE_LOOKED, TABLE_REMOVED

NAME: Final = "tabler"
PRICES: Final = "prices"
TOPICS: Final[dict[str, int]] = {PRICES: 2}
CONFIGS: Final[dict[str, dict[str, str]]] = {PRICES: COPY}
SHARED_KEYS: Final = 12
OWN_KEYS: Final = 3
# How often a key is removed.
REMOVED: Final = 0.3
# So long a table may take to show all that can be read, seconds, when all is well.
CAUGHT_UP_S: Final = 30.0
# Looks of a day that are kept.
LOOKS_MAX: Final = 200

Values = dict[bytes, bytes]


class Look(NamedTuple):
    """What a table showed at one moment."""

    positions: dict[TopicPartition, int]
    shown: Values


class Wrote(NamedTuple):
    """Of one own key: None where it was removed."""

    value: bytes | None
    is_acknowledged: bool


class Tabler:
    """Of one day, over all lives."""

    def __init__(self) -> None:
        self._looks: list[Look] = []
        # In the order in which they were written.
        self._own: dict[bytes, list[Wrote]] = {}

    # -------------------------------------------------------------------------------------- writing

    async def write(self, day: Day, log: RecordedLog) -> None:
        """One transaction after the other."""
        self._begin(day, log)
        own = [day.value("own") for _ in range(OWN_KEYS)]
        producer = await log.log.transactional_producer(None, **day.transactional_options())
        while day.goes_on(NAME) and not day.is_tired():
            try:
                await self._transact(day, producer, own)
                day.succeeded(NAME)
            except FATAL:
                raise
            except errors.OncelogError as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()

    async def _transact(self, day: Day, producer: TransactionalProducer, own: list[bytes]) -> None:
        values: dict[bytes, bytes | None] = {}
        is_acknowledged: bool | None = None
        try:
            async with producer.transaction() as tx:
                for _ in range(day.random.randint(1, 6)):
                    shared = b"shared-%d" % day.random.randrange(SHARED_KEYS)
                    key = day.random.choice([shared, shared, *own])
                    values[key] = None if day.happens(REMOVED) else day.value("p")
                    await tx.send(PRICES, values[key], key=key)
                    if day.happens(day.spice.flush):
                        await tx.flush()
                if not day.healed and day.happens(day.spice.abort):
                    is_acknowledged = None
                    raise ChangedMind
                is_acknowledged = False
            is_acknowledged = True
        except ChangedMind:
            day.world.say(f"{NAME}: aborted")
        finally:
            if is_acknowledged is not None:
                for key in own:
                    if key in values:
                        wrote = Wrote(values[key], is_acknowledged)
                        self._own.setdefault(key, []).append(wrote)

    # -------------------------------------------------------------------------------------- reading

    async def follow(self, day: Day, log: RecordedLog) -> None:
        """Looks at whatever it shows, caught up or not."""
        self._begin(day, log)
        table = await log.log.table(PRICES)
        while day.goes_on(NAME) and not day.is_tired():
            try:
                if day.happens(0.5):
                    await table.caught_up(2.0)
            except errors.Unavailable as error:
                day.world.say(f"{NAME}: {error.message}")
            self._look(day, table)
            day.succeeded(NAME)
            await day.pause()
        await table.close()

    async def see_own(self, day: Day, log: RecordedLog) -> None:
        """Who waits until a commit is visible, and then until the table has caught up, sees it."""
        self._begin(day, log)
        key = day.value("mine")
        producer = await log.log.transactional_producer(None, **day.transactional_options())
        table = await log.log.table(PRICES)
        while day.goes_on(NAME) and not day.is_tired():
            value = None if day.happens(REMOVED) else day.value("p")
            try:
                async with producer.transaction(wait="visible") as tx:
                    await tx.send(PRICES, value, key=key)
                await table.caught_up(CAUGHT_UP_S)
            except FATAL:
                raise
            except errors.OncelogError as error:
                # Whether it is there nobody knows: the key is left alone.
                day.world.say(f"{NAME}: {error.reason} {error.message}")
                key = day.value("mine")
            else:
                # Where the answer was lost, it is known to be committed, and perhaps no more.
                assert table.get(key) == value or not tx.visible, (
                    f"I33: {key!r} is {table.get(key)!r}, and {value!r} was readable before"
                )
                day.succeeded(NAME)
            await day.pause()
        await table.close()

    def _look(self, day: Day, table: TableView) -> None:
        """In one turn of the loop."""
        look = Look(table.positions, table.snapshot())
        day.world.moments.add(TABLE_LOOKED)
        if len(self._looks) < LOOKS_MAX:
            self._looks.append(look)
        else:
            self._looks[day.random.randrange(LOOKS_MAX)] = look

    # -------------------------------------------------------------------------------------- judging

    def _begin(self, day: Day, log: RecordedLog) -> None:
        unrecorded(log)
        if PRICES not in day.unrecorded:
            day.unrecorded.add(PRICES)
            day.judges.append(self.judge)

    async def judge(self, day: Day, log: RecordedLog) -> None:
        """At the end of the day, by a reader of all that is there, and a new table."""
        unrecorded(log)
        table = await log.log.table(PRICES)
        await table.caught_up(CAUGHT_UP_S)
        found = await _everything(log, table.positions)
        values = _values(found)
        assert table.snapshot() == values, "I33: a new table does not show what is read"
        await table.close()
        if any(record.value is None for record in found):
            day.world.moments.add(TABLE_REMOVED)
        for look in self._looks:
            _judge_look(look, found)
        for key, wrote in self._own.items():
            _judge_own(key, wrote, values.get(key))


def _judge_look(look: Look, found: list[Record]) -> None:
    """Of a topic that keeps all its records."""
    below = _values(it for it in found if it.offset < look.positions.get(_place(it), 0))
    if look.shown != below:
        differ = {
            key: (look.shown.get(key), below.get(key))
            for key in look.shown.keys() | below.keys()
            if look.shown.get(key) != below.get(key)
        }
        raise AssertionError(f"I33: at {look.positions} shown, and written below: {differ}")


def _judge_own(key: bytes, wrote: list[Wrote], value: bytes | None) -> None:
    """What was acknowledged last, or behind it and nobody knows."""
    acknowledged = [n for n, one in enumerate(wrote) if one.is_acknowledged]
    allowed = [one.value for one in wrote[acknowledged[-1] if acknowledged else 0 :]]
    if not acknowledged:
        allowed.append(None)
    assert value in allowed, f"I33: {key!r} is {value!r}; written last: {allowed}"


def _place(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _values(records: Iterable[Record]) -> Values:
    """Of each key the last one. A key is in one partition."""
    values: Values = {}
    for record in records:
        assert record.key is not None, "all have keys"
        values.pop(record.key, None)
        if record.value is not None:
            values[record.key] = record.value
    return values


async def _everything(log: RecordedLog, ends: dict[TopicPartition, int]) -> list[Record]:
    consumer = await log.log.consumer([PRICES], start="earliest")
    found: list[Record] = []
    while any([await consumer.position(*place) < end for place, end in ends.items()]):
        batch = await consumer.poll(SILENT_S)
        assert batch is not None, f"I33: nothing comes before {ends}"
        found.extend(batch)
    await consumer.close()
    return found
