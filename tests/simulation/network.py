"""The network of the simulator: handlers called directly, messages as bytes, delays from a seed.

A message is serialized and parsed on its way, so that no object is shared between processes. Calls
travel on connections, as the real ones do on streams: each keeps the order of its messages, and
what hangs on it (calls under way, a producer's session) ends with it. A process that is taken off
the network answers nothing more: calls on their way to it are UNAVAILABLE where they had not
arrived and UNKNOWN_OUTCOME where they had.

A *way* leads from one process or client to another, by their names; it can be cut, or slow. What
was on a way that is cut is held back, and arrives once it heals, unless the connection has ended by
then: both sides give up a connection on which they hear nothing.

Who calls is in `callers`.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from oncelogpb import bulk, rpcs
from oncelogpb.errors import (
    Internal,
    OncelogError,
    Unavailable,
    UnknownOutcome,
    from_status,
    to_status,
)
from tests.simulation.marks import Marks
from tests.simulation.moments import (
    CUT_MET,
    MOMENT,
    REDIRECT_FOLLOWED,
    REDIRECTED,
    REPLY_HELD,
    REQUEST_HELD,
    RESET_AFTER,
    RESET_BEFORE,
    ZOMBIE_FENCED,
)

DELAY_MS = (0.05, 0.6)
STREAM_REPLIES_MAX = 4

# Calls that say in whose name offsets commit, and why those of who is no owner are refused.
COMMITS_OF_OFFSETS = frozenset(
    {
        "offset_manager.commit_offsets",
        "offset_manager.commit_transaction_offsets",
        "coordinator.transact",
    }
)
LOST_MEMBERSHIP = frozenset({"ILLEGAL_GENERATION", "UNKNOWN_MEMBER", "FENCED_INSTANCE"})
# From whom to whom, by name.
Way: TypeAlias = tuple[str, str]


class _Rpc(NamedTuple):
    """What the descriptors say of one method."""

    service: str
    name: str
    request: type[Any]
    reply: type[Any]


@dataclass(eq=False)
class _Process:
    name: str
    port: int
    handlers: Mapping[str, object]
    # Its handlers run as tasks of the process, not of the caller.
    context: contextvars.Context
    alive: bool = True
    # In the order in which they were made.
    connections: dict[Connection, None] = field(default_factory=dict)

    def handler(self, rpc: _Rpc) -> Any:
        return getattr(self.handlers[rpc.service], rpc.name)


class Connection:
    """From one caller to one process. `on_end` is the caller's: called once, when it has ended."""

    def __init__(
        self, number: int, process: _Process, caller: str, on_end: Callable[[], None]
    ) -> None:
        self.number = number
        self.process = process
        self.caller = caller
        self.alive = True
        self.on_end = on_end
        # The caller's, who hears of the end as of a step of its own.
        self.context = contextvars.copy_context()
        # What the process wants to know of its end.
        self.at_process: list[Callable[[], None]] = []
        # Handlers that run on it, and who waits for them, in order of arrival.
        self.running: dict[asyncio.Task[Any], Callable[[], None]] = {}
        # When its newest message arrives: it keeps their order.
        self.arrival_s = 0.0


@dataclass
class SimCall:
    """The Call port."""

    timeout_ms: int
    connection: Connection
    identity: str = ""
    refused: Mapping[int, OncelogError] = field(default_factory=dict)
    peer: str = "ipv4:127.0.0.1:1"

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        return None

    def sees(self, need: object) -> bool:
        return True

    @property
    def stream_id(self) -> int:
        return self.connection.number

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        if self.connection.alive:
            self.connection.at_process.append(callback)
        else:
            callback()

    async def room(self, size: int) -> None:
        pass

    def has_room(self, size: int) -> bool:
        return True

    def room_left(self) -> int:
        return 1 << 30

    def holds(self, size: int) -> None:
        pass


