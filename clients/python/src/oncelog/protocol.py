"""The low-level face: one call at a time, in the words of the protos. For connectors and tools;
users want `oncelog.connect`.

    from oncelog.protocol import Protocol

    protocol = Protocol("localhost:7400")
    reply = protocol.call("offset_manager.fetch_offsets", FetchOffsetsRequest(group="g"))
    protocol.close()

A call is routed by its content (`_core.routing`), redirected, retried after errors that promise
that nothing happened, and repeated after a lost answer where it is idempotent by design. It ends
at its deadline at the latest (I31): with the last error, or with UnknownOutcome where something
may have happened.

Calls that are split by partition leader (produce, fetch, list_offsets) are merged in order; an item
that failed for good carries its error in the reply, and does not fail the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from oncelog._core import routing
from oncelog._core.routing import Kind
from oncelog._fan_out import FanOut
from oncelog._loop import LoopThread
from oncelog._repeating import Repeating
from oncelog.errors import Closed
from oncelog.options import ConnectOptions, make_options
from oncelogpb.v1 import partition_leader_pb2

R = TypeVar("R")


class AsyncProtocol(Repeating):
    """For one event loop; make it there."""

    # ------------------------------------------------------------------------------------ calls

    async def call(
        self,
        method: str,
        request: Any,
        timeout_ms: int | None = None,
        *,
        pending_ms: int | None = None,
    ) -> Any:
        """The reply. `method` is "service.rpc_in_snake_case". `pending_ms`: how long at most
        PENDING_TRANSACTION is waited for, of a call to one process. Raises OncelogError."""
        deadline = self.deadline(timeout_ms)
        kind = routing.method_of(method).kind
        if kind is Kind.PARTITIONS:
            return await FanOut(self).call_partitions(method, request, deadline)
        if kind is Kind.ROLE_ALL:
            return await FanOut(self).call_all(method, request, deadline)
        if kind is Kind.NODE:
            return await self.repeat(
                method,
                request,
                deadline,
                lambda: self.node_process(request.node_id, deadline),
                None,
            )
        if kind in (Kind.ANYONE, Kind.ROLE_ANY):
            return await self.repeat(
                method, request, deadline, lambda: self.any_process(method, deadline), None
            )
        key = routing.key_of(method, request)
        patience = deadline if pending_ms is None else min(deadline, self.now_ms() + pending_ms)
        return await self.repeat(
            method, request, deadline, lambda: self.locate(key, deadline), key, patience
        )

    async def close(self) -> None:
        """Ends every call that is under way. Safe to repeat."""
        self._closed = True
        for asking in (self._watching, self._looking, self._refreshing):
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        await self.transport.close()


class Protocol:
    """The blocking form: usable from many threads, with an event loop in a thread of its own."""

    def __init__(self, bootstrap: str | Sequence[str], **options: Any) -> None:
        """Options: see `ConnectOptions`. Connects at the first call. Raises InvalidArgument."""
        settings = make_options(ConnectOptions, options)
        routing.parse_bootstrap(bootstrap)
        self._loop = LoopThread("oncelog protocol")
        self._async = self._loop.run(_make(bootstrap, settings))

    def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        """As AsyncProtocol.call."""
        return self._loop.run(self._async.call(method, request, timeout_ms))

    def run(self, work: Callable[[AsyncProtocol], Coroutine[Any, Any, R]]) -> R:
        """What needs several calls, done with the asyncio form, on its loop."""
        return self._loop.run(work(self._async))

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Has its loop call this soon: for what `run` made there. Raises Closed, Forked."""
        self._loop.post(callback, *arguments)

    def topic(self, name: str) -> partition_leader_pb2.TopicDescription:
        """The topic, from the cache or asked for. Raises UnknownTopic."""
        return self._loop.run(self._async.topic(name))

    def led_topic(
        self, created: partition_leader_pb2.TopicDescription, timeout_ms: int | None = None
    ) -> partition_leader_pb2.TopicDescription:
        """What CreateTopic returned, once its partitions have leaders; at the deadline, as it is
        known then."""
        return self._loop.run(_led_topic(self._async, created, timeout_ms))

    def forget_topic(self, name: str) -> None:
        """The next `topic` asks again: for who waits for a change."""
        self._loop.post(self._async.directory.forget_topic, name)

    def close(self) -> None:
        """Safe to repeat."""
        try:
            self._loop.run(self._async.close())
        except Closed:
            pass
        self._loop.close()

    def __enter__(self) -> Protocol:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


async def _led_topic(
    protocol: AsyncProtocol,
    created: partition_leader_pb2.TopicDescription,
    timeout_ms: int | None,
) -> partition_leader_pb2.TopicDescription:
    return await protocol.led_topic(created, protocol.deadline(timeout_ms))


async def _make(bootstrap: str | Sequence[str], settings: ConnectOptions) -> AsyncProtocol:
    return AsyncProtocol(bootstrap, settings)


__all__ = ["AsyncProtocol", "Protocol"]
