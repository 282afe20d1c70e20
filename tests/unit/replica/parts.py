"""What the explorer's world is made of: logs on disks, processes, and how often what may happen.

Everything here is copied before it is changed (`World`), so its key is made once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from oncelog_server.core.ids import Incarnation
from oncelog_server.runtime.leadership.rules import History
from oncelog_server.runtime.replica.follower import Follower
from oncelog_server.runtime.replica.following import Following
from oncelog_server.runtime.replica.in_sync import InSync
from oncelog_server.runtime.storage.keeping import Allowance


class Violation(AssertionError):
    """A promise is broken in this state."""


class Entry(NamedTuple):
    """A frame."""

    epoch: int
    # 0 for an EPOCH_START; every record that is appended has a number of its own.
    value: int


@dataclass(frozen=True)
class Rules:
    """What the world around the pure classes does; all of it holds in the product."""

    # A process reads the partition's key with a linearizable read before it follows.
    reads_before_it_follows: bool = True
    # A restarted process has a new boot id.
    restart_ends_the_epoch: bool = True
    # What was led is compared with etcd before a new lease counts.
    new_lease_is_checked: bool = True
    # Who lost what it had synced takes a new incarnation, a fresh one each time.
    damage_takes_an_incarnation: bool = True
    incarnations_are_fresh: bool = True
    # What recovery compares with is the own synced end, not the HW.
    synced_end_is_own: bool = True
    # A cut is durable before the next frame is written.
    cuts_are_synced: bool = True
    # A compare-and-set compares the key's revision, not its value.
    revisions_are_compared: bool = True
    # A leader whose sync failed leads that epoch no more.
    failed_sync_resigns: bool = True


class Bounds(NamedTuple):
    """How often what may happen. What is not named here happens any number of times."""

    elections: int = 2
    appends: int = 2
    changes: int = 2
    crashes: int = 1
    # Of the crashes: the last synced entry is lost, or everything.
    rots: int = 0
    wipes: int = 0
    failed_syncs: int = 0
    lapses: int = 0
    # `oncelog cluster recover`, each time with two replicas.
    recoveries: int = 0


class Log:
    """A replica's journal on its disk. `LogEnds`, as the dialogs read it."""

    __slots__ = ("_key", "behind", "entries", "incarnation", "noted", "synced_end")

    log_start = 0
    allowed = Allowance()

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        self.entries: tuple[Entry, ...] = ()
        self.synced_end = 0
        # What stands on the disk behind `synced_end`, of a cut that was not synced.
        self.behind: tuple[Entry, ...] = ()
        self._key: tuple[Any, ...] | None = None

    @property
    def log_end(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else 0

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        end = sum(entry.epoch <= epoch for entry in self.entries)
        return (self.entries[end - 1].epoch, end) if end else (0, 0)

    def copy(self) -> Log:
        other = Log(self.incarnation)
        other.entries, other.synced_end, other.behind = self.entries, self.synced_end, self.behind
        return other

    def append(self, entry: Entry) -> None:
        assert entry.epoch >= self.last_epoch, "epochs never go down"
        self.entries += (entry,)

    def sync(self) -> None:
        written = len(self.entries) - self.synced_end
        self.synced_end = len(self.entries)
        self.behind = self.behind[written:]

    def cut(self, end: int, *, synced: bool) -> None:
        if not synced:
            self.behind = self.entries[end : self.synced_end] + self.behind
        self.entries = self.entries[:end]
        self.synced_end = min(self.synced_end, end)

    def recover(self, kept: int) -> None:
        """As a process finds it after a crash that left so many entries: with what stands behind
        them, where that looks like their continuation."""
        behind = self.behind if kept == self.synced_end else ()
        self.entries = self.entries[:kept]
        for entry in behind:
            if entry.epoch >= self.last_epoch:
                self.entries += (entry,)
        self.behind = ()
        self.synced_end = len(self.entries)

    def key(self) -> tuple[Any, ...]:
        if self._key is None:
            self._key = (self.incarnation, self.entries, self.synced_end, self.behind)
        return self._key


class Process:
    """One run of a process on a node."""

    __slots__ = (
        "_key",
        "boot",
        "following",
        "high_watermark",
        "in_sync",
        "leader_boot",
        "lease_valid",
        "past",
        "supply",
    )

    def __init__(self, boot: str, past: History) -> None:
        self.boot = boot
        self.past = past
        self.lease_valid = True
        # Where it leads.
        self.in_sync: InSync | None = None
        # Where it follows: its side of the dialog, its leader's, and that one's boot.
        self.following: Following | None = None
        self.supply: Follower | None = None
        self.leader_boot = ""
        self.high_watermark = 0
        self._key: tuple[Any, ...] | None = None

    @property
    def known_high_watermark(self) -> int:
        if self.in_sync is not None:
            return self.in_sync.high_watermark
        if self.following is not None:
            return self.following.high_watermark
        return self.high_watermark

    def copy(self) -> Process:
        other = Process(self.boot, replace(self.past))
        other.lease_valid, other.leader_boot = self.lease_valid, self.leader_boot
        other.high_watermark = self.high_watermark
        if self.in_sync is not None:
            other.in_sync = copy_of(self.in_sync)
        if self.following is not None and self.supply is not None:
            other.following = _shallow(self.following)
            other.supply = _shallow(self.supply)
            other.supply._on_the_way = self.supply._on_the_way.copy()
            other.supply._stream = _shallow(self.supply._stream)
            other.supply._catch_up = _shallow(self.supply._catch_up)
        return other

    def key(self) -> tuple[Any, ...]:
        if self._key is None:
            past, following, supply = self.past, self.following, self.supply
            self._key = (
                self.boot,
                self.lease_valid,
                self.high_watermark,
                (past.led_epoch, past.left_epoch, past.seen_epoch, past.seen_revision),
                self.in_sync and in_sync_key(self.in_sync),
                following and (following.epoch, following.phase.value, following.high_watermark),
                supply and (self.leader_boot, supply._next),
            )
        return self._key


def _shallow(thing: Any) -> Any:
    other = thing.__class__.__new__(thing.__class__)
    other.__dict__.update(thing.__dict__)
    return other


def copy_of(in_sync: InSync) -> InSync:
    other: InSync = _shallow(in_sync)
    other._progress = dict(in_sync._progress)
    other._newest = dict(in_sync._newest)
    other._speaking, other._level = set(in_sync._speaking), dict(in_sync._level)
    other._silent_since_ms = dict(in_sync._silent_since_ms)
    other._hw = _shallow(in_sync._hw)
    other._hw._synced = dict(in_sync._hw._synced)
    return other


def in_sync_key(book: InSync) -> tuple[Any, ...]:
    return (
        book.epoch,
        tuple(sorted(book.isr)),
        book.revision,
        tuple(sorted((who, p.node, p.synced_end) for who, p in book._progress.items())),
        tuple(sorted(book._newest.items())),
        tuple(sorted((tuple(sorted(c.isr)), c.compared_revision) for c in book.in_flight)),
        book._own_end,
        book.high_watermark,
    )
