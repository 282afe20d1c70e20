"""The leader's side of the streams: the Replication service.

    requests ─► by partition: a Supply of its leadership ─► said
    told ─► queued ─► replies of at most REPLY_BYTES_MAX and one message more

What is queued is bounded by what a stream may have sent without an acknowledgement
(STREAM_WINDOW_BYTES), and one high watermark per partition: whoever reads slowly, or not at all,
does not make it grow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from oncelog_server.core.ids import BootId, PartitionId
from oncelog_server.core.ports import Call, Clock
from oncelog_server.core.wire import partition_id
from oncelog_server.runtime.replica.dialog import Told
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.follower import STREAM_WINDOW_BYTES, Room
from oncelog_server.runtime.replica.following import Ask
from oncelog_server.runtime.replica.supply import Supply
from oncelog_server.runtime.replication import wire
from oncelog_server.runtime.replication.describing import add_disk_use, describe
from oncelog_server.runtime.rpc.cluster_access import REPLICAS_DESCRIBED_MAX
from oncelogpb.errors import InvalidArgument, OncelogError, TooLarge, Unavailable, UnknownPartition
from oncelogpb.v1 import replication_pb2 as pb

REPLY_BYTES_MAX: Final = 2 << 20
# A stream on which nothing came for so long is over: its follower's machine is dead, or cut off,
# and no connection tells that soon.
STREAM_SILENT_MS: Final = 1_500
# Replicas that are described in one turn of the loop: a process may have 100,000.
DESCRIBED_AT_ONCE: Final = 500

# The replica of a partition here; None where there is none.
Find = Callable[[PartitionId], Driver | None]
# Whether etcd shows that run of that node, alive.
Lives = Callable[[str, BootId], Awaitable[bool]]
# Of which there is one here, in order.
Held = Callable[[], Sequence[PartitionId]]


class ReplicationService:
    """The Replication handler."""

    def __init__(
        self,
        find: Find,
        lives: Lives,
        held: Held,
        clock: Clock,
        *,
        cluster_id: bytes,
        boot_id: BootId,
    ) -> None:
        self.find = find
        self.lives = lives
        self._held = held
        self._clock = clock
        self.cluster_id = cluster_id
        self.boot_id = boot_id
        # By the node that follows.
        self._streams: dict[str, _Stream] = {}

    @property
    def stream_count(self) -> int:
        """Processes that follow this one."""
        return len(self._streams)

    def begin(self, stream: _Stream, node: str) -> None:
        """Of a node that had another stream that one is over, whether or not the transport has
        noticed it: of this run of the node, or of one before, whose key this one has removed. What
        comes late from there would name what that node is no more."""
        older = self._streams.get(node)
        self._streams[node] = stream
        if older is not None:
            older.replace()

    def end(self, stream: _Stream, node: str) -> None:
        if self._streams.get(node) is stream:
            del self._streams[node]

    def require_meant(self, cluster_id: bytes, boot_id: bytes, *, field: str) -> None:
        """Raises InvalidArgument where another cluster or process is meant."""
        if cluster_id != self.cluster_id:
            raise InvalidArgument("another cluster is meant", field="cluster_id")
        if boot_id != self.boot_id:
            raise InvalidArgument("another process is meant", field=field)

    async def describe_replicas(
        self, request: pb.DescribeReplicasRequest, call: Call
    ) -> pb.DescribeReplicasReply:
        """Raises InvalidArgument where another cluster or process is meant, TooLarge."""
        self.require_meant(request.cluster_id, request.boot_id, field="boot_id")
        if len(request.partitions) > REPLICAS_DESCRIBED_MAX:
            raise TooLarge(
                f"{len(request.partitions)} partitions are above replicas_described_max = "
                f"{REPLICAS_DESCRIBED_MAX}: ask in parts",
                limit="replicas_described_max",
            )
        asked = [partition_id(named) for named in request.partitions] or self._held()
        reply = pb.DescribeReplicasReply(cluster_id=self.cluster_id, boot_id=self.boot_id)
        for first in range(0, len(asked), DESCRIBED_AT_ONCE):
            now_ms = self._clock.now().monotonic_ms
            reply.replicas.extend(
                describe(one, self.find(one), now_ms)
                for one in asked[first : first + DESCRIBED_AT_ONCE]
            )
            await asyncio.sleep(0)
        if request.with_disk:
            for partition, described in zip(asked, reply.replicas, strict=True):
                await add_disk_use(described, self.find(partition))
        return reply

    async def fetch_snapshot(
        self, request: pb.FetchSnapshotRequest, call: Call
    ) -> pb.FetchSnapshotReply:
        """Raises InvalidArgument, UnknownPartition, NotLeader, CorruptLog, Unavailable."""
        self.require_meant(request.cluster_id, request.leader_boot_id, field="leader_boot_id")
        partition = partition_id(request.partition)
        sent = await self.replica(partition).snapshot_part(
            wire.wanted_part(request), epoch=request.epoch
        )
        return wire.snapshot_reply(sent, cluster_id=self.cluster_id, leader_boot_id=self.boot_id)

    def replica(self, partition: PartitionId) -> Driver:
        """Raises UnknownPartition."""
        driver = self.find(partition)
        if driver is None:
            raise UnknownPartition(f"no replica of partition {partition} is here")
        return driver

    async def follow(
        self, requests: AsyncIterator[pb.FollowRequest], call: Call
    ) -> AsyncGenerator[pb.FollowReply, None]:
        """Raises InvalidArgument where another cluster or process is meant, Unavailable where the
        caller is not in the view of etcd."""
        stream = _Stream(self)
        reading = asyncio.ensure_future(stream.read(requests))
        try:
            while (reply := await stream.next_reply()) is not None:
                yield reply
            if stream.is_replaced:
                raise Unavailable("this node has a newer stream")
            # Why it read no more.
            await reading
        finally:
            stream.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


class _Stream:
    """Of one follower process."""

    def __init__(self, service: ReplicationService) -> None:
        self._service = service
        self._supplies: dict[PartitionId, Supply] = {}
        self._room = Room(STREAM_WINDOW_BYTES)
        self._outgoing: deque[pb.LeaderMessage] = deque()
        # Those of them that tell the high watermark only: a later one takes their place.
        self._told_alone: dict[PartitionId, pb.LeaderMessage] = {}
        self._woken = asyncio.Event()
        self._is_over = False
        self.is_replaced = False
        # Who follows, from its first word on.
        self._who: tuple[str, BootId] | None = None

    async def read(self, requests: AsyncIterator[pb.FollowRequest]) -> None:
        try:
            async for request in _spoken(requests):
                await self._require_meant(request)
                for message in request.messages:
                    self._hear(request.node_id, wire.heard(message))
        finally:
            # Not when the replies have ended: a transport that takes no more holds them up.
            self.close()

    async def _require_meant(self, request: pb.FollowRequest) -> None:
        self._service.require_meant(
            request.cluster_id, request.leader_boot_id, field="leader_boot_id"
        )
        who = (request.node_id, BootId(request.boot_id))
        if self._who is None:
            await self._introduce(*who)
        elif who != self._who:
            raise InvalidArgument("one stream has one follower", field="boot_id")

    async def _introduce(self, node: str, boot_id: BootId) -> None:
        """What it acknowledges counts for that node: so it must be a run of it."""
        if not await self._service.lives(node, boot_id):
            raise Unavailable(
                f"etcd does not show process {boot_id.hex()} as a run of node {node}; try again"
            )
        self._who = (node, boot_id)
        self._service.begin(self, node)

    def _hear(self, node: str, heard: wire.Heard) -> None:
        if self._is_over:
            return
        supply = self._supplies.get(heard.partition)
        if supply is not None and supply.incarnation != heard.incarnation:
            if not isinstance(heard.said, Ask):
                # Of what this replica was before.
                return
            self._supplies.pop(heard.partition).end()
            supply = None
        if heard.said is None:
            if supply is not None:
                self._supplies.pop(heard.partition).end()
            return
        if supply is None or supply.is_over:
            opened = self._open(node, heard)
            if opened is None:
                return
            supply = self._supplies[heard.partition] = opened
        supply.said(heard.said)

    def _open(self, node: str, heard: wire.Heard) -> Supply | None:
        """None: it was told why not."""
        try:
            log = self._service.replica(heard.partition)

            def tell(told: Told) -> None:
                self._tell(heard, told, log_start=log.log_start)

            return log.supply(
                heard.incarnation, node=node, epoch=heard.epoch, stream=self._room, tell=tell
            )
        except OncelogError as error:
            assert heard.said is not None, "it is told what it asked"
            self._tell(heard, Told(heard.said.epoch, 0, error), log_start=0)
            return None

    def _tell(self, to: wire.Heard, told: Told, *, log_start: int) -> None:
        if self._is_over:
            return
        message = wire.leader_message(to, told, log_start=log_start)
        if told.what is None:
            waiting = self._told_alone.get(to.partition)
            if waiting is not None:
                waiting.CopyFrom(message)
                return
            self._told_alone[to.partition] = message
        self._outgoing.append(message)
        self._woken.set()

    async def next_reply(self) -> pb.FollowReply | None:
        """None: the follower says nothing more."""
        while not self._outgoing:
            if self._is_over:
                return None
            await self._woken.wait()
            self._woken.clear()
        reply = pb.FollowReply(
            cluster_id=self._service.cluster_id, leader_boot_id=self._service.boot_id
        )
        size = 0
        while self._outgoing and size < REPLY_BYTES_MAX:
            message = self._outgoing.popleft()
            if message.WhichOneof("said") is None:
                self._told_alone.pop(partition_id(message.partition), None)
            size += len(message.frames)
            reply.messages.append(message)
        return reply

    def replace(self) -> None:
        """By a newer one of the same node."""
        self.is_replaced = True
        self.close()

    def close(self) -> None:
        self._is_over = True
        self._outgoing.clear()
        self._told_alone.clear()
        self._woken.set()
        if self._who is not None:
            self._service.end(self, self._who[0])
        for supply in self._supplies.values():
            supply.end()


async def _spoken(
    requests: AsyncIterator[pb.FollowRequest],
) -> AsyncGenerator[pb.FollowRequest, None]:
    """Until the follower ends the stream. Raises Unavailable: it said nothing for too long."""
    while True:
        try:
            async with asyncio.timeout(STREAM_SILENT_MS / 1000):
                request = await anext(requests)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Unavailable("the follower says nothing; begin a new stream") from None
        yield request
