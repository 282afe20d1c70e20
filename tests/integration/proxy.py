"""A TCP proxy in a test: the network before one process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from enum import Enum

CHUNK_BYTES = 64 << 10


class Road(Enum):
    """What happens on it."""

    OPEN = "open"
    # Connections break, and none is made.
    REFUSED = "refused"
    # Nothing arrives, and nobody is told.
    SILENT = "silent"
    # What is asked arrives, and the answers are lost; what was not answered never will be, for the
    # connections break when this is over.
    ANSWERS_LOST = "answers lost"


class Proxy:
    """Use it as a context manager. `road` may be set at any time."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._road = Road.OPEN
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def road(self) -> Road:
        return self._road

    @road.setter
    def road(self, road: Road) -> None:
        if self._road is Road.ANSWERS_LOST:
            # Before it opens: no answer that is still on its way arrives.
            self._break_all()
        self._road = road
        if road is Road.SILENT:
            self._open.clear()
        elif road is not Road.ANSWERS_LOST:
            # What a road swallowed is lost: its connections are of no use.
            self._break_all()
            self._open.set()

    def break_connections(self) -> None:
        """What is under way on them is lost; new ones are made."""
        self.road = Road.REFUSED
        self.road = Road.OPEN

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()
        self.road = Road.REFUSED

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            if self._road is Road.REFUSED:
                return
            self._open.wait()
            with socket.create_connection(self._target) as far, self._kept(near, far):
                back = threading.Thread(target=self._pump, args=(far, near, True), daemon=True)
                back.start()
                self._pump(near, far, False)
                back.join()

    @contextlib.contextmanager
    def _kept(self, *sockets: socket.socket) -> Iterator[None]:
        with self._lock:
            self._sockets.update(sockets)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.difference_update(sockets)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._open.wait()
                if not (answers and self._road is Road.ANSWERS_LOST):
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _break_all(self) -> None:
        with self._lock:
            for end in self._sockets:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
