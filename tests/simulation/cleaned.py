"""What readers and replicas of a compacted topic may hold, judged by what was committed. PURE.

    committed    all that ever became readable in a partition, in order: nothing is missing there
    Step         what a reader was given between two of its positions, and when
    Scan         steps of one reader, each from where the one before ended
    Held         what a replica's data log holds, and what its note says was taken out of it

    require_served(committed, step, rules)    all that is served was committed at that offset, and
                                              what is not may be missing
    require_followed(committed, scan, rules)  who saw a value meets what became of its key
    require_held(committed, held)             a replica has what its note says, record by record
    require_latest(committed, rows, start)    a whole scan ends with the last value of each key

Each raises AssertionError, which names the invariant.

A tombstone is a record with a key and without a value. Who reads later than `delete.retention.ms`
after he was given a value may miss the tombstone of it; nobody may miss it earlier. Who is slower
than that in the middle of a scan is not judged by what he misses.

Left out: whether what is committed should be (`Committed` is taken from the leaders' indexes; the
application judges it by what its writers were told).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tests.simulation.rows import Row


class Commit(NamedTuple):
    """One record, and when the first replica knew it to be readable, ms."""

    row: Row
    at_ms: float

    @property
    def is_tombstone(self) -> bool:
        return self.row.key is not None and self.row.value is None


# By offset, from 0 on.
Committed: TypeAlias = Sequence[Commit]


class Rules(NamedTuple):
    """Of a topic, over a whole day: the shortest times that were ever in force, as real time,
    whatever clocks and their jumps added."""

    delete_retention_ms: float = 0.0
    min_lag_ms: float = 0.0


class Step(NamedTuple):
    """A reader went from one position to another."""

    # When he could be served first, and when he had all of it.
    asked_ms: float
    told_ms: float
    begin: int
    end: int
    # In the order in which they were given.
    rows: Sequence[tuple[int, Row]]
    # What he was told, or could know, to be deleted: all below.
    deleted_below: int = 0


Scan: TypeAlias = Sequence[Step]


class Held(NamedTuple):
    """Of a replica's data log: its range, what is in it, and what its note says."""

    begin: int
    end: int
    rows: Mapping[int, Row]
    compacted_to: int
    tombstones_to: int
    holes_below: int
    # Tombstones below are gone.
    dropped_to: int = 0


def staying(committed: Committed, begin: int, below: int, tombstones_below: int) -> set[int]:
    """Offsets of what a log that begins there has when it is cleaned to (X, T), up to X: of each
    key the last record, if it is no tombstone below T; and all that have no key."""
    last: dict[bytes, int] = {}
    for offset in range(begin, below):
        key = committed[offset].row.key
        if key is not None:
            last[key] = offset
    return {
        offset
        for offset in range(begin, below)
        if (key := committed[offset].row.key) is None
        or (
            last[key] == offset
            and not (committed[offset].is_tombstone and offset < tombstones_below)
        )
    }


