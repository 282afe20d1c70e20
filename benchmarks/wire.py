"""`python -m benchmarks.wire DELAY_MS LISTEN=TARGET ...`: a wire between machines, simulated: a TCP
proxy that hands on each byte as late as a wire of that length would, in both directions. Ports are
those of this machine.

    near ──read──► (due, bytes) (due, bytes) ... ──at its time──► far         and the same back

It delays, and is as wide as the machine lets it be: many pieces may be on their way. It is a
process of its own, whose work is neither the client's nor a server's. Threads sleep to a few
hundredths of a millisecond; an event loop would wait in whole ones. It ends when its input does.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 256 << 10
# Pieces on their way in one direction; who sends more waits, as for any buffer that is full.
PIECES_MAX: Final = 10_000
READY: Final = "ready"

# When it is due, by the monotonic clock, and what; no bytes: the end.
Piece = tuple[float, bytes]


@contextmanager
def wired(delay_ms: float, targets: Mapping[int, int]) -> Iterator[None]:
    """Proxies (port to listen at -> port to hand on to), each way that late."""
    command = (sys.executable, "-m", "benchmarks.wire", str(delay_ms))
    process = subprocess.Popen(
        [*command, *(f"{listen}={target}" for listen, target in targets.items())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise RuntimeError("the wire could not be laid; see the output above")
        yield
    finally:
        process.communicate()


def main() -> None:
    delay_s = float(sys.argv[1]) / 1000
    for pair in sys.argv[2:]:
        listen, _, target = pair.partition("=")
        listener = socket.create_server((HOST, int(listen)), backlog=100)
        _begin(_accept, listener, int(target), delay_s)
    print(READY, flush=True)
    sys.stdin.read()


def _accept(listener: socket.socket, target: int, delay_s: float) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection((HOST, target))
        except OSError:
            # Nobody is there, or not yet: who connected is told by the end of its connection.
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            way: queue.Queue[Piece] = queue.Queue(PIECES_MAX)
            _begin(_read, source, way, delay_s)
            _begin(_write, way, sink)


def _read(source: socket.socket, way: queue.Queue[Piece], delay_s: float) -> None:
    data = b"begun"
    while data:
        try:
            data = source.recv(CHUNK_BYTES)
        except OSError:
            data = b""
        way.put((time.monotonic() + delay_s, data))


def _write(way: queue.Queue[Piece], sink: socket.socket) -> None:
    broken = False
    while True:
        due, data = way.get()
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        if not data:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
            return
        if not broken:
            try:
                sink.sendall(data)
            except OSError:
                # The other end is gone; the reader finds its own end out by itself.
                broken = True


def _begin(work: Callable[..., object], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main()
