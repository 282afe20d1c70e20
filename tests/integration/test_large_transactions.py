"""A transaction that is larger than what its cluster has in memory, and lies over many files: while
it is open, others commit and are read, what they wrote is settled, and the memory of no service
grows with it; then it is there as a whole.

How it is at 10 GB: `python -m benchmarks.large_transaction`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.large_transaction import (
    MIB,
    PARTITIONS,
    WARM_UP_BYTES,
    Beside,
    Memory,
    read_whole,
    write,
)
from tests.integration.cluster import PARTITION_LEADER, ROLES, Cluster, running, until

SIZE_BYTES: Final = 192 * MIB
# Of a transaction of three times the size of the one before it: half of it. What is on its way is
# more where the machine is busy.
GROWN_MIB_MAX: Final = 96.0
TOPIC: Final = "large"
COPY: Final = {"materialization": "copy"}
# Of journals, of which each partition has one that grows, and one before that.
FILES_LEFT: Final = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Its files have a MiB each."""
    with running(tmp_path) as made:
        yield made


def journal_files(cluster: Cluster, topic_id: str) -> int:
    """Of a topic's partitions."""
    return sum(1 for _ in cluster.data_of(PARTITION_LEADER).glob(f"partitions/{topic_id}-*/*.log"))


def test_i8_i9_a_large_transaction_takes_files_and_no_memory(cluster: Cluster) -> None:
    with cluster.connect() as log:
        log.admin.create_topic("warm-up", PARTITIONS, configs=COPY)
        topic_id = log.admin.create_topic(TOPIC, PARTITIONS, configs=COPY).topic_id
        read_whole(log, "warm-up", write(log, "warm-up", WARM_UP_BYTES).records)
        processes = {role: cluster.pid(role) for role in ROLES}
        with Memory(processes) as memory, Beside(cluster.bootstrap, TOPIC) as beside:
            written = write(log, TOPIC, SIZE_BYTES)
            others = read_whole(log, TOPIC, written.records)
            # Of one the answer may be on its way.
            assert 0 < others <= len(beside.took_ms) + 1, "others are committed before it"
            until(lambda: journal_files(cluster, topic_id) < FILES_LEFT, "its journal goes")
        assert read_whole(log, TOPIC, written.records) >= others, "the same is read of blocks"
    for role, grown_mib in memory.grown_mib.items():
        assert grown_mib < GROWN_MIB_MAX, f"{role} has {grown_mib:.0f} MiB more in memory"
