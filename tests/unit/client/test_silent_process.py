"""Calls to a process that is stopped: its connections stand, and nothing comes over them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from oncelog._core.routing import Endpoint
from oncelog._transport import GrpcTransport
from oncelogpb.errors import UnknownOutcome
from oncelogpb.v1 import cluster_pb2, coordinator_pb2

# The deadline of the calls: what ends before it ends because of the silence.
DEADLINE_MS = 60_000
# A bound that only ends a test that would hang.
PATIENCE_S = 30.0
SERVER = """
import asyncio, grpc

async def stream(requests, context):
    await context.send_initial_metadata(())
    async for request in requests:
        print("on a stream", flush=True)

async def unary(request, context):
    print("by itself", flush=True)
    await asyncio.Event().wait()

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method.endswith("/Stream"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

async def main():
    server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 2000)])
    server.add_generic_rpc_handlers((Handler(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


def test_i31_calls_to_a_stopped_process_end_long_before_their_deadline(
    process: subprocess.Popen[bytes],
) -> None:
    """Nobody knows whether it got them; another process may be asked."""
    said = process.stdout
    assert said is not None
    port = int(said.readline())

    async def story() -> list[object]:
        transport, to = GrpcTransport(), Endpoint("127.0.0.1", port)
        init, metadata = coordinator_pb2.InitProducerRequest(), cluster_pb2.GetMetadataRequest()
        on_stream = transport.begin(to, "coordinator.init_producer", init, DEADLINE_MS)
        beside = asyncio.ensure_future(
            transport.call(to, "cluster.get_metadata", metadata, DEADLINE_MS)
        )
        reached = [await asyncio.to_thread(said.readline) for _ in range(2)]
        assert sorted(reached) == [b"by itself\n", b"on a stream\n"]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            _, waiting = await asyncio.wait([on_stream, beside], timeout=PATIENCE_S)
            assert not waiting, "they wait for their deadline"
            return [on_stream.exception(), beside.exception()]
        finally:
            os.kill(process.pid, signal.SIGCONT)
            await transport.close()

    assert [type(ended) for ended in asyncio.run(story())] == [UnknownOutcome, UnknownOutcome]
