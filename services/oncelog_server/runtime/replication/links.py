"""The follower's side of the streams: one to each process that leads something that this one
follows, for as long as it follows anything there.

    follow ─► a dialog ─► begun, at every new stream ─► say / told ─► close
    a stream that ends is made again after RECONNECT_MS, then twice as long, up to RECONNECT_MS_MAX

Invariants:
  * what was said on one stream is never sent on the next one;
  * what was said in one dialog is never heard in the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol

from oncelog_server.core.ids import BootId, Incarnation, PartitionId
from oncelog_server.core.ports import Address, ClusterMetadata, Peers, Reporter
from oncelog_server.core.wire import partition_id
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.dialog import Hears, Said, SnapshotPart
from oncelog_server.runtime.replication import wire
from oncelog_server.runtime.storage.snapshot_parts import PartOf
from oncelog_server.runtime.target import Follow
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import OncelogError, Unavailable
from oncelogpb.v1 import replication_pb2 as pb

RECONNECT_MS: Final = 100
RECONNECT_MS_MAX: Final = 2_000
# Who has nothing to say says so, so often: a leader drops who is silent for STREAM_SILENT_MS.
SIGN_OF_LIFE_MS: Final = 400
FOLLOW: Final = "replication.follow"
FETCH_SNAPSHOT: Final = "replication.fetch_snapshot"
# A part of a snapshot comes within this, or is asked for again.
SNAPSHOT_PART_MS: Final = 10_000


class Streams(Peers, Protocol):
    """Calls and streams to other processes."""

    def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        """The replies, as they come; closing it ends the stream. Raises OncelogError."""
        ...


def others_of(
    view: ClusterMetadata, node_id: str, partition: PartitionId, epoch: int
) -> Sequence[Address]:
    """Processes of the other replicas of a partition, its leader first, as etcd shows them."""
    known = view.partition(partition)
    if known is None:
        return ()
    leader = None if known.leader is None else known.leader.node_id
    runs = {node.node_id: node for node in view.nodes() if node.node_id != node_id}
    here = [runs[name] for name in known.replicas if name in runs]
    here.sort(key=lambda node: node.node_id != leader)
    return [Address(node.node_id, node.boot_id, node.host, node.port, epoch) for node in here]


def copies_of(view: ClusterMetadata, partition: PartitionId) -> int:
    """Replicas of a partition, as etcd shows them."""
    known = view.partition(partition)
    return 0 if known is None else len(known.replicas)


class Links:
    """Of one process."""

    def __init__(
        self,
        streams: Streams,
        *,
        cluster_id: bytes,
        node_id: str,
        boot_id: BootId,
        reporter: Reporter,
        fatal: Fatal,
    ) -> None:
        self.streams = streams
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.boot_id = boot_id
        self.reporter = reporter
        self.fatal = fatal
        self._links: dict[BootId, _Link] = {}
        self._ending: set[asyncio.Task[None]] = set()
        # Begun so far.
        self._dialogs = 0

    @property
    def count(self) -> int:
        """Processes that are followed."""
        return len(self._links)

    def follow(
        self, partition: PartitionId, target: Follow, incarnation: Incarnation, hears: Hears
    ) -> _Dialog:
        """See OpenDialog."""
        link = self._links.get(target.leader.boot_id)
        if link is None:
            link = self._links[target.leader.boot_id] = _Link(self, target.leader)
        self._dialogs += 1
        dialog = _Dialog(link, self._dialogs, partition, target.epoch, incarnation, hears)
        link.add(dialog)
        return dialog

    def forget(self, link: _Link) -> None:
        """Nobody follows anything there."""
        if self._links.get(link.leader.boot_id) is link:
            del self._links[link.leader.boot_id]
        link.task.cancel()
        self._ending.add(link.task)
        link.task.add_done_callback(self._ending.discard)

    async def fetch_from(
        self, to: Address, partition: PartitionId, wanted: PartOf, epoch: int
    ) -> SnapshotPart:
        """Of the replica of a process, in an epoch that both lead or follow. A call of its own, so
        what is large holds up nobody's frames. Raises OncelogError."""
        request = wire.snapshot_request(
            partition, epoch, wanted, cluster_id=self.cluster_id, leader_boot_id=to.boot_id
        )
        reply = await self.streams.call(to, FETCH_SNAPSHOT, request, timeout_ms=SNAPSHOT_PART_MS)
        self.require_meant(reply, to)
        return wire.snapshot_part(reply)

    def require_meant(self, reply: pb.FollowReply | pb.FetchSnapshotReply, to: Address) -> None:
        """Raises Unavailable."""
        if reply.cluster_id != self.cluster_id:
            raise Unavailable(f"another cluster answers at the address of node {to.node_id}")
        if reply.leader_boot_id != to.boot_id:
            raise Unavailable(f"another process answers at the address of node {to.node_id}")

    async def stop(self) -> None:
        for link in tuple(self._links.values()):
            self.forget(link)
        await asyncio.gather(*self._ending, return_exceptions=True)


