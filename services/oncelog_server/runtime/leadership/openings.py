"""Opens the replicas that may stand in an election, beside the round: one that is slow to recover
delays nobody else. What an opening found stands in the seat (`prepared`) until an election uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.leadership.rules import Prepared, Seat
from oncelogpb.errors import UnknownPartition

# Replicas that are opened at once.
OPENINGS_MAX: Final = 8


class Openings:
    """Of one process. `ended` is called after each, good or bad."""

    def __init__(
        self,
        prepare: Callable[[PartitionId], Awaitable[Prepared]],
        reporter: Reporter,
        *,
        ended: Callable[[], None],
        pause_s: float,
    ) -> None:
        self._prepare = prepare
        self._reporter = reporter
        self._ended = ended
        # How long a replica that could not be opened lets others go first.
        self._pause_s = pause_s
        self._places = asyncio.Semaphore(OPENINGS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, partition: PartitionId, seat: Seat) -> None:
        """Nothing happens where it is being opened."""
        if seat.preparing:
            return
        seat.preparing = True
        task = asyncio.get_running_loop().create_task(self._open(partition, seat))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self, partition: PartitionId, seat: Seat) -> None:
        try:
            async with self._places:
                seat.prepared = await self._prepare(partition)
        except UnknownPartition:
            self._reporter.event(
                "topic deleted while a replica was opened", partition=str(partition)
            )
        except Exception as error:
            # A damaged log, a full disk: the partition stays offline, the process goes on.
            seat.stand_after_s = asyncio.get_running_loop().time() + self._pause_s
            self._reporter.event(
                "replica cannot be opened",
                level="error",
                partition=str(partition),
                error=str(error),
            )
        finally:
            seat.preparing = False
            self._ended()
