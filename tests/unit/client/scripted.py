"""A transport whose processes are Python functions, on virtual time: what the client does against
leaders that move, refuse, and lose answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.options import ConnectOptions
from oncelog.protocol import AsyncProtocol, Protocol
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as types
from tests.simulation.virtual_time import VirtualTimeLoop, run

TOPIC_ID = b"t" * 16
BOOT = Endpoint("boot", 1)
T = TypeVar("T")

# (endpoint, request) -> reply, or raises.
Handler = Callable[[Endpoint, Any], Any]


class Counted:
    """Replies of a stream, and how many of them were asked for."""

    def __init__(self, replies: Iterable[Any]) -> None:
        self._replies = replies
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        for reply in self._replies:
            self.asked += 1
            yield reply


class ScriptedTransport:
    """Answers by method name; keeps what was asked. `partitions` are the ports of the leaders of
    topic "a"."""

    def __init__(self, *partitions: int) -> None:
        self.partitions = list(partitions)
        self.handlers: dict[str, Handler] = {"cluster.get_metadata": self.metadata}
        self.asked: list[tuple[str, int]] = []
        self.requests: list[Any] = []
        self.listeners: list[Callable[[], None]] = []
        # What `retain` was told, in order.
        self.retained: list[Collection[Endpoint]] = []
        # What waits for an answer, by process.
        self._waiting: dict[Endpoint, list[asyncio.Task[Any]]] = defaultdict(list)
        self.delay_s = 0.001
        self.streams: list[Iterable[Any]] = []
        # Settings of topic "a".
        self.configs: dict[str, str] = {}

    def metadata(self, to: Endpoint, request: Any) -> Any:
        """Port 0: nobody leads it. No partitions: there is no topic."""
        reply = cluster_pb2.GetMetadataReply(cluster_id=b"c", etcd_reachable=True)
        ports = sorted({port for port in self.partitions if port} or {BOOT.port})
        for port in ports:
            reply.nodes.add(
                node_id=str(port),
                endpoint=types.Endpoint(host="boot", port=port),
                roles=["coordinator", "partition_leader", "offset_manager"],
            )
        if ("a" in request.topics or TOPIC_ID in request.topic_ids) and self.partitions:
            topic = reply.topics.add(name="a", topic_id=TOPIC_ID, configs=self.configs)
            for number, port in enumerate(self.partitions):
                topic.partitions.add(number=number, leader=_leader(port))
        for name in request.transaction_groups:
            reply.transaction_groups.add(group=name, leader=_leader(ports[0]))
        for name in request.consumer_groups:
            reply.consumer_groups.add(group=name, leader=_leader(ports[0]))
        for number in request.journal_partitions:
            place = types.Partition(number=number)
            reply.journal_partitions.add(partition=place, leader=_leader(ports[0]))
        return reply

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.asked)

    # ------------------------------------------------------------------------------- Transport

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.call(to, method, request, timeout_ms))

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        self.asked.append((method, to.port))
        if method != "cluster.get_metadata":
            self.requests.append(request)
        answering = asyncio.ensure_future(self._answer(to, method, request))
        self._waiting[to].append(answering)
        try:
            done, _ = await asyncio.wait([answering], timeout=timeout_ms / 1000)
            if not done or answering.cancelled():
                raise errors.UnknownOutcome("no answer in time")
            return answering.result()
        finally:
            answering.cancel()

    async def _answer(self, to: Endpoint, method: str, request: Any) -> Any:
        await asyncio.sleep(self.delay_s)
        answer = self.handlers[method](to, request)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        self.asked.append((method, to.port))
        self.requests.append(request)
        for reply in self.streams.pop(0) if self.streams else []:
            if isinstance(reply, errors.OncelogError):
                raise reply
            if isinstance(reply, float):
                await asyncio.sleep(reply)
                continue
            if reply is None:
                # The leader ends it: it leads no more.
                return
            yield reply
        await asyncio.sleep(3_600)

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def retain(self, members: Collection[Endpoint]) -> None:
        self.retained.append(members)

    def abandon(self, to: Endpoint) -> None:
        for waiting in self._waiting.pop(to, []):
            waiting.cancel()

    async def close(self) -> None: ...


def _leader(port: int) -> types.Leader | None:
    if not port:
        return None
    return types.Leader(node_id=str(port), endpoint=types.Endpoint(host="boot", port=port))


def protocol_over(transport: ScriptedTransport, **options: Any) -> AsyncProtocol:
    return AsyncProtocol(
        "boot:1", ConnectOptions(**options), transport=transport, chance=lambda: 0.0
    )


def blocking_over(transport: ScriptedTransport) -> Protocol:
    """On a loop in a thread of its own, in real time. Close it."""
    protocol = Protocol("boot:1")
    protocol._async.transport = transport
    return protocol


def on_virtual_time(work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, float]:
    """The result, and how many (virtual) seconds it took."""
    loop = VirtualTimeLoop()
    result = run(work(), loop)
    return result, loop.now_s


def place(number: int) -> types.Partition:
    return PartitionKey(TOPIC_ID, number).wire()


def produced(request: Any) -> partition_leader_pb2.ProduceRequest:
    """What a Produce says, however it was put together."""
    return partition_leader_pb2.ProduceRequest.FromString(request.SerializeToString())
