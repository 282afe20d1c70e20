"""All bugs that are planted, by name. One file per room declares its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tests.planted.bugs import (
    access,
    across,
    assignors,
    beyond,
    buffering,
    checker,
    client,
    client_calls,
    client_connecting,
    client_input,
    client_loop,
    client_membership,
    client_transactions,
    client_visibility,
    cluster_recovery,
    committed_log,
    compaction,
    compaction_points,
    coordinator,
    data_begins,
    data_log,
    deletions,
    directed,
    directed_losses,
    disk,
    elections,
    fetching,
    group_commits,
    handing_over,
    healing,
    holes,
    known_requests,
    leadership,
    manifests,
    member_returns,
    membership,
    merged_batches,
    moving,
    offset_manager,
    one_shots,
    operating,
    outcome_ages,
    packed,
    participant,
    partition_leader,
    questions,
    receiving,
    recovery,
    replaying,
    replication,
    resetting,
    retention,
    runtime,
    settled_journals,
    settled_reads,
    settling,
    settling_auto,
    slots,
    snapshots,
    spark,
    storage,
    streams,
    supplying,
    table_views,
    topics,
    trimming,
    truncating,
    unclean,
    wire,
)
from tests.planted.planting import Bug

BUGS: Final[tuple[Bug, ...]] = (
    *compaction.BUGS,
    *compaction_points.BUGS,
    *coordinator.BUGS,
    *data_log.BUGS,
    *data_begins.BUGS,
    *one_shots.BUGS,
    *known_requests.BUGS,
    *questions.BUGS,
    *outcome_ages.BUGS,
    *trimming.BUGS,
    *settling.BUGS,
    *settling_auto.BUGS,
    *participant.BUGS,
    *packed.BUGS,
    *partition_leader.BUGS,
    *manifests.BUGS,
    *committed_log.BUGS,
    *retention.BUGS,
    *settled_reads.BUGS,
    *across.BUGS,
    *beyond.BUGS,
    *buffering.BUGS,
    *deletions.BUGS,
    *offset_manager.BUGS,
    *membership.BUGS,
    *member_returns.BUGS,
    *resetting.BUGS,
    *assignors.BUGS,
    *runtime.BUGS,
    *elections.BUGS,
    *unclean.BUGS,
    *operating.BUGS,
    *handing_over.BUGS,
    *healing.BUGS,
    *leadership.BUGS,
    *moving.BUGS,
    *snapshots.BUGS,
    *storage.BUGS,
    *slots.BUGS,
    *fetching.BUGS,
    *group_commits.BUGS,
    *recovery.BUGS,
    *replaying.BUGS,
    *replication.BUGS,
    *receiving.BUGS,
    *supplying.BUGS,
    *holes.BUGS,
    *merged_batches.BUGS,
    *settled_journals.BUGS,
    *table_views.BUGS,
    *cluster_recovery.BUGS,
    *topics.BUGS,
    *truncating.BUGS,
    *streams.BUGS,
    *disk.BUGS,
    *client.BUGS,
    *client_calls.BUGS,
    *client_connecting.BUGS,
    *client_input.BUGS,
    *client_loop.BUGS,
    *client_membership.BUGS,
    *client_transactions.BUGS,
    *client_visibility.BUGS,
    *wire.BUGS,
    *checker.BUGS,
    *spark.BUGS,
    *access.BUGS,
    *directed.BUGS,
    *directed_losses.BUGS,
)
BY_NAME: Final[Mapping[str, Bug]] = {bug.name: bug for bug in BUGS}
assert len(BY_NAME) == len(BUGS), "a name is given once"


def promises_of(bug: Bug) -> frozenset[int]:
    """Those that it breaks by number: I7 is 7."""
    return frozenset(int(digits) for digits in re.findall(r"\bI(\d+)\b", bug.breaks))


def one_per_promise(bugs: Sequence[Bug]) -> tuple[Bug, ...]:
    """Of each promise that some bug breaks, the first one: what `make test` has time for. One that
    breaks several stands for all of them."""
    chosen: list[Bug] = []
    covered: set[int] = set()
    for number in sorted({number for bug in bugs for number in promises_of(bug)}):
        if number not in covered:
            bug = next(bug for bug in bugs if number in promises_of(bug))
            chosen.append(bug)
            covered |= promises_of(bug)
    return tuple(chosen)
