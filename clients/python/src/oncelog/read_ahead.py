"""One partition's committed log, read ahead of who takes it: what makes one task of a connector
quick. A stream of replies, each already under way while the last one is being worked on.

    with ReadAhead(protocol, partition, 4_000_000) as ahead:
        while (reply := ahead.take(seconds=1)) is not None:
            ...

It is a way to be quick, and no more: it ends for whatever reason, without saying which. Whoever
takes from it goes on by a Fetch, from where it stands: that finds the leader, waits, repeats, and
says what is wrong.

Invariants: replies come in order, each begins where the one before ended; what nobody takes is
bounded, here and by the flow control of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Final, TypeAlias

from oncelog._core.routing import PartitionKey
from oncelog.errors import Closed
from oncelog.protocol import AsyncProtocol, Protocol
from oncelogpb import errors, in_place
from oncelogpb.v1 import partition_leader_pb2

# Of each reply: messages of 1 to 2 MiB are carried best.
REPLY_BYTES: Final = 2 * 1024 * 1024
# Replies that nobody has taken yet.
REPLIES_MAX: Final = 2
# How long the leader is looked for.
LOCATE_MS: Final = 10_000

# As `in_place.fetched` takes it.
Reply: TypeAlias = partition_leader_pb2.FetchReply | in_place.LiftedFetch


class ReadAhead:
    """Under way once it is made. Blocking, for one thread; close it."""

    def __init__(self, protocol: Protocol, partition: PartitionKey, offset: int) -> None:
        """`offset`: the first that is wanted. Raises Closed."""
        self._protocol = protocol
        self._partition = partition
        self._offset = offset
        self._replies: deque[Reply] = deque()
        self._has_ended = False
        # Guards the two above.
        self._changed = threading.Condition()
        # Belong to the loop.
        self._room = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        protocol.run(self._begin)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def take(self, seconds: float) -> Reply | None:
        """The next reply. None: nothing came for so long, or no more will."""
        with self._changed:
            self._changed.wait_for(lambda: self._replies or self._has_ended, seconds)
            if not self._replies:
                return None
            reply = self._replies.popleft()
        with contextlib.suppress(Closed):
            self._protocol.post(self._room.set)
        return reply

    def close(self) -> None:
        """Ends the stream. Safe to repeat."""
        with contextlib.suppress(Closed):
            self._protocol.post(self._stop)

    # ------------------------------------------------------------------------------- on the loop

    async def _begin(self, protocol: AsyncProtocol) -> None:
        self._reading = asyncio.create_task(self._read(protocol))

    def _stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, protocol: AsyncProtocol) -> None:
        request = partition_leader_pb2.SubscribeRequest(
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
            max_bytes=REPLY_BYTES,
            with_offsets=True,
        )
        request.partitions.add(
            partition=self._partition.wire(), offset=self._offset, max_bytes=REPLY_BYTES
        )
        try:
            leader = await protocol.locate(self._partition, protocol.deadline(LOCATE_MS))
            replies = protocol.transport.stream(leader, "partition_leader.subscribe", request)
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    if any(part.HasField("error") for part, _ in in_place.fetched(reply)):
                        return
                    await self._put(reply)
        except errors.OncelogError:
            # Whoever goes on by a Fetch is told.
            return
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    async def _put(self, reply: Reply) -> None:
        while len(self._replies) >= REPLIES_MAX:
            self._room.clear()
            await self._room.wait()
        with self._changed:
            self._replies.append(reply)
            self._changed.notify_all()
