"""A consumer group as its offset manager keeps it (docs/protocol.md, "Groups"), small enough to be
read at a glance: what the client is tried against in virtual time. The real one has its own tests.

The target is the plainest that is fair: partitions in order, dealt out to members in the order in
which they came, each keeping what it has where it may.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from oncelog._core.routing import PartitionKey
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as pb

INTERVAL_PARTS = 3


@dataclass
class Known:
    """A member."""

    instance_id: str
    topics: list[str]
    session_ms: float
    heard_ms: float


@dataclass
class ModelGroup:
    """`topics`: partitions by name and id."""

    topics: dict[tuple[str, bytes], int]
    members: dict[str, Known] = field(default_factory=dict)
    owner: dict[PartitionKey, tuple[str, int]] = field(default_factory=dict)
    target: dict[PartitionKey, str] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    generation: int = 0
    # As after a restart of the offset manager: each has a whole session from then on.
    keeps_silent_members: bool = False

    def heartbeat(self, request: pb.HeartbeatRequest, now_ms: float) -> pb.HeartbeatReply:
        self.expire(now_ms)
        member = request.member
        who = member.member_id
        if request.leaving:
            if self.members.pop(who, None) is not None:
                self._rebalance()
            return pb.HeartbeatReply(member=member)
        if who in self.replaced:
            raise errors.FencedInstance("another process has this instance id")
        if who not in self.members and member.generation:
            raise errors.UnknownMember("the group does not know this member")
        self._require_named(request)
        self._take_in(request, now_ms)
        self._release(request)
        self._grant()
        mine = [
            partition
            for partition, (owner, _) in sorted(self.owner.items())
            if owner == who and self.target.get(partition) == who
        ]
        reply = pb.HeartbeatReply(
            member=member,
            assignment=[partition.wire() for partition in mine],
            heartbeat_interval_ms=int(self.members[who].session_ms / INTERVAL_PARTS),
            session_timeout_ms=int(self.members[who].session_ms),
        )
        reply.member.generation = self.generation
        for name, topic_id in sorted(self.topics):
            reply.topics.add(topic_id=topic_id, name=name)
        return reply

    def check_commit(self, offsets: pb.GroupOffsets, now_ms: float) -> None:
        """Raises where this member may not commit this."""
        self.expire(now_ms)
        if not offsets.HasField("member"):
            if self.members:
                raise errors.UnknownMember("the group has living members")
            return
        who = offsets.member.member_id
        if who in self.replaced:
            raise errors.FencedInstance("another process has this instance id")
        if who not in self.members:
            raise errors.UnknownMember("the group does not know this member")
        for offset in offsets.offsets:
            owner, since = self.owner.get(PartitionKey.of(offset.partition), ("", 0))
            if owner != who or not since <= offsets.member.generation <= self.generation:
                raise errors.IllegalGeneration("it does not own this partition")

    def expire(self, now_ms: float) -> None:
        dead = [
            who
            for who, known in self.members.items()
            if now_ms - known.heard_ms >= known.session_ms and not self.keeps_silent_members
        ]
        for who in dead:
            del self.members[who]
        if dead:
            self._rebalance()

    def owned_by(self, who: str) -> list[int]:
        return [key.number for key, (owner, _) in sorted(self.owner.items()) if owner == who]

    def _require_named(self, request: pb.HeartbeatRequest) -> None:
        """A join fences the holder of its instance id only where it names it (ADR 65)."""
        joining = request.member
        if joining.member_id in self.members or not joining.instance_id:
            return
        for other, held in self.members.items():
            if held.instance_id == joining.instance_id and other != request.replaces:
                raise errors.FencedInstance("another process has this instance", held_by=other)

    def _take_in(self, request: pb.HeartbeatRequest, now_ms: float) -> None:
        who, instance = request.member.member_id, request.member.instance_id
        known = self.members.get(who)
        topics = list(request.subscribed_topics)
        if known is None:
            self.members[who] = Known(instance, topics, request.session_timeout_ms, now_ms)
            old = [
                other
                for other, held in self.members.items()
                if instance and held.instance_id == instance and other != who
            ]
            for other in old:
                self._take_over(other, who)
        known = self.members[who]
        known.heard_ms = now_ms
        if known.topics != topics or not self.generation or who not in self.target.values():
            known.topics = topics
            self._rebalance()

    def _take_over(self, old: str, new: str) -> None:
        self.generation += 1
        del self.members[old]
        self.replaced.add(old)
        self.owner = {
            key: (new, self.generation) if owner == old else (owner, since)
            for key, (owner, since) in self.owner.items()
        }
        self.target = {key: new if to == old else to for key, to in self.target.items()}

    def _release(self, request: pb.HeartbeatRequest) -> None:
        who, owned = request.member.member_id, {PartitionKey.of(p) for p in request.owned}
        for key, (owner, since) in list(self.owner.items()):
            if owner == who and key not in owned and request.member.generation >= since:
                del self.owner[key]

    def _grant(self) -> None:
        fresh = [key for key in self.target if key not in self.owner]
        if fresh:
            self.generation += 1
            self.owner.update((key, (self.target[key], self.generation)) for key in fresh)

    def _rebalance(self) -> None:
        self.generation += 1
        self.owner = {key: own for key, own in self.owner.items() if own[0] in self.members}
        target: dict[PartitionKey, str] = {}
        for (name, topic_id), count in sorted(self.topics.items()):
            able = [who for who, known in self.members.items() if name in known.topics]
            keys = [PartitionKey(topic_id, number) for number in range(count)]
            target.update(_deal(keys, able, self.target))
        self.target = target
        self.owner = {key: own for key, own in self.owner.items() if key in target}
        self._grant()


def _deal(
    keys: Iterable[PartitionKey], able: list[str], before: dict[PartitionKey, str]
) -> dict[PartitionKey, str]:
    keys = list(keys)
    if not able:
        return {}
    share, more = divmod(len(keys), len(able))
    room = {who: share + (at < more) for at, who in enumerate(able)}
    dealt: dict[PartitionKey, str] = {}
    for key in keys:
        who = before.get(key, "")
        if room.get(who, 0):
            dealt[key] = who
            room[who] -= 1
    left = iter([who for who in able for _ in range(room[who])])
    return dealt | {key: next(left) for key in keys if key not in dealt}
