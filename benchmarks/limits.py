"""`python -m benchmarks.limits`: what this machine gives at most, of each thing that the figures of
workloads are made of. Measured in the same run as they are, before and after them: on a shared
machine it is another one each time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import click
import crc32c

from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.summary import percentile

# Of each limit.
SECONDS: Final = 0.5
ROUNDS_MAX: Final = 100_000
SMALL_BYTES: Final = 512
LARGE_BYTES: Final = 1 << 20
FILE_BYTES: Final = 64 << 20
# Of a file that grows while it is measured.
GROWN_BYTES_MAX: Final = 1 << 30
COPY_BYTES: Final = 64 << 20
PYTHON_STEPS: Final = 20_000
_ROOT: Final = Path(__file__).parents[1]


class Limit(NamedTuple):
    name: str
    value: float
    unit: str


def limits_beside(folder: Path, seconds: float = SECONDS) -> list[Limit]:
    """By a process of their own: this one may have threads, and must not be copied then."""
    command = (sys.executable, "-m", "benchmarks.limits", "--json", f"--folder={folder}")
    done = subprocess.run(
        (*command, f"--seconds={seconds}"), check=True, stdout=subprocess.PIPE, cwd=_ROOT
    )
    return [Limit(*limit) for limit in json.loads(done.stdout)]


def limits(folder: Path, seconds: float) -> list[Limit]:
    """`folder` is on the disk that the servers write to."""
    small = sync_s(folder, SMALL_BYTES, seconds)
    large = sync_s(folder, LARGE_BYTES, seconds)
    grown = sync_s(folder, LARGE_BYTES, seconds, grows=True)
    trips = round_trips_s(seconds)
    block = os.urandom(COPY_BYTES)
    target = memoryview(bytearray(COPY_BYTES))
    copied = best_s(lambda: _copy(block, target), seconds)
    checked = best_s(lambda: crc32c.crc32c(block), seconds)
    return [
        Limit(f"write and fdatasync of {SMALL_BYTES} B, p50", percentile(small, 50) * 1e3, "ms"),
        Limit(f"write and fdatasync of {SMALL_BYTES} B, p99", percentile(small, 99) * 1e3, "ms"),
        Limit("such syncs, one after the other", len(small) / sum(small), "1/s"),
        Limit("write and fdatasync of 1 MiB, p50", percentile(large, 50) * 1e3, "ms"),
        Limit("such syncs", len(large) * LARGE_BYTES / sum(large) / 1e6, "MB/s"),
        Limit(
            "such syncs, of a file that grows", len(grown) * LARGE_BYTES / sum(grown) / 1e6, "MB/s"
        ),
        Limit("loopback round trip of 1 byte, p50", percentile(trips, 50) * 1e6, "us"),
        Limit("loopback round trip of 1 byte, p99", percentile(trips, 99) * 1e6, "us"),
        Limit("memory copied", COPY_BYTES / copied / 1e9, "GB/s"),
        Limit("CRC-32C", COPY_BYTES / checked / 1e9, "GB/s"),
        Limit("context switch (two processes on one core)", switch_s(seconds) * 1e6, "us"),
        Limit("Python, one core", PYTHON_STEPS / best_s(_python_steps, seconds) / 1e6, "M steps/s"),
    ]


def sync_s(folder: Path, size: int, seconds: float, *, grows: bool = False) -> list[float]:
    """Each write and sync, into space that is allocated and was written before; or of a file that
    `grows`, as a log's does: where a machine has to find memory and blocks that nobody used for
    long, that takes several times as long."""
    took = []
    prepared, file_bytes = (0, GROWN_BYTES_MAX) if grows else (FILE_BYTES, FILE_BYTES)
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor, block = file.fileno(), bytes(size)
        for at in range(0, prepared, LARGE_BYTES):
            os.pwrite(descriptor, bytes(LARGE_BYTES), at)
        os.fsync(descriptor)
        until = time.perf_counter() + seconds
        for number in range(ROUNDS_MAX):
            start = time.perf_counter()
            if start >= until:
                break
            os.pwrite(descriptor, block, number * size % file_bytes)
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - start)
    return took


def round_trips_s(seconds: float) -> list[float]:
    """One byte to another process and back, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def answer() -> None:
            with socket.create_connection(address) as there:
                there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while said := there.recv(1):
                    there.sendall(said)

        with _beside(answer):
            here, _ = server.accept()
            with here:
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

                def trip() -> None:
                    here.sendall(b"x")
                    here.recv(1)

                return _timed(trip, seconds)


def switch_s(seconds: float) -> float:
    """Two processes on one core hand a byte to and fro: each trip is two switches, with a read and
    a write of a pipe."""
    there_read, there_write = os.pipe()
    here_read, here_write = os.pipe()
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}

    def answer() -> None:
        os.sched_setaffinity(0, one)
        os.close(there_write)
        while said := os.read(there_read, 1):
            os.write(here_write, said)

    try:
        with _beside(answer):
            os.sched_setaffinity(0, one)
            took = _timed(lambda: (os.write(there_write, b"x"), os.read(here_read, 1)), seconds)
            os.close(there_write)
    finally:
        os.sched_setaffinity(0, allowed)
        for descriptor in (there_read, here_read, here_write):
            os.close(descriptor)
    return percentile(took, 50) / 2


def best_s(work: Callable[[], object], seconds: float) -> float:
    """The quickest of many: what the machine can, not what it did meanwhile."""
    return min(_timed(work, seconds))


def _timed(work: Callable[[], object], seconds: float) -> list[float]:
    took: list[float] = []
    until = time.perf_counter() + seconds
    while len(took) < ROUNDS_MAX:
        start = time.perf_counter()
        if took and start >= until:
            break
        work()
        took.append(time.perf_counter() - start)
    return took


def _copy(block: bytes, target: memoryview) -> None:
    # Into memory that is there already: page faults cost more than the copy.
    target[:] = block


def _python_steps() -> int:
    """Calls, attributes, integers and a dict: what an interpreter does all day."""
    counts: dict[int, int] = {}
    for step in range(PYTHON_STEPS):
        counts[step & 255] = counts.get(step & 255, 0) + step
    return len(counts)


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """In a process of its own, a copy of this one, that ends when it is over."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    try:
        yield
    finally:
        os.waitpid(pid, 0)


def rows(before: Sequence[Limit], after: Sequence[Limit]) -> list[tuple[str, ...]]:
    return [
        (first.name, f"{first.value:,.2f}", f"{then.value:,.2f}", first.unit)
        for first, then in zip(before, after, strict=True)
    ]


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Whose disk.")
@click.option("--seconds", default=SECONDS, show_default=True, help="For each limit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(folder: Path | None, seconds: float, as_json: bool) -> None:
    """Print what this machine gives at most."""
    with tempfile.TemporaryDirectory(prefix="oncelog-limits-", dir=folder) as made:
        found = limits(Path(made), seconds)
    if as_json:
        print(json.dumps(found))
        return
    for limit in found:
        print(f"{limit.name:45} {limit.value:>12,.2f} {limit.unit}")


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
