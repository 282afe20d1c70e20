"""`oncelog doctor` at a real cluster: well, without one of its processes, without etcd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.by_hand import ByHand
from tests.integration.cluster import COORDINATOR, PARTITION_LEADER, Cluster, running, until
from tests.integration.shell import REFUSED, Shell

pytestmark = pytest.mark.integration


def examine(cluster: Cluster, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = Shell(cluster.bootstrap).run("doctor", *words)
    return done.exit_code, json.loads(done.stdout)["checks"]


def statuses(checks: list[dict[str, Any]], area: str) -> set[str]:
    return {check["status"] for check in checks if check["area"] == area}


def told(checks: list[dict[str, Any]], status: str) -> str:
    return "\n".join(f"{c['area']} {c['what']}" for c in checks if c["status"] == status)


def test_what_the_doctor_says_of_a_cluster_that_is_well_and_of_one_that_is_not(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as cluster, cluster.connect() as log:
        log.admin.create_topic("payments", partitions=2)
        until(lambda: examine(cluster)[0] == 0, "its partitions are led")
        code, checks = examine(cluster)
        assert (code, told(checks, "FAIL"), told(checks, "SKIP")) == (0, "", "")
        for area in ("connection", "versions", "clocks", "etcd", "partitions", "transactions"):
            assert statuses(checks, area) == {"OK"}, area
        # Its own version, latency and content, beside what the processes see of it.
        assert len([check for check in checks if check["area"] == "etcd"]) == 4
        # Each process's own disk, found by the name of its node.
        assert len([check for check in checks if check["area"] == "disk"]) == 6

        with ByHand(cluster.bootstrap, "sleeper") as hand:
            tx = hand.begin()
            tx.produce("payments", 0, b"open")

            def is_told() -> bool:
                _, checks = examine(cluster, "--old-transaction", "1")
                return f"{tx.tx_id:016x} of sleeper" in told(checks, "WARN")

            until(is_told, "an old transaction is named with its producer")

        cluster.stop(PARTITION_LEADER)
        code, checks = examine(cluster)
        assert code == REFUSED
        assert "no partition_leader process runs" in told(checks, "FAIL")
        assert "nobody listens on that port" in told(checks, "FAIL")
        assert "no partition leader process tells the topics" in told(checks, "SKIP")
        cluster.start(PARTITION_LEADER)
        cluster.wait_ready()

        # An address that nobody can reach, as others are told to.
        cluster.stop(COORDINATOR)
        cluster.advertised[COORDINATOR] = "127.0.0.1:9"
        cluster.start(COORDINATOR)
        until(lambda: "(advertised by coordinator)" in told(examine(cluster)[1], "FAIL"), "told")
        cluster.stop(COORDINATOR)
        del cluster.advertised[COORDINATOR]
        cluster.start(COORDINATOR)
        cluster.wait_ready()

        cluster.etcd.kill()
        try:
            until(lambda: "not reached by" in told(examine(cluster)[1], "FAIL"), "all see it")
            code, checks = examine(cluster)
            assert code == REFUSED
            assert "does not answer: UNAVAILABLE" in told(checks, "FAIL")
            # Any command says so, whatever it met itself.
            done = Shell(cluster.bootstrap).run("topic", "create", "late", "--timeout", "2")
            assert "etcd does not answer" in json.loads(done.stderr)["error"]["advice"]
        finally:
            cluster.etcd.start()
        cluster.wait_ready()
