"""PURE. The leader's side of one follower's dialog, over one partition: where the logs part, what
to send next, and how much may be on its way.

    asked ─► Answer          acknowledged ─► frames may be sent from the follower's log end on
    next_step ─► Read(from, max bytes) ─► sent(...)     frames that fit the window
              └► SendSnapshot, once                     its log ends before the leader's begins
              └► None                                   it has everything, or enough is on its way,
                                                        or others have (`waits_for`)

Invariants:
  * nothing is sent before the follower has said, in this epoch, that the logs agree;
  * at most `window_bytes` are sent and not acknowledged, and one frame more;
  * all dialogs of a stream share a `Room`, and all of the process that read what is no longer in
    memory another one: who is far behind waits there in turn, and those who keep up do not.

Left out: what the acknowledgements count for (`in_sync`), reading the journal, the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.replica.following import Acknowledge, Answer, Ask, LogEnds

# Sent to one replica, and not acknowledged by it.
REPLICA_WINDOW_BYTES: Final = 8 << 20
# One message's worth of frames, unless a single frame is larger.
REPLICA_READ_BYTES_MAX: Final = 1 << 20
# Of all replicas of a process that are behind what memory holds.
CATCH_UP_BYTES_MAX: Final = 16 << 20
# Sent on one stream, and not acknowledged there.
STREAM_WINDOW_BYTES: Final = 64 << 20


class Read(NamedTuple):
    """Frames to be read and sent, at least one. Then `Follower.sent`."""

    from_offset: JournalOffset
    max_bytes: int


class SendSnapshot(NamedTuple):
    """The follower ends where this log has begun already: it needs the state instead."""

    follower_end: JournalOffset


class Room:
    """What several dialogs may have on their way together, in bytes. A single frame that is larger
    goes when nothing else is on its way. Who finds none is woken in turn, so nobody starves."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used_bytes = 0
        # In the order in which they came.
        self._waiting: dict[Callable[[], None], None] = {}

    def limit(self, wanted_bytes: int) -> int:
        """How many of so many bytes may leave now; 0 or less: none."""
        if not self.used_bytes:
            return wanted_bytes
        return min(wanted_bytes, self._max_bytes - self.used_bytes)

    def take(self, size: int) -> None:
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        self.used_bytes -= size
        if size:
            self.pass_on()

    def wait(self, wake: Callable[[], None]) -> None:
        """`wake` is called once, where there is room again; who then leaves some passes it on."""
        self._waiting[wake] = None

    def leave(self, wake: Callable[[], None]) -> None:
        self._waiting.pop(wake, None)

    def pass_on(self) -> None:
        """Wakes who has waited longest, where there is room."""
        if self._waiting and self.used_bytes < self._max_bytes:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first()


class _Sent(NamedTuple):
    end: int
    size: int
    # Of it, what was read from files.
    from_files: int


class Follower:
    """See the module. One per stream and partition."""

    def __init__(
        self,
        epoch: LeaderEpoch,
        log: LogEnds,
        *,
        stream: Room,
        catch_up: Room,
        window_bytes: int = REPLICA_WINDOW_BYTES,
    ) -> None:
        self.epoch = epoch
        self._log = log
        self._stream = stream
        self._catch_up = catch_up
        # Where it found no room at its last step.
        self.waits_for: Room | None = None
        self._window_bytes = window_bytes
        # Where the next frame begins; None until the logs agree.
        self._next: int | None = None
        # It knows that it needs a snapshot.
        self._offered = False
        self._on_the_way: deque[_Sent] = deque()
        self._unacknowledged_bytes = 0

    @property
    def reads_from(self) -> int | None:
        """Where the next frame begins, and where it ended when it was offered a snapshot; None: it
        reads nothing."""
        return self._next

    def asked(self, ask: Ask) -> Answer | None:
        """None: it means another epoch. From here on nothing is sent until it acknowledges."""
        if ask.epoch != self.epoch:
            return None
        self.close()
        epoch, end = self._log.end_of_epoch(ask.last_epoch)
        return Answer(self.epoch, LeaderEpoch(epoch), JournalOffset(end))

    def acknowledged(self, ack: Acknowledge) -> bool:
        """False where it counts for nothing: another epoch is meant, or more than there is."""
        if ack.epoch != self.epoch or ack.synced_end > self._log.log_end:
            return False
        if self._next is None:
            self._next = ack.log_end
        while self._on_the_way and self._on_the_way[0].end <= ack.synced_end:
            self._arrived(self._on_the_way.popleft())
        return True

    def next_step(self, *, tail_start: int) -> Read | SendSnapshot | None:
        """What to send now. `tail_start`: from this journal offset on, memory has everything."""
        self.waits_for = None
        position = self._next
        if position is None:
            return None
        if position < self._log.log_start:
            offered, self._offered = self._offered, True
            return None if offered else SendSnapshot(JournalOffset(position))
        wanted = min(self._window_bytes - self._unacknowledged_bytes, REPLICA_READ_BYTES_MAX)
        if position >= self._log.log_end or wanted <= 0:
            return None
        shared = (self._stream, self._catch_up) if position < tail_start else (self._stream,)
        for room in shared:
            wanted = room.limit(wanted)
            if wanted <= 0:
                self.waits_for = room
                return None
        return Read(JournalOffset(position), wanted)

    def sent(self, end: int, size: int, *, tail_start: int) -> None:
        """Frames from where the last ones ended up to `end` have left, so many bytes."""
        assert self._next is not None, "nothing is sent before the logs agree"
        sent = _Sent(end, size, size if self._next < tail_start else 0)
        self._on_the_way.append(sent)
        self._unacknowledged_bytes += size
        self._stream.take(size)
        self._catch_up.take(sent.from_files)
        self._next = end

    def close(self) -> None:
        """Its stream ended, or it begins anew: nothing is on its way any more."""
        self._next = None
        self._offered = False
        while self._on_the_way:
            self._arrived(self._on_the_way.popleft())

    def _arrived(self, sent: _Sent) -> None:
        self._unacknowledged_bytes -= sent.size
        self._stream.give_back(sent.size)
        self._catch_up.give_back(sent.from_files)
