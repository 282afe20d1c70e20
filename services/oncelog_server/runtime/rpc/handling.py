"""How one call is handled, whichever way it came: the handler's method by name, within a deadline,
every end of it an answer or an error with a name.

Invariants:
- `answer` returns a reply or an OncelogError and raises nothing but cancellation;
- an exception that is not an OncelogError is a fault of ours: Internal, logged with its traceback,
  counted;
- a handler that outlives its deadline is cancelled and its caller told UnknownOutcome: what it had
  submitted goes on without it.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message

from oncelog_server.core.access import Need
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.access.guard import Gate, Guard
from oncelog_server.runtime.rpc.fields import require_few
from oncelog_server.runtime.rpc.limits import (
    EXEMPT_FROM_FIELDS,
    SIGNS_OF_LIFE,
    RpcLimits,
    message_too_large,
    throttled,
    undecodable,
)
from oncelog_server.runtime.rpc.unread import Unread
from oncelogpb import bulk, rpcs
from oncelogpb.bulk import Encoded
from oncelogpb.errors import Internal, OncelogError, UnknownOutcome, Unsupported

# A traceback in a log line, characters; the end of it says most.
TRACEBACK_CHARACTERS_MAX: Final = 8_000
# So long before its caller gives up, a call that waits for room says why.
ROOM_MARGIN_MS: Final = 50
# Room where nothing is counted.
UNCOUNTED_BYTES: Final = 1 << 62
_NOTHING_REFUSED: Final[Mapping[int, OncelogError]] = MappingProxyType({})


class StreamEnd:
    """Who wants to know that a stream has ended. Each is told once, also who asks too late, in a
    turn of the loop of its own, so that the failure of one keeps no other from knowing."""

    __slots__ = ("_callbacks", "_over")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._over = False

    def tell(self, callback: Callable[[], None]) -> None:
        if self._over:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)

    def over(self) -> None:
        self._over = True
        for callback in self._callbacks:
            asyncio.get_running_loop().call_soon(callback)
        self._callbacks.clear()


class CallContext:
    """What a handler knows of its caller (oncelog_server.core.ports.Call)."""

    __slots__ = (
        "_end",
        "_gate",
        "_held",
        "_unread",
        "identity",
        "judged_at",
        "peer",
        "refused",
        "stream_id",
        "timeout_ms",
    )

    def __init__(
        self,
        timeout_ms: int,
        identity: str,
        stream_id: int = 0,
        end: StreamEnd | None = None,
        unread: Unread | None = None,
        *,
        peer: str = "",
    ) -> None:
        """`unread` is its connection's; None where nothing is counted. `peer` is the address that
        the call came from."""
        self.timeout_ms = timeout_ms
        self.identity = identity
        self.stream_id = stream_id
        self.peer = peer
        self.refused: Mapping[int, OncelogError] = _NOTHING_REFUSED
        # The revision of the rules that it was judged by, and the door that it came through.
        self.judged_at = 0
        self._gate: Gate | None = None
        self._end = end
        self._unread = unread
        # Of what `_unread` counts.
        self._held = 0

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        assert self._end is not None, "a unary call has no stream"
        self._end.tell(callback)

    def came_through(self, gate: Gate, revision: int) -> None:
        """It was judged there, by the rules of that revision."""
        self._gate, self.judged_at = gate, revision

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        if self._gate is None or owner == self.identity:
            return None
        return self._gate.not_yours(self, producer)

    def sees(self, need: Need) -> bool:
        return self._gate is None or self._gate.sees(self, need)

    @property
    def is_holding(self) -> bool:
        return self._held > 0

    async def room(self, size: int) -> None:
        if self._unread is None or size <= self._held:
            return
        try:
            async with asyncio.timeout(max(self.timeout_ms - ROOM_MARGIN_MS, 0) / 1000):
                await self._unread.take(size - self._held)
        except TimeoutError:
            raise throttled("connection_unread_bytes_max", self._unread.maximum) from None
        self._held = size

    def has_room(self, size: int) -> bool:
        return self._unread is None or self._unread.has_room(max(size - self._held, 0))

    def room_left(self) -> int:
        return UNCOUNTED_BYTES if self._unread is None else self._unread.room_left()

    def holds(self, size: int) -> None:
        if self._unread is not None and size != self._held:
            self._unread.change(size - self._held)
            self._held = size


class Method:
    """One RPC of one handler object."""

    __slots__ = (
        "_reporter",
        "call",
        "descriptor",
        "gate",
        "is_sign_of_life",
        "name",
        "parse",
        "service",
    )

    def __init__(
        self,
        descriptor: MethodDescriptor,
        handler: object,
        reporter: Reporter,
        guard: Guard | None = None,
    ) -> None:
        """Without a guard nobody asks who calls."""
        self.descriptor = descriptor
        self.service: str = descriptor.containing_service.name
        self.name = rpcs.snake(descriptor.name)
        # No quota refuses it.
        self.is_sign_of_life = (self.service, self.name) in SIGNS_OF_LIFE
        self.parse: Callable[[bytes], Any] = rpcs.message_class(descriptor.input_type).FromString
        # Absent where this version does not build it.
        self.call: Callable[..., Any] | None = getattr(handler, self.name, None)
        # None: whoever reaches this process may make the call.
        self.gate: Gate | None = None if guard is None else guard.gate(self.service, self.name)
        self._reporter = reporter

    async def answer(self, request: Any, context: CallContext) -> Message | Encoded | OncelogError:
        """The reply to a request, or the error that says why not. Whoever asks looks after its
        deadline: he cancels it, and says `expired`."""
        if self.call is None:
            return self.count(self.unsupported())
        # Not the loop's clock: uvloop's stands still within a turn.
        began = time.perf_counter()
        try:
            if self.gate is None:
                reply: Message | Encoded = await self.call(request, context)
            else:
                reply = await self.gate.through(self.call, request, context)
            return reply
        except OncelogError as error:
            return self.count(error)
        except Exception as error:
            return self.fault(error)
        finally:
            took_ms = (time.perf_counter() - began) * 1000
            self._reporter.observe("rpc", took_ms, service=self.service, method=self.name)

    async def answer_in_time(
        self, request: Any, context: CallContext
    ) -> Message | Encoded | OncelogError:
        """The same, of a call by itself."""
        try:
            async with asyncio.timeout(context.timeout_ms / 1000):
                return await self.answer(request, context)
        except TimeoutError:
            return self.expired(context.timeout_ms)

    def expired(self, timeout_ms: int) -> OncelogError:
        """Of a handler that was told to end at its deadline, and has."""
        return self.count(UnknownOutcome(f"{self.service}.{self.name} took over {timeout_ms} ms"))

    def decode(self, data: bytes, limits: RpcLimits) -> Any:
        """Raises TooLarge, InvalidArgument."""
        if len(data) > limits.message_bytes_max:
            raise message_too_large("a request", len(data), limits.message_bytes_max)
        if self.service not in EXEMPT_FROM_FIELDS:
            require_few(data, self.descriptor.input_type, limits.message_fields_max)
        try:
            return self.parse(data)
        except DecodeError as error:
            raise undecodable(self.descriptor.input_type.name, error) from None

    def encode(self, reply: Any, limits: RpcLimits) -> bytes:
        """Raises TooLarge, which is said of reads only: what changes anything answers briefly."""
        encoded = bulk.encode(reply)
        if encoded.size > limits.message_bytes_max:
            raise message_too_large("a reply", encoded.size, limits.message_bytes_max)
        return bulk.join(encoded.chunks)

    def unsupported(self) -> Unsupported:
        return Unsupported(
            f"{self.service}.{self.descriptor.name} is not built in this version",
            method=self.name,
        )

    def count(self, error: OncelogError) -> OncelogError:
        """A call that is refused. The error forgets where it was raised, for those places hold the
        request."""
        self._reporter.count(
            "rpc_errors", service=self.service, method=self.name, reason=error.reason
        )
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return error

    def fault(self, error: Exception) -> OncelogError:
        """A call that failed for no reason that has a name."""
        trace = "".join(traceback.format_exception(error))
        self._reporter.event(
            "internal error",
            level="error",
            service=self.service,
            method=self.name,
            error=repr(error),
            traceback=trace[-TRACEBACK_CHARACTERS_MAX:],
        )
        return self.count(
            Internal(f"{self.service}.{self.name} failed ({type(error).__name__}); see its log")
        )
