"""Handlers of the gRPC service PartitionLeader, by what they do:

produce                          producing
fetch, subscribe                 fetching (and reads)
list_offsets                     listing
create_topic ... delete_topic    topic_admin
truncate_partition               truncating
resolve_transaction, describe_journals   here, for operators
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncelog_server.core.ports import Call, led_machine
from oncelog_server.core.wire import partition_message
from oncelog_server.partition_leader import wire
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.fetching import Fetching
from oncelog_server.partition_leader.journal_points import Needed, NeededBy
from oncelog_server.partition_leader.listing import Listing
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelog_server.partition_leader.producing import Producing
from oncelog_server.partition_leader.reads import committed_ends
from oncelog_server.partition_leader.topic_admin import TopicAdmin
from oncelog_server.partition_leader.truncating import Truncating
from oncelogpb.v1 import partition_leader_pb2 as pb


class PartitionLeaderService:
    """See the module."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config
        fetching, topics = Fetching(env, config), TopicAdmin(env, config)
        self.produce = Producing(env, config).produce
        self.fetch = fetching.fetch
        self.subscribe = fetching.subscribe
        listing = Listing(env, config)
        self.list_offsets = listing.list_offsets
        self.truncate_partition = Truncating(env, listing).truncate_partition
        self.create_topic = topics.create_topic
        self.describe_topics = topics.describe_topics
        self.list_topics = topics.list_topics
        self.alter_topic = topics.alter_topic
        self.delete_topic = topics.delete_topic

    async def resolve_transaction(
        self, request: pb.ResolveTransactionRequest, call: Call
    ) -> pb.ResolveTransactionReply:
        command = wire.resolve(request)
        partition = wire.topic_partition(request.partition)
        count: int = await self._env.replicas.lead(partition).submit(command)
        self._env.reporter.event(
            "damaged part resolved",
            tx_id=request.tx_id,
            partition=str(partition),
            resolution=command.resolution.value,
            records=count,
        )
        return pb.ResolveTransactionReply(record_count=count)

    async def describe_journals(
        self, request: pb.DescribeJournalsRequest, call: Call
    ) -> pb.DescribeJournalsReply:
        most = self._config.items_per_call_max
        wire.require_few("partitions", len(request.partitions), "items_per_call_max", most)
        replicas: Sequence[PartitionReplica] = self._env.replicas.led()
        if request.partitions:
            partitions = [wire.topic_partition(partition) for partition in request.partitions]
            replicas = [self._env.replicas.lead(partition) for partition in partitions]
        return pb.DescribeJournalsReply(journals=[_describe(replica) for replica in replicas])


_NEEDED_BY: Final = {
    NeededBy.NOTHING: pb.NeededBy.KIND_NOTHING,
    NeededBy.RECORDS: pb.NeededBy.KIND_RECORDS,
    NeededBy.OPEN_TRANSACTION: pb.NeededBy.KIND_OPEN_TRANSACTION,
    NeededBy.DAMAGED: pb.NeededBy.KIND_DAMAGED,
}


def _needed_by(needed: Needed) -> pb.NeededBy:
    said = pb.NeededBy(kind=_NEEDED_BY[needed.by])
    transaction = needed.transaction
    if transaction is not None:
        said.tx_id = transaction.tx_id
        said.producer.producer_id = transaction.producer_id
        said.producer.generation = transaction.generation
        said.began_ms = transaction.began_ms
    return said


def _describe(replica: PartitionReplica) -> pb.JournalDescription:
    machine = led_machine(replica)
    ends, needed = committed_ends(replica), machine.needed()
    return pb.JournalDescription(
        partition=partition_message(replica.partition),
        epoch=replica.epoch,
        log_start_offset=replica.log_start,
        log_end_offset=replica.log_end,
        high_watermark=replica.high_watermark,
        committed_start_offset=ends.start,
        committed_end_offset=ends.end,
        committed_bytes=machine.committed.total_bytes,
        retention_ms=machine.settings.retention_ms,
        retention_bytes=machine.settings.retention_bytes,
        needed_from=needed.position,
        needed_by=_needed_by(needed),
        first_open_position=machine.first_open_position(),
        open_transactions=len(machine.pending.open),
        damaged=sorted(machine.damage.parts),
    )
