"""Reads a replica's data log through, slowly, so that rot in what nobody reads is found in time
(docs/adr/0075). What is damaged its data log knows from then on.

    a step: some blocks verified ──► a rest, of the whole process ──► ... the end ──► SCRUB_EVERY_MS

The first pass of a run begins where the wall clock says, and the next one follows at once: so a
process that is started every day comes to all of it, too.

Left out: what becomes of what is found (`healing`).
"""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import REST_MS_MAX
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.storage.data_damage import DamagedRange
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_walk import Checked
from oncelogpb.errors import OffsetOutOfRange

# Read at once, off the loop.
SCRUB_STEP_BYTES: Final = 4 << 20
# Of all replicas of a role in a process.
SCRUB_BYTES_PER_S: Final = 8 << 20
# From the begin of a pass to the begin of the next one.
SCRUB_EVERY_MS: Final = 7 * 24 * 3_600_000
# While a pass is under way a replica at rest makes a step so often, at most.
SCRUB_AT_REST_MS: Final = 10_000
# A disk that fails is read again after so long.
SCRUB_AGAIN_MS: Final = 60_000


class Scrubbing:
    """Of one leadership, or one followership."""

    def __init__(self, partition: PartitionId, data: DataLog, around: ReplicaEnv) -> None:
        self._partition = partition
        self._data = data
        self._around = around
        # Offset that is read next; None: no pass is under way.
        self._position: int | None = None
        self._not_before_ms = 0
        # Of the pass that is under way.
        self._began_ms = 0
        self._bytes = self._found = 0
        # It began in the middle.
        self._is_partial = False
        self._has_passed = False

    @property
    def scrubbed_to(self) -> int:
        """Offset; 0: no pass is under way."""
        return self._position or 0

    @property
    def is_due(self) -> bool:
        if self._data.settled_end == self._data.begin:
            return False
        now_ms = self._now_ms()
        return now_ms >= max(self._not_before_ms, self._around.scrubs.not_before_ms)

    @property
    def rests_ms(self) -> int:
        """For how long a replica at rest need not be asked."""
        if self._data.settled_end == self._data.begin:
            return REST_MS_MAX
        return min(max(self._not_before_ms - self._now_ms(), SCRUB_AT_REST_MS), REST_MS_MAX)

    async def step(self) -> None:
        if not self.is_due or self._around.scrubs.is_busy:
            return
        data, scrubs = self._data, self._around.scrubs
        position = max(self._begin_pass() if self._position is None else self._position, data.begin)
        if position >= data.settled_end:
            self._end_pass()
            return
        found: list[Checked | DamagedRange] = []
        scrubs.is_busy = True
        try:
            await self._around.offload(lambda: found.append(data.check(position, SCRUB_STEP_BYTES)))
        except OffsetOutOfRange:
            # It was deleted, or its file replaced, meanwhile.
            return
        except OSError as error:
            self._failed(error)
            return
        finally:
            scrubs.is_busy = False
        self._position = max(position + 1, found[0].end_offset)
        if isinstance(found[0], Checked):
            size = found[0].size
            self._bytes += size
            scrubs.not_before_ms = self._now_ms() + size * 1_000 // SCRUB_BYTES_PER_S
            self._around.reporter.count("scrubbed_bytes", size)
        else:
            self._found += 1
        if self._position >= data.settled_end:
            self._end_pass()

    def _begin_pass(self) -> int:
        data, now = self._data, self._around.clock.now()
        self._began_ms, self._bytes, self._found = now.monotonic_ms, 0, 0
        position = data.begin
        if not self._has_passed:
            count = data.settled_end - data.begin
            position += count * (now.wall_ms % SCRUB_EVERY_MS) // SCRUB_EVERY_MS
        self._is_partial = position > data.begin
        self._position = position
        return position

    def _end_pass(self) -> None:
        self._position, self._has_passed = None, True
        if self._is_partial:
            return
        self._not_before_ms = self._began_ms + SCRUB_EVERY_MS
        reporter = self._around.reporter
        reporter.count("scrub_passes")
        reporter.event(
            "data log read through",
            partition=str(self._partition),
            settled_end=self._data.settled_end,
            bytes=self._bytes,
            damaged=self._found,
        )

    def _failed(self, error: OSError) -> None:
        self._not_before_ms = self._now_ms() + SCRUB_AGAIN_MS
        self._around.reporter.event(
            "data log not read through, trying again",
            level="warning",
            partition=str(self._partition),
            error=str(error),
        )

    def _now_ms(self) -> int:
        return self._around.clock.now().monotonic_ms
