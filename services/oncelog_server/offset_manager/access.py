"""What the RPCs of OffsetManager need of their caller (`core/needs`).

    commit_offsets, commit_transaction_offsets   read of the group, and of each topic
    fetch_offsets                                read of the group, describe of each topic
    heartbeat                                    read of the group, and of each topic
    claim_group                                  read of the group
    list_groups                                  shows the groups that may be described
    describe_group                               describe of the group; shows the topics that may be
                                                 described
    remove_member, delete_group                  delete of the group
    reset_offsets                                alter of the group, describe of each topic

A coordinator brings the offsets of a one-shot, whose caller's rights it has judged. Whose producer
stands behind offsets under a TxId is not known here: what its coordinator decides is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.needs import Entry, Sees, TopicNames, always, keep, require_few
from oncelog_server.core.ports import Call
from oncelog_server.offset_manager.config import OFFSETS_PER_CALL_MAX
from oncelog_server.offset_manager.ports import OffsetManagerEnv
from oncelogpb.v1 import offset_manager_pb2 as pb


def entries(env: OffsetManagerEnv) -> Mapping[str, Entry]:
    """By RPC."""
    groups = _Groups(TopicNames(env.metadata))
    return {
        "commit_offsets": Entry(groups.of_commit),
        "commit_transaction_offsets": Entry(groups.of_commit, services_may=True),
        "fetch_offsets": Entry(groups.of_fetch, shown=groups.show_offsets),
        "heartbeat": Entry(groups.of_heartbeat),
        "claim_group": Entry(lambda request, call: (group_need(Verb.READ, request.group),)),
        # Its handler shows what its caller sees.
        "list_groups": Entry(),
        "describe_group": Entry(
            lambda request, call: (group_need(Verb.DESCRIBE, request.group),),
            shown=groups.show_members,
        ),
        "remove_member": Entry(_to_delete, audited=always),
        "delete_group": Entry(_to_delete, audited=always),
        "reset_offsets": Entry(groups.of_reset, audited=lambda request: not request.dry_run),
    }


def offsets_needs(topics: TopicNames, offsets: pb.GroupOffsets) -> Iterable[Need]:
    """To commit these. Raises UnheardTopics, TooLarge."""
    _require_few(len(offsets.offsets))
    yield group_need(Verb.READ, offsets.group)
    yield from topics.needs(Verb.READ, (offset.partition.topic_id for offset in offsets.offsets))


def _to_delete(
    request: pb.RemoveMemberRequest | pb.DeleteGroupRequest, call: Call
) -> Iterable[Need]:
    return (group_need(Verb.DELETE, request.group),)


class _Groups:
    def __init__(self, topics: TopicNames) -> None:
        self._topics = topics

    def of_commit(
        self, request: pb.CommitOffsetsRequest | pb.CommitTransactionOffsetsRequest, call: Call
    ) -> Iterable[Need]:
        return offsets_needs(self._topics, request.offsets)

    def of_fetch(self, request: pb.FetchOffsetsRequest, call: Call) -> Iterable[Need]:
        _require_few(len(request.partitions))
        yield group_need(Verb.READ, request.group)
        yield from self._topics.needs(
            Verb.DESCRIBE, (partition.topic_id for partition in request.partitions)
        )

    def of_reset(self, request: pb.ResetOffsetsRequest, call: Call) -> Iterable[Need]:
        _require_few(len(request.offsets.offsets))
        yield group_need(Verb.ALTER, request.offsets.group)
        yield from self._topics.needs(
            Verb.DESCRIBE, (offset.partition.topic_id for offset in request.offsets.offsets)
        )

    def of_heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> Iterable[Need]:
        _require_few(len(request.subscribed_topics))
        _require_few(len(request.owned))
        yield group_need(Verb.READ, request.group)
        for name in request.subscribed_topics:
            yield Need(Verb.READ, ResourceKind.TOPIC, name)
        yield from self._topics.needs(
            Verb.READ, (partition.topic_id for partition in request.owned)
        )

    def show_offsets(self, reply: pb.FetchOffsetsReply, sees: Sees) -> None:
        """Those of all topics, where none was named. Of a topic that is gone a number is left, and
        nobody to ask."""

        keep(reply.offsets, lambda offset: self._is_seen(offset.partition.topic_id, sees))

    def show_members(self, reply: pb.DescribeGroupReply, sees: Sees) -> None:
        for member in reply.members:
            keep(
                member.subscribed_topics,
                lambda name: sees(Need(Verb.DESCRIBE, ResourceKind.TOPIC, name)),
            )
            for partitions in (member.owned, member.target):
                keep(partitions, lambda partition: self._is_seen(partition.topic_id, sees))
        for topics in (reply.topics, reply.outgrown):
            keep(topics, lambda topic: sees(Need(Verb.DESCRIBE, ResourceKind.TOPIC, topic.name)))

    def _is_seen(self, topic_id: bytes, sees: Sees) -> bool:
        need = self._topics.need(Verb.DESCRIBE, topic_id)
        return need is None or sees(need)


def _require_few(count: int) -> None:
    require_few("offsets_per_call_max", count, OFFSETS_PER_CALL_MAX)


def group_need(verb: Verb, name: str) -> Need:
    return Need(verb, ResourceKind.GROUP, name)
