"""What gRPC takes to carry a MiB, and nothing else: CPU of the sender and of the receiver.

    python -m benchmarks.carriage

Two processes with the loops and the options that ours have. Up, a call stream carries messages of
1 MiB, and each is answered by a few bytes, as a Produce is; down, a stream of replies carries
messages of 2 MiB, as a Subscribe does. Nobody looks into them. What a workload of 1 KiB records
takes beyond this (`benchmarks.hand_offs --only "bulk sends"`) is ours.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
from collections.abc import AsyncIterator
from typing import Any, Final

import click
import grpc.aio

from benchmarks.bare_service import opened, started
from benchmarks.ending import end_as_by_ctrl_c
from oncelogpb import bulk

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


def handlers() -> dict[str, Any]:
    bulk.keep_large_blocks()
    return {
        "Up": grpc.stream_stream_rpc_method_handler(_up),
        "Down": grpc.unary_stream_rpc_method_handler(_down),
        "Used": grpc.unary_unary_rpc_method_handler(_used),
    }


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
    async with opened(port) as channel:
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
    with started("benchmarks.Carriage", handlers) as service:
        asyncio.run(measure(service.port, mib, rounds))


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
