"""The road on which answers are lost: what is asked arrives, and nobody ever hears of it."""

from __future__ import annotations

import queue
import socket
import threading

from tests.integration.proxy import Proxy, Road

WAIT_S = 60.0


def test_answers_are_lost_for_ever_and_what_is_asked_arrives() -> None:
    heard: queue.Queue[bytes] = queue.Queue()

    def serve(listener: socket.socket) -> None:
        """Says what it hears."""
        for _ in range(2):
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    def echo(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(100):
                heard.put(data)
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with Proxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
            host, _, port = proxy.address.rpartition(":")
            with socket.create_connection((host, int(port)), WAIT_S) as client:
                client.sendall(b"before")
                assert heard.get(timeout=WAIT_S) == b"before"
                assert client.recv(100) == b"before"
                proxy.road = Road.ANSWERS_LOST
                client.sendall(b"meanwhile")
                assert heard.get(timeout=WAIT_S) == b"meanwhile"
                proxy.road = Road.OPEN
                # Not the answer, but the end.
                assert client.recv(100) == b""
            with socket.create_connection((host, int(port)), WAIT_S) as client:
                client.sendall(b"after")
                assert client.recv(100) == b"after"
