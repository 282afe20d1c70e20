"""All bugs that are planted, by name. One file per room declares its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.planted.bugs import (
    access,
    checker,
    client,
    client_loop,
    client_transactions,
    cluster_recovery,
    committed_log,
    coordinator,
    disk,
    elections,
    fetching,
    leadership,
    offset_manager,
    one_shots,
    participant,
    partition_leader,
    recovery,
    runtime,
    snapshots,
    spark,
    storage,
    streams,
    topics,
    wire,
)
from tests.planted.planting import Bug

BUGS: Final[tuple[Bug, ...]] = (
    *coordinator.BUGS,
    *one_shots.BUGS,
    *participant.BUGS,
    *partition_leader.BUGS,
    *committed_log.BUGS,
    *offset_manager.BUGS,
    *runtime.BUGS,
    *elections.BUGS,
    *leadership.BUGS,
    *snapshots.BUGS,
    *storage.BUGS,
    *fetching.BUGS,
    *recovery.BUGS,
    *cluster_recovery.BUGS,
    *topics.BUGS,
    *streams.BUGS,
    *disk.BUGS,
    *client.BUGS,
    *client_loop.BUGS,
    *client_transactions.BUGS,
    *wire.BUGS,
    *checker.BUGS,
    *spark.BUGS,
    *access.BUGS,
)
BY_NAME: Final[Mapping[str, Bug]] = {bug.name: bug for bug in BUGS}
assert len(BY_NAME) == len(BUGS), "a name is given once"
