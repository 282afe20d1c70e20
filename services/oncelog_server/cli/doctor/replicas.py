"""Whether the partitions that are led have the replicas that they should, and enough of them to be
written.

The replicas in sync are told as incarnations, which are on no node that a command could name; who
runs is told by node. A partition is written where enough of both are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from oncelog_server.cli.doctor.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from oncelogpb.v1 import partition_leader_pb2 as pb

AREA: Final = "replicas"
# Names that one line quotes.
QUOTED_MAX: Final = 5


def look(
    topics: Iterable[pb.TopicDescription], *, living: Collection[str], min_insync_replicas: int
) -> Iterator[Finding]:
    """`living`: nodes that run. Says nothing where no partition should have more than one."""
    led = [
        (f"{topic.name}/{partition.number}", partition)
        for topic in topics
        for partition in topic.partitions
        if partition.HasField("leader") and len(partition.replicas) > 1
    ]
    halted = [
        name for name, partition in led if not _is_written(partition, living, min_insync_replicas)
    ]
    lacking = [name for name, partition in led if len(partition.isr) < len(partition.replicas)]
    if halted:
        yield fail(
            AREA,
            f"{len(halted)} partitions cannot be written, for fewer than {min_insync_replicas} of "
            f"their replicas are in sync and run (min_insync_replicas): {_quoted(halted)}",
            "start the processes of the missing replicas, with data (`oncelog cluster status` "
            "names who does not run); reads go on",
        )
    if lacking:
        yield warn(
            AREA,
            f"{len(lacking)} of {len(led)} partitions have a replica that is not in sync: "
            f"{_quoted(lacking)}",
            "it catches up by itself where its process runs; see `oncelog cluster partitions "
            "--lacking`, and the log of who does not: `replica cannot be opened`, `not followed`",
        )
    if led and not halted and not lacking:
        yield ok(AREA, f"all replicas of {len(led)} partitions are in sync")


def _is_written(
    partition: pb.PartitionDescription, living: Collection[str], min_insync_replicas: int
) -> bool:
    wanted = min(min_insync_replicas, len(partition.replicas))
    running = sum(node in living for node in partition.replicas)
    return min(running, len(partition.isr)) >= wanted


def _quoted(names: Sequence[str]) -> str:
    more = len(names) - QUOTED_MAX
    return ", ".join(names[:QUOTED_MAX]) + (f" and {more} more" if more > 0 else "")
