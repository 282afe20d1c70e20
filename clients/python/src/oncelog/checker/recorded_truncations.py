"""Truncations, as a history has them (I32): what a leader is asked to delete, and where its
partition begins then. One operation per message: one that was lost may arrive late, and deletes
what is there by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from oncelogpb.v1 import partition_leader_pb2

TRUNCATE: Final = "partition_leader.truncate_partition"


def asked(request: Any, names: Callable[[bytes], str]) -> Mapping[str, Any]:
    """What `invoke` of it says. `names`: of topics by id."""
    message = request
    if not isinstance(request, partition_leader_pb2.TruncatePartitionRequest):
        message = partition_leader_pb2.TruncatePartitionRequest.FromString(
            request.SerializeToString()
        )
    which = message.WhichOneof("before")
    return {
        **_place(message.partition, names),
        "before": {
            "offset": message.offset,
            "timestamp_us": {"timestamp_us": message.timestamp_us},
        }.get(which, "end"),
        "dry_run": message.dry_run or None,
    }


def answered(request: Any, reply: Any, names: Callable[[bytes], str]) -> Mapping[str, Any]:
    """What `ok` of it says."""
    start = reply.start_before if request.dry_run else reply.start_after
    return {"starts": [{**_place(request.partition, names), "start": start}]}


def _place(partition: Any, names: Callable[[bytes], str]) -> dict[str, Any]:
    return {"topic": names(partition.topic_id), "partition": partition.number}
