"""The one shape: a role is a deterministic machine over a replicated log.

    decide(command, now) -> Decision   reads state, changes nothing at all
    apply(record, at)     the only mutator of replicated state: live, at recovery, on followers
    seen(signal, now)     the only mutator of volatile state (timers, signs of life), never
                          replicated, dropped at step-down, outside I35
    owed(below)           from state alone: what is still to be done outside, as far as it was
                          decided below the high watermark
    snapshot(rows_saved)  from state alone: as bytes
    needed_from(), wanted_from(), slots_from()
                          from state alone: which frames and slots are read again
    settled()             from state alone: what of its committed log could be settled
    check()               asserts every invariant; called after each step of every test

What is refused is a Decision, too: an exception out of `decide` is a bug. That nothing changes a
machine but apply, seen and restore is looked at in tests, attribute by attribute
(tests/golden/unchanged.py, docs/adr/0036).

The driver runs decide and apply in one event-loop turn with no await between them. Replies,
refusals and outside work wait until the high watermark covers what they were decided on. Sets are
iterated through sorted() only: replay must give the same state in every process (I35).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from oncelog_server.core.frame import At, Frame
from oncelog_server.core.ids import JournalOffset
from oncelogpb.errors import OncelogError

C = TypeVar("C")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741
C_contra = TypeVar("C_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)


class Instant(NamedTuple):
    """A moment, given to a machine as an argument."""

    # Never goes back; for timers.
    monotonic_ms: int
    # Since the Unix epoch; for what people read.
    wall_ms: int


class Decision(NamedTuple, Generic[R]):
    """What a command leads to: records to remember and a reply to say.

    A reply that is an OncelogError is a refusal; it is raised to the caller once durable. A refusal
    may have records all the same (an InitProducer that must first decide an open transaction has).
    """

    records: Sequence[R] = ()
    reply: object = None


def refuse(error: OncelogError) -> Decision[R]:
    """A decision that changes nothing and says no."""
    return Decision((), error)


class EpochStart(msgspec.Struct, frozen=True):
    """Every machine's `apply` sees this at the first frame of a leader epoch (at.epoch)."""


class Tick(msgspec.Struct, frozen=True):
    """Time passed: every `tick_ms`, a signal and then a command; at rest when the machine wants one
    (`rests_ms`). `seen` turns the timers, `decide` ends what is due."""


# Whoever wants no Tick gets one after so long all the same.
REST_MS_MAX: Final = 60_000
REST_SHARE: Final = 16


class Table(NamedTuple):
    """Rows of fixed size, added behind and let go of in front, kept beside the snapshot so that it
    stays small. A row keeps its number."""

    row_bytes: int
    # Number of the first row in `rows`: those before it were saved already.
    first_row: int
    rows: bytes
    # Rows before this number are nothing to the state any more. It never goes back.
    begin_row: int = 0


class Needs(NamedTuple):
    """What a machine says of the front of its log: see Machine, whose methods these are."""

    needed_from: int = 0
    wanted_from: int = 0
    slots_from: int = 0


class Compaction(NamedTuple):
    """What a state says of the compaction of its committed log (docs/adr/0074). Neither point ever
    goes back."""

    # The topic's settings ask for it.
    wanted: bool = False
    # What became readable less than this ago is not compacted yet.
    min_lag_ms: int = 0
    # Committed offset: below it nothing is served that is superseded below it.
    compacted_below: int = 0
    # Committed offset, at most `compacted_below`: tombstones below it may go.
    tombstones_below: int = 0


class Settled(NamedTuple):
    """What a state says of its committed log, for whoever settles it (docs/adr/0073). All of it
    became readable below the journal offset of that state. None of its offsets ever goes back."""

    # Committed offset: everything below is deleted.
    begin: int = 0
    # Committed offset behind the last record.
    end: int = 0
    # Journal offset: frames from here on are read again for what is not readable yet.
    pending_from: int = 0
    # The topic's settings ask for it.
    wanted: bool = False
    compaction: Compaction = Compaction()
    # They leave it to each replica, which settles what is worth it.
    auto: bool = False
    # What is readable is deleted so soon that copying it is not worth it.
    short_lived: bool = False


class Snapshot(NamedTuple):
    """The state that `apply` built, as bytes. The driver writes it once the HW has passed it."""

    state: bytes
    tables: Mapping[str, Table]
    # As of this state; the driver asks the machine.
    needs: Needs = Needs()
    # Of the last frame below it, as the driver knows it: those behind have no earlier time. 0: not
    # known.
    time_ms: int = 0
    # As of this state; the driver asks the machine. None: there is no committed log.
    settled: Settled | None = None


# A snapshot is whole by itself.
NOTHING_SAVED: Final[Mapping[str, int]] = MappingProxyType({})


class Machine(Protocol[C_contra, R, O_co]):
    """See the module."""

    @property
    def next_offset(self) -> JournalOffset:
        """Journal offset that the next record will get: apply keeps it (at.offset + span)."""
        ...

    def decide(self, command: C_contra, now: Instant) -> Decision[R]:
        """Raises nothing."""
        ...

    def apply(self, record: R | EpochStart, at: At) -> None: ...

    def seen(self, signal: object, now: Instant) -> None: ...

    def owed(self, below: JournalOffset) -> Sequence[O_co]: ...

    @property
    def rests_ms(self) -> int:
        """For how long a Tick has nothing to do, from one at which nothing was due, unless a
        command or another signal comes before. 0: something runs, and each Tick is wanted. What
        expires in minutes may wait for REST_MS_MAX."""
        ...

    def check(self) -> None: ...

    def snapshot(self, rows_saved: Mapping[str, int] = NOTHING_SAVED) -> Snapshot:
        """`rows_saved`: by table, the number behind the last row that is on disk already; those
        before it are left out."""
        ...

    def restore(self, state: bytes, tables: Mapping[str, bytes]) -> None:
        """Loads what `snapshot` gave; `tables` hold all rows from `begin_row` on."""
        ...

    # What may go at the front of the log follows from what was applied, and from nothing else, so
    # every replica may let go of the same. None of these ever goes back (docs/adr/0068).

    def needed_from(self) -> JournalOffset:
        """Frames from here on are read again, whatever happens; at most `next_offset`."""
        ...

    def wanted_from(self) -> JournalOffset:
        """Frames from here on are worth keeping while there is room; at most `needed_from`."""
        ...

    def slots_from(self) -> JournalOffset:
        """Nobody asks for the slots of journal offsets below; at most `next_offset`."""
        ...

    def settled(self) -> Settled | None:
        """None: it has no committed log."""
        ...


def needs_of(machine: Machine[Any, Any, Any]) -> Needs:
    """Of the state that it has."""
    needs = Needs(machine.needed_from(), machine.wanted_from(), machine.slots_from())
    assert needs.wanted_from <= needs.needed_from <= machine.next_offset, "see Machine"
    return needs


def rest_ms(*expires_ms: int) -> int:
    """For how long a machine may rest of which nothing expires sooner than after so long: what does
    is a sixteenth late at most."""
    return min(min(expires_ms) // REST_SHARE, REST_MS_MAX)


class Codec(Protocol[R]):
    """A role's records as frames and back. encode(decode(f)) == f is a property under test."""

    def encode(self, record: R) -> Frame: ...

    def decode(self, frame: Frame) -> R: ...


class Projection(Protocol[R_contra]):
    """Sees every record once the HW covers it, in order, and keeps what the machine does not
    (outcomes of ended transactions). Idempotent: recovery shows it records again."""

    def project(self, record: R_contra, at: At) -> None: ...
