"""A running job goes on while leaders are lost, of each role in turn."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

import oncelog
from oncelog.protocol import Protocol
from oncelog_server.core.roles import ROLES
from tests.integration.cluster import until
from tests.integration.failover import NODES, all_in_sync, frozen_leader, led_by
from tests.integration.up import up_over
from tests.spark.conftest import Lab, numbers

pytestmark = pytest.mark.spark

RECORDS, STEP = 600, 50


def test_i34_i29_a_running_query_goes_on_while_leaders_are_lost(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with (
        up_over(folder, f"--nodes={NODES}") as up,
        Protocol(up.bootstrap) as protocol,
        oncelog.connect(up.bootstrap) as log,
    ):
        lab = replace(lab, protocol=protocol, bootstrap=up.bootstrap)
        source, sink, group = "source", "sink", lab.group()
        for topic in (source, sink):
            log.admin.create_topic(topic, partitions=3, replication_factor=NODES)
        until(lambda: all_in_sync(log), "all replicas are in sync")
        lab.fill(source, RECORDS)
        to_lose = iter(ROLES)
        lost: list[str] = []
        losing: list[threading.Thread] = []

        def lose(role: str) -> None:
            with frozen_leader(up, folder, log, *led_by(role, topic=sink, group=group)):
                lost.append(role)

        def write(batch: DataFrame, number: int) -> None:
            role = next(to_lose, None)
            if role is not None:
                # While this micro-batch is written, and the next ones.
                losing.append(threading.Thread(target=lose, args=(role,)))
                losing[-1].start()
            lab.save(batch, topic=sink, inputGroups=group)

        stream = lab.stream(
            source, group=group, transactionalSink="true", maxOffsetsPerTrigger=str(STEP * 2)
        )
        lab.copy(stream.select("key", "value"), lab.checkpoint(), each=write)
        for thread in losing:
            thread.join()
        assert sorted(lost) == sorted(ROLES)
        assert sorted(lab.values(sink)) == numbers(RECORDS)
        assert lab.positions(group, source) == lab.ends(source)
