"""What Prometheus finds at a cluster's processes: topics by name, lag, latency, the process."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from oncelog_server.runtime.loopback_ports import free_ports
from tests.integration.cluster import OFFSET_MANAGER, PARTITION_LEADER, ROLES, running, until

pytestmark = pytest.mark.integration


class Scrapes:
    """The processes' metrics, by role."""

    def __init__(self) -> None:
        self.addresses = dict(
            zip(ROLES, (f"127.0.0.1:{port}" for port in free_ports(len(ROLES))), strict=True)
        )
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def settings(self) -> dict[str, list[str]]:
        return {
            role: [f"node.metrics_listen={address}", "offset_manager.lag_every_ms=200"]
            for role, address in self.addresses.items()
        }

    def values(self, role: str, name: str, **labels: str) -> list[float]:
        """Of the series of that name that have these labels."""
        with self._opener.open(f"http://{self.addresses[role]}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return [
            float(line.split()[-1])
            for line in lines
            if re.match(rf"{name}[ {{]", line) and all(label in line for label in wanted)
        ]


def test_topics_lag_latency_and_the_process_are_shown(tmp_path: Path) -> None:
    scrapes = Scrapes()
    with running(tmp_path, of_role=scrapes.settings()) as cluster, cluster.connect() as log:
        log.admin.create_topic("orders", partitions=2)
        with log.producer() as producer:
            for number in range(10):
                producer.send("orders", b"x", partition=number % 2)
            producer.flush()
        consumer = log.consumer(["orders"], group="audit", partitions=[("orders", 0)])
        seen = 0
        while seen < 5:
            seen += len(consumer.poll(10.0) or ())
        consumer.commit()

        leader, manager = PARTITION_LEADER, OFFSET_MANAGER
        ends = "oncelog_partition_leader_committed_end_offset"
        until(lambda: scrapes.values(leader, ends, topic="orders") == [5, 5], "both have five")
        lag = "oncelog_offset_manager_group_lag"

        def lags() -> list[list[float]]:
            return [
                scrapes.values(manager, lag, group="audit", topic="orders", partition=number)
                for number in ("0", "1")
            ]

        until(lambda: lags() == [[0], [5]], "what it did not read waits")
        log.admin.delete_topic("orders")
        until(lambda: lags() == [[], []], "nothing waits in a topic that is gone")
        until(lambda: not scrapes.values(leader, ends, topic="orders"), "nor is it shown")

        took = "oncelog_node_rpc_seconds_count"
        assert sum(scrapes.values(leader, took, method="produce")) > 0
        assert sum(scrapes.values(manager, took, method="commit_offsets")) == 1
        for role in ROLES:
            assert scrapes.values(role, "process_resident_memory_bytes")[0] > 1 << 20
            assert scrapes.values(role, "python_gc_collections_total")
