"""Who waits for the next attempt to open a log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from oncelog_server.runtime.target import Candidate


class Opening:
    """Of one replica. One future serves all who wait, so each gets it shielded."""

    def __init__(self) -> None:
        self._next: asyncio.Future[Candidate] | None = None

    def wait(self) -> Awaitable[Candidate]:
        """Raises what the next attempt meets."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._next)

    def succeeded(self, candidate: Candidate) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(candidate)

    def failed(self, error: Exception) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
            # Whoever asked may have gone.
            waiting.exception()
