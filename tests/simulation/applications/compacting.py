"""Applications over topics that are compacted.

    latest     compacted all the day
    expiring   compacted, and deleted by size
    changing   compacted or not, as an operator says now; where it is not, records may have no key

They write few keys and many, tombstones too, in plain batches and in transactions, some of which
are aborted or stay open for long; they read from the front to the end, in every way, fast and with
rests, again and again. Each record says in a header whose it is, so tombstones do, too. What they
are given is judged by what was committed (`cleaned`), not by the history: its checker knows no
record by anything but its value.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from oncelog.aio.log import Log
from oncelog.batch import Record
from oncelog.checker.recorder import RecordedLog
from oncelog.errors import DeliveryFailed
from oncelog_server.core.ids import TopicId
from oncelogpb import errors
from tests.simulation.applications.consuming import POLL_S
from tests.simulation.applications.gardening import unrecorded
from tests.simulation.applications.producing import FATAL
from tests.simulation.cleaned import (
    Keys,
    Rules,
    Step,
    require_followed,
    require_latest,
    require_served,
    require_table,
)
from tests.simulation.day import SILENT_S, Day
from tests.simulation.moments import (
    COMPACTION_CHANGED,
    HOLES_READ,
    KEYLESS_REFUSED,
    SCAN_JUDGED,
    TABLE_JUDGED,
)
from tests.simulation.rows import Row

NAME: Final = "compactor"
LATEST: Final = "latest"
EXPIRING: Final = "expiring"
CHANGING: Final = "changing"
TOPICS: Final[dict[str, int]] = {LATEST: 2, EXPIRING: 1, CHANGING: 1}
POLICY: Final = "cleanup.policy"
DELETE_RETENTION: Final = "delete.retention.ms"
LAG: Final = "min.compaction.lag.ms"
DELETE_RETENTION_MS: Final = 2_000
BRIEF_RETENTION_MS: Final = 1_000
CONFIGS: Final[dict[str, dict[str, str]]] = {
    LATEST: {POLICY: "compact", DELETE_RETENTION: str(DELETE_RETENTION_MS)},
    EXPIRING: {
        POLICY: "compact,delete",
        DELETE_RETENTION: str(BRIEF_RETENTION_MS),
        "retention.bytes": "30000",
    },
    CHANGING: {DELETE_RETENTION: str(BRIEF_RETENTION_MS)},
}
# What tombstones outlive at least, as clocks that are right measure it.
RETENTIONS_MS: Final[dict[str, int]] = {
    LATEST: DELETE_RETENTION_MS,
    EXPIRING: BRIEF_RETENTION_MS,
    CHANGING: BRIEF_RETENTION_MS,
}
POLICIES: Final = ("compact", "compact", "delete", "compact,delete")
# So that journals and data logs have many files, and snapshots to settle by, within a day.
SETTINGS: Final = (
    "node.segment_bytes=16384",
    "node.snapshot_every_bytes=2000",
)
# A record of few keys is superseded at once; of many, by the end of the day perhaps.
FEW_KEYS: Final = 5
MANY_KEYS: Final = 300
TOMBSTONES: Final = 0.25
# Of several of these a file is full.
PADDINGS: Final = (0, 0, 300, 3_000)
# As many records of a batch are sent in columns; fewer, as rows.
COLUMNS_RECORDS: Final = 20
# How long a transaction is open beside others; how long a reader rests, seconds: about as long as
# tombstones live.
LINGERS_S: Final = (0.2, 1.0, 2.5)
RESTS_S: Final = (0.1, 0.4, 0.9, 1.6)
# Of a record: whose it is.
ID: Final = "id"
# What keeps clocks from being off by more is not known here: a transaction's age, say.
LONG_MS: Final = 1e12


class Fate(Enum):
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Place(NamedTuple):
    topic: str
    partition: int


class Attempt:
    """Of a transaction, or of one plain batch at a time."""

    def __init__(self, *, is_atomic: bool) -> None:
        self.is_atomic = is_atomic
        self.fate = Fate.UNKNOWN
        self.wrote: dict[Place, list[bytes]] = defaultdict(list)


class Compactor:
    """Of one day: what was written in which attempt, over all lives."""

    def __init__(self) -> None:
        self._attempts: list[Attempt] = []
        # By id.
        self._attempt_of: dict[bytes, Attempt] = {}
        self._keys: dict[Place, tuple[int, Keys]] = {}

    async def _begin(self, day: Day, log: RecordedLog) -> None:
        """Each life does, before anything else."""
        unrecorded(log)
        for topic in TOPICS:
            described = await log.log.protocol.topic(topic)
            day.world.commits.follow(TopicId(described.topic_id), topic)
        if LATEST not in day.unrecorded:
            day.judges.append(self.judge)
            day.unrecorded.update(TOPICS)

    # -------------------------------------------------------------------------------------- writing

    async def write(self, day: Day, log: RecordedLog) -> None:
        """Plain batches, and transactions that are short."""
        await self._begin(day, log)
        plain = await log.log.producer(**day.producer_options())
        transactional = await log.log.transactional_producer(**day.transactional_options())
        while day.goes_on(NAME) and not day.is_tired():
            try:
                for _ in range(day.random.randint(1, 4)):
                    await self._transact(day, transactional, 0.0)
                await self._send_plainly(day, plain)
                day.succeeded(NAME)
            except FATAL:
                raise
            except errors.OncelogError as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()

    async def linger(self, day: Day, log: RecordedLog) -> None:
        """What it writes first is committed long after what came behind it has been compacted."""
        await self._begin(day, log)
        transactional = await log.log.transactional_producer(**day.transactional_options())
        while day.goes_on(NAME) and not day.is_tired():
            try:
                await self._transact(day, transactional, day.random.choice(LINGERS_S))
            except FATAL:
                raise
            except errors.OncelogError as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()

    def _attempt(self, *, is_atomic: bool) -> Attempt:
        attempt = Attempt(is_atomic=is_atomic)
        self._attempts.append(attempt)
        return attempt

    async def _transact(self, day: Day, producer: Any, lingers_s: float) -> None:
        attempt = self._attempt(is_atomic=True)
        is_aborted = day.happens(max(day.spice.abort, 0.1))
        tx = producer.transaction()
        try:
            async with tx:
                await self._send(day, tx, attempt, _somewhere(day))
                if lingers_s:
                    await tx.flush()
                    await asyncio.sleep(lingers_s)
                    await self._send(day, tx, attempt, _somewhere(day))
                if is_aborted:
                    if day.happens(0.5):
                        await tx.flush()
                    raise _ChangedMind
            attempt.fate = Fate.COMMITTED
        except _ChangedMind:
            attempt.fate = Fate.ABORTED
        except errors.OncelogError as error:
            if not error.may_have_applied:
                attempt.fate = Fate.ABORTED
            raise

    async def _send_plainly(self, day: Day, producer: Any) -> None:
        attempt = self._attempt(is_atomic=False)
        place = _somewhere(day)
        is_keyless = place.topic != EXPIRING and day.happens(0.3)
        try:
            await self._send(day, producer, attempt, place, is_keyless=is_keyless)
            await producer.flush()
            attempt.fate = Fate.COMMITTED
            assert not (is_keyless and place.topic == LATEST), "a record without a key was taken"
        except errors.OncelogError as error:
            if not error.may_have_applied:
                # Plain records are taken by the batch: those that did not fail are there.
                wrote = sum(map(len, attempt.wrote.values()))
                some = isinstance(error, DeliveryFailed) and error.count < wrote
                # Where the policy changes on the way, batches before the refused one may be taken.
                if not some and not (is_keyless and place.topic == CHANGING):
                    attempt.fate = Fate.ABORTED
                if is_keyless:
                    day.world.moments.add(KEYLESS_REFUSED)
                    return
            raise

    async def _send(
        self, day: Day, to: Any, attempt: Attempt, place: Place, *, is_keyless: bool = False
    ) -> None:
        count = COLUMNS_RECORDS if day.happens(0.1) else day.random.randint(1, 4)
        padding = b"." * day.random.choice(PADDINGS)
        keys = FEW_KEYS if day.happens(0.7) else MANY_KEYS
        for _ in range(count):
            name = day.value("c")
            key = None if is_keyless else b"k%d" % day.random.randrange(keys)
            value = None if key and day.happens(TOMBSTONES) else name + padding
            attempt.wrote[place].append(name)
            self._attempt_of[name] = attempt
            await to.send(
                place.topic, value, key=key, headers=[(ID, name)], partition=place.partition
            )

    # -------------------------------------------------------------------------------------- reading

    async def scan(self, day: Day, log: RecordedLog) -> None:
        """From the front to the end, one partition after the other."""
        await self._begin(day, log)
        while day.goes_on(NAME) and not day.is_tired():
            place = _somewhere(day)
            await self._scan(day, log.log, place, rests=day.random.choice([0.0, 0.1, 0.3]))
            day.succeeded(NAME)
            await day.pause()

    async def _scan(
        self, day: Day, log: Log, place: Place, *, rests: float, delivery: str = ""
    ) -> None:
        """Whatever is read by then is judged, also where it ends early."""
        chance = day.random
        [*ends] = await log.admin.offsets(place.topic)
        consumer = await log.consumer(
            [place.topic],
            partitions=[place],
            delivery=delivery or chance.choice(["leader", "leader", "buffered"]),
            start="earliest",
            if_deleted="earliest",
            batch_records_max=chance.choice([1, 5, 50]),
            prefetch_bytes_max=chance.choice([1, 2_000, 1 << 20]),
        )
        asked_ms = day.world.loop.now_s * 1000
        position = await consumer.position(*place)
        steps: list[Step] = []
        while position < ends[place.partition] and (rests == 0.0 or day.goes_on(NAME)):
            batch = await consumer.poll(POLL_S if rests else SILENT_S)
            end = await consumer.position(*place)
            rows = [] if batch is None else [_row(record) for record in batch]
            step = self._judge_step(day, place, Step(asked_ms, 0.0, position, end, rows))
            steps.append(step)
            position = end
            if rests and day.happens(rests):
                await asyncio.sleep(chance.choice(RESTS_S))
                # What was read ahead is read again.
                await consumer.seek(*place, position)
                asked_ms = day.world.loop.now_s * 1000
        await consumer.close()
        self._judge_scan(day, place, steps, is_whole=position >= ends[place.partition])

    def _judge_step(self, day: Day, place: Place, step: Step) -> Step:
        commits = day.world.commits
        commits.look()
        partition = commits.partition(*place)
        step = step._replace(
            told_ms=day.world.loop.now_s * 1000, deleted_below=commits.start(partition)
        )
        require_served(commits.of(partition), step, self._rules(day, place), self._of(day, place))
        if len(step.rows) < step.end - max(step.begin, step.deleted_below):
            day.world.moments.add(HOLES_READ)
        return step

    def _judge_scan(self, day: Day, place: Place, steps: Sequence[Step], *, is_whole: bool) -> None:
        committed = day.world.commits.of(day.world.commits.partition(*place))
        require_followed(committed, steps, self._rules(day, place), self._of(day, place))
        if len(steps) > 1:
            day.world.moments.add(SCAN_JUDGED)
        if is_whole and steps:
            quick_ms = steps[-1].told_ms - steps[0].asked_ms
            if quick_ms < self._rules(day, place).delete_retention_ms:
                rows = [row for step in steps for row in step.rows]
                end, start = steps[-1].end, steps[-1].deleted_below
                require_latest(committed, rows, max(start, steps[0].begin), end)

    def _of(self, day: Day, place: Place) -> Keys:
        """Made anew only where there is more."""
        committed = day.world.commits.of(day.world.commits.partition(*place))
        known = self._keys.get(place)
        if known is None or known[0] != len(committed):
            known = self._keys[place] = len(committed), Keys(committed)
        return known[1]

    @staticmethod
    def _rules(day: Day, place: Place) -> Rules:
        clocks = day.clocks()
        real_ms = RETENTIONS_MS[place.topic] / (1 + clocks["faster"]) - clocks["leap_ms"]
        return Rules(max(real_ms, 0.0))

    async def look_up(self, day: Day, log: RecordedLog) -> None:
        """A table that follows."""
        await self._begin(day, log)
        place = Place(LATEST, 0)
        table = await log.log.table(place.topic)
        while day.goes_on(NAME) and not day.is_tired():
            await table.caught_up()
            day.succeeded(NAME)
            await day.pause()
        await table.close()

    # ------------------------------------------------------------------------------------ operating

    async def operate(self, day: Day, log: RecordedLog) -> None:
        """Changes the policy and the lag; truncates."""
        await self._begin(day, log)
        while day.goes_on(NAME) and not day.is_tired():
            try:
                choice = day.random.randrange(4)
                if choice == 0:
                    lag_ms = day.random.choice(["0", "500"])
                    await log.log.admin.alter_topic(LATEST, {LAG: lag_ms})
                elif choice == 1 and day.happens(0.3):
                    await _truncate(day, log)
                else:
                    policy = day.random.choice(POLICIES)
                    await log.log.admin.alter_topic(CHANGING, {POLICY: policy})
                    day.world.moments.add(COMPACTION_CHANGED)
                day.succeeded(NAME)
            except (errors.OffsetOutOfRange, errors.UnknownOutcome) as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()

    # ------------------------------------------------------------------------------------- the end

    async def judge(self, day: Day, log: RecordedLog) -> None:
        """When all are gone: each way of reading, and what writers were told."""
        unrecorded(log)
        commits = day.world.commits
        commits.look()
        for topic, partitions in TOPICS.items():
            for number in range(partitions):
                for delivery in ("leader", "buffered"):
                    place = Place(topic, number)
                    await self._scan(day, log.log, place, rests=0.0, delivery=delivery)
            table = await log.log.table(topic)
            await table.caught_up()
            for number in range(partitions):
                partition = commits.partition(topic, number)
                committed = commits.of(partition)
                own = {commit.row.key for commit in committed}
                found = {key: value for key, value in table.snapshot().items() if key in own}
                # A key may be in several partitions, and the table has the newest of them.
                if partitions == 1:
                    require_table(committed, found, commits.start(partition))
                    day.world.moments.add(TABLE_JUDGED)
            await table.close()
        await self._judge_units(log.log)
        self._judge_attempts(day)

    async def _judge_units(self, log: Log) -> None:
        """What is left of a transaction is of nobody else, and in the order in which it was
        sent."""
        consumer = await log.consumer([*TOPICS], start="earliest", if_deleted="earliest")
        units = consumer.transactions()
        while (unit := await units.poll(SILENT_S)) is not None:
            names = [_id_of(record) for record in unit.read()]
            if unit.tx_id and names:
                attempt = self._attempt_of[names[0]]
                wrote = attempt.wrote[Place(unit.topic, unit.partition)]
                assert attempt.is_atomic, f"I9: {unit} is said of plain records"
                left = [name for name in wrote if name in set(names)]
                assert names == left, f"I3: {unit} has {names}, and of {wrote} was written {left}"
        await consumer.close()

    def _judge_attempts(self, day: Day) -> None:
        """I3, I5, I6, I33: of what was committed, whatever is left of it."""
        commits = day.world.commits
        found: dict[bytes, tuple[Place, int]] = {}
        for partition in commits.partitions:
            place = Place(commits.name(partition), partition.number)
            for offset, commit in enumerate(commits.of(partition)):
                name = _id(commit.row.headers)
                assert name not in found, f"I6: {name!r} is at {found[name]} and {place} {offset}"
                found[name] = place, offset
        for attempt in self._attempts:
            for place, names in attempt.wrote.items():
                there = [name in found for name in names]
                what = f"{attempt.fate.value}, {names} in {place}"
                if attempt.fate is Fate.ABORTED:
                    assert not any(there), f"I33: {what}: it was aborted, and is readable"
                elif attempt.fate is Fate.COMMITTED:
                    assert all(there), f"I5: {what}: it was committed, and is not there"
                elif attempt.is_atomic:
                    assert all(there) or not any(there), f"I3: {what}: a part of it is there"


class _ChangedMind(Exception):
    pass


def _somewhere(day: Day) -> Place:
    topic = day.random.choice([LATEST, LATEST, EXPIRING, CHANGING])
    return Place(topic, day.random.randrange(TOPICS[topic]))


def _row(record: Record) -> tuple[int, Row]:
    return record.offset, Row(record.key, record.value, record.timestamp_us, record.headers)


def _id(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    [name] = [value for key, value in headers if key == ID]
    assert name is not None, "it was written with one"
    return name


def _id_of(record: Record) -> bytes:
    return _id(record.headers)


async def _truncate(day: Day, log: RecordedLog) -> None:
    """Of one partition, a part."""
    place = Place(LATEST, day.random.randrange(TOPICS[LATEST]))
    ends = await log.log.admin.offsets(LATEST)
    before = day.random.randrange(ends[place.partition] // 2 + 1)
    await log.log.admin.truncate(LATEST, before=before, partition=place.partition)
