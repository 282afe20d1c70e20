"""A wire that is simulated loses nothing, keeps the order, and is never early. (How late it is at
most is the machine's business.)"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from benchmarks.model import of_operations, predicted, predicted_ms
from benchmarks.summary import Figures, Spread
from benchmarks.wire import wired
from oncelog_server.runtime.loopback_ports import free_ports


@contextmanager
def echoing() -> Iterator[int]:
    """Answers one connection with what it says; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            near, _ = listener.accept()
            with near:
                while data := near.recv(65_536):
                    near.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(60)
        assert not thread.is_alive(), "the end of the connection did not arrive"


def test_a_trip_takes_two_ways_at_least() -> None:
    (port,) = free_ports(1)
    with (
        echoing() as target,
        wired(20.0, {port: target}),
        closing(socket.create_connection(("127.0.0.1", port))) as here,
    ):
        start = time.monotonic()
        here.sendall(b"x")
        assert here.recv(1) == b"x"
        assert time.monotonic() - start >= 0.040


def test_all_bytes_come_in_order_and_so_does_the_end() -> None:
    (port,) = free_ports(1)
    sent, got = os.urandom(3_000_000), bytearray()
    with echoing() as target, wired(1.0, {port: target}):
        here = socket.create_connection(("127.0.0.1", port))
        with here:
            writer = threading.Thread(target=here.sendall, args=(sent,))
            writer.start()
            while len(got) < len(sent):
                got += here.recv(65_536)
            writer.join(60)
    assert bytes(got) == sent


COSTS = {"client": 10.0, "coordinator": 0.0, "partition_leader": 5.0}


@pytest.mark.parametrize(
    ("counts", "cores", "rate", "bound_by"),
    [
        ({}, 8.0, 100_000, "client"),
        ({"client": 2}, 8.0, 200_000, "client"),
        ({"client": 4}, 8.0, 200_000, "partition_leader"),
        ({"client": 4, "partition_leader": 4}, 8.0, 400_000, "client"),
        ({"client": 4, "partition_leader": 4}, 1.5, 100_000, "all cores"),
    ],
)
def test_a_rate_is_bound_by_one_process_or_by_all_cores(
    counts: dict[str, int], cores: float, rate: float, bound_by: str
) -> None:
    found = predicted(COSTS, counts, cores)
    assert found.rate == pytest.approx(rate)
    assert found.bound_by == bound_by


def test_what_a_role_does_anyway_is_no_part_of_an_operation() -> None:
    rate = {"tx_per_s": Spread(100, 100, 100)}
    measured = Figures(rate, 0.0, {"client": (50.0, 1), "leader": (300.0, 1), "etcd": (40.0, 1)})
    # At 100 a second a hundredth of a core is 100 us of each.
    costs = of_operations(measured, {"leader": 0.01, "etcd": 0.01})
    assert costs == {"client": 50.0, "leader": pytest.approx(200.0), "etcd": 0.0}


def test_latency_grows_by_both_ways_of_each_trip() -> None:
    assert predicted_ms(1.5, trips=2, each_way_ms=0.5) == 3.5
