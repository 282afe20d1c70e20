"""Calls to other processes (the Peers port): one channel per address, one call stream per address
and service, opened at the first call and closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc.aio

from oncelog_server.core.ports import Address
from oncelog_server.runtime.rpc.tls import TlsSource, client_credentials
from oncelogpb import calls, rpcs
from oncelogpb.errors import InvalidArgument, Unavailable

# A peer that nobody called for so long is hung up on.
IDLE_MS: Final = 60_000


class _Peer:
    """One address."""

    __slots__ = ("busy", "channel", "is_retired", "looked_at", "streams", "used_s")

    def __init__(self, channel: Any, looked_at: asyncio.TimerHandle) -> None:
        """`looked_at` is when somebody looks whether it is idle. That stays while calls come and
        go: a timer for each costs more than the rest of what is done here for a call."""
        self.channel = channel
        self.looked_at = looked_at
        self.streams: dict[str, calls.CallStream] = {}
        # Calls under way. Invariant: a peer is closed only while this is 0.
        self.busy = 0
        # Nobody begins another call: it is closed when the last one ends.
        self.is_retired = False
        # When the last call ended, by the loop's clock.
        self.used_s = 0.0

    def stream(self, service: str) -> calls.CallStream:
        stream = self.streams.get(service)
        if stream is None:
            stream = self.streams[service] = calls.CallStream(self.channel, service)
        return stream

    async def close(self) -> None:
        for stream in self.streams.values():
            await stream.close()
        await self.channel.close()


class GrpcPeers:
    """See the module. Belongs to one event loop."""

    def __init__(self, tls: TlsSource | None = None, *, idle_ms: int = IDLE_MS) -> None:
        self._tls = tls
        self._idle_ms = idle_ms
        self._peers: dict[tuple[str, int], _Peer] = {}
        # Connections of before `renew` with calls under way.
        self._retired: set[_Peer] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        """`method` as "participant.write_markers". Raises OncelogError: Unavailable where nothing
        was sent, UnknownOutcome where the answer is lost."""
        service, _, name = method.partition(".")
        if not name:
            raise InvalidArgument(f"{method!r} is not service.method")
        if self._closed:
            raise Unavailable("this process is stopping")
        peer = self._take((to.host, to.port))
        try:
            if name in rpcs.stream_fields(rpcs.find(service)):
                return await peer.stream(service).call(name, request, timeout_ms)
            return await calls.unary(peer.channel, service, name, request, timeout_ms)
        finally:
            self._give_back(peer)

    async def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        """A stream both ways. Raises OncelogError."""
        service, _, name = method.partition(".")
        if self._closed:
            raise Unavailable("this process is stopping")
        peer = self._take((to.host, to.port))
        try:
            replies = calls.exchange(peer.channel, service, name, requests)
            async with aclosing(replies):
                async for reply in replies:
                    yield reply
        finally:
            self._give_back(peer)

    def renew(self) -> None:
        """Calls from now on go over new connections, which show what the source of certificates
        has now. Calls under way end where they began."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.looked_at.cancel()
            if peer.busy:
                peer.is_retired = True
                self._retired.add(peer)
            else:
                self._close(peer)

    async def close(self) -> None:
        """Hangs up on everybody; calls under way end with their errors."""
        self._closed = True
        peers = [*self._peers.values(), *self._retired]
        self._peers.clear()
        self._retired.clear()
        for peer in peers:
            peer.looked_at.cancel()
        await asyncio.gather(*(peer.close() for peer in peers), *self._closing)

    def _take(self, address: tuple[str, int]) -> _Peer:
        """For one call, until it is given back."""
        peer = self._peers.get(address)
        if peer is None:
            # First: where it cannot, there is nobody to look at.
            channel = self._connect(address)
            loop = asyncio.get_running_loop()
            looked_at = loop.call_later(self._idle_ms / 1000, self._look, address)
            peer = self._peers[address] = _Peer(channel, looked_at)
        peer.busy += 1
        return peer

    def _give_back(self, peer: _Peer) -> None:
        peer.busy -= 1
        if peer.busy:
            return
        if not peer.is_retired:
            peer.used_s = asyncio.get_running_loop().time()
        elif not self._closed:
            self._retired.discard(peer)
            self._close(peer)

    def _look(self, address: tuple[str, int]) -> None:
        """Hangs up where nobody has called for so long; else looks again when that could be."""
        peer, loop = self._peers[address], asyncio.get_running_loop()
        now_s = loop.time()
        idle_at_s = (now_s if peer.busy else peer.used_s) + self._idle_ms / 1000
        if now_s < idle_at_s:
            peer.looked_at = loop.call_at(idle_at_s, self._look, address)
        else:
            self._hang_up(address)

    def _connect(self, address: tuple[str, int]) -> grpc.aio.Channel:
        host, port = address
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._tls is None:
            return grpc.aio.insecure_channel(target, options=calls.CHANNEL_OPTIONS)
        credentials = client_credentials(self._tls.pems)
        return grpc.aio.secure_channel(target, credentials, options=calls.CHANNEL_OPTIONS)

    def _hang_up(self, address: tuple[str, int]) -> None:
        self._close(self._peers.pop(address))

    def _close(self, peer: _Peer) -> None:
        assert peer.busy == 0, "nobody is hung up on in the middle of a call"
        task = asyncio.get_running_loop().create_task(peer.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
