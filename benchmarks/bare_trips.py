"""What a small transaction costs before anything is in it: its trips, threads and syncs, no log.

    python -m benchmarks.bare_trips

The same messages between the same processes as with Oncelog, on gRPC's own streams, with the loops
and options that ours have; a journal is a file that is written and synced. Nobody parses, checks,
orders, indexes, fences, repeats or counts anything. `benchmarks.hand_offs` counts the whole in the
same way. What stands here is gRPC used in its plain way, and not the least there could be: ours
answers by callbacks, and writes once a turn of the loop, which saves hand-offs.

    one record    a thread ─► loop ═► coordinator, which syncs ═► loop ─► the thread
                  and up to 5 ms later, together: coordinator ═► leader, which syncs ═► coordinator
    end to end    a thread ─► loop ═► leader, which syncs ═► loop ─► a reader's thread ─► the thread
                  and the answer to the sender: leader ═► loop
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import click
import grpc.aio

from benchmarks.bare_service import opened, started
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.hand_offs import Used, threads_of
from benchmarks.summary import percentile
from oncelog_server.coordinator.marker_pace import MOMENT_MS

SERVICE: Final = "benchmarks.BareTrips"
# What the messages of a record of 100 B have, about.
MESSAGE: Final = b"m" * 250
# As long as the coordinator lets markers wait for others, where somebody reads what they bring.
MARKERS_LATE_S: Final = MOMENT_MS / 1000
COUNT: Final = 500
FIGURES: Final = ("cpu_us", "switches", "forced", "p50_ms", "p99_ms")


class File:
    """A journal, to the disk."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def sync(self, message: bytes) -> None:
        os.write(self._descriptor, message)
        os.fdatasync(self._descriptor)


class Leader:
    """Syncs what comes, and hands it to who subscribed."""

    def __init__(self, folder: Path) -> None:
        self._file = File(folder / "leader")
        self._readers: list[asyncio.Queue[bytes]] = []

    async def produce(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            self._file.sync(message)
            for reader in self._readers:
                reader.put_nowait(message)
            yield b"appended"

    async def subscribe(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        reader: asyncio.Queue[bytes] = asyncio.Queue()
        self._readers.append(reader)
        while True:
            yield await reader.get()


class Coordinator:
    """Syncs what comes, answers, and tells the leader."""

    def __init__(self, folder: Path, leader: int) -> None:
        self._file = File(folder / "coordinator")
        self._markers = Line("Produce", opened(leader), lambda _: None)
        self._due: list[bytes] = []

    async def commit(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            self._file.sync(message)
            yield b"decided"
            if not self._due:
                asyncio.get_running_loop().call_later(MARKERS_LATE_S, self._tell)
            self._due.append(message)

    def _tell(self) -> None:
        self._markers.write(b"".join(self._due))
        self._due.clear()


class Line:
    """A call that carries messages, one after the other, and whose answers are told."""

    def __init__(self, method: str, channel: Any, told: Callable[[bytes], object]) -> None:
        self._written: asyncio.Queue[bytes] = asyncio.Queue()
        call = channel.stream_stream(f"/{SERVICE}/{method}")()
        self._tasks = [
            asyncio.create_task(self._carry(call)),
            asyncio.create_task(hear(call, told)),
        ]

    def write(self, message: bytes) -> None:
        self._written.put_nowait(message)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _carry(self, call: Any) -> None:
        while True:
            await call.write(await self._written.get())


async def hear(call: Any, told: Callable[[bytes], object]) -> None:
    # Until the service is ended.
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for message in call:
            told(message)


def leader_handlers(folder: Path) -> dict[str, Any]:
    leader = Leader(folder)
    return {
        "Produce": grpc.stream_stream_rpc_method_handler(leader.produce),
        "Subscribe": grpc.unary_stream_rpc_method_handler(leader.subscribe),
    }


def coordinator_handlers(folder: Path, leader: int) -> dict[str, Any]:
    coordinator = Coordinator(folder, leader)
    return {"Commit": grpc.stream_stream_rpc_method_handler(coordinator.commit)}


class Client:
    """A loop in a thread of its own, with a line to that service."""

    def __init__(self, method: str, port: int, *, reads: bool = False) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.answered = threading.Semaphore(0)
        self.read: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        opening = self._open(method, port, reads=reads)
        asyncio.run_coroutine_threadsafe(opening, self._loop).result()

    async def _open(self, method: str, port: int, *, reads: bool) -> None:
        channel = opened(port)
        self._line = Line(method, channel, lambda _: self.answered.release())
        if reads:
            subscribed = channel.unary_stream(f"/{SERVICE}/Subscribe")(b"")
            # Held: a loop does not hold its tasks.
            self._reading = asyncio.create_task(hear(subscribed, self.read.put))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._line.close(), self._loop).result()

    def send(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._line.write, MESSAGE)


def follow(client: Client, arrived: threading.Semaphore) -> None:
    """The reader's thread."""
    while client.read.get():
        arrived.release()


def total(pids: Sequence[int]) -> Used:
    """What all threads of these have used; none of them ends."""
    used = [each for pid in pids for _, each in threads_of(pid).values()]
    return Used(*(sum(column) for column in zip(*used, strict=True)))


def measure(
    title: str, pids: Sequence[int], rounds: int, client: Client, arrived: threading.Semaphore
) -> None:
    """`arrived` is released by each message that `client` sent."""
    found: list[tuple[float, ...]] = []
    # The first one warms up.
    for _ in range(rounds + 1):
        before, took = total(pids), []
        for _ in range(COUNT):
            start = time.perf_counter()
            client.send()
            arrived.acquire()
            took.append((time.perf_counter() - start) * 1000)
        used = [after - was for after, was in zip(total(pids), before, strict=True)]
        late = (percentile(took, 50), percentile(took, 99))
        found.append((used[0] / 1000 / COUNT, *(each / COUNT for each in used[1:]), *late))
    for figure, column in zip(FIGURES, zip(*found[1:], strict=True), strict=True):
        median = statistics.median(column)
        click.echo(
            f"{title:11} {figure:9} {median:9.2f}   ({min(column):.2f} to {max(column):.2f})"
        )


@click.command()
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1, 200))
def main(rounds: int) -> None:
    """Make the trips of a small transaction. See the module."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
        leader = stack.enter_context(started(SERVICE, leader_handlers, folder))
        coordinator = stack.enter_context(
            started(SERVICE, coordinator_handlers, folder, leader.port)
        )
        pids = (os.getpid(), coordinator.pid, leader.pid)
        transactions = stack.enter_context(closing(Client("Commit", coordinator.port)))
        measure("one record", pids, rounds, transactions, transactions.answered)
        records = stack.enter_context(closing(Client("Produce", leader.port, reads=True)))
        arrived = threading.Semaphore(0)
        threading.Thread(target=follow, args=(records, arrived), daemon=True).start()
        measure("end to end", pids, rounds, records, arrived)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
