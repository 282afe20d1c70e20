"""What was before the leader's log, for a replica that ends before that log begins.

    its turn ──► file, epochs, tables, slots, part by part ──► whole, as it was written ──► install
       ▲             │ a part does not come: again, after twice as long each time
       └── a while ──┘ ... PART_ATTEMPTS_MAX times, or it is of another log start, or damaged

Parts are held in memory until they are whole, as they are whenever a machine is restored; so one
replica of the process receives at a time. Slots go to their files: what they say is durable
wherever it stands. What was settled comes first, and goes to the disk (`receiving_data`). One part
is on its way at a time, and each is a call of its own, so those who copy frames go on beside it.

Invariants:
  * nothing is installed that is not whole, of one log start, and under the CRCs of who wrote it;
  * after `halt` nothing is asked for or begun; a thread that writes slots or data, or an install
    that has begun, is waited for;
  * what the disk refused is fetched again more and more seldom, whatever is followed meanwhile.

Left out: the install itself, which gives up the log (`followership`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Snapshot, Table
from oncelog_server.core.ports import Slots
from oncelog_server.core.role import Role
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.dialog import SnapshotPart
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.receiving_data import ReceivingData
from oncelog_server.runtime.storage.epochs import EpochEntry, EpochTable
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.slots import SLOTS_WORTH_A_FLUSH, SlotFiles
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from oncelog_server.runtime.storage.snapshots import SnapshotFile, decode_snapshot
from oncelog_server.runtime.storage.tables import TableEnd, chunk_name
from oncelogpb.errors import CorruptLog, InvalidArgument, OncelogError, Unavailable

# A part that did not come is asked for again after so long, then twice as long each time; after so
# many attempts in a row others have their turn.
PART_AGAIN_MS: Final = 200
PART_ATTEMPTS_MAX: Final = 6
# All of it is begun anew after so long, then twice as long each time, up to RECEIVE_PAUSE_MS_MAX.
RECEIVE_PAUSE_MS: Final = 1_000
RECEIVE_PAUSE_MS_MAX: Final = 60_000
# After so many that came damaged a replica says that it cannot follow.
RECEIVED_DAMAGED_MAX: Final = 4


class Received(NamedTuple):
    """What a log begins with."""

    offset: int
    snapshot: Snapshot
    epochs: Sequence[EpochEntry]
    time_ms: int
    allowed: Allowance


class Installs:
    """Of one replica, over all epochs that it follows: what its disk refused does not fit in the
    next one either, and all of it would be fetched for nothing."""

    def __init__(self) -> None:
        # What the last one met; None where it succeeded, or there was none.
        self.error: OSError | None = None
        # Before the next one.
        self.pause_ms = 0

    def failed(self, error: OSError) -> None:
        self.error = error
        self.pause_ms = min(max(2 * self.pause_ms, RECEIVE_PAUSE_MS), RECEIVE_PAUSE_MS_MAX)

    def succeeded(self) -> None:
        self.error, self.pause_ms = None, 0


class Receiving:
    """Of one followership. Whoever made it calls `begin`, and at last `halt` and `halted`."""

    def __init__(
        self,
        partition: PartitionId,
        role: Role[Any],
        journal: Journal,
        around: ReplicaEnv,
        *,
        fetch: Callable[[PartOf], Awaitable[SnapshotPart]],
        install: Callable[[Received], Awaitable[None]],
        installs: Installs,
        hold_still: Callable[[], Awaitable[None]],
        cannot: Callable[[str], None],
    ) -> None:
        """`hold_still`: from then on nothing else writes to the data log, until it is installed.
        `cannot`: says why there is no end of it for the time being."""
        self._partition = partition
        self._role = role
        self._journal = journal
        self._around = around
        self._fetch = fetch
        self._install = install
        self._installs = installs
        self._cannot = cannot
        self._hold_still = hold_still
        self._data = ReceivingData(
            partition,
            role.settler(),
            journal,
            around,
            fetch=lambda wanted: self._part(wanted, None),
            offload=self._with_log,
        )
        self._working: asyncio.Task[None] | None = None
        self._is_over = False
        # A thread has the log, or will have: it is waited for, not cancelled.
        self._has_log = False
        # How often it was.
        self._damaged = 0

    def begin(self) -> None:
        """Unless it is at it."""
        if not self._is_over and not self.is_under_way:
            self._working = vital.spawn(self._work(), self._around.fatal)

    @property
    def is_under_way(self) -> bool:
        return self._working is not None and not self._working.done()

    def halt(self) -> None:
        """In one turn, for good."""
        self._is_over = True
        if self._working is not None and not self._has_log:
            self._working.cancel()

    async def halted(self) -> None:
        """After `halt`: returns when it touches the log no more."""
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        if self._installs.error is not None:
            self._disk_failed(self._installs.error)
            await asyncio.sleep(self._installs.pause_ms / 1000)
        pause_ms = RECEIVE_PAUSE_MS
        while not self._is_over:
            try:
                # Much of it, perhaps, and none of it is held in memory: others have their turn.
                await self._hold_still()
                await self._data.copy()
                async with self._around.replication.replaying:
                    received = await self._receive()
                    self._has_log = True
                    await self._install(received)
                    return
            except (OncelogError, OSError) as error:
                self._failed(error)
            finally:
                self._has_log = False
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RECEIVE_PAUSE_MS_MAX)

    def _failed(self, error: OncelogError | OSError) -> None:
        self._around.reporter.event(
            "snapshot not received, trying again",
            level="warning",
            partition=str(self._partition),
            error=str(error),
        )
        self._damaged += isinstance(error, CorruptLog)
        if isinstance(error, OSError):
            self._disk_failed(error)
        elif self._damaged >= RECEIVED_DAMAGED_MAX:
            self._cannot(f"it cannot take its leader's snapshot: {error}")

    def _disk_failed(self, error: OSError) -> None:
        self._cannot(f"it cannot install its leader's snapshot: {error}")

    # ------------------------------------------------------------------------------------ its parts

    async def _receive(self) -> Received:
        """Raises OncelogError, OSError: of the disk here."""
        first = await self._part(PartOf(Content.FILE), None)
        offset = first.offset
        file = await self._file(first)
        epochs = await self._epochs(offset, file.epoch)
        tables = {
            name: Table(
                end.row_bytes, end.first_row, await self._table(name, end, offset), end.begin_row
            )
            for name, end in sorted(file.tables.items())
        }
        await self._slots(first.slot_names, offset)
        # What the leader settled meanwhile, because of which its log may begin here.
        await self._data.copy()
        snapshot = Snapshot(file.state, tables, file.needs, file.time_ms, file.settled)
        time_ms = max(first.time_ms, file.time_ms)
        # A leader of an earlier version does not say.
        allowed = first.allowed if first.allowed.at else Allowance(offset, file.epoch)
        allowed = max(allowed, self._journal.allowed)
        return Received(offset, snapshot, epochs, time_ms, allowed)

    async def _file(self, first: SnapshotPart) -> SnapshotFile:
        data = await self._all(first, PartOf(Content.FILE))
        found = decode_snapshot(data)
        if found is None or found.offset != first.offset:
            raise CorruptLog("the snapshot of the leader's log start is damaged")
        return found

    async def _epochs(self, offset: int, last_epoch: int) -> Sequence[EpochEntry]:
        """`last_epoch`: that of the last frame before, as the file has it; 0: it does not say."""
        wanted = PartOf(Content.EPOCHS)
        data = await self._all(await self._part(wanted, offset), wanted)
        found = EpochTable.decode(data)
        if found is None or not found.epoch_at(offset - 1):
            raise CorruptLog("the epochs before the leader's log are damaged")
        if last_epoch and found.epoch_at(offset - 1) != last_epoch:
            raise CorruptLog(f"the leader's epochs lack {last_epoch}, in which its log begins")
        return found.entries

    async def _table(self, name: str, end: TableEnd, offset: int) -> bytes:
        """All rows of its chunks: the first ones may be before those that belong to the state."""
        rows = bytearray()
        for chunk in end.chunks:
            wanted = PartOf(Content.TABLE, chunk_name(name, chunk.first_row))
            size = end.row_bytes * chunk.row_count
            data = b""
            if size:
                data = await self._all(await self._part(wanted, offset), wanted, size=size)
            if len(data) != size or crc32c(data) != chunk.crc:
                raise CorruptLog(f"table {name} of the leader's snapshot is damaged")
            rows += data
        return bytes(rows)

    async def _all(self, part: SnapshotPart, wanted: PartOf, *, size: int | None = None) -> bytes:
        """From this part on; behind `size` bytes is what belongs to a later snapshot."""
        data = bytearray(part.part.data)
        while (position := part.part.next_position) is not None:
            if size is not None and len(data) >= size:
                break
            part = await self._part(wanted._replace(position=position), part.offset)
            data += part.part.data
        return bytes(data[:size])

    async def _slots(self, names: Sequence[str], offset: int) -> None:
        opened: dict[str, SlotFiles] = {}

        def open_slots(name: str, slot_bytes: int) -> Slots:
            opened[name] = self._journal.slots.open(name, slot_bytes)
            return opened[name]

        self._role.projection(self._partition, open_slots)
        for name in names:
            if name not in opened:
                raise Unavailable(f"the leader has slots {name}, which this version does not know")
            position: int | None = 0
            while position is not None:
                part = await self._part(PartOf(Content.SLOTS, name, position), offset)
                opened[name].write_stored(part.part.data)
                if self._journal.slots.held >= SLOTS_WORTH_A_FLUSH:
                    await self._with_log(self._journal.slots.flush)
                position = part.part.next_position

    async def _with_log(self, work: Callable[[], None]) -> None:
        """Off the loop. It is waited for at the end."""
        self._has_log = True
        try:
            await self._around.offload(work)
        finally:
            self._has_log = False
            if self._is_over:
                raise asyncio.CancelledError

    async def _part(self, wanted: PartOf, offset: int | None) -> SnapshotPart:
        """Raises OncelogError."""
        for attempt in range(PART_ATTEMPTS_MAX):
            try:
                part = await self._fetch(wanted)
                break
            except InvalidArgument:
                # Nor is it the next time.
                raise
            except OncelogError:
                if attempt + 1 == PART_ATTEMPTS_MAX:
                    raise
            await asyncio.sleep((PART_AGAIN_MS << attempt) / 1000)
        if offset is not None and part.offset != offset:
            raise Unavailable(f"the leader's log begins at {part.offset} now, and not at {offset}")
        return part
