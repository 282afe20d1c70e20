"""Calls to one process each, without the client: no retries, no redirects, nobody else asked. For
who wants to know what that process says, or has no time to import the client.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog_server.cli.connection import Connection

if TYPE_CHECKING:
    import grpc


# The client has more of them (`oncelogpb.calls`), for connections that last.
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class Direct:
    """Channels by address; a context, for they want to be closed. Usable from many threads."""

    def __init__(self, chosen: Connection) -> None:
        """Raises OSError where a certificate cannot be read."""
        self._chosen = chosen
        self._channels: dict[str, grpc.Channel] = {}
        self._credentials = self._read_credentials() if chosen.uses_tls else None

    def ask(self, address: str, method: str, request: Any, reply: Any, *, timeout_s: float) -> Any:
        """`method` as "Cluster/GetMetadata", `reply` its message class. Raises grpc.RpcError,
        ValueError."""
        return self._call(address, method, request, reply)(request, timeout=timeout_s)

    def begin(
        self, address: str, method: str, request: Any, reply: Any, *, timeout_s: float
    ) -> grpc.Future[Any]:
        """As `ask`, without waiting: `result()` of what it returns does."""
        begun: grpc.Future[Any] = self._call(address, method, request, reply).future(
            request, timeout=timeout_s
        )
        return begun

    def _call(self, address: str, method: str, request: Any, reply: Any) -> Any:
        return self._channel(address.strip()).unary_unary(
            f"/oncelogpb.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _channel(self, address: str) -> grpc.Channel:
        import grpc

        if address not in self._channels:
            options: list[tuple[str, Any]] = list(_OPTIONS)
            if self._credentials is None:
                channel = grpc.insecure_channel(address, options=options)
            else:
                server_name = self._chosen.settings["tls_server_name"].value
                if server_name:
                    options.append(("grpc.ssl_target_name_override", server_name))
                channel = grpc.secure_channel(address, self._credentials, options=options)
            self._channels[address] = channel
        return self._channels[address]

    def _read_credentials(self) -> grpc.ChannelCredentials:
        import grpc

        settings = self._chosen.settings
        ca, key, certificate = (
            _read(settings[name].value) for name in ("tls_ca", "tls_key", "tls_cert")
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
