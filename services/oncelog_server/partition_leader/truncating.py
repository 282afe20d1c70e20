"""The handler of TruncatePartition: deletes the oldest committed records of a partition, for good.

What is asked by time or by "all" becomes an offset here, of what readers can see now; the machine
decides on that, and the answer waits until it is durable. Nothing but the start moves: the records
go from the disk when their segments do.
"""

from __future__ import annotations

from oncelog_server.core.ids import Offset
from oncelog_server.core.ports import Call, led_machine
from oncelog_server.partition_leader import retention, wire
from oncelog_server.partition_leader.commands import Truncate, Truncated
from oncelog_server.partition_leader.listing import Listing
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelog_server.partition_leader.reads import Ends, committed_ends
from oncelogpb.errors import InvalidArgument, OncelogError
from oncelogpb.v1 import partition_leader_pb2 as pb


class Truncating:
    """See the module."""

    def __init__(self, env: PartitionEnv, listing: Listing) -> None:
        self._env = env
        self._listing = listing

    async def truncate_partition(
        self, request: pb.TruncatePartitionRequest, call: Call
    ) -> pb.TruncatePartitionReply:
        partition = wire.topic_partition(request.partition)
        replica = self._env.replicas.lead(partition)
        # What can be read now, only the leader may say.
        replica.require_lease()
        before = await self._before(replica, request)
        if request.dry_run:
            return _reply(_preview(replica, before))
        done: Truncated = await replica.submit(Truncate(before))
        if done.record_count:
            self._env.reporter.count("records_truncated", done.record_count)
            self._env.reporter.event(
                "partition truncated",
                partition=str(partition),
                start=done.start_after,
                records=done.record_count,
            )
        return _reply(done)

    async def _before(
        self, replica: PartitionReplica, request: pb.TruncatePartitionRequest
    ) -> Offset:
        ends = committed_ends(replica)
        match request.WhichOneof("before"):
            case "offset":
                return _not_above(request.offset, ends)
            case "timestamp_us":
                listed = await self._listing.by_time(replica, ends, request.timestamp_us)
                return Offset(listed.offset)
            case "end" if request.end:
                return Offset(ends.end)
        raise InvalidArgument(
            "say below what records are deleted: offset, timestamp_us, or end=true", field="before"
        )


def _not_above(offset: int, ends: Ends) -> Offset:
    """A record that is not durable is not there yet, for who asks."""
    if offset > ends.end:
        raise retention.above_end(offset, start=ends.start, end=ends.end)
    return Offset(offset)


def _preview(replica: PartitionReplica, before: Offset) -> Truncated:
    log = led_machine(replica).committed
    answer = retention.truncation(log, before, start=committed_ends(replica).start)
    if isinstance(answer, OncelogError):
        raise answer
    return answer


def _reply(truncated: Truncated) -> pb.TruncatePartitionReply:
    return pb.TruncatePartitionReply(
        start_before=truncated.start_before,
        start_after=truncated.start_after,
        record_count=truncated.record_count,
        payload_bytes=truncated.payload_bytes,
    )
