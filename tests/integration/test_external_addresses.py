"""Clients from outside: they come in at a second address of each process, are told the second
addresses of all, and need no other."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncelog
from oncelog_server.runtime.loopback_ports import free_ports
from tests.integration.cluster import PARTITION_LEADER, ROLES, running, until

pytestmark = pytest.mark.integration

# Another address of this machine than the one that the processes use among themselves.
OUTSIDE = "127.0.0.2"


def test_a_client_that_comes_in_from_outside_is_told_nothing_but_outside(tmp_path: Path) -> None:
    ports = dict(zip(ROLES, free_ports(len(ROLES)), strict=True))
    external = {role: f"{OUTSIDE}:{port}" for role, port in ports.items()}
    settings = {role: [f"node.listen_external={address}"] for role, address in external.items()}
    with running(tmp_path, of_role=settings) as cluster:
        with oncelog.connect(external[PARTITION_LEADER]) as log:
            created = log.admin.create_topic("t", partitions=1)
            until(lambda: log.admin.describe_topic("t").partitions[0].leader, "it is led")
            assert log.admin.describe_topic("t").partitions[0].leader == external[PARTITION_LEADER]
            assert {node.address for node in log.admin.nodes()} == set(external.values())
            with (
                log.transactional_producer("outsider") as producer,
                producer.transaction(wait="visible") as tx,
            ):
                tx.send("t", b"from outside", partition=0)
            with log.consumer(["t"], group="outsiders") as consumer:
                assert [record.value for record in consumer.poll(10) or ()] == [b"from outside"]
                consumer.commit()
            # After a restart it finds its way by the same addresses.
            cluster.restart(*ROLES)
            with log.producer() as plain:
                plain.send("t", b"again", partition=0)
            assert {node.address for node in log.admin.nodes()} <= set(external.values())
        cluster.wait_ready()
        with cluster.connect() as log:
            assert {node.address for node in log.admin.nodes()} == set(cluster.bootstrap.split(","))
            assert created.name == "t"
