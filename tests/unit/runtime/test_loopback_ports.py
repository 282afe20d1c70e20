"""Ports for services that must get the same one back after a restart."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from oncelog_server.cli.layout import Ports
from oncelog_server.runtime import loopback_ports as ports
from oncelog_server.runtime.etcd.embedded import EmbeddedEtcd


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
        assert found[0] not in ports.free_ports(1_000, among=range(found[0], found[0] + 1_100))


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
