"""Channels to etcd's endpoints: one asyncio channel each, and blocking ones for the lease thread.

An endpoint is "host:port", "http://host:port" or "https://host:port"; all of them use TLS, or none
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from pyetcd.etcdrpc import rpc_pb2 as rpc
from pyetcd.etcdrpc import rpc_pb2_grpc as stubs

from oncelog_server.runtime.etcd.port import EtcdUnavailable

# A member without a leader then ends the stream, instead of keeping silent.
REQUIRE_LEADER: Final = (("hasleader", "true"),)
# A range of many keys, a watch that catches up.
MESSAGE_BYTES_MAX: Final = 64 << 20
ENDPOINTS_MAX: Final = 20

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # etcd ends connections that ping more often than every 5 s (--grpc-keepalive-min-time).
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    # A proxy that the environment names is for the way out, not for etcd.
    ("grpc.enable_http_proxy", 0),
    # A channel of one's own per client: a dead one is not shared with another.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM bytes. Without `certificate` and `key` the client shows no identity."""

    # Who signed etcd's certificates.
    authorities: bytes
    certificate: bytes | None = None
    key: bytes | None = None

    @classmethod
    def from_files(
        cls, *, ca: Path | str, cert: Path | str | None = None, key: Path | str | None = None
    ) -> EtcdTls:
        """Raises OSError naming the file, ValueError where only one of cert and key is given."""
        if (cert is None) != (key is None):
            raise ValueError("give etcd's client certificate and its key, or neither")
        return cls(
            authorities=Path(ca).read_bytes(),
            certificate=None if cert is None else Path(cert).read_bytes(),
            key=None if key is None else Path(key).read_bytes(),
        )

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificate)


class Connection:
    """One endpoint's asyncio channel and its stubs."""

    def __init__(self, endpoint: str, tls: EtcdTls | None) -> None:
        self.endpoint = endpoint
        if tls is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(
                endpoint, tls.credentials(), options=CHANNEL_OPTIONS
            )
        self.kv: Any = stubs.KVStub(self._channel)
        self.lease: Any = stubs.LeaseStub(self._channel)
        self.watches: Any = stubs.WatchStub(self._channel)

    async def ready(self, timeout_ms: float) -> bool:
        """Connected, or connected within the timeout."""
        try:
            state = self._channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                return True
            async with asyncio.timeout(timeout_ms / 1000):
                while state is not grpc.ChannelConnectivity.READY:
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
        except (TimeoutError, grpc.aio.UsageError):
            # Too late, or it was closed meanwhile.
            return False
        return True

    async def close(self) -> None:
        await self._channel.close(grace=None)


class Renewals:
    """Blocking keep-alives. Made, used and closed by the lease thread; `close` may come from any
    thread, and ends a call that is under way."""

    def __init__(self, endpoints: Sequence[str], tls: Callable[[], EtcdTls | None]) -> None:
        """`tls` is asked before each call: where it gives another, the channels are made anew."""
        self._endpoints = endpoints
        self._tls_of = tls
        self._tls = tls()
        self._channels = self._connect()
        self._current = 0

    def _connect(self) -> list[grpc.Channel]:
        make: Any = grpc.insecure_channel if self._tls is None else _secure(self._tls)
        return [make(endpoint, options=CHANNEL_OPTIONS) for endpoint in self._endpoints]

    def keep_alive(self, lease: int, timeout_ms: int) -> int:
        """The remaining TTL in ms, 0 where the lease is gone. Raises EtcdUnavailable; the next
        call goes to the next endpoint."""
        if self._tls_of() is not self._tls:
            self._tls = self._tls_of()
            self.close()
            self._channels = self._connect()
        stub: Any = stubs.LeaseStub(self._channels[self._current])
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        try:
            replies = stub.LeaseKeepAlive(
                iter([request]), timeout=timeout_ms / 1000, metadata=REQUIRE_LEADER
            )
            reply = next(replies)
            replies.cancel()
            return max(0, int(reply.TTL)) * 1000
        except (grpc.RpcError, StopIteration, ValueError) as error:
            # ValueError: grpc says so of a channel that was closed meanwhile.
            self._current = (self._current + 1) % len(self._channels)
            raise EtcdUnavailable(f"keep-alive: {error}") from error

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def parse_endpoints(endpoints: Sequence[str], tls: EtcdTls | None) -> list[str]:
    """As "host:port". Raises ValueError saying what to change."""
    if not 1 <= len(endpoints) <= ENDPOINTS_MAX:
        raise ValueError(f"name 1 to {ENDPOINTS_MAX} etcd endpoints, not {len(endpoints)}")
    targets = []
    for endpoint in endpoints:
        scheme, separator, target = endpoint.strip().rpartition("://")
        if separator and scheme not in ("http", "https"):
            raise ValueError(f"etcd endpoint {endpoint!r}: use http://, https:// or host:port")
        if scheme == "https" and tls is None:
            raise ValueError(f"etcd endpoint {endpoint!r} needs TLS: name a CA file for etcd")
        if scheme == "http" and tls is not None:
            raise ValueError(f"etcd endpoint {endpoint!r} is without TLS, but a CA file was named")
        host, _, port = target.rstrip("/").rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"etcd endpoint {endpoint!r} is not host:port")
        targets.append(f"{host}:{port}")
    return targets


def _secure(tls: EtcdTls) -> Any:
    def make(endpoint: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        return grpc.secure_channel(endpoint, tls.credentials(), options=options)

    return make
