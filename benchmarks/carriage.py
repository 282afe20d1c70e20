"""What gRPC takes to carry a MiB, and nothing else: CPU of the sender and of the receiver.

    python -m benchmarks.carriage

Two processes with the loops and the options that ours have. Up, a call stream carries messages of
1 MiB, and each is answered by a few bytes, as a Produce is; down, a stream of replies carries
messages of 2 MiB, as a Subscribe does. Nobody looks into them. What a workload of 1 KiB records
takes beyond this (`benchmarks.hand_offs --only "bulk sends"`) is ours.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import statistics
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any, Final

import click
import grpc.aio
import uvloop

from oncelogpb import bulk, calls

MIB: Final = 1 << 20
WARM_UP_MIB: Final = 64
IN_FLIGHT: Final = 4


def cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


async def _up(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for _ in messages:
        yield b"answer"


async def _down(request: bytes, context: Any) -> AsyncIterator[bytes]:
    message = bytes(2 * MIB)
    for _ in range(int(request) // 2):
        yield message


async def _used(request: bytes, context: Any) -> bytes:
    return str(cpu_us()).encode()


def serve(told: Connection) -> None:
    """Until its process is ended."""
    bulk.keep_large_blocks()

    async def run() -> None:
        server = grpc.aio.server(options=list(calls.CHANNEL_OPTIONS))
        handlers = {
            "Up": grpc.stream_stream_rpc_method_handler(_up),
            "Down": grpc.unary_stream_rpc_method_handler(_down),
            "Used": grpc.unary_unary_rpc_method_handler(_used),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("benchmarks.Carriage", handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        told.send(port)
        await server.wait_for_termination()

    uvloop.run(run())


async def carry_up(channel: Any, count: int) -> None:
    """So many MiB, a few of them in flight."""
    call = channel.stream_stream("/benchmarks.Carriage/Up")()
    message = bytes(MIB)

    async def answers() -> None:
        for _ in range(count):
            await call.read()
            room.release()

    room = asyncio.Semaphore(IN_FLIGHT)
    reader = asyncio.create_task(answers())
    for _ in range(count):
        await room.acquire()
        await call.write(message)
    await reader
    await call.done_writing()


async def carry_down(channel: Any, count: int) -> None:
    call = channel.unary_stream("/benchmarks.Carriage/Down")(str(count).encode())
    async for _ in call:
        pass


async def used_there(channel: Any) -> float:
    return float(await channel.unary_unary("/benchmarks.Carriage/Used")(b""))


async def measure(port: int, count: int, rounds: int) -> None:
    bulk.keep_large_blocks()
    address, options = f"127.0.0.1:{port}", list(calls.CHANNEL_OPTIONS)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        for title, carry in (("up", carry_up), ("down", carry_down)):
            await carry(channel, WARM_UP_MIB)
            found: list[tuple[float, float]] = []
            for _ in range(rounds):
                there, here = await used_there(channel), cpu_us()
                await carry(channel, count)
                found.append((cpu_us() - here, await used_there(channel) - there))
            client, server = (statistics.median(side) / count for side in zip(*found, strict=True))
            click.echo(f"{title:5} client {client:7.0f} us a MiB   server {server:7.0f} us a MiB")


@click.command()
@click.option("--mib", default=256, show_default=True, type=click.IntRange(2, 100_000))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 200))
def main(mib: int, rounds: int) -> None:
    """Carry bytes. See the module."""
    ours, theirs = multiprocessing.Pipe()
    # Spawned: gRPC does not survive a fork.
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        asyncio.run(measure(ours.recv(), mib, rounds))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