class Keys:
    """Of one partition: where the records of each key are."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        # Offset of the next record with the same key.
        self._next: list[int | None] = [None] * len(committed)
        self.last: dict[bytes, int] = {}
        for offset, commit in enumerate(committed):
            if (key := commit.row.key) is not None:
                before = self.last.get(key)
                if before is not None:
                    self._next[before] = offset
                self.last[key] = offset

    def superseded_by(self, offset: int, told_ms: float) -> int | None:
        """The next record of its key, if it was committed by then."""
        following = self._next[offset]
        if following is None or self._committed[following].at_ms > told_ms:
            return None
        return following


def require_served(
    committed: Committed, step: Step, rules: Rules, keys: Keys | None = None
) -> None:
    """See the module."""
    keys = keys or Keys(committed)
    position = step.begin
    for offset, row in step.rows:
        assert position <= offset < step.end, (
            f"I14: {offset} was served in [{step.begin}, {step.end}) behind {position}"
        )
        assert offset < len(committed), f"I27: {offset} is served, and nobody committed it"
        truth = committed[offset]
        assert row == truth.row, f"I33: at {offset} is served {row}, and committed {truth.row}"
        assert truth.at_ms <= step.told_ms, f"I27: {offset} was served before it was readable"
        position = offset + 1
    assert step.end <= len(committed), f"I14: a reader stands at {step.end} of {len(committed)}"
    given = {offset for offset, _ in step.rows}
    for offset in range(max(step.begin, step.deleted_below), step.end):
        if offset not in given:
            wrong = _why_not(committed, offset, step.told_ms, rules, keys)
            assert wrong is None, f"I33: {offset} is missing at {step.told_ms:.0f} ms: {wrong}"


def _why_not(
    committed: Committed, offset: int, told_ms: float, rules: Rules, keys: Keys
) -> str | None:
    """Why a record may not be missing, in words; None: it may."""
    commit = committed[offset]
    if commit.row.key is None:
        return "it has no key"
    if keys.superseded_by(offset, told_ms - rules.min_lag_ms) is not None:
        return None
    if not commit.is_tombstone:
        return f"it is the last value of {commit.row.key!r}"
    if commit.at_ms + rules.delete_retention_ms > told_ms:
        return f"it is a tombstone that became readable at {commit.at_ms:.0f} ms"
    return None


def require_followed(
    committed: Committed, scan: Scan, rules: Rules, keys: Keys | None = None
) -> None:
    """See the module."""
    keys = keys or Keys(committed)
    # Of each key the value that the reader has: where it stands, and since when he may have it.
    has: dict[bytes, tuple[int, float]] = {}
    for number, step in enumerate(scan):
        assert number == 0 or step.begin == scan[number - 1].end, "a scan goes on where it stood"
        given = dict(step.rows)
        for offset in range(step.begin, step.end):
            commit = committed[offset]
            if (key := commit.row.key) is None:
                continue
            if offset in given:
                if commit.is_tombstone:
                    has.pop(key, None)
                else:
                    has[key] = offset, step.asked_ms
            elif commit.is_tombstone and key in has and offset >= step.deleted_below:
                seen, since_ms = has[key]
                # A later record of the key is still to come, and says more.
                is_owed = keys.superseded_by(offset, step.told_ms) is not None
                assert is_owed or step.told_ms - since_ms >= rules.delete_retention_ms, (
                    f"I33: a reader that was given {seen} of {key!r} after {since_ms:.0f} ms was "
                    f"not told at {step.told_ms:.0f} ms that {offset} removed it"
                )


def require_held(committed: Committed, held: Held) -> None:
    """See the module."""
    keys = Keys(committed)
    for offset, row in held.rows.items():
        assert held.begin <= offset < held.end, f"{offset} is outside of its log"
        truth = committed[offset].row
        assert row == truth, f"I33: at {offset} stands {row}, and committed is {truth}"
    below = max(held.begin, min(held.compacted_to, held.end))
    # Tombstones may be gone that the note names: it is written before the pass is through.
    wanted = staying(committed, held.begin, below, held.begin)
    for offset in range(held.begin, held.end):
        if offset in held.rows:
            # A pass that was not finished took out some of what it would have.
            assert offset >= below or offset in wanted, (
                f"I33: {offset} of {committed[offset].row.key!r} is superseded below {below}, and "
                "stands there yet"
            )
            assert offset >= held.dropped_to or not committed[offset].is_tombstone, (
                f"I33: tombstones below {held.dropped_to} are gone, and {offset} stands there yet"
            )
            continue
        commit = committed[offset]
        assert commit.row.key is not None, f"I33: {offset} has no key, and is missing"
        following = keys.superseded_by(offset, float("inf"))
        is_superseded = following is not None and following < held.holes_below
        is_gone = commit.is_tombstone and offset < held.tombstones_to
        assert is_superseded or is_gone, (
            f"I33: {offset} of {commit.row.key!r} is missing, and nothing below "
            f"{held.holes_below} superseded it"
        )
        assert is_superseded or following is None or following >= held.holes_below, "as it says"


def require_alike(committed: Committed, replicas: Sequence[Held]) -> None:
    """Where they are cleaned to the same, they are equal; else they say the same of each key."""
    if not replicas:
        return
    first = replicas[0]
    start = max(held.begin for held in replicas)
    for held in replicas[1:]:
        if _state(held) == _state(first):
            assert held.rows == first.rows, "I33: two replicas are cleaned alike, and differ"
    for held in replicas:
        require_latest(committed[: held.end], sorted(held.rows.items()), start)


def _state(held: Held) -> tuple[int, ...]:
    """What its content follows from, where no pass is unfinished."""
    is_whole = held.holes_below <= held.compacted_to and held.dropped_to == held.tombstones_to
    return (*held[:2], *held[3:]) if is_whole else (-1, id(held))


def require_latest(
    committed: Committed, rows: Iterable[tuple[int, Row]], start: int = 0, end: int | None = None
) -> dict[bytes, bytes]:
    """See the module. `start`: what is below is deleted. `end`: where the scan ended; of keys that
    were written behind it, it may have anything. Returns the last values."""
    latest: dict[bytes, int] = {}
    for offset, row in rows:
        if row.key is not None:
            latest[row.key] = offset
    table: dict[bytes, bytes] = {}
    for key, last in Keys(committed).last.items():
        if last < start or (end is not None and last >= end):
            continue
        commit, found = committed[last], latest.get(key)
        if commit.row.value is not None:
            assert found == last, f"I33: the last value of {key!r} is at {last}, found {found}"
            table[key] = commit.row.value
        else:
            assert found in (None, last), f"I33: {key!r} was removed at {last}, found {found}"
    return table


def require_table(
    committed: Committed, table: Mapping[bytes, bytes | None], start: int = 0
) -> None:
    """Of who keeps the last values: a dictionary that follows the topic."""
    for key, last in Keys(committed).last.items():
        if last >= start:
            wanted, found = committed[last].row.value, table.get(key)
            assert found == wanted, f"I33: the table has {found!r} of {key!r}, and not {wanted!r}"
