"""Who reads a journal now: its files are closed, and moved, when the last of them is done."""

from __future__ import annotations

import asyncio
from types import TracebackType

from oncelog_server.core.ids import PartitionId
from oncelogpb.errors import NotLeader


class Readers:
    """Of one replica. `with readers:` stands around each read."""

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition
        self._count = 0
        # Set: nobody may begin to read. Done: nobody reads any more.
        self._gone: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        if self._gone is not None:
            raise NotLeader(
                f"partition {self._partition} was deleted; ask what became of its topic"
            )
        self._count += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count -= 1
        if not self._count and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def leave(self) -> None:
        """Lets nobody begin any more, and returns when those under way have ended."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
            if not self._count:
                self._gone.set_result(None)
        await asyncio.shield(self._gone)
