"""The leader's side of one follower's dialog: answers, reads the journal and sends, and tells the
leadership what was acknowledged. What is sent when is decided in `follower`.

Invariant: what was read for one dialog is not sent in the next one, which began meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from oncelog_server.core.ids import Incarnation, LeaderEpoch, PartitionId
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.dialog import Said, Told
from oncelog_server.runtime.replica.follower import CatchUp, Follower, Read, SendSnapshot
from oncelog_server.runtime.replica.following import Answer, Ask
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import Internal, NotLeader, OncelogError

Tell = Callable[[Told], None]


class Supplies(Protocol):
    """The leadership that it belongs to."""

    @property
    def high_watermark(self) -> int: ...

    def opened(self, incarnation: Incarnation, *, node: str) -> None: ...

    def acknowledged(
        self, incarnation: Incarnation, *, node: str, epoch: int, synced_end: int
    ) -> None: ...

    def forget(self, supply: Supply) -> None: ...


class Supply:
    """See the module. Made by `Leadership.supply`."""

    def __init__(
        self,
        partition: PartitionId,
        leadership: Supplies,
        journal: Journal,
        readers: Readers,
        catch_up: CatchUp,
        *,
        epoch: int,
        incarnation: Incarnation,
        node: str,
        tell: Tell,
        fatal: Fatal,
    ) -> None:
        self._partition = partition
        self._leadership = leadership
        self._journal = journal
        self._readers = readers
        self.incarnation = incarnation
        self._node = node
        self._tell = tell
        self._fatal = fatal
        self._follower = Follower(LeaderEpoch(epoch), journal, catch_up)
        # Counts the dialogs.
        self._dialog = 0
        self._sending: asyncio.Task[None] | None = None
        self.is_over = False

    def said(self, said: Said) -> None:
        """By the follower."""
        if self.is_over:
            return
        if isinstance(said, Ask):
            self._dialog += 1
            answer = self._follower.asked(said)
            if answer is None:
                self.end(NotLeader(f"partition {self._partition}: another epoch is led here"))
                return
            self._leadership.opened(self.incarnation, node=self._node)
            self._say(answer)
            return
        if self._follower.acknowledged(said):
            self._leadership.acknowledged(
                self.incarnation, node=self._node, epoch=said.epoch, synced_end=said.synced_end
            )
            self.wake()

    def wake(self) -> None:
        """There may be something to send."""
        if self._sending is None and not self.is_over:
            self._sending = vital.spawn(self._send(), self._fatal)

    def end(self, why: OncelogError | None = None) -> None:
        """The dialog is over, and the follower is told why; or its stream has ended."""
        if self.is_over:
            return
        self.is_over = True
        self._follower.close()
        self._leadership.forget(self)
        if why is not None:
            self._say(why)

    async def _send(self) -> None:
        try:
            with self._readers:
                while not self.is_over and await self._send_next():
                    pass
        except (OncelogError, OSError) as error:
            known = error if isinstance(error, OncelogError) else Internal(str(error))
            self.end(known)
        finally:
            self._sending = None

    async def _send_next(self) -> bool:
        """False: it has everything, or enough is on its way."""
        step = self._follower.next_step(tail_start=self._journal.tail_start)
        if isinstance(step, Read):
            return await self._send_frames(step)
        if step is not None:
            self._say(step)
        elif self._dialog and self._follower.untold(self._leadership.high_watermark):
            self._say(None)
        return False

    async def _send_frames(self, read: Read) -> bool:
        dialog, tail_start = self._dialog, self._journal.tail_start
        copies = await self._journal.copies(read.from_offset, read.max_bytes)
        if self.is_over or dialog != self._dialog:
            return True
        if not copies.frames:
            return False
        self._follower.sent(copies.end, len(copies.frames), tail_start=tail_start)
        self._follower.untold(self._leadership.high_watermark)
        self._say(copies.frames)
        return True

    def _say(self, what: Answer | bytes | SendSnapshot | OncelogError | None) -> None:
        told = Told(self._follower.epoch, self._leadership.high_watermark, what)
        self._tell(told)
