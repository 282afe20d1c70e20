"""What a partition owes the outside: questions about transactions that stay open here
(`participant.asking`). As often as it looks, it also tells the machine what the topic's settings
say now, and how far this replica is compacted, and shows gauges.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_server.core.ports import TopicInfo
from oncelog_server.participant.asking import QuestionOutbox
from oncelog_server.partition_leader.commands import Cleaned, Configure, Durable
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.reads import committed_ends
from oncelog_server.partition_leader.topic_configs import settings_of
from oncelogpb.errors import OncelogError


class PartitionOutbox(QuestionOutbox[PartitionMachine]):
    """See the module. One per led partition."""

    # The topic as the machine knows it.
    _told: TopicInfo | None = None

    # How far it knows that what is settled is cleaned.
    _cleaned = 0

    def look(self) -> None:
        self._tell_settings()
        if self.replica.compacted_to != self._cleaned:
            self._cleaned = self.replica.compacted_to
            self.replica.signal(Cleaned(self._cleaned))
        if self.machine.committed.may_drop(self.replica.high_watermark):
            self.replica.signal(Durable(self.replica.high_watermark))

    def _tell_settings(self) -> None:
        topic = self.env.metadata.topic_by_id(self.replica.partition.topic_id)
        if topic is None or topic is self._told or topic.version < self.machine.settings.version:
            return
        settings = settings_of(topic.version, topic.configs)
        if settings.says_the_same(self.machine.settings):
            self._told = topic
            return
        try:
            self.replica.submit(Configure(settings))
        except OncelogError:
            # Too few replicas keep up, or it leads no more: the next look says it again.
            return

    def gauges(self) -> Mapping[str, float]:
        machine = self.machine
        oldest = next(iter(machine.pending.open.values()), None)
        first = machine.first_open_position()
        ends = committed_ends(self.replica)
        return {
            "open_transactions": len(machine.pending.open),
            "oldest_open_transaction_age_ms": self.age_ms(
                None if oldest is None else oldest.began_ms
            ),
            "first_open_position": first if first is not None else self.replica.log_end,
            "damaged": machine.damage.held,
            # Each kind has the limit for itself.
            "producers": max(len(machine.plain), len(machine.fences)),
            "committed_start_offset": ends.start,
            "committed_end_offset": machine.committed.end_offset,
            "committed_bytes": machine.committed.total_bytes,
            "needed_from": machine.needed_from(),
            "index_bytes": machine.committed.memory_bytes,
        }