class _Dialog:
    """Of one partition."""

    def __init__(
        self,
        link: _Link,
        number: int,
        partition: PartitionId,
        epoch: int,
        incarnation: Incarnation,
        hears: Hears,
    ) -> None:
        self._link = link
        # The leader repeats it: what it said in another one is not heard.
        self.number = number
        self.partition = partition
        self.incarnation = incarnation
        self.epoch = epoch
        self.hears = hears

    def say(self, said: Said) -> None:
        """See Dialog."""
        self._link.say(self.message(said))

    def message(self, said: Said | None) -> pb.FollowerMessage:
        return wire.follower_message(
            self.partition, self.incarnation, self.epoch, said, dialog=self.number
        )

    async def fetch(self, wanted: PartOf) -> SnapshotPart:
        """See Dialog."""
        return await self._link.fetch(self.partition, self.epoch, wanted)

    def close(self) -> None:
        self._link.remove(self)


class _Outgoing:
    """Of one stream. Each has its own, for gRPC may ask one that broke for a last request."""

    def __init__(self) -> None:
        self._messages: list[pb.FollowerMessage] = []
        self._woken = asyncio.Event()

    def say(self, message: pb.FollowerMessage) -> None:
        self._messages.append(message)
        self._woken.set()

    async def next(self) -> list[pb.FollowerMessage]:
        """What there is to say; nothing, as a sign of life, after SIGN_OF_LIFE_MS."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SIGN_OF_LIFE_MS / 1000):
                await self._woken.wait()
        self._woken.clear()
        messages, self._messages = self._messages, []
        return messages


class _Link:
    """To one process that leads."""

    def __init__(self, links: Links, leader: Address) -> None:
        self.leader = leader
        self._links = links
        self._dialogs: dict[PartitionId, _Dialog] = {}
        # None where no stream stands.
        self._outgoing: _Outgoing | None = None
        # On the stream that stands, or stood last.
        self._has_heard = False
        self.task = vital.spawn(self._run(), links.fatal)

    def add(self, dialog: _Dialog) -> None:
        self._dialogs[dialog.partition] = dialog
        if self._outgoing is not None:
            asyncio.get_running_loop().call_soon(self._begin, dialog)

    def remove(self, dialog: _Dialog) -> None:
        if self._dialogs.get(dialog.partition) is dialog:
            del self._dialogs[dialog.partition]
            self.say(dialog.message(None))
        if not self._dialogs:
            self._links.forget(self)

    def say(self, message: pb.FollowerMessage) -> None:
        if self._outgoing is not None:
            self._outgoing.say(message)

    async def fetch(self, partition: PartitionId, epoch: int, wanted: PartOf) -> SnapshotPart:
        """Raises OncelogError."""
        return await self._links.fetch_from(self.leader, partition, wanted, epoch)

    def _begin(self, dialog: _Dialog) -> None:
        if self._outgoing is not None and self._dialogs.get(dialog.partition) is dialog:
            dialog.hears.begun()

    async def _run(self) -> None:
        pause_ms = RECONNECT_MS
        while True:
            self._has_heard = False
            try:
                await self._stream()
                raise Unavailable("the stream ended")
            except OncelogError as error:
                self._links.reporter.event(
                    "stream to leader ended", node=self.leader.node_id, error=str(error)
                )
            finally:
                self._outgoing = None
            pause_ms = RECONNECT_MS if self._has_heard else min(2 * pause_ms, RECONNECT_MS_MAX)
            await asyncio.sleep(pause_ms / 1000)

    async def _stream(self) -> None:
        """Raises OncelogError."""
        outgoing = _Outgoing()
        requests = self._requests(outgoing)
        replies = self._links.streams.exchange(self.leader, FOLLOW, requests)
        async with aclosing(replies):
            self._outgoing = outgoing
            for dialog in tuple(self._dialogs.values()):
                self._begin(dialog)
            async for reply in replies:
                self._has_heard = True
                self._hear(reply)

    async def _requests(self, outgoing: _Outgoing) -> AsyncGenerator[pb.FollowRequest, None]:
        while True:
            messages = await outgoing.next()
            yield pb.FollowRequest(
                cluster_id=self._links.cluster_id,
                node_id=self._links.node_id,
                boot_id=self._links.boot_id,
                leader_boot_id=self.leader.boot_id,
                messages=messages,
            )

    def _hear(self, reply: pb.FollowReply) -> None:
        self._links.require_meant(reply, self.leader)
        for message in reply.messages:
            dialog = self._dialogs.get(partition_id(message.partition))
            if dialog is not None and message.dialog == dialog.number:
                dialog.hears.told(wire.told(message))
