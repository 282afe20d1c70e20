"""What operators see of a topic that is settled, over real processes: how far it is, what its data
takes, and that its journal goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import oncelog
from tests.integration.cluster import Cluster, running, until
from tests.integration.shell import Shell

SIZE = 10_000
COUNT = 400
# Segments are kept small, and snapshots near: what is settled goes soon.
SETTINGS = (
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=262144",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), *SETTINGS) as made:
        yield made


def test_i29_operators_see_a_topic_being_settled_and_its_journal_go(
    cluster: Cluster, log: oncelog.Log, topic: str
) -> None:
    shell = Shell(cluster.bootstrap)

    def row() -> dict[str, Any]:
        [told] = shell.ask("topic", "describe", topic, "--disk")
        [row] = [row for row in told["disk"] if row["partition"] == f"{topic}/0"]
        return dict(row)

    with log.transactional_producer() as producer:
        for first in range(0, COUNT, 10):
            with producer.transaction() as tx:
                for number in range(first, first + 10):
                    tx.send(topic, b"%d" % number + b"x" * SIZE, partition=0)
    until(lambda: "records: kept for ever" in row()["held"], "all are committed")
    before = row()
    assert (before["settled_end"], before["data_bytes"], before["log_start"]) == (None, 0, 0)
    altered = shell.run("topic", "alter", topic, "--config", "materialization=copy")
    assert altered.exit_code == 0, altered
    sent = 0
    with log.producer() as plain:

        def is_settled() -> bool:
            """A snapshot comes with what is written; the first one behind the moment in which the
            leader heard of the setting says so."""
            nonlocal sent
            for _ in range(30):
                plain.send(topic, b"y" * SIZE, partition=0)
            plain.flush()
            sent += 30
            return (row()["settled_end"] or 0) >= COUNT

        until(is_settled, "what was there is settled")
    until(lambda: row()["segment_bytes"] < before["segment_bytes"], "its journal goes")
    after = row()
    assert after["log_start"] > 0
    assert after["readable_end"] == COUNT + sent
    assert after["data_bytes"] > COUNT * SIZE
    left = after["readable_end"] - after["settled_end"]
    settled = "nothing: it goes by segments"
    assert after["held"] == (f"{left} records that are not settled yet" if left else settled)
    [described] = shell.ask("cluster", "partitions", topic, "--disk")[:1]
    assert described["settled_end"] >= COUNT
