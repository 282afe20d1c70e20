"""What health checks are told (grpc.health.v1), and a port of its own to ask at.

    service ""                      the process lives: the event loop answers, so it ticks
    service "oncelogpb.v1.Cluster"  the process is up and its logs are open; so for
                                    every service that it serves

Invariants:
  * Leadership is no part of it. Where it were, a cluster that lost its etcd, or its quorum, would
    be taken out of service and could not heal.
  * Ready once is ready until the process drains: a log that is opened later changes nothing.
    Draining is for good.
  * The loop itself answers. One that hangs, or a process that is stopped, answers nothing, which a
    probe with a deadline counts as a failure; no thread may answer for it. What the loop must do at
    every tick cannot die alone: a task of the node that fails ends the process.

The port of its own is plain, unless told otherwise, also where all else is mTLS: Kubernetes' gRPC
probes show no certificate, nor do they look at one. It serves nothing but this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

# Everybody may ask at the plain port; above so many calls at once they are refused.
CALLS_MAX: Final = 64
CONNECTION_CALLS_MAX: Final = 8
REQUEST_BYTES_MAX: Final = 4_096


class Health:
    """What one process says about itself, on however many ports."""

    def __init__(self) -> None:
        # Says SERVING for "" from the start.
        self._servicer = HealthServicer()
        self._services: set[str] = set()
        self._ready = False

    def serve_on(self, server: Any) -> None:
        """Adds the health service to a gRPC server that is not started."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def announce(self, services: Iterable[str]) -> None:
        """Full names of what the process serves: not serving before `ready`."""
        for name in sorted(services):
            self._services.add(name)
            await self.set(name, serving=self._ready)

    async def ready(self) -> None:
        """The logs are open."""
        self._ready = True
        for name in sorted(self._services):
            await self.set(name, serving=True)

    async def set(self, name: str, *, serving: bool) -> None:
        """Of one service, by its full name; "" is the process."""
        await self._servicer.set(name, SERVING if serving else NOT_SERVING)

    async def drain(self) -> None:
        """The process is stopping: nothing serves, for good. Kubernetes asks a pod that it ends
        no more whether it lives, so the process counts, too."""
        await self._servicer.enter_graceful_shutdown()


class HealthServer:
    """The port of its own. Starts before everything else and stops after it."""

    def __init__(
        self, health: Health, listen: str, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        """Without credentials it is plain."""
        self._health = health
        self._listen = listen
        self._credentials = credentials
        self._server: Any = None
        self.port = 0

    async def start(self) -> int:
        """The port. Raises OSError where the address cannot be bound."""
        server = self._server = grpc.aio.server(
            maximum_concurrent_rpcs=CALLS_MAX,
            options=[
                ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._health.serve_on(server)
        self.port = bind(server, self._listen, self._credentials)
        await server.start()
        return self.port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)


def bind(server: Any, listen: str, credentials: grpc.ServerCredentials | None) -> int:
    """The port that was bound; without credentials a plain one. Raises OSError."""
    try:
        port = (
            server.add_insecure_port(listen)
            if credentials is None
            else server.add_secure_port(listen, credentials)
        )
    except RuntimeError as error:
        raise OSError(
            f"cannot listen on {listen}: the port is taken or the address is not of this machine "
            f"({error})"
        ) from None
    return int(port)
