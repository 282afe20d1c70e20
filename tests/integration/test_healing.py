"""A bit of a settled topic rots on the disk of one of three nodes: readers get every record,
and the block comes back from another replica, in a leader that runs and a follower that starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog_server.core.block import Block
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.runtime.storage.data_blocks import (
    BlockError,
    decode_block,
    encoded_block_bytes,
)
from oncelog_server.runtime.storage.data_file import DATA_SUFFIX
from tests.integration.cluster import until
from tests.integration.up import Up, children_of, up_over
from tests.unit.partition_leader.settled import records_of

pytestmark = pytest.mark.integration

NODES = 3
RECORDS = 300
SIZE = 10_000
TOPIC = "rotting"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("healing") / "data"


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    near = "--set=node.snapshot_every_bytes=262144"
    with up_over(folder, f"--nodes={NODES}", near) as made:
        made.ask(
            *("topic", "create", TOPIC, "--partitions=1", "--config", "materialization=copy"),
        )
        with oncelog.connect(made.bootstrap) as log, log.transactional_producer() as producer:
            for number in range(RECORDS):
                with producer.transaction() as tx:
                    tx.send(TOPIC, value_of(number), partition=0)
        yield made


def value_of(number: int) -> bytes:
    return b"%d " % number + b"x" * SIZE


def disks(up: Up) -> dict[str, dict[str, Any]]:
    """What is said of each replica, by node."""
    (told,) = up.ask("topic", "describe", TOPIC, "--disk")
    return {row["node_id"]: row for row in told["disk"]}


def data_of(folder: Path) -> dict[str, Path]:
    """The first file of each data log, by node."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(f"{PARTITION_LEADER}*/partitions/*/data/*{DATA_SUFFIX}")):
        node = (path.parents[3] / "node_id").read_text()
        found.setdefault(node, path)
    return found


def blocks_of(path: Path) -> list[Block]:
    """Every block of a file. Raises BlockError."""
    data, at = memoryview(path.read_bytes()), 0
    found: list[Block] = []
    while at < len(data):
        found.append(decode_block(data, at))
        at += encoded_block_bytes(found[-1])
    return found


def values_in(path: Path) -> list[bytes | None]:
    return [
        record.value
        for block in blocks_of(path)
        for record in records_of(block.encoding, block.payload)
    ]


def is_whole(path: Path) -> bool:
    try:
        return bool(blocks_of(path))
    except BlockError:
        return False


def rot(path: Path) -> None:
    """A bit of the payload of its first block, as the disk would do it."""
    position = 5_000
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 4]))
    assert not is_whole(path)


def require_all_read(up: Up) -> None:
    with (
        oncelog.connect(up.bootstrap) as log,
        log.consumer([TOPIC], start="earliest") as consumer,
    ):
        found: list[bytes | None] = []
        while len(found) < RECORDS:
            batch = consumer.poll(20.0)
            assert batch is not None, "nothing more comes"
            found += [record.value for record in batch]
    assert found == [value_of(number) for number in range(RECORDS)]


def test_i26_what_rots_in_leader_and_follower_is_healed_and_every_record_is_read(
    up: Up, folder: Path
) -> None:
    def are_settled() -> bool:
        rows = disks(up).values()
        enough = [(row["settled_end"] or 0) > RECORDS // 2 for row in rows]
        return len(enough) == NODES and all(enough) and all(row["log_start"] > 0 for row in rows)

    until(are_settled, "all replicas have settled most of it, and the journal went")
    (listed,) = up.ask("cluster", "partitions", TOPIC)
    leader = listed["leader_node"]
    follower = next(node for node in disks(up) if node != leader)
    files = data_of(folder)
    was = {node: path.stat().st_ino for node, path in files.items()}
    before = values_in(files[leader])

    # The leader's, while it serves: a reader waits for what is healed.
    rot(files[leader])
    require_all_read(up)
    until(lambda: is_whole(files[leader]), "the leader's block is healed")
    assert values_in(files[leader])[: len(before)] == before
    (listed,) = up.ask("cluster", "partitions", TOPIC)
    assert listed["leader_node"] == leader, "nothing was handed over"

    # A follower's, which nobody reads: found as it reads its data log through.
    (pid,) = children_of(up.pid, f"--data={files[follower].parents[3]}\0")
    rot(files[follower])
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_whole(files[follower]), "the follower's block is healed")
    until(lambda: not any(row["damaged"] for row in disks(up).values()), "it says so")
    common = min(len(values_in(files[node])) for node in files)
    assert common >= len(before) // 2
    expected = [value_of(number) for number in range(common)]
    for node in files:
        assert values_in(files[node])[:common] == expected
    assert files[follower].stat().st_ino != was[follower], "it was written anew"
    assert not list(folder.glob("*/orphans/*")), "and nothing was copied anew as a whole"
    require_all_read(up)
