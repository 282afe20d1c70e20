"""The members of one consumer group, who owns which partition, and who may commit for it. PURE.

    targets    who shall own a partition: what the assignor said last
    owners     who owns it. What has no owner and a target is its target's from this generation on

A partition moves only after its owner let go of it, or is no member any more: so no two members
process it at one time, and nobody who loses nothing has to stop. The group's *generation* is the
place of the last record that changed any of this: it grows for ever, also over a group that was
deleted and made again.

    since      generation in which this ownership began. A commit below it is of somebody who lost
               the partition and got it again: what he read in between is not his
    revoked    generation in which the partition left its owner's target. A heartbeat at or above it
               is of an owner who has heard that he must let go; where it lacks the partition, he
               has. One below it says nothing: it was sent before a grant that he has heard since

Changes only follow records, so replay gives the same (I35). Liveness is not here (`liveness`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.commands import (
    GroupState,
    GroupTopic,
    Heartbeat,
    MemberIdentity,
)
from oncelog_server.offset_manager.records import (
    Member,
    MemberGone,
    MembershipChanged,
    Parting,
    PartitionsReleased,
    Share,
)
from oncelogpb.errors import FencedInstance, IllegalGeneration, UnknownMember

# Members that are gone are remembered for so long, and so many of a group: a late copy of what one
# of them sent when it joined must not make it a member again, nor fence who replaced it.
GONE_KEPT_MS: Final = 60 * 60 * 1000
GONE_KEPT_MAX: Final = 1_000


class Ownership(msgspec.Struct, frozen=True, array_like=True):
    """Who owns a partition. See the module."""

    member_id: str
    since: int
    # 0: it is in its owner's target.
    revoked: int = 0


class MemberState(msgspec.Struct):
    """A member, and what it has. `owned` and `targeted` are `owners` and `targets` by member."""

    member: Member
    # The generation in which it described itself so.
    described: int
    owned: dict[PartitionId, None] = {}
    targeted: dict[PartitionId, None] = {}


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who was a member."""

    how: Parting
    # By the journal's age.
    gone_ms: int


