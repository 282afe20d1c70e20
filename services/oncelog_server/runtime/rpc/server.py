"""Serves handler objects over gRPC: every RPC as a unary call, the hot ones also over call streams,
through the same method of the same object.

A handler object has one coroutine method per RPC, in snake case: `async def write_markers(self,
request, call: Call) -> reply`; a server-streaming RPC is an async generator. It raises
oncelogpb.errors. An RPC whose method it lacks is answered UNSUPPORTED.

Beside them: grpc.health.v1 with a status per service, and server reflection, so that grpcurl works.

Who may make a call is asked here, of the guard that the listener is given (`runtime/access`),
before its handler runs, whichever way it came; so is how much its caller may do in a second.

Left out: what the calls mean.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NoReturn
from weakref import WeakValueDictionary

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from oncelog_server.core.ports import Reporter
from oncelog_server.runtime import open_files
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.access.quotas import Meter
from oncelog_server.runtime.rpc import reflection
from oncelog_server.runtime.rpc.call_stream import CallStream
from oncelog_server.runtime.rpc.external import External
from oncelog_server.runtime.rpc.gone import OURS, is_gone, keep_quiet
from oncelog_server.runtime.rpc.handling import CallContext, Method, StreamEnd
from oncelog_server.runtime.rpc.health import Health, bind
from oncelog_server.runtime.rpc.limits import (
    EXEMPT_FROM_INFLIGHT,
    TRANSPORT_BYTES_FACTOR,
    Inflight,
    RpcLimits,
    throttled,
)
from oncelog_server.runtime.rpc.tls import TlsSource, identity_of, server_credentials
from oncelog_server.runtime.rpc.unread import Total, Unread
from oncelogpb import bulk, rpcs
from oncelogpb.calls import STATUS_KEY
from oncelogpb.errors import OncelogError, Unavailable, Unsupported, to_status

# How often the gauges of `held` are set.
REPORT_EVERY_MS: Final = 1_000
# How long a stream of replies that used its quota up sleeps before it looks again.
SLOW_STEP_MS: Final = 1_000
# Of a handler that yields no more.
_END: Final = object()
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class RpcServer:
    """One listener. `start` binds and serves, `stop` drains."""

    def __init__(
        self,
        handlers: Mapping[str, object],
        *,
        listen: str,
        reporter: Reporter,
        tls: TlsSource | None = None,
        limits: RpcLimits | None = None,
        health: Health | None = None,
        guard: Guard | None = None,
        external: External | None = None,
    ) -> None:
        """`handlers` by service name ("Coordinator"); `listen` as host:port, port 0 for a free
        one. Without `tls` the listener is plain. Without `health` it is ready while it
        listens; with it, its owner says when. Without a guard everybody may do everything.
        `external`: a second address, whose callers are told others; all limits are of both."""
        self._external = external
        self._listen = listen
        self._tls = tls
        self._guard = guard
        self._reporter = reporter
        self._limits = limits or RpcLimits()
        self._inflight = Inflight(self._limits)
        self._stream_ids = itertools.count(1)
        self._streams: set[CallStream] = set()
        # By the caller's address; gone with the last call of a connection.
        self._unread: WeakValueDictionary[str, Unread] = WeakValueDictionary()
        self._unread_total = Total(self._limits.unread_bytes_max)
        self._stream_count = 0
        # Of processes of the cluster, counted by themselves: callers must not lock them out.
        self._exchange_count = 0
        self._stopping = False
        # Of streams of replies whose handlers have nothing to say now: `stop` takes them out.
        self._awaiting: dict[asyncio.Task[Any], None] = {}
        self._reporting: asyncio.Task[None] | None = None
        self._health_is_ours = health is None
        self._health = health or Health()
        self._handlers = {rpcs.find(name): handler for name, handler in handlers.items()}
        # One for each address.
        self._servers: list[Any] = []
        self.port = 0

    async def start(self) -> int:
        """The port. Raises OSError where the address cannot be bound."""
        bulk.keep_large_blocks()
        keep_quiet()
        await self._health.announce(self._names())
        if self._health_is_ours:
            await self._health.ready()
        self.port = self._bind(self._listen, None)
        if self._external is not None:
            self._bind(self._external.listen, self._external)
        for server in self._servers:
            await server.start()
        self._reporting = asyncio.create_task(self._report())
        return self.port

    async def stop(self, grace_ms: int = 1_000) -> None:
        """Refuses new calls, lets running ones end for `grace_ms`, then cancels them."""
        if not self._servers:
            return
        self._stopping = True
        if self._health_is_ours:
            await self._health.drain()
        for stream in tuple(self._streams):
            stream.drain()
        awaiting = tuple(self._awaiting)
        self._awaiting.clear()
        for task in awaiting:
            task.cancel()
        await asyncio.gather(*(server.stop(grace_ms / 1000) for server in self._servers))
        if self._reporting is not None:
            self._reporting.cancel()

    def held(self) -> dict[str, int]:
        """What is held for callers now, by the names of its metrics."""
        return {
            "inflight_bytes": self._inflight.bytes,
            "streams": self._stream_count + self._exchange_count,
            "calls": self._inflight.calls,
            "unread_bytes": self._unread_total.bytes,
        }

    async def _report(self) -> None:
        while True:
            for name, value in self.held().items():
                self._reporter.gauge(name, value)
            self._reporter.gauge("open_files", open_files.count())
            await asyncio.sleep(REPORT_EVERY_MS / 1000)

    # --------------------------------------------------------------------------------- assembly

    def _names(self) -> list[str]:
        return [service.full_name for service in self._handlers]

    def _bind(self, listen: str, external: External | None) -> int:
        """The port. Raises OSError."""
        server = grpc.aio.server(options=self._options())
        self._servers.append(server)
        for service, handler in self._handlers.items():
            server.add_generic_rpc_handlers((self._serving(service, handler, external),))
        server.add_generic_rpc_handlers((_Elsewhere([service.name for service in self._handlers]),))
        self._health.serve_on(server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.serve_on(server, (*self._names(), health_name))
        credentials = None if self._tls is None else server_credentials(self._tls)
        return bind(server, listen, credentials)

    def _options(self) -> list[tuple[str, int]]:
        """gRPC's defaults take neither a batch of 16 MiB nor the pings by which a client notices a
        server that is gone."""
        limits = self._limits
        return [
            (
                "grpc.max_receive_message_length",
                limits.message_bytes_max * TRANSPORT_BYTES_FACTOR,
            ),
            ("grpc.max_send_message_length", limits.message_bytes_max),
            ("grpc.max_concurrent_streams", limits.connection_calls_max),
            (
                "grpc.max_allowed_incoming_connections",
                limits.connections_max // (1 if self._external is None else 2),
            ),
            ("grpc.keepalive_time_ms", 5_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.ping_timeout_ms", 5_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            # Two processes on one port would share its calls at random.
            ("grpc.so_reuseport", 0),
        ]

    def _serving(
        self, service: ServiceDescriptor, handler: object, external: External | None
    ) -> Any:
        methods = {
            name: Method(descriptor, handler, self._reporter, self._guard)
            for name, descriptor in rpcs.methods(service).items()
        }
        table: dict[str, Any] = {}
        for method in methods.values():
            table[method.descriptor.name] = self._form_of(method, external)
        if rpcs.stream_fields(service):
            table[rpcs.STREAM] = grpc.stream_stream_rpc_method_handler(
                self._call_stream(service, methods)
            )
        return grpc.method_handlers_generic_handler(service.full_name, table)

    def _form_of(self, method: Method, external: External | None) -> Any:
        if method.descriptor.client_streaming:
            form = self._refused_stream if method.call is None else self._exchange
            return grpc.stream_stream_rpc_method_handler(form(method))
        if method.descriptor.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._server_stream(method))
        return grpc.unary_unary_rpc_method_handler(self._unary(method, external))

    # ------------------------------------------------------------------------- the forms of a call

    def _unary(self, method: Method, external: External | None) -> Callable[..., Any]:
        async def unary(data: bytes, context: Any) -> bytes:
            outcome = await self._outcome(method, data, context, external)
            if isinstance(outcome, OncelogError):
                # What ends the call remembers this frame, until the collector comes.
                del data
                await _abort(context, outcome)
            return outcome

        return unary

    async def _outcome(
        self, method: Method, data: bytes, context: Any, external: External | None
    ) -> bytes | OncelogError:
        """The reply as bytes, or the error."""
        size = 0 if method.service in EXEMPT_FROM_INFLIGHT else len(data)
        call = self._unary_context(context)
        meter = self._meter(call.identity)
        try:
            self._admit(size)
            _take(meter, method, len(data))
            request = method.decode(data, self._limits)
        except OncelogError as error:
            return method.count(error)
        self._inflight.add(size)
        try:
            # Runs when the answer has gone out, or never will.
            context.add_done_callback(lambda _: call.holds(0))
            answer = await method.answer_in_time(request, call)
        finally:
            self._inflight.remove(size)
        if isinstance(answer, OncelogError):
            return answer
        try:
            if external is not None:
                external.retell(answer)
            reply = method.encode(answer, self._limits)
        except OncelogError as error:
            return method.count(error)
        except Exception as error:
            # A reply that is no message.
            return method.fault(error)
        if meter is not None:
            meter.charge(len(reply))
        return reply

    def _server_stream(self, method: Method) -> Callable[..., Any]:
        async def server_stream(data: bytes, context: Any) -> None:
            end = StreamEnd()
            call = CallContext(
                self._limits.timeout_ms_max,
                identity_of(context.auth_context()),
                next(self._stream_ids),
                end,
                self._unread_of(context),
                peer=context.peer(),
            )
            try:
                error = await self._pump(method, data, call, context)
            finally:
                call.holds(0)
                end.over()
            if error is not None:
                del data
                await _abort(context, error)

        return server_stream

    async def _pump(
        self, method: Method, data: bytes, call: CallContext, context: Any
    ) -> OncelogError | None:
        """Writes what the handler yields; the transport's flow control holds it back, and the
        handler is not asked for more before it is written. Nothing is written that the caller has
        no right to any more."""
        meter = self._meter(call.identity)
        try:
            self._admit_stream(self._stream_count)
            _take(meter, method, len(data))
        except OncelogError as error:
            return method.count(error)
        self._stream_count += 1
        try:
            if method.call is None:
                raise method.unsupported()
            request = method.decode(data, self._limits)
            if method.gate is not None:
                await method.gate.admit(request, call)
            async with aclosing(method.call(request, call)) as replies:
                while (reply := await self._next(replies)) is not _END:
                    if method.gate is not None:
                        method.gate.require_still(request, call)
                    encoded = method.encode(reply, self._limits)
                    await context.write(encoded)
                    call.holds(0)
                    await self._slow_down(call.identity, len(encoded))
        except OncelogError as error:
            return method.count(error)
        except Exception as error:
            return None if is_gone(error) else method.fault(error)
        finally:
            self._stream_count -= 1
        return None

    async def _next(self, replies: AsyncIterator[Any]) -> Any:
        """What the handler yields next, or _END. Raises Unavailable where this process stops first:
        the transport would end the call with a code that says nothing."""
        if self._stopping:
            raise _stopping()
        task = asyncio.current_task()
        assert task is not None, "gRPC serves each call in a task"
        self._awaiting[task] = None
        try:
            return await anext(replies, _END)
        except asyncio.CancelledError:
            # By `stop` alone, or by its caller, who is gone, too.
            if task in self._awaiting or task.uncancel():
                raise
            raise _stopping() from None
        finally:
            self._awaiting.pop(task, None)

    def _exchange(self, method: Method) -> Callable[..., Any]:
        """A bidirectional RPC other than the call stream: replication, between our processes."""

        async def exchange(requests: AsyncIterator[bytes], context: Any) -> None:
            call = self._unary_context(context)
            error = await self._pump_exchange(method, requests, call, context)
            if error is not None:
                await _abort(context, error)

        return exchange

    async def _pump_exchange(
        self, method: Method, requests: AsyncIterator[bytes], call: CallContext, context: Any
    ) -> OncelogError | None:
        assert method.call is not None, "asked before"
        try:
            self._admit_stream(self._exchange_count)
        except OncelogError as error:
            return method.count(error)
        self._exchange_count += 1
        try:
            if method.gate is not None:
                await method.gate.admit(None, call)
            async with aclosing(method.call(self._said(method, requests, call), call)) as replies:
                while (reply := await self._next(replies)) is not _END:
                    if method.gate is not None:
                        method.gate.require_still(None, call)
                    await context.write(method.encode(reply, self._limits))
        except OncelogError as error:
            return method.count(error)
        except Exception as error:
            return None if is_gone(error) else method.fault(error)
        finally:
            self._exchange_count -= 1
        return None

    async def _said(
        self, method: Method, requests: AsyncIterator[bytes], call: CallContext
    ) -> AsyncIterator[Any]:
        """What the caller says, as long as he may. No quota counts it: writes that were admitted
        wait for it. It is bounded by who may call, and by what the handler takes."""
        async for data in requests:
            if method.gate is not None:
                method.gate.require_still(None, call)
            yield method.decode(data, self._limits)

    def _refused_stream(self, method: Method) -> Callable[..., Any]:
        """One that this version does not build."""

        async def refused(_: object, context: Any) -> None:
            error: OncelogError = method.unsupported()
            if method.gate is not None:
                try:
                    await method.gate.admit(None, self._unary_context(context))
                except OncelogError as refusal:
                    error = refusal
            await _abort(context, method.count(error))

        return refused

    def _call_stream(
        self, service: ServiceDescriptor, methods: Mapping[str, Method]
    ) -> Callable[..., Any]:
        calls_class = rpcs.message_class(service.methods_by_name[rpcs.STREAM].input_type)
        exempt = service.name in EXEMPT_FROM_INFLIGHT

        async def call_stream(_: object, context: Any) -> None:
            try:
                self._admit_stream(self._stream_count)
            except OncelogError as error:
                await _abort(context, error)
            stream = CallStream(
                context,
                calls_class=calls_class,
                methods=methods,
                fields=rpcs.stream_fields(service),
                identity=identity_of(context.auth_context()),
                stream_id=next(self._stream_ids),
                limits=self._limits,
                inflight=None if exempt else self._inflight,
                unread=self._unread_of(context),
                peer=context.peer(),
                meter_of=self._meter,
            )
            self._streams.add(stream)
            self._stream_count += 1
            try:
                failure = await stream.run()
            finally:
                self._streams.discard(stream)
                self._stream_count -= 1
            if failure is not None:
                del stream
                await _abort(context, failure)

        return call_stream

    # ---------------------------------------------------------------------------------- admission

    def _admit(self, size: int) -> None:
        if self._stopping:
            raise _stopping()
        refusal = self._inflight.refusal(size)
        if refusal is not None:
            raise refusal

    def _admit_stream(self, count: int) -> None:
        if self._stopping:
            raise _stopping()
        if count >= self._limits.streams_max:
            raise throttled("streams_max", self._limits.streams_max)

    def _unary_context(self, context: Any) -> CallContext:
        remaining_s = context.time_remaining()
        asked_ms = 0 if remaining_s is None else max(1, int(min(remaining_s, 1e9) * 1000))
        return CallContext(
            self._limits.timeout_ms(asked_ms),
            identity_of(context.auth_context()),
            unread=self._unread_of(context),
            peer=context.peer(),
        )

    def _meter(self, identity: str) -> Meter | None:
        return None if self._guard is None else self._guard.meter(identity)

    async def _slow_down(self, identity: str, size: int) -> None:
        """Charges a reply of a stream, and waits until its caller may have more. In steps: quotas
        may change meanwhile, and a stream that ends must end soon."""
        meter = self._meter(identity)
        if meter is None:
            return
        meter.charge(size)
        while meter is not None and (wait_ms := meter.wait_ms()):
            await asyncio.sleep(min(wait_ms, SLOW_STEP_MS) / 1000)
            meter = self._meter(identity)

    def _unread_of(self, context: Any) -> Unread:
        peer = context.peer()
        unread = self._unread.get(peer)
        if unread is None:
            most = self._limits.connection_unread_bytes_max
            unread = self._unread[peer] = Unread(most, self._unread_total)
        return unread


class _Elsewhere(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers what this process does not serve, in our words: the transport's say nothing of what
    became of the call."""

    def __init__(self, served: Sequence[str]) -> None:
        self._served = ", ".join(served)

    def service(self, handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        if not path.startswith(OURS):
            return None
        service, _, method = path.removeprefix(OURS).partition("/")
        error = Unsupported(
            f"{service}.{method} is not served here: this process serves {self._served}",
            method=rpcs.snake(method),
        )

        async def refused(_: object, context: Any) -> None:
            await _abort(context, error)

        # As a stream, so that it does for every form of call.
        return grpc.stream_stream_rpc_method_handler(refused)


def _stopping() -> Unavailable:
    return Unavailable("this process is stopping; ask for the leader again")


def _take(meter: Meter | None, method: Method, size: int) -> None:
    """Raises Throttled."""
    refusal = None if meter is None else meter.refusal(size, is_let_in=method.is_sign_of_life)
    if refusal is not None:
        raise refusal


async def _abort(context: Any, error: OncelogError) -> NoReturn:
    """Ends a call with an error: code, message, and the details in the trailers. What is raised
    remembers the frames of its callers, so these let go of what is large before."""
    status = to_status(error)
    trailers = ((STATUS_KEY, status.SerializeToString()),)
    await context.abort(_CODES[status.code], status.message, trailers)
    raise AssertionError("abort raises")
