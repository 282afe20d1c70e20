"""PURE. What etcd must hold for the replicas that were found; every doubt is named.

    a replica                                          becomes
    ---------------------------------------------------+--------------------------------------------
    of a partition of which enough were found          | perhaps the leader (`choosing`)
    of another incarnation, or never in sync           | counted for none; alone, doubt
    damaged                                            | counted for none; alone, doubt, offline
    of a node that has no replica any more             | left out
    of no topic that anybody here knows                | doubt; left out
    of a topic whose name belongs to a newer one       | doubt; left out
    not found, of a known topic                        | a vacant key: comes with a later directory
    in `orphans/`, and it, or its topic, is not found  | told of; never used from there

Invariants:
  * no epoch that anybody may have logged is used again: all go up by RECOVERY_EPOCHS;
  * where acknowledged records may be lost, a control journal skips offsets at its next election
    (`unclean_epoch`), so that no TxId repeats;
  * a vacant key keeps a fresh process from creating control partitions over lost ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    CONTROL_PARTITIONS,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    TopicId,
)
from oncelog_server.runtime.cluster_recovery.choosing import (
    RECOVERY_EPOCHS,
    Doubt,
    Missing,
    choose,
)
from oncelog_server.runtime.cluster_recovery.inventory import FoundReplica, RecoveryRefused
from oncelog_server.runtime.etcd.keys import PartitionState, TopicValue
from oncelog_server.runtime.replica.record import TopicRecord

CONTROL_IDS: Final = (TRANSACTION_CONTROL_ID, CONSUMER_OFFSETS_ID)
VACANT: Final = PartitionState(replicas=(), epoch=RECOVERY_EPOCHS)


@dataclass(frozen=True, slots=True)
class InEtcd:
    """What etcd holds of this cluster already: all empty, unless other directories were recovered
    before these."""

    partitions: Mapping[PartitionId, PartitionState] = field(default_factory=dict)
    topics: Mapping[str, TopicValue] = field(default_factory=dict)
    min_insync_replicas: int = 1


@dataclass(slots=True)
class Plan:
    """Keys to write. `vacant` are the partitions without a replica, here and in etcd."""

    partitions: dict[PartitionId, PartitionState] = field(default_factory=dict)
    topics: dict[str, TopicValue] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    # In `orphans/`. Nobody can tell whether they are missed: what was deleted, or moved to another
    # node, lies there as well.
    aside: list[Doubt] = field(default_factory=list)
    left_out: list[FoundReplica] = field(default_factory=list)
    vacant: list[PartitionId] = field(default_factory=list)
    # Partitions of which too few replicas were found so far: how many are intact, of how many.
    waiting: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)


def make_plan(
    replicas: Sequence[FoundReplica],
    standing: InEtcd,
    missing: Missing = Missing.AWAITED,
    *,
    set_aside: Sequence[FoundReplica] = (),
) -> Plan:
    """`set_aside` are those in `orphans/`. Raises RecoveryRefused where the directories contradict
    each other, or etcd."""
    _require_no_copies(replicas)
    plan = Plan()
    topics = _topics(replicas, standing)
    known = {*CONTROL_IDS, *topics, *_ids(standing).values()}
    found: dict[PartitionId, list[FoundReplica]] = {}
    for replica in sorted(replicas, key=lambda found: (found.partition, found.node_id)):
        if replica.partition.topic_id in known:
            found.setdefault(replica.partition, []).append(replica)
        else:
            _leave_out(plan, replica, standing)
    # Of some, earlier runs found replicas, and this one has none.
    for partition, state in standing.partitions.items():
        if state.found:
            found.setdefault(partition, [])
    for partition, here in sorted(found.items()):
        before = standing.partitions.get(partition, VACANT)
        if before.replicas and not before.found:
            _come_late(plan, here, before)
        else:
            choice = choose(
                partition,
                here,
                before,
                min_insync_replicas=standing.min_insync_replicas,
                missing=missing,
            )
            plan.partitions[partition] = choice.state
            plan.doubts += choice.doubts
            plan.left_out += choice.left_out
            if choice.waits is not None:
                plan.waiting[partition] = choice.waits
    for topic_id, topic in topics.items():
        stands = standing.topics.get(topic.name)
        if stands is None or stands.version < topic.version:
            plan.topics[topic.name] = _value(topic_id, topic)
    _keep_vacant(plan, topics, standing)
    placed = {(replica.partition, replica.node_id) for replica in replicas}
    lacking = {*plan.waiting, *plan.vacant}
    for aside in set_aside:
        if (aside.partition, aside.node_id) in placed:
            # Another copy came after it.
            continue
        if aside.partition.topic_id not in known or aside.partition in lacking:
            plan.aside.append(Doubt(aside, _why_set_aside(aside)))
    return plan


def _why_set_aside(aside: FoundReplica) -> str:
    return (
        f"set aside, as of epoch {aside.last_epoch}, synced to {aside.synced_end}, and too little "
        "was found of its partition without it. If its topic was not deleted, and it was not moved "
        "to another node, move it back to partitions/; else remove it"
    )


def _come_late(plan: Plan, here: Sequence[FoundReplica], before: PartitionState) -> None:
    """An earlier run has chosen who leads: these follow, or are no replicas any more."""
    for replica in here:
        if replica.node_id in before.replicas:
            continue
        if len(before.replicas) == 1:
            raise RecoveryRefused(
                f"{replica.partition} is in {replica.path} (node {replica.node_id}), and etcd has "
                f"it at node {before.replicas[0]}: one of the directories is a copy"
            )
        plan.left_out.append(replica)


def _leave_out(plan: Plan, replica: FoundReplica, standing: InEtcd) -> None:
    plan.left_out.append(replica)
    topic = None if replica.record is None else replica.record.topic
    if topic is not None:
        where = "in etcd" if topic.name in standing.topics else "here"
        why = f"the name {topic.name!r} belongs to a newer topic {where}"
    elif replica.last_epoch == 0:
        # Never led: nothing was ever acknowledged.
        return
    else:
        why = "nothing says which topic it belongs to"
    plan.doubts.append(Doubt(replica, f"left out, and moved to orphans/ at the next start: {why}"))


def _require_no_copies(replicas: Sequence[FoundReplica]) -> None:
    """Each directory has an incarnation of its own."""
    seen: dict[tuple[PartitionId, str], FoundReplica] = {}
    for replica in replicas:
        if not replica.incarnation:
            continue
        other = seen.setdefault((replica.partition, replica.incarnation), replica)
        if other is not replica:
            raise RecoveryRefused(
                f"{replica.partition} is in {other.path} and in {replica.path}, as the same "
                "replica: one of them is a copy; leave the older one out"
            )


# ------------------------------------------------------------------------------------------ topics


def _topics(replicas: Sequence[FoundReplica], standing: InEtcd) -> dict[TopicId, TopicRecord]:
    """The newest memory of each topic; of two with one name, the newer topic. What etcd holds
    since it was rebuilt counts more than a memory."""
    newest: dict[TopicId, TopicRecord] = {}
    for replica in replicas:
        topic = None if replica.record is None else replica.record.topic
        if topic is None:
            continue
        known = newest.get(replica.partition.topic_id)
        if known is None or topic.version > known.version:
            newest[replica.partition.topic_id] = topic
    by_name = _ids(standing)
    for topic_id, topic in sorted(newest.items(), key=lambda item: (-item[1].created_ms, item[0])):
        by_name.setdefault(topic.name, topic_id)
    return {
        topic_id: topic
        for topic_id, topic in sorted(newest.items())
        if by_name[topic.name] == topic_id
    }


def _ids(standing: InEtcd) -> dict[str, TopicId]:
    return {name: TopicId(bytes.fromhex(value.topic_id)) for name, value in standing.topics.items()}


def _value(topic_id: TopicId, topic: TopicRecord) -> TopicValue:
    return TopicValue(
        topic_id=topic_id.hex(),
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
        created_ms=topic.created_ms,
        version=topic.version,
    )


def _keep_vacant(plan: Plan, topics: Mapping[TopicId, TopicRecord], standing: InEtcd) -> None:
    counts = dict.fromkeys(CONTROL_IDS, CONTROL_PARTITIONS)
    counts |= {topic_id: topic.partitions for topic_id, topic in topics.items()}
    for topic_id, count in sorted(counts.items()):
        for number in range(count):
            partition = PartitionId(topic_id, number)
            if partition in plan.partitions:
                continue
            stands = standing.partitions.get(partition)
            if stands is None:
                plan.partitions[partition] = VACANT
            if stands is None or not stands.replicas:
                plan.vacant.append(partition)