class Membership(msgspec.Struct):
    """See the module.

    Invariant: what has a target has an owner.
    Invariant: `revoked` is 0 exactly where the owner is the target.
    """

    generation: int = 0
    # In the order in which they joined.
    # Snapshots keep the name that it had first.
    member_states: dict[str, MemberState] = msgspec.field(default_factory=dict, name="seats")
    # Member id by instance id.
    instances: dict[str, str] = {}
    # By name: those that somebody subscribes to, and somebody has seen.
    topics: dict[str, GroupTopic] = {}
    owners: dict[PartitionId, Ownership] = {}
    targets: dict[PartitionId, str] = {}
    # In the order in which they went.
    gone: dict[str, Gone] = {}

    # --------------------------------------------------------------------------------- questions

    @property
    def state(self) -> GroupState:
        if not self.member_states:
            return GroupState.EMPTY
        moving = any(owner.revoked for owner in self.owners.values())
        return GroupState.MOVING if moving else GroupState.STABLE

    def members(self) -> list[Member]:
        """In the order in which they joined."""
        return [member_state.member for member_state in self.member_states.values()]

    # ------------------------------------------------------------------------------------- rules

    def require_member(self, group: str, identity: MemberIdentity) -> MemberState:
        """Raises FencedInstance, UnknownMember."""
        member_state = self.member_states.get(identity.member_id)
        if member_state is not None and member_state.member.instance_id == identity.instance_id:
            return member_state
        holder = self.instances.get(identity.instance_id, identity.member_id)
        if holder != identity.member_id or self.was_replaced(identity.member_id):
            raise FencedInstance(
                f"another process joined group {group!r} as instance {identity.instance_id!r}; "
                "this one must stop",
                group=group,
                instance_id=identity.instance_id,
            )
        raise UnknownMember(
            f"group {group!r} does not know member {identity.member_id!r}: it was silent for its "
            "session, left, or was removed; join again under a new member id",
            group=group,
            member_id=identity.member_id,
        )

    def require_named(self, group: str, joining: MemberIdentity, replaces: str) -> None:
        """Who joins fences the holder of its instance id where it names it, and nobody else: a late
        copy of a join names an older one, or none. Raises FencedInstance, which says `held_by`."""
        holder = self.instances.get(joining.instance_id, "")
        if holder not in ("", replaces):
            raise FencedInstance(
                f"member {holder!r} holds instance {joining.instance_id!r} of group {group!r}: a "
                "join that names it in `replaces` takes its place",
                group=group,
                instance_id=joining.instance_id,
                held_by=holder,
            )

    def was_replaced(self, member_id: str) -> bool:
        gone = self.gone.get(member_id)
        return gone is not None and gone.how is Parting.REPLACED

    def require_owned(
        self, group: str, identity: MemberIdentity, partitions: Iterable[PartitionId]
    ) -> None:
        """Each of them by this member since a generation that it has heard of. An owner that must
        let go may still commit. Raises FencedInstance, UnknownMember, IllegalGeneration."""
        self.require_member(group, identity)
        for partition in partitions:
            owner = self.owners.get(partition)
            is_owner = owner is not None and owner.member_id == identity.member_id
            since = 0 if owner is None else owner.since
            if not is_owner or not since <= identity.generation <= self.generation:
                raise _not_owned(group, identity, partition, since)

    def released_by(self, member_state: MemberState, heartbeat: Heartbeat) -> list[PartitionId]:
        """What a member lets go with this heartbeat: what it has heard that it must let go of, and
        does not hold any more."""
        return [
            partition
            for partition in member_state.owned
            if partition not in heartbeat.owned
            and 0 < self.owners[partition].revoked <= heartbeat.member.generation
        ]

    # ----------------------------------------------------------------------------------- changes

    def change(self, record: MembershipChanged, *, generation: int, aged_ms: int) -> None:
        self.generation = generation
        for member in record.members:
            self._describe(member)
        free: dict[PartitionId, None] = {}
        for gone in record.gone:
            free |= dict.fromkeys(self._part(gone, aged_ms))
        for topic in record.topics:
            self.topics.pop(topic.name, None)
            if topic.partitions:
                self.topics[topic.name] = topic
        for partition, member_id in _each(record.targets):
            self._aim(partition, member_id)
            free[partition] = None
        self._grant(free)
        self._forget_gone(aged_ms)

    def release(self, record: PartitionsReleased, *, generation: int) -> None:
        self.generation = generation
        released = [partition for partition, _ in _each(record.shares)]
        for partition in released:
            self._disown(partition)
        self._grant(released)

    def _describe(self, member: Member) -> None:
        member_state = self.member_states.get(member.member_id)
        if member_state is None:
            self.member_states[member.member_id] = MemberState(member, self.generation)
        else:
            member_state.member, member_state.described = member, self.generation
        if member.instance_id:
            self.instances[member.instance_id] = member.member_id

    def _part(self, gone: MemberGone, aged_ms: int) -> Iterator[PartitionId]:
        """What nobody owns now."""
        member_state = self.member_states.pop(gone.member_id)
        self.gone[gone.member_id] = Gone(gone.how, aged_ms)
        heir = self.member_states.get(gone.successor)
        if self.instances.get(member_state.member.instance_id) == gone.member_id:
            del self.instances[member_state.member.instance_id]
        for partition in member_state.owned:
            kept = heir is not None and not self.owners[partition].revoked
            del self.owners[partition]
            if kept:
                self._own(partition, gone.successor)
            else:
                yield partition
        for partition in member_state.targeted:
            del self.targets[partition]
            if heir is not None:
                self.targets[partition] = gone.successor
                heir.targeted[partition] = None

    def _aim(self, partition: PartitionId, member_id: str) -> None:
        before = self.targets.pop(partition, "")
        if before:
            del self.member_states[before].targeted[partition]
        if member_id:
            self.targets[partition] = member_id
            self.member_states[member_id].targeted[partition] = None
        owner = self.owners.get(partition)
        if owner is None:
            return
        if owner.member_id == member_id:
            self.owners[partition] = Ownership(member_id, owner.since)
        elif not owner.revoked:
            self.owners[partition] = Ownership(owner.member_id, owner.since, self.generation)

    def _grant(self, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            target = self.targets.get(partition)
            if target is not None and partition not in self.owners:
                self._own(partition, target)

    def _own(self, partition: PartitionId, member_id: str) -> None:
        self.owners[partition] = Ownership(member_id, self.generation)
        self.member_states[member_id].owned[partition] = None

    def _disown(self, partition: PartitionId) -> None:
        owner = self.owners.pop(partition)
        del self.member_states[owner.member_id].owned[partition]

    def _forget_gone(self, aged_ms: int) -> None:
        before = aged_ms - GONE_KEPT_MS
        too_many = len(self.gone) - GONE_KEPT_MAX
        old = [
            member_id
            for number, (member_id, gone) in enumerate(self.gone.items())
            if number < too_many or gone.gone_ms <= before
        ]
        for member_id in old:
            del self.gone[member_id]

    # -------------------------------------------------------------------------------------- check

    def check(self, name: str) -> None:
        """Asserts the invariants of the class."""
        owned = {
            partition: member_id
            for member_id, member_state in self.member_states.items()
            for partition in member_state.owned
        }
        assert owned == {key: owner.member_id for key, owner in self.owners.items()}, (
            f"group {name}: who owns what, in two ways"
        )
        assert sum(len(member_state.owned) for member_state in self.member_states.values()) == len(
            owned
        )
        targeted = {
            partition: member_id
            for member_id, member_state in self.member_states.items()
            for partition in member_state.targeted
        }
        assert targeted == self.targets, f"group {name}: who shall own what, in two ways"
        assert sum(
            len(member_state.targeted) for member_state in self.member_states.values()
        ) == len(targeted)
        for partition in self.targets:
            assert partition in self.owners, f"group {name}: nobody owns {partition}"
        for partition, owner in self.owners.items():
            assert 0 < owner.since <= self.generation
            is_target = self.targets.get(partition) == owner.member_id
            assert is_target == (owner.revoked == 0), f"group {name}: {partition} is revoked or not"
            assert owner.revoked == 0 or owner.since <= owner.revoked <= self.generation
        instances = {
            member_state.member.instance_id: member_id
            for member_id, member_state in self.member_states.items()
            if member_state.member.instance_id
        }
        assert instances == self.instances, f"group {name}: two members of one instance"
        assert not self.gone.keys() & self.member_states.keys(), f"group {name}: gone and a member"


def shares(member_id: str, partitions: Iterable[PartitionId]) -> Iterator[Share]:
    """By topic, in order."""
    numbers: dict[TopicId, list[int]] = {}
    for partition in sorted(partitions):
        numbers.setdefault(partition.topic_id, []).append(partition.number)
    for topic_id, of_topic in numbers.items():
        yield Share(member_id, topic_id, tuple(of_topic))


def shares_by_member(targets: Mapping[PartitionId, str]) -> tuple[Share, ...]:
    by_member: dict[str, list[PartitionId]] = {}
    for partition, member_id in targets.items():
        by_member.setdefault(member_id, []).append(partition)
    return tuple(
        share
        for member_id in sorted(by_member)
        for share in shares(member_id, by_member[member_id])
    )


def _each(some: Iterable[Share]) -> Iterator[tuple[PartitionId, str]]:
    for share in some:
        for number in share.numbers:
            yield PartitionId(share.topic_id, number), share.member_id


def _not_owned(
    group: str, identity: MemberIdentity, partition: PartitionId, since: int
) -> IllegalGeneration:
    return IllegalGeneration(
        f"member {identity.member_id!r} of group {group!r}, which has heard of generation "
        f"{identity.generation}, does not own partition {partition}; rewind, and go on with what "
        "its next heartbeat is told",
        group=group,
        member_id=identity.member_id,
        topic_id=partition.topic_id.hex(),
        partition=partition.number,
        owned_since=since,
    )
