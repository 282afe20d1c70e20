"""The handler of ListOffsets: earliest, latest, and by time.

By time is the first committed batch, in offset order, whose running maximum timestamp is at or
above the one asked for, then the first such record in it. So positions by time never go back when
records came out of time order.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ports import Call, led_machine
from oncelog_server.partition_leader import wire
from oncelog_server.partition_leader.committed_log import RUN_BYTES
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelog_server.partition_leader.reads import Ends, committed_ends, journal_ends
from oncelogpb import records
from oncelogpb.errors import InvalidArgument, OncelogError, Unsupported, to_status
from oncelogpb.v1 import partition_leader_pb2 as pb


class _Listed(NamedTuple):
    offset: int
    timestamp_us: int | None = None


class Listing:
    """See the module."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config

    async def list_offsets(self, request: pb.ListOffsetsRequest, call: Call) -> pb.ListOffsetsReply:
        most = self._config.items_per_call_max
        wire.require_few("queries", len(request.queries), "items_per_call_max", most)
        return pb.ListOffsetsReply(
            offsets=[
                await self._answer(query, request.isolation, call.refused.get(place))
                for place, query in enumerate(request.queries)
            ]
        )

    async def _answer(
        self,
        query: pb.OffsetQuery,
        isolation: pb.Isolation.ValueType,
        refusal: OncelogError | None,
    ) -> pb.ListedOffset:
        if refusal is not None:
            return pb.ListedOffset(partition=query.partition, error=to_status(refusal))
        try:
            replica = self._env.replicas.lead(wire.topic_partition(query.partition))
            # The ends are answers about now: only within the lease.
            replica.require_lease()
            listed = await self._list(replica, query, isolation)
        except OncelogError as error:
            return pb.ListedOffset(partition=query.partition, error=to_status(error))
        return pb.ListedOffset(
            partition=query.partition, offset=listed.offset, timestamp_us=listed.timestamp_us
        )

    async def _list(
        self, replica: PartitionReplica, query: pb.OffsetQuery, isolation: pb.Isolation.ValueType
    ) -> _Listed:
        in_journal = isolation in (pb.ISOLATION_UNCOMMITTED, pb.ISOLATION_RAW)
        ends = journal_ends(replica) if in_journal else committed_ends(replica)
        match query.WhichOneof("at"):
            case "earliest":
                return _Listed(ends.start)
            case "latest":
                return _Listed(ends.end)
            case "timestamp_us":
                if in_journal:
                    raise Unsupported("offsets by time are those of committed reads")
                return await self._by_time(replica, ends, query.timestamp_us)
        raise InvalidArgument("ask for earliest, latest or timestamp_us", field="at")

    async def _by_time(self, replica: PartitionReplica, ends: Ends, timestamp_us: int) -> _Listed:
        log = led_machine(replica).committed
        begins = log.since(timestamp_us, below=ends.end)
        if begins is None:
            return _Listed(ends.end)
        (stretch,) = log.stretches(begins, below=ends.end, max_bytes=1, max_entries=1)
        position, end = stretch.journal_offset, stretch.journal_offset + stretch.record_count
        while position < end:
            stored_frames = await replica.read(position, RUN_BYTES, below=end)
            assert stored_frames, f"the committed log points at {position}, where nothing stands"
            for stored in stored_frames:
                position = stored.end
                if stored.frame.max_timestamp_us >= timestamp_us:
                    first = stretch.first_offset + stored.at.offset - stretch.journal_offset
                    return await self._in_batch(stored, first, timestamp_us)
        # What is not readable yet of a run holds the record.
        return _Listed(ends.end)

    async def _in_batch(self, stored: StoredFrame, first: int, timestamp_us: int) -> _Listed:
        found: list[_Listed] = []

        def search() -> None:
            encoding, payload = stored.frame.encoding, stored.frame.payload
            index, time_us = records.first_since(encoding, payload, timestamp_us)
            found.append(_Listed(first + index, time_us))

        if records.needs_offload(stored.frame.encoding, stored.frame.payload):
            await self._env.offload(search)
        else:
            search()
        return found[0]
