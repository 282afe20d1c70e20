"""When the oldest records of a partition are deleted: by age, by size, when somebody asks. PURE.

    topic's settings ──► Settings ─────────────────────────────┐
    frames, TimePassed ──► age ──► marks (age, offset) ────────┤ Tick
                                   committed log: its bytes ───┴──► LogStart(offset) ──► its start
    TruncatePartition ──────────────────────────────────────────────────────▲

Each is a record, so every replica and every replay deletes the same (I35), and none has an effect
before it is durable: readers look at `CommittedLog.readable_start`.

Age is counted from commit, by the journal's own clock (`core/age`), never by the wall clock: of a
clock that jumps it believes a sixteenth of `retention.ms` (`step_ms`). What it misses so, and what
goes by while nobody writes, a leader measures by its monotonic clock and journals (TimePassed):
seldom, and only while there is something to delete. Where `retention.ms` gets so short that more
was believed before, what is there counts from that moment on.

Retention keeps or deletes what became readable at once; only Truncate cuts through it. Open
transactions are not in the committed log, so nothing of them is deleted (I32).

Left out: when the disk gets its space back (`Machine.needed_from`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from oncelog_server.core.age import STEP_MS, JournalAge
from oncelog_server.core.ids import Offset
from oncelog_server.core.machine import REST_MS_MAX, Decision, Instant, refuse
from oncelog_server.partition_leader.commands import UNLIMITED, Settings, Truncated
from oncelog_server.partition_leader.committed_log import CommittedLog
from oncelog_server.partition_leader.records import LogStart, Record, TimePassed
from oncelogpb.errors import OffsetOutOfRange

# How much of retention.ms a clock that jumps may add, how much later than due a record may go, and
# how much of what is there is worth a record at once: a sixteenth.
SHARE: Final = 16
# How often is looked whether something is due, milliseconds.
LOOK_MS_LEAST: Final = 1_000
LOOK_MS_MOST: Final = 60_000
# While nobody writes, not more often than this.
RESTS_MS_LEAST: Final = 10_000
# And how often time that went by is journaled where nothing else says so.
PASSED_MS_LEAST: Final = 10_000
PASSED_MS_MOST: Final = 60 * 60 * 1000
# Ages are known of so many offsets; of those far back, to one in MARK_PRECISION of their age.
MARKS_MAX: Final = 1_024
MARK_PRECISION: Final = 32
MARK_EVERY_MS: Final = 1_000


class AgeMarks(msgspec.Struct, array_like=True):
    """When records were committed, coarsely, by the journal's age. Replicated.

    Invariant: all below `offsets[i]` was committed at the age `ages[i]` or before. Both grow.
    """

    ages: list[int] = []
    offsets: list[int] = []
    # From this age on the next mark is made.
    next_ms: int = 0

    def saw(self, *, before_ms: int, aged_ms: int, end_offset: int) -> None:
        """A frame of the age `aged_ms` comes next; the one before it was of `before_ms`."""
        self.next_ms = aged_ms + MARK_EVERY_MS
        if end_offset > (self.offsets[-1] if self.offsets else 0):
            self.ages.append(before_ms)
            self.offsets.append(end_offset)
            if len(self.ages) > MARKS_MAX:
                self._thin_out(aged_ms)

    def _thin_out(self, aged_ms: int) -> None:
        """A mark that goes leaves its records to the next one: they count as younger."""
        kept = [0]
        for place in range(1, len(self.ages) - 1):
            gap_ms = self.ages[place + 1] - self.ages[kept[-1]]
            if gap_ms * MARK_PRECISION > aged_ms - self.ages[place + 1]:
                kept.append(place)
        kept.append(len(self.ages) - 1)
        self.ages = [self.ages[place] for place in kept]
        self.offsets = [self.offsets[place] for place in kept]

    def committed_by(self, age_ms: int) -> int:
        """Offset below which all was committed at that age or before."""
        place = bisect_right(self.ages, age_ms)
        return self.offsets[place - 1] if place else 0

    def time_passed(self, *, since_offset: int, by_ms: int) -> None:
        """The journal is older by so much at once, and when in that time came what was committed
        from that offset on is not known: at its end, at the latest."""
        first = bisect_right(self.offsets, since_offset)
        self.ages[first:] = [age_ms + by_ms for age_ms in self.ages[first:]]

    def begin_anew(self, aged_ms: int, end_offset: int) -> None:
        """More was believed of clocks that jump than `retention.ms` bears now: what is there may be
        younger than it looks, so it counts from now on."""
        self.ages, self.offsets = ([aged_ms], [end_offset]) if end_offset else ([], [])

    def forget_below(self, start_offset: int) -> None:
        gone = bisect_right(self.offsets, start_offset)
        del self.ages[:gone], self.offsets[:gone]

    def check(self, end_offset: int) -> None:
        assert len(self.ages) == len(self.offsets) <= MARKS_MAX
        assert self.ages == sorted(self.ages)
        assert self.offsets == sorted(set(self.offsets))
        assert not self.offsets or self.offsets[-1] <= end_offset


class Watch:
    """When a leader looks, and how far the journal's age is behind. Volatile: a new leader begins
    anew, and so believes what went by before to be less, never more."""

    def __init__(self) -> None:
        self.is_due = False
        # Time that went by and that no frame shows, and the end of the log when that began.
        self.behind_ms = self.behind_since = 0
        self._next_look_ms = 0
        # Moment from which on time is compared, and age and end of the log then.
        self._since: tuple[int, int, int] | None = None
        # By which it was compared: what was believed of clocks before is no matter any more.
        self._settings = Settings()
        self._waiting = 0
        # Where the log begins, and since when.
        self._start: tuple[int, int] = (-1, 0)
        # Long enough since the start moved for a few records to be worth a record.
        self.takes_little = False

    def look(
        self,
        settings: Settings,
        age: JournalAge,
        committed: CommittedLog,
        now: Instant,
        *,
        waiting: int = 0,
    ) -> None:
        """`waiting`: the point of compaction that time is measured from; 0: none is."""
        now_ms = now.monotonic_ms
        self.is_due = now_ms >= self._next_look_ms
        if not self.is_due:
            return
        self._next_look_ms = now_ms + look_every_ms(settings)
        if committed.start_offset != self._start[0]:
            self.takes_little = self._start[0] == -1
            self._start = (committed.start_offset, now_ms)
        elif now_ms - self._start[1] >= LOOK_MS_MOST:
            self.takes_little = True
        self._compare(settings, age, committed, now_ms, waiting)

    def is_worth_it(self, payload_bytes: int, committed: CommittedLog) -> bool:
        """To journal that so much of the log goes."""
        return self.takes_little or payload_bytes * SHARE >= committed.total_bytes

    def _compare(
        self,
        settings: Settings,
        age: JournalAge,
        committed: CommittedLog,
        now_ms: int,
        waiting: int,
    ) -> None:
        ages = settings.retention_ms != UNLIMITED
        ages = ages and committed.start_offset < committed.end_offset
        is_new = (settings, waiting) != (self._settings, self._waiting)
        self._settings, self._waiting = settings, waiting
        if not (ages or waiting) or is_new or self._since is None:
            self.behind_ms, self._since = 0, (now_ms, age.aged_ms, committed.end_offset)
            return
        every_ms = passed_every_ms(settings)
        went_by_ms = now_ms - self._since[0]
        self.behind_ms = 0
        if went_by_ms >= every_ms:
            behind_ms = went_by_ms - (age.aged_ms - self._since[1])
            self.behind_ms = behind_ms if behind_ms >= every_ms // 2 else 0
            if self.behind_ms:
                self.behind_since = self._since[2]
                self._since = (now_ms, age.aged_ms + self.behind_ms, committed.end_offset)


def look_every_ms(settings: Settings) -> int:
    if settings.retention_bytes != UNLIMITED:
        return LOOK_MS_LEAST
    return min(max(_shortest_ms(settings) // SHARE, LOOK_MS_LEAST), LOOK_MS_MOST)


def rests_ms(settings: Settings, committed: CommittedLog) -> int:
    """While nobody writes only time deletes, or what is compacted comes further."""
    if settings.is_compacted:
        return RESTS_MS_LEAST
    ages = settings.retention_ms != UNLIMITED or settings.retention_bytes != UNLIMITED
    if not ages or committed.start_offset == committed.end_offset:
        return REST_MS_MAX
    return min(max(look_every_ms(settings), RESTS_MS_LEAST), REST_MS_MAX)


def passed_every_ms(settings: Settings) -> int:
    return min(max(_shortest_ms(settings) // SHARE, PASSED_MS_LEAST), PASSED_MS_MOST)


def step_ms(settings: Settings) -> int:
    """Most by which one frame ages the journal."""
    shortest_ms = _shortest_ms(settings)
    return STEP_MS if shortest_ms == UNLIMITED else min(max(shortest_ms // SHARE, 1), STEP_MS)


def _shortest_ms(settings: Settings) -> int:
    """Of what goes by age: records, and tombstones."""
    limits = [settings.delete_retention_ms] if settings.is_compacted else []
    if settings.retention_ms != UNLIMITED:
        limits.append(settings.retention_ms)
    return min(limits, default=UNLIMITED)


# ------------------------------------------------------------------------------------- decisions


def configure(known: Settings, settings: Settings) -> Decision[Record]:
    """What an older memory of the topic says is no news."""
    is_news = settings.version >= known.version and not settings.says_the_same(known)
    return Decision((settings,) if is_news else ())


def truncation(committed: CommittedLog, before: int, *, start: int) -> Truncated | OffsetOutOfRange:
    """What it would delete of a log that begins at `start`."""
    if before > committed.end_offset:
        return above_end(before, start=start, end=committed.end_offset)
    after = max(before, start)
    size = committed.bytes_below(after) if after > committed.start_offset else 0
    return Truncated(Offset(start), Offset(after), size)


def above_end(before: int, *, start: int, end: int) -> OffsetOutOfRange:
    """Why nothing is deleted below an offset that no record has yet."""
    return OffsetOutOfRange(
        f"offset {before} is above the end, {end}: nothing is deleted; "
        "truncate at the end, or below",
        start=start,
        end=end,
    )


def truncate(committed: CommittedLog, before: Offset) -> Decision[Record]:
    answer = truncation(committed, before, start=committed.start_offset)
    if isinstance(answer, OffsetOutOfRange):
        return refuse(answer)
    moves = answer.start_after > answer.start_before
    return Decision((LogStart(answer.start_after),) if moves else (), answer)


def due(
    settings: Settings, watch: Watch, marks: AgeMarks, age: JournalAge, committed: CommittedLog
) -> Decision[Record]:
    """At a Tick. `watch` has looked."""
    if not watch.is_due:
        return Decision()
    decided: list[Record] = []
    if watch.behind_ms:
        decided.append(TimePassed(watch.behind_ms, watch.behind_since))
    start = int(committed.start_offset)
    if settings.retention_ms != UNLIMITED:
        old = marks.committed_by(age.aged_ms - settings.retention_ms)
        if old > start and watch.is_worth_it(committed.bytes_below(old), committed):
            start = old
    if settings.retention_bytes != UNLIMITED:
        excess = committed.total_bytes - settings.retention_bytes
        if excess > 0 and watch.is_worth_it(excess, committed):
            start = max(start, committed.cut_to(excess))
    if start > committed.start_offset:
        decided.append(LogStart(Offset(start)))
    return Decision(tuple(decided))
