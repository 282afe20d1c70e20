"""The attempts to open the log of one replica, or to mend it, who waits for the next one, and what
is wrong with the replica as far as that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.receiving import Installs
from oncelog_server.runtime.replica.state import ReplicaState
from oncelog_server.runtime.target import Candidate, Lead

# A log that could not be opened, or written, is tried again after so long.
RETRY_MS: Final = 1_000


class Opening:
    """Of one replica. One future serves all who wait, so each gets it shielded."""

    def __init__(
        self,
        partition: PartitionId,
        around: ReplicaEnv,
        state: ReplicaState,
        *,
        candidate: Callable[[], Candidate | None],
    ) -> None:
        """`candidate`: what an election asks of the replica; None while it may not stand."""
        self._partition = partition
        self._around = around
        self._state = state
        self._candidate = candidate
        self._next: asyncio.Future[Candidate] | None = None
        # Why it can neither lead nor follow; "": nothing is wrong.
        self.unfit = ""
        # Of what was before a leader's log.
        self.installs = Installs()
        # Set by every new target: who pauses before another attempt looks at it.
        self._aimed = asyncio.Event()

    def aimed(self) -> None:
        """There is a new target: a pause that is under way ends."""
        self._aimed.set()

    def looks_at_target(self) -> None:
        """What was aimed at so far is known to whoever pauses next."""
        self._aimed.clear()

    async def attempt(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Whatever it meets (a damaged log, a full disk), the partition stays offline, the process
        goes on, and it is tried again after a pause."""
        try:
            async with self._around.places:
                await attempt()
        except Exception as error:
            self.unusable(error)
            self.failed(error)
            if isinstance(self._state.target, Lead):
                # While etcd names this process, no other replica may stand.
                self._around.failed(self._partition, error)
            await self.pause()
        else:
            self.unfit = ""
            # None where a damaged log was moved away.
            if (candidate := self._candidate()) is not None:
                self._succeeded(candidate)
            self._around.opened(self._partition)

    def unusable(self, error: Exception) -> None:
        """Until something that was tried again succeeds."""
        self.unfit = str(error)
        self._around.report_unusable(self._partition, error)

    async def pause(self) -> None:
        """Before another attempt, or until there is a new target."""
        try:
            async with asyncio.timeout(RETRY_MS / 1000):
                await self._aimed.wait()
        except TimeoutError:
            return

    def wait(self) -> Awaitable[Candidate]:
        """Raises what the next attempt meets."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._next)

    def _succeeded(self, candidate: Candidate) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(candidate)

    def failed(self, error: Exception) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
            # Whoever asked may have gone.
            waiting.exception()
