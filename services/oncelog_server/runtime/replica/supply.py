"""The leader's side of one follower's dialog: answers, reads the journal and sends, and tells the
leadership what was acknowledged. What is sent when is decided in `follower`.

    appended ─► in the next turn: frames, with the high watermark of that moment
    the high watermark moved ─► after TELL_ALONE_MS alone, where no frames went meanwhile

A follower acts on the high watermark nowhere: it is a lower bound of what the next leader may show.
So nothing waits for it, and one message for each of its moves would be as many as those of frames.

Invariant: what was read for one dialog is not sent in the next one, which began meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from oncelog_server.core.ids import Incarnation, LeaderEpoch, PartitionId
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.dialog import Said, Told
from oncelog_server.runtime.replica.follower import Follower, Read, Room, SendSnapshot
from oncelog_server.runtime.replica.following import Answer, Ask
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.tail import Copies
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import CorruptLog, NotLeader, OncelogError

# A follower that is sent no frames hears of the high watermark after so long.
TELL_ALONE_MS: Final = 20

Tell = Callable[[Told], None]


class Supplies(Protocol):
    """The leadership that it belongs to."""

    @property
    def high_watermark(self) -> int: ...

    def opened(self, incarnation: Incarnation, *, node: str) -> None: ...

    def acknowledged(
        self, incarnation: Incarnation, *, node: str, epoch: int, synced_end: int
    ) -> None: ...

    def unreadable(self, error: CorruptLog | OSError) -> None: ...

    def forget(self, supply: Supply) -> None: ...


class Supply:
    """See the module. Made by `Leadership.supply`."""

    def __init__(
        self,
        partition: PartitionId,
        leadership: Supplies,
        journal: Journal,
        readers: Readers,
        *,
        stream: Room,
        catch_up: Room,
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
        self.node = node
        self._tell = tell
        self._fatal = fatal
        self._follower = Follower(LeaderEpoch(epoch), journal, stream=stream, catch_up=catch_up)
        self._rooms = (stream, catch_up)
        # Counts the dialogs.
        self._dialog = 0
        self._step_is_due = False
        self._reading: asyncio.Task[None] | None = None
        # What the follower knows of the high watermark, and when it is told the next time.
        self._told_high_watermark = -1
        self._telling: asyncio.TimerHandle | None = None
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
            self._leadership.opened(self.incarnation, node=self.node)
            self._say(answer)
            return
        if self._follower.acknowledged(said):
            self._leadership.acknowledged(
                self.incarnation, node=self.node, epoch=said.epoch, synced_end=said.synced_end
            )
            self.wake()

    @property
    def reads_from(self) -> int | None:
        """See Follower."""
        return self._follower.reads_from

    # ------------------------------------------------------------------------------ what it sends

    def wake(self) -> None:
        """There may be something to send: in the next turn of the loop, with all that this one
        appends."""
        if self._step_is_due or self._reading is not None or self.is_over:
            return
        self._step_is_due = True
        asyncio.get_running_loop().call_soon(self._step)

    def high_watermark_moved(self) -> None:
        """It travels with frames, or alone, where no more come."""
        if self._telling is None and not self.is_over:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(TELL_ALONE_MS / 1000, self._tell_high_watermark)

    def end(self, why: OncelogError | None = None) -> None:
        """The dialog is over, and the follower is told why; or its stream has ended."""
        if self.is_over:
            return
        self.is_over = True
        if self._telling is not None:
            self._telling.cancel()
        for room in self._rooms:
            room.leave(self.wake)
        self._follower.close()
        self._leadership.forget(self)
        if why is not None:
            self._say(why)

    def _step(self) -> None:
        self._step_is_due = False
        try:
            while not self.is_over and self._send_next():
                pass
        except Exception as error:
            # A callback of the loop has nobody else to tell.
            self._fatal(error)
        self._pass_on()

    def _pass_on(self) -> None:
        """What is left is for others."""
        for room in self._rooms:
            room.pass_on()

    def _send_next(self) -> bool:
        """False: it has everything, or enough is on its way, or files are read."""
        tail_start = self._journal.tail_start
        step = self._follower.next_step(tail_start=tail_start)
        match step:
            case Read() if step.from_offset >= tail_start:
                return self._send(self._journal.copies_of_tail(*step), tail_start)
            case Read():
                self._reading = vital.spawn(self._send_from_files(step), self._fatal)
            case SendSnapshot():
                self._say(step)
            case None:
                if self._follower.waits_for is not None:
                    self._follower.waits_for.wait(self.wake)
        return False

    async def _send_from_files(self, read: Read) -> None:
        dialog, tail_start = self._dialog, self._journal.tail_start
        try:
            with self._readers:
                copies = await self._journal.copies(*read)
            if not self.is_over and dialog == self._dialog:
                self._send(copies, tail_start)
        except (CorruptLog, OSError) as error:
            self._leadership.unreadable(error)
            self.end(CorruptLog(str(error)))
        except OncelogError as error:
            self.end(error)
        finally:
            self._reading = None
        self.wake()

    def _send(self, copies: Copies, tail_start: int) -> bool:
        if not copies.frames:
            return False
        self._follower.sent(copies.end, len(copies.frames), tail_start=tail_start)
        self._say(copies.frames)
        return True

    def _tell_high_watermark(self) -> None:
        self._telling = None
        if self._dialog and self._told_high_watermark != self._leadership.high_watermark:
            self._say(None)

    def _say(self, what: Answer | bytes | SendSnapshot | OncelogError | None) -> None:
        self._told_high_watermark = self._leadership.high_watermark
        self._tell(Told(self._follower.epoch, self._told_high_watermark, what))