class Network:
    """All processes of a run, by port. `slowness` stretches every delay. With the chance `breaking`
    the connection of a call breaks, after its request or before its reply."""

    def __init__(self, seed: int, trace: Callable[[str], None], marks: Marks) -> None:
        self._random = random.Random(seed)
        self._trace = trace
        self._marks = marks
        self._processes: dict[int, _Process] = {}
        self._next_port = 7400
        self._connections_made = 0
        # Ways that are cut, and how often; what stretches the delays of those that are slow.
        self._cut: Counter[Way] = Counter()
        self._slow: dict[Way, float] = {}
        # Messages that are held back wait for these.
        self._held: dict[asyncio.Future[None], None] = {}
        # Who was told that somebody else leads, in which call, and by whom.
        self._redirected: dict[tuple[str, str], str] = {}
        self.slowness = 1.0
        self.breaking = 0.0

    # ------------------------------------------------------------------------------- who is there

    def listen(
        self, name: str, handlers: Mapping[str, object], context: contextvars.Context
    ) -> int:
        port, self._next_port = self._next_port, self._next_port + 1
        self._processes[port] = _Process(name, port, handlers, context)
        return port

    def cut(self, port: int) -> None:
        """The process at `port` is gone."""
        process = self._processes.get(port)
        if process is None:
            return
        process.alive = False
        for connection in tuple(process.connections):
            self.end(connection)

    def connect(self, caller: str, port: int, on_end: Callable[[], None]) -> Connection:
        """Raises Unavailable."""
        process = self._processes.get(port)
        if process is None or not process.alive:
            raise Unavailable(f"nobody listens on port {port}")
        if self._is_cut(caller, process.name) or self._is_cut(process.name, caller):
            self._marks.add(MOMENT, CUT_MET)
            raise Unavailable(f"nobody listens on port {port}")
        self._connections_made += 1
        connection = Connection(self._connections_made, process, caller, on_end)
        process.connections[connection] = None
        return connection

    def end(self, connection: Connection) -> None:
        """Both sides hear of it; the process after a while, and as one of its own steps."""
        if not connection.alive:
            return
        connection.alive = False
        process = connection.process
        process.connections.pop(connection, None)
        loop = asyncio.get_running_loop()
        self._look_again()
        for wake in tuple(connection.running.values()):
            wake()
        loop.call_soon(connection.on_end, context=connection.context)
        if process.alive:
            delay_s = self._delay_s(connection.caller, process.name)
            loop.call_later(delay_s, _end_at_process, connection, context=process.context)
        else:
            _end_at_process(connection)

    def reset(self, caller: str = "", port: int = 0) -> int:
        """Ends all connections of a caller, or to a port; says how many."""
        found = [
            connection
            for process in self._processes.values()
            for connection in process.connections
            if connection.caller == caller or process.port == port
        ]
        for connection in found:
            self.end(connection)
        return len(found)

    def cut_ways(self, ways: Sequence[Way], *, noticed_s: float) -> None:
        """Nothing goes these ways until `heal`. Connections over them end after so long."""
        self._cut.update(ways)
        if noticed_s:
            asyncio.get_running_loop().call_later(noticed_s, self._notice, ways)
        else:
            self._notice(ways)

    def heal(self, ways: Sequence[Way]) -> None:
        """One cut of these is over."""
        self._cut -= Counter(ways)
        self._look_again()

    def slow_down(self, ways: Sequence[Way], factor: float) -> None:
        """Their delays are stretched, until a factor of 1."""
        for way in ways:
            self._slow[way] = factor
            if factor == 1.0:
                del self._slow[way]

    def _notice(self, ways: Sequence[Way]) -> None:
        """Both sides of these have heard nothing for too long, where they are still cut."""
        silent = {way for way in ways if self._is_cut(*way)}
        silent |= {(to, source) for source, to in silent}
        for process in self._processes.values():
            for connection in tuple(process.connections):
                if (connection.caller, process.name) in silent:
                    self.end(connection)

    def _is_cut(self, source: str, to: str) -> bool:
        return bool(self._cut) and self._cut[source, to] > 0

    def _look_again(self) -> None:
        """Wakes what is held back."""
        for held in tuple(self._held):
            if not held.done():
                held.set_result(None)

    # ------------------------------------------------------------------------------------- calling

    async def call(self, connection: Connection, method: str, request: Any, timeout_ms: int) -> Any:
        rpc = _rpc(method)
        sent = bytes_of(request)
        await self._travel_to(connection, method, timeout_ms)
        process = connection.process
        work = asyncio.get_running_loop().create_task(
            process.handler(rpc)(rpc.request.FromString(sent), SimCall(timeout_ms, connection)),
            context=process.context,
        )
        breaks = self._breaks()
        if breaks is RESET_AFTER:
            self.end(connection)
        try:
            await _end_of(work, connection, timeout_ms / 1000)
        finally:
            if not work.done():
                # The handler goes on, and nobody hears what it says.
                work.add_done_callback(_unheard)
        if not connection.alive:
            raise UnknownOutcome(f"{method}: the connection to port {process.port} broke")
        if not work.done() or work.cancelled():
            raise UnknownOutcome(f"{method}: no answer in {timeout_ms} ms")
        if breaks is RESET_BEFORE:
            self.end(connection)
        error = work.exception()
        if isinstance(error, OncelogError):
            self._trace(f"{method} -> {error.reason}")
            self._marks.add("reason", error.reason)
            if method in COMMITS_OF_OFFSETS and error.reason in LOST_MEMBERSHIP:
                self._marks.add(MOMENT, ZOMBIE_FENCED)
            await self._travel_back(connection, method, timeout_ms)
            self._note_redirect(connection, method, error)
            raise from_status(to_status(error)) from None
        if error is not None:
            raise error
        self._trace(f"{method} -> ok")
        self._marks.add("call", method)
        answered = bytes_of(work.result())
        await self._travel_back(connection, method, timeout_ms)
        self._note_redirect(connection, method, None)
        return rpc.reply.FromString(answered)

    async def stream(
        self, connection: Connection, method: str, request: Any
    ) -> AsyncGenerator[Any, None]:
        """The replies of a server-streaming call. Closing it ends the handler."""
        rpc = _rpc(method)
        sent = bytes_of(request)
        await self._travel_to(connection, method)
        process = connection.process
        replies = process.handler(rpc)(rpc.request.FromString(sent), SimCall(0, connection))
        async for reply in self._replies(connection, method, replies):
            yield reply

    async def exchange(
        self, connection: Connection, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        """The replies of a call that streams both ways. Closing it ends the handler."""
        rpc, process = _rpc(method), connection.process
        await self._travel_to(connection, method)
        arrived: asyncio.Queue[Any] = asyncio.Queue()

        async def send() -> None:
            try:
                async for request in requests:
                    sent = bytes_of(request)
                    await self._travel_to(connection, method)
                    arrived.put_nowait(rpc.request.FromString(sent))
            except OncelogError:
                # What is lost on its way takes the stream with it.
                self.end(connection)

        async def heard() -> AsyncGenerator[Any, None]:
            while True:
                yield await arrived.get()

        sending = asyncio.get_running_loop().create_task(send())
        try:
            replies = process.handler(rpc)(heard(), SimCall(0, connection))
            async for reply in self._replies(connection, method, replies):
                yield reply
        finally:
            sending.cancel()

    async def _replies(
        self, connection: Connection, method: str, replies: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        rpc, process = _rpc(method), connection.process
        # The sender waits while the reader is so many replies behind: flow control.
        queue: asyncio.Queue[Any] = asyncio.Queue(STREAM_REPLIES_MAX)
        pump = asyncio.get_running_loop().create_task(
            _pump(replies, queue), context=process.context
        )
        connection.running[pump] = lambda: _push(queue, UnknownOutcome("the connection broke"))
        try:
            while True:
                reply = await queue.get()
                await self._travel(process.name, connection.caller)
                await self._held_back(process.name, connection.caller, connection)
                if not connection.alive and not isinstance(reply, OncelogError):
                    # Lost with the connection; the queue says so.
                    continue
                if isinstance(reply, OncelogError):
                    self._trace(f"{method} -> {reply.reason}")
                    raise from_status(to_status(reply))
                yield rpc.reply.FromString(reply)
        finally:
            pump.cancel()
            connection.running.pop(pump, None)

    # ----------------------------------------------------------------------------------- travelling

    async def _travel_to(self, connection: Connection, method: str, timeout_ms: int = 0) -> None:
        caller, process = connection.caller, connection.process
        now_s = asyncio.get_running_loop().time()
        arrival_s = max(now_s + self._delay_s(caller, process.name), connection.arrival_s + 1e-9)
        connection.arrival_s = arrival_s
        await asyncio.sleep(arrival_s - now_s)
        if await self._held_back(caller, process.name, connection, timeout_ms):
            self._marks.add(MOMENT, REQUEST_HELD)
            if not connection.alive:
                raise UnknownOutcome(f"{method}: the connection to port {process.port} broke")
        if not connection.alive:
            raise Unavailable(f"the connection to port {process.port} broke")
        if self._is_cut(caller, process.name):
            raise UnknownOutcome(f"{method}: no answer in {timeout_ms} ms")

    async def _travel_back(self, connection: Connection, method: str, timeout_ms: int) -> None:
        caller, process = connection.caller, connection.process
        await self._travel(process.name, caller)
        if await self._held_back(process.name, caller, connection, timeout_ms):
            self._marks.add(MOMENT, REPLY_HELD)
        if not connection.alive or self._is_cut(process.name, caller):
            raise UnknownOutcome(f"{method}: the answer was lost")

    async def _travel(self, source: str, to: str) -> None:
        await asyncio.sleep(self._delay_s(source, to))

    async def _held_back(
        self, source: str, to: str, connection: Connection, timeout_ms: int = 0
    ) -> bool:
        """Waits while the way is cut, the connection stands and, where there is one, the timeout is
        not over. Whether it waited."""
        if not self._is_cut(source, to):
            return False
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_ms / 1000 if timeout_ms else float("inf")
        while connection.alive and self._is_cut(source, to) and loop.time() < end_s:
            held = loop.create_future()
            self._held[held] = None
            try:
                async with asyncio.timeout_at(end_s if timeout_ms else None):
                    await held
            except TimeoutError:
                break
            finally:
                del self._held[held]
        return True

    def _delay_s(self, source: str, to: str) -> float:
        delay_s = self._random.uniform(*DELAY_MS) / 1000 * self.slowness
        return delay_s * self._slow.get((source, to), 1.0) if self._slow else delay_s

    # --------------------------------------------------------------------------- what is remembered

    def _breaks(self) -> str:
        """Where the connection of this call does; "" where it holds."""
        if not self.breaking or self._random.random() >= self.breaking:
            return ""
        moment = self._random.choice((RESET_AFTER, RESET_BEFORE))
        self._marks.add(MOMENT, moment)
        return moment

    def _note_redirect(
        self, connection: Connection, method: str, error: OncelogError | None
    ) -> None:
        key, name = (connection.caller, method), connection.process.name
        if error is None:
            if self._redirected and self._redirected.pop(key, name) != name:
                self._marks.add(MOMENT, REDIRECT_FOLLOWED)
        elif "leader_port" in error.metadata:
            self._marks.add(MOMENT, REDIRECTED)
            self._redirected[key] = name


@cache
def _rpc(method: str) -> _Rpc:
    """By "service.name" in snake case."""
    service, _, name = method.partition(".")
    found = rpcs.find(service)
    descriptor = rpcs.methods(found)[name]
    return _Rpc(
        found.name,
        name,
        rpcs.message_class(descriptor.input_type),
        rpcs.message_class(descriptor.output_type),
    )


async def _end_of(work: asyncio.Task[Any], connection: Connection, timeout_s: float) -> None:
    """Returns when `work` or its connection has ended, or at the timeout; cancels nothing.
    (`wait_for` over `shield` takes three futures and four turns for it.)"""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    timer = loop.call_later(timeout_s, wake)
    work.add_done_callback(wake)
    connection.running[work] = wake
    work.add_done_callback(lambda _: connection.running.pop(work, None))
    try:
        await woken
    finally:
        timer.cancel()
        work.remove_done_callback(wake)


def _end_at_process(connection: Connection) -> None:
    """Its handlers are cancelled, then who wanted to know is told: as the real streams do it."""
    running = tuple(connection.running)
    for task in running:
        task.cancel()
    if connection.process.alive:
        for callback in connection.at_process:
            callback()


def _unheard(work: asyncio.Task[Any]) -> None:
    """A refusal that nobody waits for is no news; whatever else is raised is a bug, and is told."""
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, OncelogError):
        work.get_loop().call_exception_handler(
            {"message": "a handler failed after its caller gave up", "exception": error}
        )


def bytes_of(message: Any) -> bytes:
    """Of a message, or of one that was joined by hand."""
    return b"".join(bulk.encode(message).chunks)


async def _pump(replies: AsyncGenerator[Any, None], queue: asyncio.Queue[Any]) -> None:
    async with aclosing(replies):
        try:
            async for reply in replies:
                await queue.put(bytes_of(reply))
            await queue.put(UnknownOutcome("the stream ended"))
        except OncelogError as error:
            await queue.put(error)
        except Exception as error:
            await queue.put(Internal(f"a bug in a handler: {error!r}"))


def _push(queue: asyncio.Queue[Any], error: OncelogError) -> None:
    """What the reader has not taken is lost with the connection."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(error)
