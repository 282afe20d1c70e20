"""Ports for services that must get the same one back after a restart."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog_server.cli.layout import Ports
from oncelog_server.runtime import loopback_ports as ports
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd

# Another run: it lives until its stdin ends.
DRAWING = """
import sys
from oncelog_server.runtime.loopback_ports import free_ports
print(*free_ports(20, among=range(*map(int, sys.argv[1:]))), flush=True)
sys.stdin.read()
"""


def _given_to_connections() -> range:
    """What this system takes ports of connections from."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = ports.given_to_connections()
        assert server.getsockname()[1] in given, "the system does what it says"
    return given


def test_no_connection_takes_the_port_of_a_service_that_is_down(tmp_path: Path) -> None:
    given = _given_to_connections()
    chosen = Ports.free()
    etcd = EmbeddedEtcd(tmp_path, "etcd")._choose_ports()
    for port in (chosen.coordinator, chosen.partition_leader, chosen.offset_manager, *etcd):
        assert port not in given


def test_ports_differ_and_nobody_listens_on_them() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    with socket.create_server(("127.0.0.1", found[0])):
        assert found[0] not in ports.free_ports(60, among=range(found[0], found[0] + 80))


def test_what_was_drawn_is_not_drawn_again_before_anybody_listens() -> None:
    everywhere = ports.for_listeners(ports.given_to_connections())
    # Some may be taken, or drawn by tests that run beside this one.
    first = random.randrange(everywhere.start, everywhere.stop - 400)
    among = range(first, first + 400)
    with subprocess.Popen(
        [sys.executable, "-c", DRAWING, str(among.start), str(among.stop)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        once, again = (set(ports.free_ports(20, among=among)) for _ in range(2))
        other.communicate()
    assert len(theirs) == len(once) == len(again) == 20
    assert not once & again, "one run draws a port twice"
    assert not theirs & (once | again), "two runs draw the same port"


def test_etcd_leaves_ports_on_which_services_will_listen(tmp_path: Path) -> None:
    """Drawn before they do, so that they look free."""
    listened_on = ports.for_listeners(ports.given_to_connections())
    spare = set(ports.free_ports(4))
    first = EmbeddedEtcd(tmp_path, "etcd", promised=set(listened_on) - spare)._choose_ports()
    assert spare.issuperset(first), "etcd listens where a service will"
    # The service took the port of an earlier run of etcd, which is down.
    then = EmbeddedEtcd(tmp_path, "etcd", promised=first[1:])._choose_ports()
    assert first[1] not in then, "etcd keeps a port that it lost"


@pytest.mark.parametrize(
    ("given", "among"),
    [
        (range(32_768, 61_000), range(10_000, 32_768)),
        # As some hosts are set up: nothing is left below.
        (range(1_024, 50_000), range(50_000, 65_536)),
        # Nothing is left at all: a port may be taken, which is better than to have none.
        (range(1_024, 65_536), range(10_000, 65_536)),
    ],
)
def test_ports_come_from_where_no_connection_is(given: range, among: range) -> None:
    assert ports.for_listeners(given) == among


def test_too_few_ports_are_an_error_that_says_where_it_looked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(OSError, match=f"{port} to {port}"):
            ports.free_ports(1, among=range(port, port + 1))
