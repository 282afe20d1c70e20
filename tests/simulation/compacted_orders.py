"""The data log of every replica of a topic that may be compacted, at the end of a day, record by
record: it has what its note says, of what was committed (`cleaned`).

    await CompactedOrders(world).compare()    all replicas; and, where the topic is compacted, each
                                              has done all that it has to by then

`hurried` has small logs compacted at once: days are short.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.replica import compacting, settling
from oncelog_server.runtime.storage.data_log import DataLog
from oncelogpb.errors import CorruptLog
from tests.simulation.cleaned import Held, require_alike, require_held
from tests.simulation.copies import LOOK_EVERY_S, Replica
from tests.simulation.dense import READ_BYTES
from tests.simulation.rows import Row, rows_of

if TYPE_CHECKING:
    from oncelog_server.runtime.replica.driver import Driver
    from tests.simulation.world import World

# How long it may take until all is compacted, when nobody writes any more.
COMPACTED_WITHIN_S: Final = 120.0


@contextlib.contextmanager
def hurried(*, days: bool = True) -> Iterator[None]:
    """What services wait for before they settle and compact little."""
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (settling, "SNAPSHOT_AFTER_MS", 1_000),
            (settling, "SNAPSHOT_AT_LAST_MS", 5_000),
            (compacting, "DIRTY_WORTH_BYTES", 100),
            (compacting, "LOOK_EVERY_MS", 200),
            (compacting, "COMPACT_AT_LAST_MS", 1_000),
        ):
            if days:
                stack.enter_context(patch.object(module, name, value))
        yield


class CompactedOrders:
    """Of all partitions of one world whose commits are known."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Replicas that were looked at.
        self.compared = 0

    async def compare(self, *, waits: bool = True) -> None:
        """When nobody asks for anything any more. `waits`: until all is compacted, which takes long
        where a clock was ahead. Raises AssertionError."""
        commits = self._world.commits
        if not commits.partitions:
            return
        if waits:
            await self._all_compacted()
        for partition in commits.partitions:
            replicas = []
            for replica in self.replicas(partition):
                try:
                    replicas.append(await held_of(replica.journal.data))
                except CorruptLog as error:
                    # A fault of the day did that: `dense` judges what becomes of it.
                    self._world.say(f"{replica}: {error.message}")
            for held in replicas:
                require_held(commits.of(partition), held)
                self.compared += 1
            leader = self._leader(partition)
            if leader is not None and leader.machine.settings.is_compacted:
                require_alike(commits.of(partition), replicas)

    def replicas(self, partition: PartitionId) -> list[Replica]:
        """Those that are open; a partition may have one."""
        found = self._world.copies.replicas(partition)
        assert found, f"{partition} has no replica that is open"
        return found

    def _leader(self, partition: PartitionId) -> Driver | None:
        return next((it.driver for it in self.replicas(partition) if it.driver.leads), None)

    async def _all_compacted(self) -> None:
        try:
            async with asyncio.timeout(COMPACTED_WITHIN_S):
                while self._behind():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            # What is there is judged all the same.
            self._world.say(f"not compacted in time: {self._behind()[:5]}")

    def _behind(self) -> list[str]:
        """Replicas of which not all is compacted that should be, in words."""
        found = []
        for partition in self._world.commits.partitions:
            leader = self._leader(partition)
            if leader is None:
                found.append(f"{partition}: nobody leads it")
                continue
            machine = leader.machine
            end = machine.committed.readable_end(leader.high_watermark)
            point = machine.compaction.compacted_below
            wanted = end if machine.settings.is_compacted else min(point, end)
            for replica in self.replicas(partition):
                data = replica.journal.data
                if data.compacted_to < wanted:
                    found.append(
                        f"{replica}: {data.compacted_to} of {wanted}, settled {data.settled_end}"
                    )
                elif data.cleanness.dropped_to < self._tombstones_below(replica):
                    found.append(f"{replica}: tombstones below {self._tombstones_below(replica)}")
        return found

    @staticmethod
    def _tombstones_below(replica: Replica) -> int:
        """As its newest snapshot says."""
        compacting = replica.driver.compacting
        if compacting is None or not compacting.asked.wanted:
            return 0
        return compacting.asked.tombstones_below


async def held_of(data: DataLog) -> Held:
    """All that stands there, and what its note says."""
    rows: dict[int, Row] = {}
    position = data.begin
    while position < data.settled_end:
        blocks = await data.read(position, READ_BYTES)
        assert blocks, f"I14: {data.directory} ends at {position} before {data.settled_end}"
        for block in blocks:
            assert block.first_offset <= position < block.end_offset, "blocks follow each other"
            if block.record_count:
                found = rows_of(block.encoding, block.payload)
                rows.update(zip(block.offsets, found, strict=True))
            position = block.end_offset
    kept = {offset: row for offset, row in rows.items() if offset >= data.begin}
    said = data.cleanness
    return Held(
        data.begin,
        data.settled_end,
        kept,
        data.compacted_to,
        said.tombstones_to,
        said.holes_below,
        said.dropped_to,
    )
