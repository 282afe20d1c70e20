"""What the probes of deploy/k8s mean, on real processes: ready is "up, and the logs
are open", alive is "the loop ticks", and SIGTERM hands over before the process ends.

tests/tidy/test_deploy.py holds that the manifests ask what is asked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from oncelog.protocol import Protocol
from oncelog_server.runtime.loopback_ports import free_ports
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import cluster_pb2
from tests.integration.cluster import (
    COORDINATOR,
    PARTITION_LEADER,
    Cluster,
    running,
    until,
)

pytestmark = pytest.mark.integration

# What deploy/k8s/base/process.yaml asks for.
ALIVE = ""
READY = "oncelogpb.v1.Cluster"

UP, DOWN = "SERVING", "NOT_SERVING"
NO_ANSWER = "no answer"
# The probes' own deadline in deploy/k8s/base/process.yaml is as short.
PROBE_TIMEOUT_S = 5.0
# The longest that is allowed, and a bound below it: a lease that ended by then was given back.
LONG_LEASE_MS = 60_000
BEFORE_ITS_END_S = 30.0
LOOK_MS = 5_000


class Probe:
    """What the kubelet does: a new connection to the port of its own, with a deadline."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"

    def ask(self, service: str) -> str:
        request = health_pb2.HealthCheckRequest(service=service)
        with grpc.insecure_channel(self.address) as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PROBE_TIMEOUT_S)
            except grpc.RpcError as error:
                # A service that is not announced yet counts as one that is not ready.
                return DOWN if error.code() is grpc.StatusCode.NOT_FOUND else NO_ANSWER
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

    def await_answer(self, service: str, expected: str) -> None:
        until(lambda: self.ask(service) == expected, f"{service or 'the process'} is {expected}")


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe(free_ports(1)[0])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, probe: Probe) -> Iterator[Cluster]:
    settings = {COORDINATOR: [f"node.health_listen={probe.address}"]}
    with running(tmp_path_factory.mktemp("cluster"), of_role=settings) as made:
        yield made


def test_ready_and_alive_although_nothing_is_led(cluster: Cluster, probe: Probe) -> None:
    """Else a cluster that lost its etcd would be taken out of service by its own probes."""
    probe.await_answer(READY, UP)
    before = len(cluster.events(COORDINATOR, "lease not renewed in time"))
    with cluster.etcd_paused():
        until(
            lambda: len(cluster.events(COORDINATOR, "lease not renewed in time")) > before,
            "leadership ends with the lease",
        )
        assert probe.ask(READY) == UP
        assert probe.ask(ALIVE) == UP
    cluster.wait_ready()


def test_a_process_whose_loop_stands_still_does_not_answer(cluster: Cluster, probe: Probe) -> None:
    with cluster.paused(COORDINATOR):
        assert probe.ask(ALIVE) == NO_ANSWER
    probe.await_answer(ALIVE, UP)
    cluster.wait_ready()


def test_a_start_without_etcd_waits_alive_and_not_ready(cluster: Cluster, probe: Probe) -> None:
    cluster.stop(COORDINATOR)
    before = len(cluster.events(COORDINATOR, "waiting for etcd"))
    with cluster.etcd_paused():
        cluster.start(COORDINATOR)
        until(lambda: len(cluster.events(COORDINATOR, "waiting for etcd")) > before, "it says so")
        assert probe.ask(ALIVE) == UP
        assert probe.ask(READY) == DOWN
    probe.await_answer(READY, UP)
    cluster.wait_ready()


def test_a_start_that_waits_for_etcd_ends_when_it_is_told(cluster: Cluster) -> None:
    cluster.stop(COORDINATOR)
    before = len(cluster.events(COORDINATOR, "waiting for etcd"))
    with cluster.etcd_paused():
        cluster.start(COORDINATOR)
        until(lambda: len(cluster.events(COORDINATOR, "waiting for etcd")) > before, "it says so")
        cluster.stop(COORDINATOR)
    cluster.start(COORDINATOR)
    cluster.wait_ready()


def test_a_journal_that_cannot_be_opened_keeps_a_process_alive_and_not_ready(
    cluster: Cluster, probe: Probe
) -> None:
    """So a rolling update stops there; the other partitions are led all the same. Last of the
    module: the replica stays refused."""
    cluster.stop(COORDINATOR)
    damage(cluster.data_of(COORDINATOR))
    cluster.start(COORDINATOR)
    until(lambda: cluster.events(COORDINATOR, "replica cannot be opened"), "it is refused")
    assert probe.ask(ALIVE) == UP
    assert probe.ask(READY) == DOWN
    before = len(cluster.events(COORDINATOR, "replica cannot be opened"))
    until(
        lambda: len(cluster.events(COORDINATOR, "replica cannot be opened")) > before + 1,
        "it is tried again",
    )
    assert probe.ask(READY) == DOWN


def damage(data: Path) -> None:
    """Flips a bit of the first frame of one journal."""
    journal = min(data.glob("partitions/*/*.log"))
    content = bytearray(journal.read_bytes())
    content[8] ^= 1
    journal.write_bytes(content)


def test_sigterm_hands_over_and_no_lease_has_to_end(tmp_path: Path) -> None:
    """Kubernetes sends it first. Until the lease is gone, nobody else may lead."""
    with running(tmp_path, f"node.lease_ms={LONG_LEASE_MS}") as cluster:
        assert leads(cluster)
        cluster.stop(COORDINATOR)
        until(lambda: not is_member(cluster), "others see it go", within_s=BEFORE_ITS_END_S)
        assert not leads(cluster)
        cluster.start(COORDINATOR)
        cluster.wait_ready()
        assert leads(cluster)


def seen_by_the_leader(cluster: Cluster) -> cluster_pb2.GetMetadataReply:
    with Protocol(cluster.address(PARTITION_LEADER)) as protocol:
        request = cluster_pb2.GetMetadataRequest(journal_partitions=[0])
        reply: cluster_pb2.GetMetadataReply = protocol.call(
            "cluster.get_metadata", request, LOOK_MS
        )
        return reply


def is_member(cluster: Cluster) -> bool:
    port = cluster.ports[COORDINATOR]
    try:
        return port in {node.endpoint.port for node in seen_by_the_leader(cluster).nodes}
    except OncelogError:
        return True


def leads(cluster: Cluster) -> bool:
    [route] = seen_by_the_leader(cluster).journal_partitions
    return route.HasField("leader")
