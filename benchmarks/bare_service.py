"""A gRPC service of plain bytes in a process of its own, with the loop that ours have."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import grpc.aio
import uvloop

from oncelogpb import calls

OPTIONS: Final = list(calls.CHANNEL_OPTIONS)
# So that it takes the pings of such channels.
SERVER_OPTIONS: Final = [("grpc.http2.min_ping_interval_without_data_ms", 2_000), *OPTIONS]

# Makes, on the loop, what answers each method of a service, by its name.
Handlers = Callable[..., Mapping[str, Any]]


class Service(NamedTuple):
    port: int
    pid: int


def opened(port: int) -> Any:
    """A channel to it."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)


@contextlib.contextmanager
def started(name: str, handlers: Handlers, *arguments: Any) -> Iterator[Service]:
    """A service of that name, `handlers(*arguments)` of a module's own."""
    ours, theirs = multiprocessing.Pipe()
    # Spawned: gRPC does not survive a fork.
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, name, handlers, arguments), daemon=True
    )
    process.start()
    try:
        assert process.pid is not None
        yield Service(ours.recv(), process.pid)
    finally:
        process.terminate()
        process.join()


def _serve(told: Connection, name: str, handlers: Handlers, arguments: Sequence[Any]) -> None:
    """Until its process is ended."""

    async def run() -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        made = grpc.method_handlers_generic_handler(name, dict(handlers(*arguments)))
        server.add_generic_rpc_handlers((made,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        told.send(port)
        await server.wait_for_termination()

    uvloop.run(run())
