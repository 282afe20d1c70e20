"""A transport that writes into a history (`recorder`) what leaders acknowledge: who, in which
epoch, at which journal offsets (I18); and what members of groups say and are told
(`recorded_groups`); and truncations (`recorded_truncations`).

One operation `acknowledge` per message of batches: what an answer covers are batches, and records
of several operations may share one. Where the answer is lost, so is what it said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

from oncelog._core.routing import Directory, Endpoint
from oncelog._transport import Transport
from oncelog.checker import recorded_truncations
from oncelog.checker.events import HistoryWriter
from oncelog.checker.recorded_groups import answered, asked
from oncelog.checker.telling import raised, telling
from oncelogpb.v1 import partition_leader_pb2

PRODUCE = "partition_leader.produce"


class RecordedTransport:
    """The Transport port, over another. `name_of` says who answers at an address: None where that
    may be one process now and another later, in the same epoch of a partition."""

    def __init__(
        self,
        inner: Transport,
        history: HistoryWriter,
        directory: Directory,
        name_of: Callable[[Endpoint], str | None] = str,
    ) -> None:
        self.inner = inner
        self._history = history
        self._directory = directory
        self._name_of = name_of

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        if method != PRODUCE:
            return self.inner.begin(to, method, request, timeout_ms)
        counts = [batch.record_count for batch in _message(request).batches]
        op = self._history.invoke("acknowledge")
        try:
            reply = self.inner.begin(to, method, request, timeout_ms)
        except BaseException as error:
            raised(self._history, op, error)
            raise
        reply.add_done_callback(lambda future: self._answered(op, to, counts, future))
        return reply

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        if method == PRODUCE:
            return await self.begin(to, method, request, timeout_ms)
        if method == recorded_truncations.TRUNCATE:
            return await self._truncate(to, request, timeout_ms)
        said = asked(method, request, self._name)
        if said is None:
            return await self.inner.call(to, method, request, timeout_ms)
        op = self._history.invoke(said.do, **said.arguments)
        with telling(self._history, op):
            reply = await self.inner.call(to, method, request, timeout_ms)
        self._history.ok(op, **answered(method, reply, self._name))
        return reply

    async def _truncate(self, to: Endpoint, request: Any, timeout_ms: int) -> Any:
        told = recorded_truncations.asked(request, self._name)
        op = self._history.invoke("truncate", **told)
        with telling(self._history, op):
            reply = await self.inner.call(to, recorded_truncations.TRUNCATE, request, timeout_ms)
        self._history.ok(op, **recorded_truncations.answered(request, reply, self._name))
        return reply

    def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        return self.inner.stream(to, method, request)

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return self.inner.on_end(to, service, listener)

    def retain(self, members: Collection[Endpoint]) -> None:
        self.inner.retain(members)

    def abandon(self, to: Endpoint) -> None:
        self.inner.abandon(to)

    async def close(self) -> None:
        await self.inner.close()

    def _answered(
        self, op: str, leader: Endpoint, counts: list[int], future: asyncio.Future[Any]
    ) -> None:
        if future.cancelled():
            self._history.unknown(op, "CancelledError")
            return
        error = future.exception()
        if error is not None:
            raised(self._history, op, error)
            return
        acks = [
            self._ack(result, count, leader)
            for result, count in zip(future.result().results, counts, strict=False)
            if not result.HasField("error")
        ]
        self._history.ok(op, acks=acks)

    def _ack(
        self, result: partition_leader_pb2.BatchResult, count: int, leader: Endpoint
    ) -> dict[str, Any]:
        ack: dict[str, Any] = {
            "topic": self._name(result.partition.topic_id),
            "partition": result.partition.number,
            "epoch": result.leader_epoch,
        }
        name = self._name_of(leader)
        if name is not None:
            ack["leader"] = name
        if not result.duplicate:
            # A repeat has the offsets of what was acknowledged before.
            ack |= {"first_offset": result.journal_offset, "count": count}
        return ack

    def _name(self, topic_id: bytes) -> str:
        topic = self._directory.topic_by_id(topic_id)
        return topic_id.hex() if topic is None else topic.name


def _message(request: Any) -> partition_leader_pb2.ProduceRequest:
    if isinstance(request, partition_leader_pb2.ProduceRequest):
        return request
    return partition_leader_pb2.ProduceRequest.FromString(request.SerializeToString())
