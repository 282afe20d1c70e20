"""Keeps the batches of one stream in order although some are judged off the loop.

Calls of a stream start in the order in which they came. One whose batch is decompressed in a thread
must not be overtaken by the next: its sequence numbers would look like a gap.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class Lanes:
    """One lane per stream. Use: `async with lanes.turn(stream_id) as turn: ...; await turn.wait()`;
    whoever submits after `wait()`, in the same loop turn, submits in the order of arrival."""

    def __init__(self) -> None:
        # The last of each lane, done when it has submitted.
        self._last: dict[int, asyncio.Future[None]] = {}

    def turn(self, stream_id: int) -> Turn:
        """Takes the next place in the lane. Unary calls (0) have no order."""
        return Turn(self._last, stream_id)


class Turn:
    """A place in a lane, left at the end of the `async with`."""

    def __init__(self, last: dict[int, asyncio.Future[None]], stream_id: int) -> None:
        self._last = last
        self._stream_id = stream_id
        self._before = last.get(stream_id) if stream_id else None
        self._own: asyncio.Future[None] | None = None
        if stream_id:
            self._own = last[stream_id] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Returns when all earlier calls of the stream have submitted, or failed."""
        if self._before is not None and not self._before.done():
            # Shielded: whoever gives up waiting must not end the place of another.
            await asyncio.shield(self._before)

    def leave(self) -> None:
        """Lets the next one submit. Who gives up before its turn hands its place on."""
        if self._own is None or self._own.done():
            return
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self._finish())
        else:
            self._finish()

    def _finish(self) -> None:
        own = self._own
        assert own is not None
        if not own.done():
            own.set_result(None)
        if self._last.get(self._stream_id) is own:
            del self._last[self._stream_id]

    async def __aenter__(self) -> Turn:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
