"""What the RPCs of OffsetManager need of their caller (`core/needs`).

    commit_offsets, commit_transaction_offsets   read of the group, and of each topic
    fetch_offsets                                read of the group, describe of each topic
    heartbeat                                    read of the group, and of each topic
    list_groups                                  shows the groups that may be described
    delete_group                                 delete of the group

A coordinator brings the offsets of a one-shot, whose caller's rights it has judged. Whose producer
stands behind offsets under a TxId is not known here: what its coordinator decides is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.needs import Entry, Sees, TopicNames, always, keep, require_few
from oncelog_server.core.ports import Call
from oncelog_server.offset_manager.ports import OffsetManagerEnv
from oncelog_server.offset_manager.wire import OFFSETS_PER_CALL_MAX
from oncelogpb.v1 import offset_manager_pb2 as pb


def entries(env: OffsetManagerEnv) -> Mapping[str, Entry]:
    """By RPC."""
    groups = _Groups(TopicNames(env.metadata))
    return {
        "commit_offsets": Entry(groups.of_commit),
        "commit_transaction_offsets": Entry(groups.of_commit, services_may=True),
        "fetch_offsets": Entry(groups.of_fetch, shown=groups.show_offsets),
        "heartbeat": Entry(groups.of_heartbeat),
        # Its handler shows what its caller sees.
        "list_groups": Entry(),
        "delete_group": Entry(
            lambda request, call: (group_need(Verb.DELETE, request.group),), audited=always
        ),
    }


def offsets_needs(topics: TopicNames, offsets: pb.GroupOffsets) -> Iterable[Need]:
    """To commit these. Raises UnheardTopics, TooLarge."""
    _require_few(len(offsets.offsets))
    yield group_need(Verb.READ, offsets.group)
    yield from topics.needs(Verb.READ, (offset.partition.topic_id for offset in offsets.offsets))


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

    def of_heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> Iterable[Need]:
        _require_few(len(request.subscribed_topics) + len(request.owned))
        yield group_need(Verb.READ, request.group)
        for name in request.subscribed_topics:
            yield Need(Verb.READ, ResourceKind.TOPIC, name)
        yield from self._topics.needs(
            Verb.READ, (partition.topic_id for partition in request.owned)
        )

    def show_offsets(self, reply: pb.FetchOffsetsReply, sees: Sees) -> None:
        """Those of all topics, where none was named. Of a topic that is gone a number is left, and
        nobody to ask."""

        def is_seen(offset: pb.CommittedOffset) -> bool:
            need = self._topics.need(Verb.DESCRIBE, offset.partition.topic_id)
            return need is None or sees(need)

        keep(reply.offsets, is_seen)


def _require_few(count: int) -> None:
    require_few("offsets_per_call_max", count, OFFSETS_PER_CALL_MAX)


def group_need(verb: Verb, name: str) -> Need:
    return Need(verb, ResourceKind.GROUP, name)
