"""When the front of a replica's log goes, a step at a time (docs/adr/0068). The steps themselves
are the journal's.

    a snapshot stood, or TRIM_EVERY_MS passed ──► 1 prepared ──► 2 moved ──► noted ──► 3 removed
                ▲                                  │ a follower still reads it, the disk fails
                └──────────── later ◄──────────────┘

Leader and follower do the same, each for itself: what may go follows from what their machines
applied, and that is said by each snapshot, and by the leader's machine as of the high watermark.

Invariants:
  * what is said to be unneeded was said of a state below the high watermark, and where that stood
    is noted with the start that rests on it;
  * one step runs at a time, and none beside a snapshot that is written, or a log that is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oncelog_server.core import failpoints
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Needs
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb.errors import CorruptLog

# Between two moves of a log start. A move reads the snapshot and its tables once, so it waits for
# as many times as long as that took, too.
TRIM_EVERY_MS: Final = 10_000
TRIM_REST_FACTOR: Final = 50
# So many bytes that could go are worth a segment or a snapshot of their own; of small segments, a
# quarter of one.
WORTH_BYTES: Final = 16 << 20
# Between two of these: a busy log gets both by itself.
MAKE_ROOM_EVERY_MS: Final = 60_000


def _nobody(start: int) -> str:
    return ""


class Trimming:
    """Of one leadership, or one followership."""

    def __init__(
        self,
        partition: PartitionId,
        journal: Journal,
        around: ReplicaEnv,
        *,
        held_by: Callable[[int], str] = _nobody,
    ) -> None:
        """`held_by`: which node still reads what would be before a log start; "": none."""
        self._partition = partition
        self._journal = journal
        self._around = around
        self._held_by = held_by
        # Of the newest state below the high watermark that said it; None: not read yet.
        self._needs: Needs | None = None
        # Where that state stood of which its `needed_from` is.
        self._said_at = 0
        # What the leader's machine says, and the log end at which it did.
        self._sample: tuple[int, Needs] | None = None
        # What is not readable yet needs nothing below, and all else is settled; and where the
        # newest snapshot stood that something was settled from.
        self._settled, self._settled_at = Needs(), 0
        self._not_before_ms = self._no_room_before_ms = 0
        # Node of a follower that holds the log start where it is; "": none does.
        self.held_by = ""

    @property
    def needs(self) -> Needs:
        said = self._needs or Needs()
        if self._settled_at > self._journal.synced_end:
            # Blocks of another replica came with more than has come of the journal.
            return said
        return Needs(*(max(pair) for pair in zip(said, self._settled, strict=True)))

    @property
    def wants_sample(self) -> bool:
        return self._sample is None

    def sampled(self, log_end: int, needs: Needs) -> None:
        """By the machine that leads; it counts once the high watermark has passed `log_end`."""
        self._sample = (log_end, needs)

    def covered(self, high_watermark: int) -> None:
        if self._sample is not None and self._sample[0] <= high_watermark:
            self._learned(*self._sample)
            self._sample = None

    def settled(self, said_at: int, needed_from: int) -> None:
        """What was readable at a snapshot stands in the data log, so frames below are read no more,
        as long as all is left that was settled: from snapshots at `said_at` and before."""
        self._settled_at, self._settled = said_at, Needs(needed_from, needed_from)

    @property
    def _allowed_at(self) -> int:
        """Where the state stood of which `needed_from` is."""
        said = self._needs or Needs()
        return self._said_at if said.needed_from >= self.needs.needed_from else self._settled_at

    def _learned(self, said_at: int, needs: Needs) -> None:
        old = self._needs or Needs()
        if needs.needed_from > old.needed_from:
            self._said_at = said_at
        self._needs = Needs(*(max(pair) for pair in zip(old, needs, strict=True)))
        self._journal.slots.let_go(needs.slots_from)

    def begin_anew(self) -> None:
        """The journal was cut, or is another one: what its snapshots said may have gone with them.
        Not beside a step."""
        self._needs = self._sample = None
        self._settled, self._said_at, self._settled_at = Needs(), 0, 0

    def begun(self) -> None:
        """Its replica leads: until that ends no other log, with snapshots, comes in the place of
        this one."""
        if not self._journal.snapshots.offsets:
            self._needs = Needs()

    # ------------------------------------------------------------------------------ what is due

    @property
    def is_due(self) -> bool:
        """`step` has something to do."""
        if self._journal.has_old_front:
            return self._journal.start_is_durable and self._may_try
        may_move = self._needs is None or self._next_start() is not None
        return self._may_try and (may_move or self._journal.slots.have_gone)

    @property
    def is_waiting(self) -> bool:
        """For its turn, or for a note: whoever is quiet goes on being asked."""
        has_gone = self._journal.has_old_front or self._journal.slots.have_gone
        return has_gone or self._next_start() is not None

    @property
    def _may_try(self) -> bool:
        return self._now_ms() >= self._not_before_ms

    def _next_start(self) -> int | None:
        return self._journal.next_log_start(
            self.needs, wanted_bytes_max=self._around.control_journal_bytes_max
        )

    @property
    def worth_bytes(self) -> int:
        return min(WORTH_BYTES, self._journal.segment_bytes // 4)

    def makes_room(self) -> bool:
        """Where a log grows slowly, or no more: begins a file, behind which all could go, or says
        that a snapshot would be of use. True: it would."""
        if self._now_ms() < self._no_room_before_ms:
            return False
        if not (self.roll() or self._wants_snapshot()):
            return False
        self._no_room_before_ms = self._now_ms() + MAKE_ROOM_EVERY_MS
        return True

    def roll(self) -> bool:
        """Where what could go lies in the file that still grows, the next frame begins another.
        True: it does, and a snapshot there would be of use."""
        journal = self._journal
        first = max(journal.first_offset_of_active, journal.log_start)
        gone_to = min(self.needs.wanted_from, journal.log_end)
        if gone_to <= first or self._bytes(first, gone_to) < self.worth_bytes:
            return False
        journal.roll()
        return True

    def _wants_snapshot(self) -> bool:
        """Its log could begin much later, were there one: what is gone has its own, and that is
        old."""
        behind = max(self._journal.snapshot_offset, self._journal.log_start)
        gone_to = self.needs.wanted_from
        return gone_to > behind and self._bytes(behind, gone_to) >= self.worth_bytes

    def _bytes(self, start: int, end: int) -> int:
        """An index knows places every so often only, and a small log has none but its ends."""
        journal = self._journal
        if end >= journal.log_end:
            return journal.bytes_from(start)
        return journal.bytes_between(start, end)

    # ---------------------------------------------------------------------------------- the steps

    async def step(self) -> None:
        """Whatever it meets, it is tried again later: nothing is lost, and the disk is fuller."""
        began_ms = self._now_ms()
        try:
            if self._journal.has_old_front:
                await self._remove()
            elif self._journal.slots.have_gone:
                await self._around.offload(self._journal.slots.remove_gone)
            else:
                await self._move()
        except (OSError, CorruptLog) as error:
            self._not_before_ms = self._now_ms() + TRIM_EVERY_MS
            self._around.reporter.event(
                "log not trimmed, trying again",
                level="warning",
                partition=str(self._partition),
                error=str(error),
            )
        else:
            took_ms = self._now_ms() - began_ms
            self._not_before_ms = self._now_ms() + TRIM_REST_FACTOR * took_ms

    async def _move(self) -> None:
        journal = self._journal
        if self._needs is None:
            found: list[tuple[int, Needs]] = []
            await self._around.offload(lambda: found.append(journal.snapshots.needs()))
            self._learned(*found[0])
        start = self._next_start()
        if start is None:
            return
        self.held_by = self._held_by(start)
        if self.held_by:
            return
        failpoints.reach("driver.trim_index.before")
        first = journal.index_before_start(start)
        await self._around.offload(lambda: journal.prepare_start(start, first))
        failpoints.reach("driver.trim_index.after")
        was = journal.log_start
        failpoints.reach("driver.trim_note.before")
        # It was not alone while the thread ran.
        if journal.move_start(start, allowed_at=self._allowed_at):
            self._around.reporter.count("trims")
            self._around.reporter.event(
                "log begins later", partition=str(self._partition), was=was, log_start=start
            )

    async def _remove(self) -> None:
        journal = self._journal
        failpoints.reach("driver.trim_note.after")
        failpoints.reach("driver.trim_remove.before")
        journal.retire_front()
        await self._around.offload(journal.remove_front)
        failpoints.reach("driver.trim_remove.after")

    def snapshot_stood(self, offset: int, needs: Needs) -> None:
        """It holds only what is below the high watermark."""
        self._learned(offset, needs)

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms
