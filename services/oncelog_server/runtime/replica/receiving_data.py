"""What a leader has settled of its committed log, for a replica that ends before the leader's log
begins: what lies before that beginning stands in the leader's data log alone.

    what do you have? ──► noted: what these blocks rest on ──► blocks, part by part ──► as far as it
          ▲                                                        │                    had said
          └── a kill, another leader ── from the last whole block ─┘

Blocks go straight to this replica's data log, and are kept there whatever becomes of the rest. So
a replica that has some already, of its own or of an earlier attempt, gets what is behind them.

Invariants:
  * before a block is kept that became readable above this log, it is noted, durably, that the data
    log rests on a state of the leader that far (`Allowance`): a leader that lacks that state is not
    followed with these blocks (`following`);
  * what comes was verified block by block, and each follows the one before. Only the first one of
    all may begin before this data log does: with what was deleted, perhaps up to within a unit;
  * blocks that the leader's do not fit are given up, at once: they would fit no better later;
  * nothing else writes to the data log meanwhile (whoever made this sees to it).

Left out: what else was before the leader's log (`receiving`); what is damaged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Clock
from oncelog_server.core.settling import Settler
from oncelog_server.runtime.replica.dialog import SettledThere, SnapshotPart
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.storage.copying import CopyRefused
from oncelog_server.runtime.storage.data_blocks import BlockError, decode_block, verify_block
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from oncelogpb.errors import CorruptBatch, CorruptLog, InvalidArgument, Unavailable

# So many bytes are synced together: what a kill takes of them is fetched again.
SYNC_EVERY_BYTES: Final = 16 << 20
# Between two parts, so many times as long as the one before took: others need disk and network.
REST_FACTOR: Final = 1
# A note that must be durable is looked for so often; it goes down with the next one of the log.
NOTE_EVERY_MS: Final = 100
NOTE_LOOKS_MAX: Final = 600


class DoesNotFit(Exception):
    """What is here ends within a unit of the leader's."""


class Fitting(NamedTuple):
    """What of a part comes next here."""

    # The end of a block whose beginning is here already.
    head: Block | None
    # Whole blocks behind it.
    blocks: memoryview


class ReceivingData:
    """Of one followership. `offload` runs work off the loop that is waited for at its end."""

    def __init__(
        self,
        partition: PartitionId,
        settler: Settler | None,
        journal: Journal,
        around: ReplicaEnv,
        *,
        fetch: Callable[[PartOf], Awaitable[SnapshotPart]],
        offload: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """`fetch`: asks again where a part does not come."""
        self._partition = partition
        self._settler = settler
        self._journal = journal
        self._around = around
        self._fetch = fetch
        self._offload = offload
        # Where the next block begins, what is not synced included; and bytes that are not.
        self._next = 0
        self._unsynced_bytes = 0

    @property
    def _data(self) -> DataLog:
        return self._journal.data

    async def copy(self) -> None:
        """All that the leader has settled by now. Raises OncelogError, OSError: of the disk here;
        what came stays."""
        if self._settler is None:
            return
        self._next, self._unsynced_bytes = self._data.settled_end, 0
        there = await self._settled_there()
        if self._next >= there.end:
            return
        self._tell(there)
        while self._next < there.end:
            await self._rest_on(there)
            await self._copy_what_rests_on(there)
            there = (await self._part()).settled
        await self._sync(there)

    async def _settled_there(self) -> SettledThere:
        try:
            return (await self._part()).settled
        except InvalidArgument as error:
            # Of an earlier version, which settles nothing and does not know the question; or its
            # log began at 0 until now, and it is asked again when a snapshot of it is there.
            if error.metadata.get("field") != "content":
                raise
            return SettledThere()

    async def _copy_what_rests_on(self, target: SettledThere) -> None:
        """To its end, as it was when it was asked: so that is reached."""
        while self._next < target.end:
            # Other partitions need what is left of the disk.
            self._around.require_room_to_settle()
            began_ms = self._now_ms()
            part = await self._part()
            if self._next < part.settled.begin:
                # Nobody has what is below: it was deleted, as a state of the leader says.
                await self._rest_on(part.settled)
                begin, rests_on = part.settled.begin, part.settled.allowed
                await self._begin_at(begin, begun_at=rests_on.at)
                continue
            target = await self._resting_on(part.settled, target)
            try:
                await self._note_cleanness(part.settled, target)
                await self._append(part.part.data, target)
            except DoesNotFit as error:
                await self._begin_anew(error)
                continue
            await asyncio.sleep(REST_FACTOR * (self._now_ms() - began_ms) / 1000)
        await self._sync(target)

    async def _part(self) -> SnapshotPart:
        return await self._fetch(PartOf(Content.DATA, position=self._next))

    async def _rest_on(self, there: SettledThere) -> None:
        """From here on this replica follows only who has that state."""
        self._journal.rest_on(there.allowed)
        for _ in range(NOTE_LOOKS_MAX):
            if self._journal.start_is_durable:
                return
            await asyncio.sleep(NOTE_EVERY_MS / 1000)
        raise Unavailable("the disk here has not taken a note within NOTE_LOOKS_MAX looks")

    async def _resting_on(self, came: SettledThere, target: SettledThere) -> SettledThere:
        """The target, with what a part rests on of which more may have been taken out since."""
        if not came.cleanness.holes_below or came.allowed <= target.allowed:
            return target
        await self._rest_on(came)
        return target._replace(allowed=came.allowed)

    async def _begin_at(self, offset: int, *, begun_at: int) -> None:
        await self._offload(lambda: self._data.begin_at(offset, begun_at=begun_at))
        self._next, self._unsynced_bytes = offset, 0

    async def _begin_anew(self, why: DoesNotFit) -> None:
        """The leader has all that was here; what is deleted stays deleted."""
        self._around.reporter.event(
            "settled records do not fit the leader's",
            level="error",
            partition=str(self._partition),
            error=str(why),
        )
        await self._begin_at(self._data.begin, begun_at=self._data.begun_at)

    async def _note_cleanness(self, came: SettledThere, target: SettledThere) -> None:
        """Before a part is kept: what was taken out of it lacks from then on. Raises DoesNotFit,
        OSError."""
        data, there = self._data, came.cleanness
        cleanness: Cleanness | None = there
        if self._next > data.begin:
            cleanness = data.cleanness.with_part(there, first=self._next, end=came.end)
        if cleanness is None:
            raise DoesNotFit(
                f"tombstones below {there.tombstones_to} are gone there, of which older records "
                f"may be here, below {self._next}"
            )
        noted = cleanness
        dropped_at = target.allowed.at if noted.tombstones_to else 0
        # What superseded may be nowhere here, if a kill comes before the part is noted.
        settled_at = target.allowed.at if noted.holes_below else 0
        is_noted = data.dropped_at >= dropped_at and data.settled_at >= settled_at
        if noted != data.cleanness or not is_noted:
            if self._unsynced_bytes:
                # What came and is not noted would be given up.
                await self._sync(target)
            await self._offload(
                lambda: data.note_cleanness(noted, dropped_at=dropped_at, settled_at=settled_at)
            )

    async def _append(self, came: bytes, target: SettledThere) -> None:
        """Raises DoesNotFit, CorruptLog, OSError."""
        fitting: list[Fitting] = []
        await self._offload(lambda: fitting.append(self._fit(came, target.allowed.at)))
        head, blocks = fitting[0]
        if head is None and not blocks:
            raise CorruptLog(f"the leader sent no block of offset {self._next}")
        if head is not None:
            following = head
            await self._offload(lambda: self._data.append([following]))
            self._next = head.end_offset
        if blocks:
            await self._offload(lambda: self._append_blocks(bytes(blocks)))
        self._unsynced_bytes += len(came)
        if self._unsynced_bytes >= SYNC_EVERY_BYTES:
            await self._sync(target)

    def _append_blocks(self, blocks: bytes) -> None:
        """Raises CorruptLog."""
        try:
            self._next = self._data.append_copied(blocks)
        except CopyRefused as error:
            raise CorruptLog(f"the leader sent what was not asked for: {error}") from error

    def _fit(self, came: bytes, exposed_max: int) -> Fitting:
        """Raises DoesNotFit, CorruptLog."""
        view, at, begin = memoryview(came), 0, 0
        head: Block | None = None
        try:
            while at < len(came):
                step = verify_block(view, at)
                if step.exposed_below > exposed_max:
                    break
                if at == 0 and step.first_offset < self._next and self._next > self._data.begin:
                    head = self._end_of(decode_block(view))
                    begin = step.length
                at += step.length
        except (BlockError, CopyRefused, CorruptBatch) as error:
            raise CorruptLog(f"what the leader has settled came damaged: {error}") from error
        return Fitting(head, view[begin:at])

    def _end_of(self, block: Block) -> Block | None:
        """What is not here of it: all replicas have the same units, whatever their blocks are."""
        assert self._settler is not None, "a role without a committed log copies nothing"
        if not block.first_offset < self._next < block.end_offset:
            raise CopyRefused(f"offset {self._next} is not in it")
        tail = self._settler.tail(block, self._next)
        if tail is None:
            raise DoesNotFit(f"offset {self._next} is within a unit of the leader's")
        return tail

    async def _sync(self, target: SettledThere) -> None:
        await self._offload(lambda: self._data.sync_and_note(target.allowed.at))
        self._unsynced_bytes = 0

    def _tell(self, there: SettledThere) -> None:
        self._around.reporter.event(
            "settled records are copied from the leader",
            partition=str(self._partition),
            have=self._next,
            settled_end=there.end,
        )

    def _now_ms(self) -> int:
        clock: Clock = self._around.clock
        return clock.now().monotonic_ms
