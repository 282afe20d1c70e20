"""Copies what is readable of a committed log into the replica's data log, a step at a time
(docs/adr/0073). Leader and follower do the same, each for itself, without a machine:

    a snapshot stood ──► its rows, from the settled end on ──► their frames ──► blocks ──► noted
                           ▲                                                                │
                           └── until all is settled that was readable at the snapshot ◄─────┘

What was readable at a snapshot and is settled needs no journal any more: `trimming` is told so.
Where the topic leaves it to the replica (`auto`), each snapshot that stood is weighed first.

Invariants:
  * only what a snapshot that stands counts is settled: it is below the high watermark (I27);
  * one step runs at a time, and none beside a snapshot that is written, a front that goes, or a log
    that is cut: so what it reads stays where it is;
  * memory holds one step at most, of which a process has SETTLING_AT_ONCE;
  * who writes and who reads never waits for it. What it meets it tries again later.

Left out: which rows lie where, and how units become a block (`core/settling`, the roles); what is
worth it (`settling_worth`); files and their recovery (`storage/data_log`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from oncelog_server.core import failpoints
from oncelog_server.core.block import Block
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Compaction, Settled
from oncelog_server.core.settling import BLOCK_BYTES, Settler, Weight
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.holes import find_hole
from oncelog_server.runtime.replica.settling_source import Source, Standing, Units, in_slices
from oncelog_server.runtime.replica.settling_worth import LEAST_BATCHES, SMALL_BYTES, Worth
from oncelog_server.runtime.replica.trimming import Trimming
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb.errors import CorruptLog, OffsetOutOfRange, OncelogError

# After a step, so many times as long as it took nothing is settled: others need the machine too.
REST_FACTOR: Final = 1
# What the data log takes is measured no more often.
MEASURED_EVERY_MS: Final = 60_000
# What failed is tried again after so long.
AGAIN_MS: Final = 10_000
DAMAGED_AGAIN_MS: Final = 60_000
# Snapshots that stood and of which something is not settled: so many are known.
STANDING_MAX: Final = 64
# A log that grows slowly gets a snapshot for what is not settled: after the first time, where that
# is worth it, after the second in any case.
SNAPSHOT_AFTER_MS: Final = 60_000
SNAPSHOT_WORTH_BYTES: Final = 1 << 20
SNAPSHOT_AT_LAST_MS: Final = 600_000


class Settling:
    """Of one leadership, or one followership. Whoever made it calls `step` by turns with what else
    touches the log, and at last `drop`."""

    def __init__(
        self,
        partition: PartitionId,
        settler: Settler | None,
        journal: Journal,
        around: ReplicaEnv,
        trimming: Trimming,
        *,
        found_damage: Callable[[CorruptLog], None],
        again: Callable[[], None],
        holes_are_damage: bool = False,
    ) -> None:
        """`settler`: None where there is no committed log. `found_damage`: what is synced cannot be
        read here. `again`: a step is to be tried, there is a place. `holes_are_damage`: no unclean
        election made one, so others have what lacks."""
        self._partition = partition
        self._settler = settler
        self._journal = journal
        self._data = journal.data
        self._around = around
        self._trimming = trimming
        self._found_damage = found_damage
        self._again = again
        self._holes_are_damage = holes_are_damage
        # Snapshots that stand, ascending; those of which all is settled are left out, but the
        # newest. None: not looked at yet.
        self._standing: list[Standing] | None = None if settler is not None else []
        self._source: Source | None = None
        self._not_before_ms = 0
        self._worth = Worth(settles=self._data.settled_end > 0)
        # Offset of the snapshot that was weighed last.
        self._weighed: int | None = None
        self._has_looked_for_hole = False
        # Records that were settled, and are nowhere, as far as that was found.
        self._missing = 0
        # Why nothing is settled, as operators were told; "": nothing is in its way.
        self.why_waits = ""
        # Journal offset of the newest snapshot of which all is settled.
        self.reached_at = 0
        # When the files were measured last.
        self._measured_ms: int | None = None
        # Since when something is in no snapshot, and which was the newest then.
        self._uncounted: tuple[int, int] | None = None

    # ------------------------------------------------------------------------------ what is due

    @property
    def is_due(self) -> bool:
        """`step` has something to do."""
        return self.is_waiting and self._now_ms() >= self._not_before_ms

    @property
    def is_waiting(self) -> bool:
        """There is something to do, once it is its turn: whoever is quiet goes on being asked."""
        if self._standing is None or self._begins_too_late or self._may_look_for_hole:
            return True
        return self._is_unweighed or self._has_deleted or self._is_behind

    @property
    def waits_for_snapshot(self) -> bool:
        """As `lacks_snapshot` was asked last: the newest one counts less than there is."""
        return self._uncounted is not None

    @property
    def has_looked(self) -> bool:
        """It knows which snapshots stand."""
        return self._standing is not None

    @property
    def counted(self) -> Settled | None:
        """What the newest snapshot that is known to stand says."""
        return None if self._newest is None else self._newest.settled

    @property
    def counted_at(self) -> int | None:
        """Journal offset of that snapshot."""
        return None if self._newest is None else self._newest.offset

    def decided(self, settled: Settled) -> Settled:
        """What this replica makes of what a state says: `wanted` where it settles."""
        return settled._replace(wanted=self._worth.wants(settled))

    @property
    def mean_bytes(self) -> int:
        """Payload of a batch that was not settled at the newest snapshot that was weighed; 0: none
        was, or the settings say what is settled."""
        return self._worth.mean_bytes

    def why(self, settled: Settled) -> str:
        """Why it settles or does not, where the topic leaves it to the replica; else ""."""
        return self._worth.why(settled)

    @property
    def _newest(self) -> Standing | None:
        return self._standing[-1] if self._standing else None

    @property
    def _is_unweighed(self) -> bool:
        newest = self._newest
        if newest is None or newest.settled.wanted or newest.settled.short_lived:
            return False
        return newest.settled.auto and newest.offset != self._weighed

    @property
    def _is_behind(self) -> bool:
        newest = self._newest
        if newest is None:
            return False
        settled = newest.settled
        return max(self._data.settled_end, settled.begin) < self._wanted_end(settled)

    def _wanted_end(self, settled: Settled) -> int:
        """Where settling ends. What lies below the point to which a leader has compacted must stand
        in blocks, whatever is wanted now: who leads serves it as far as it is compacted there."""
        if self._worth.wants(settled):
            return settled.end
        return min(settled.end, settled.compaction.compacted_below)

    @property
    def _begins_too_late(self) -> bool:
        """A later state begins before the one does by which the data log begins where it does: that
        one was taken back by an unclean election."""
        newest, data = self._newest, self._data
        if newest is None or newest.offset < data.begun_at:
            return False
        return newest.settled.begin < data.begin

    @property
    def _has_deleted(self) -> bool:
        newest = self._newest
        if newest is None:
            return False
        return self._passes_over(newest.settled) or self._data.goes_before(newest.settled.begin)

    def _passes_over(self, settled: Settled) -> bool:
        """What was deleted before it was settled is never settled."""
        return self._worth.wants(settled) and self._data.settled_end < settled.begin

    def snapshot_stood(self, offset: int, settled: Settled | None) -> None:
        """It holds only what is below the high watermark."""
        if self._standing is None or settled is None:
            # What is looked at later includes it.
            return
        self._worth.follow(settled)
        if not self._worth.wants(settled):
            self._standing = []
        self._standing.append(Standing(offset, settled))
        if len(self._standing) > STANDING_MAX:
            # The older ones say less, the newest ones are reached last.
            del self._standing[1 : STANDING_MAX // 2]
        self._tell_trimming()

    def lacks_snapshot(self, *, has_uncounted: bool) -> bool:
        """A log that grows slowly should get one, so that what is readable is settled in the end.
        `has_uncounted`: there is something to settle that the newest one does not count."""
        newest = self._journal.snapshot_offset
        if not has_uncounted:
            self._uncounted = None
            return False
        if self._uncounted is None or self._uncounted[1] != newest:
            self._uncounted = (self._now_ms(), newest)
        waited_ms = self._now_ms() - self._uncounted[0]
        if waited_ms < SNAPSHOT_AFTER_MS:
            return False
        is_worth_it = self._journal.bytes_from(newest) >= SNAPSHOT_WORTH_BYTES
        return is_worth_it or waited_ms >= SNAPSHOT_AT_LAST_MS

    def is_uncounted(self, settled: Settled | None) -> bool:
        """Whether the leader's machine has something to settle that the newest snapshot does not
        count, or has deleted what still takes files, or lets tombstones go that are here."""
        if settled is None:
            return False
        if self._data.goes_before(settled.begin):
            return True
        if self._lets_tombstones_go(settled.compaction):
            return True
        if not self._worth.wants(settled):
            return self.may_be_worth_it(settled)
        newest = self._newest
        is_counted = newest is not None and self._worth.wants(newest.settled)
        counted = newest.settled.end if newest is not None and is_counted else 0
        return max(counted, self._data.settled_end, settled.begin) < settled.end

    def _lets_tombstones_go(self, says: Compaction) -> bool:
        """Which the newest snapshot does not say: a replica drops them by what that says."""
        counted = Compaction() if self.counted is None else self.counted.compaction
        gone_to = max(counted.tombstones_below, self._data.cleanness.dropped_to)
        return says.wanted and gone_to < says.tombstones_below

    def may_be_worth_it(self, settled: Settled) -> bool:
        """What came since the newest snapshot looks like something that `auto` settles."""
        if settled.short_lived or not settled.auto:
            return False
        frames = self._journal.frames_since_snapshot
        if frames < LEAST_BATCHES:
            return False
        return self._journal.bytes_from(self._journal.snapshot_offset) < frames * SMALL_BYTES

    def begin_anew(self) -> None:
        """The journal was cut, or is another one: what its snapshots said may have gone with them.
        Not beside a step."""
        self._standing = None if self._settler is not None else []
        self._source = self._weighed = self._uncounted = None
        self._worth = Worth(settles=self._data.settled_end > 0)
        self.reached_at = 0

    def begun(self) -> None:
        """Its replica leads: until that ends no other log, with snapshots, comes in the place of
        this one."""
        if not self._journal.snapshots.offsets:
            self._standing = []

    # ------------------------------------------------------------------------------------ a step

    async def step(self) -> bool:
        """Whatever it meets, it is tried again later: nothing is lost, and the journal goes later.
        False: there is nothing to do now."""
        if not self.is_due:
            return False
        if self._standing is None and not self._journal.snapshots.offsets:
            # Nothing is to be read: thousands need not wait for each other.
            self._standing = []
            return self.is_due
        places = self._around.settling
        if places.locked():
            places.wait(self._again)
            return False
        began_ms = self._now_ms()
        try:
            async with places:
                await self._next_piece()
                # Others need the machine too, so nobody has the place meanwhile.
                await asyncio.sleep(REST_FACTOR * (self._now_ms() - began_ms) / 1000)
        except (OSError, OncelogError) as error:
            self._failed(error)
            return False
        self._worked()
        return self.is_due

    async def _next_piece(self) -> None:
        if self._standing is None:
            await self._look()
        elif self._begins_too_late:
            await self._take_back_begin()
        elif self._may_look_for_hole:
            await self._look_for_hole()
        elif self._is_unweighed:
            await self._weigh()
        elif self._has_deleted:
            await self._remove_deleted()
        else:
            # What is settled stands twice until its journal goes.
            self._around.require_room_to_settle()
            await self._settle()

    async def _look(self) -> None:
        found: list[tuple[int, Settled]] = []
        snapshots, has_data = self._journal.snapshots, self._data.settled_end > 0
        await self._around.offload(lambda: found.extend(snapshots.settled(has_data=has_data)))
        self._standing = [Standing(*one) for one in found]
        if found:
            self._worth.follow(found[-1][1])
        self._tell_trimming()

    @property
    def _may_look_for_hole(self) -> bool:
        newest = self._newest
        if self._has_looked_for_hole or self._settler is None or newest is None:
            return False
        return self._tells_all_that_went(newest)

    async def _look_for_hole(self) -> None:
        """Once, at first: a reader may come late, and what is not wanted is never settled."""
        newest, journal, settler = self._newest, self._journal, self._settler
        assert newest is not None, "it may look"
        assert settler is not None, "it may look"
        self._has_looked_for_hole = True
        hole = await find_hole(newest, journal, settler, self._around.offload)
        if hole is None:
            return
        self._around.reporter.event(
            "settled records are missing",
            level="error",
            partition=str(self._partition),
            file=hole.file,
            first_offset=hole.first_offset,
            end_offset=hole.end_offset,
            log_start=journal.log_start,
        )
        self._missing = hole.end_offset - hole.first_offset
        self._around.reporter.gauge(
            "records_missing", self._missing, partition=str(self._partition)
        )
        if self._holes_are_damage:
            self._found_damage(CorruptLog(str(hole), file=hole.file))

    async def _take_back_begin(self) -> None:
        newest, data, journal = self._newest, self._data, self._journal
        assert newest is not None, "it begins before the data log does"
        self._around.reporter.event(
            "data log begins behind its committed log",
            level="error",
            partition=str(self._partition),
            data_begin=data.begin,
            begin=newest.settled.begin,
        )
        start, self._source = journal.log_start, None
        await self._around.offload(lambda: data.take_back_begin(journal_start=start))

    async def _weigh(self) -> None:
        newest, settler, worth = self._newest, self._settler, self._worth
        assert newest is not None, "it is unweighed"
        assert settler is not None, "it is unweighed"
        snapshots = self._journal.snapshots
        begin = max(self._data.settled_end, newest.settled.begin)
        counted: list[Weight] = []
        end_row = 0

        def count() -> None:
            nonlocal end_row
            end = snapshots.tables(newest.offset).get(settler.table)
            if end is None:
                return
            end_row = end.end_row
            rows = snapshots.rows(settler.table, end)
            if worth.counted_row is None:
                pieces = rows.around(begin, settler.row_offset)
            else:
                pieces = rows.behind(worth.counted_row)
            for weight in settler.weigh(pieces):
                counted.append(weight)
                # Here the loop gets the interpreter.
                time.sleep(0)

        await self._around.offload(count)
        worth.add(counted, end_row=end_row)
        worth.drop_below(begin)
        self._weighed = newest.offset
        if worth.decide():
            self._tell_turned()

    def _tell_turned(self) -> None:
        pays = "settling pays: what is readable is copied"
        pays_not = "settling does not pay: nothing more is copied"
        self._around.reporter.event(
            pays if self._worth.settles else pays_not,
            partition=str(self._partition),
            batches=self._worth.batches,
            mean_bytes=self._worth.mean_bytes,
        )

    async def _remove_deleted(self) -> None:
        newest, data = self._newest, self._data
        assert newest is not None, "it has deleted"
        failpoints.reach("driver.data_remove.before")
        said_at, (begin, *_) = newest
        try:
            if self._passes_over(newest.settled):
                # Also where nothing was settled yet: then there is nothing to be removed.
                await self._around.offload(lambda: data.begin_at(begin, begun_at=said_at))
            else:
                await self._around.offload(lambda: data.remove_before(begin, begun_at=said_at))
        finally:
            # Also where it failed: its note may say so already.
            self._journal.rest_on_data()
        failpoints.reach("driver.data_remove.after")
        if self._has_deleted:
            # Whatever that is: who asks again at once asks for ever.
            self._not_before_ms = self._now_ms() + AGAIN_MS

    async def _settle(self) -> None:
        newest, data, settler = self._newest, self._data, self._settler
        assert newest is not None, "it is behind"
        assert settler is not None, "it is behind"
        source, self._source = self._source, None
        if source is None or source.standing != newest:
            source = Source(newest, self._journal, settler, self._around.offload)
            await self._open(source)
        units = await self._read(source)
        blocks: list[Block] = []
        await self._around.offload(lambda: blocks.extend(settler.blocks(in_slices(units))))
        if not source.is_over and len(blocks) > 1 and len(blocks[-1].payload) < BLOCK_BYTES // 2:
            # It will grow: the next step has it again.
            source.put_back(units, from_offset=blocks.pop().first_offset)
        await self._write(blocks, settled_at=newest.offset)
        if source.is_over and data.settled_end < newest.settled.end:
            raise CorruptLog(
                f"the snapshot of {newest.offset} says that {newest.settled.end} records were "
                f"readable, and its rows end at {data.settled_end}"
            )
        # Where anything failed before, the next step begins anew at the settled end.
        self._source = source
        self._tell_trimming()

    async def _open(self, source: Source) -> None:
        try:
            await source.open(max(self._data.settled_end, source.standing.settled.begin))
        except CorruptLog:
            # Another one says the same, and comes in any case.
            self._standing = [it for it in self._standing or () if it != source.standing]
            raise

    async def _read(self, source: Source) -> Units:
        try:
            return await source.next_units()
        except CorruptLog as error:
            self._found_damage(error)
            raise
        except OffsetOutOfRange as error:
            if not self._tells_all_that_went(source.standing):
                raise
            hole = CorruptLog(
                f"{error}: records from offset {self._data.settled_end} on are in neither the data "
                "log nor the journal"
            )
            if self._holes_are_damage:
                self._found_damage(hole)
            raise hole from error

    def _tells_all_that_went(self, standing: Standing) -> bool:
        """The journal begins where it does by a state at or before this snapshot: what it still
        has, and is not settled, must be in the journal. After it more may have been deleted."""
        journal = self._journal
        return journal.log_start <= journal.allowed.at <= standing.offset

    async def _write(self, blocks: list[Block], *, settled_at: int) -> None:
        data, offload = self._data, self._around.offload
        was = data.settled_end
        failpoints.reach("driver.settle_write.before")
        await offload(lambda: data.append(blocks))
        failpoints.reach("driver.settle_write.after")
        failpoints.reach("driver.settle_note.before")
        await offload(lambda: data.sync_and_note(settled_at))
        failpoints.reach("driver.settle_note.after")
        reporter = self._around.reporter
        reporter.count("settled_records", data.settled_end - was)
        reporter.count("settled_bytes", sum(len(block.payload) for block in blocks))
        await self._measure()

    async def _measure(self) -> None:
        """What the data log takes, now and then: its directory is looked at."""
        now_ms = self._now_ms()
        if self._measured_ms is not None and now_ms - self._measured_ms < MEASURED_EVERY_MS:
            return
        self._measured_ms = now_ms
        found: list[int] = []
        await self._around.offload(lambda: found.append(self._data.disk_bytes()))
        self._around.reporter.gauge("data_log_bytes", found[0], partition=str(self._partition))

    def _tell_trimming(self) -> None:
        """What was readable at a snapshot, and is settled, needs no journal."""
        data, standing = self._data, self._standing
        if not standing:
            return
        reached = [it for it in standing if it.settled.end <= data.settled_end]
        if reached:
            self.reached_at = reached[-1].offset
            said_at = max(data.settled_at, reached[-1].offset)
            self._trimming.settled(said_at, reached[-1].settled.pending_from)
        self._standing = standing[len(reached) :] or standing[-1:]

    # ------------------------------------------------------------------------------- what it says

    def _failed(self, error: Exception) -> None:
        again_ms = DAMAGED_AGAIN_MS if isinstance(error, CorruptLog) else AGAIN_MS
        self._not_before_ms = self._now_ms() + again_ms
        self._around.reporter.event(
            "settling waits, trying again",
            level="warning",
            partition=str(self._partition),
            error=str(error),
        )
        self.why_waits = str(error)
        self._around.reporter.gauge("settling_waits", 1, partition=str(self._partition))

    def _worked(self) -> None:
        if self.why_waits:
            self._around.reporter.event("settling goes on", partition=str(self._partition))
            self._goes_on()

    def drop(self) -> None:
        """It is over: an alarm would never end."""
        self._around.settling.leave(self._again)
        if self._missing:
            self._missing = 0
            self._around.reporter.gauge("records_missing", 0, partition=str(self._partition))
        self._goes_on()

    def _goes_on(self) -> None:
        if self.why_waits:
            self.why_waits = ""
            self._around.reporter.gauge("settling_waits", 0, partition=str(self._partition))

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms
