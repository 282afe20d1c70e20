"""Heartbeat, LeaveGroup, RemoveMember, and members that are silent for too long. PURE.

A heartbeat is known by its member: whatever of it was done already is not done again, and its reply
is what stands now. Order of precedence: FENCED_INSTANCE, UNKNOWN_MEMBER, ILLEGAL_GENERATION ·
whether members are kept out (GROUP_CLAIMED) · what the member lets go · what it says of itself,
where that is news: limits, what the outside has against it. The assignor runs here, and the record
says what it found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.machine import Decision
from oncelog_server.offset_manager.assignors import DEFAULT_ASSIGNOR, assign
from oncelog_server.offset_manager.commands import (
    Assigned,
    GroupTopic,
    Heartbeat,
    LeaveGroup,
    MemberIdentity,
    RemoveMember,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.decide_commit import group_for_change
from oncelog_server.offset_manager.membership import (
    Membership,
    MemberState,
    shares,
    shares_by_member,
)
from oncelog_server.offset_manager.records import (
    Member,
    MemberGone,
    MembershipChanged,
    Parting,
    PartitionsReleased,
    Record,
)
from oncelog_server.offset_manager.state import State
from oncelogpb.errors import (
    IllegalGeneration,
    InvalidTimeout,
    LimitExceeded,
    NotFound,
)

# Heartbeats of a session, at least: two may be lost.
HEARTBEATS_PER_SESSION: Final = 3
# Who has all that it shall have asks so soon whether that has changed: what another one left, or
# lost, stands still until it has heard of it. Where this partition of __consumer_offsets has many
# members they ask less often, so that what they cost together has a bound.
NEWS_MS: Final = 500
NEWS_MS_PER_MEMBER: Final = 64
# Who waits for a partition that its owner has not let go of yet asks again sooner, but not so soon
# that many who wait keep the offset manager from its work.
WAITING_MS: Final = 250
WAITING_MS_PER_MEMBER: Final = 2


class News(NamedTuple):
    """What a heartbeat, a tick or an operator changes of a group."""

    # Who joined, or described itself anew.
    members: tuple[Member, ...] = ()
    gone: tuple[MemberGone, ...] = ()
    # As in MembershipChanged.
    topics: tuple[GroupTopic, ...] = ()


def decide_heartbeat(
    state: State, config: OffsetManagerConfig, command: Heartbeat, *, members_here: int
) -> Decision[Record]:
    """`members_here`: of all groups of this partition."""
    group = group_for_change(state, config, command.group)
    membership = group.membership or Membership()
    member_state = _member_state(membership, command)
    if member_state is None:
        group.require_unclaimed(command.group)
    members, gone = _described(membership, config, command, member_state)
    topics = _topic_news(membership, command, members)
    news = _require_partitions(config, command.group, membership, News(members, gone, topics))
    if news.members and command.unfit is not None:
        raise command.unfit
    released = () if member_state is None else membership.released_by(member_state, command)
    records: list[Record] = []
    if released:
        of_it = tuple(shares(command.member.member_id, released))
        records.append(PartitionsReleased(command.group, of_it))
    changed: MembershipChanged | None = None
    if news.members or news.topics:
        changed = change_of(command.group, membership, news)
        records.append(changed)
    generation = state.next_offset + len(records) - 1 if records else membership.generation
    assigned = _assigned(membership, command, generation, changed, set(released))
    news_ms = max(NEWS_MS, NEWS_MS_PER_MEMBER * members_here)
    interval_ms = min(assigned.heartbeat_interval_ms, news_ms)
    return Decision(records, assigned._replace(heartbeat_interval_ms=interval_ms))


def decide_leave(state: State, command: LeaveGroup) -> Decision[Record]:
    nothing = Assigned(command.member, (), (), 0, 0)
    membership = membership_of(state, command.group)
    if command.member.member_id not in membership.member_states:
        return Decision((), nothing)
    membership.require_member(command.group, command.member)
    return Decision(
        [_without(command.group, membership, [command.member.member_id], Parting.LEFT)],
        nothing._replace(member=_heard(command.member, state.next_offset)),
    )


def decide_remove(state: State, command: RemoveMember) -> Decision[Record]:
    membership = membership_of(state, command.group)
    member_id = command.member_id or membership.instances.get(command.instance_id, "")
    if member_id not in membership.member_states:
        raise NotFound(
            f"group {command.group!r} has no such member; `oncelog group describe` shows all"
        )
    record = _without(command.group, membership, [member_id], Parting.REMOVED)
    return Decision([record], member_id)


def expire(state: State, over: Mapping[str, Sequence[str]]) -> Iterator[MembershipChanged]:
    """Members whose session is over, by group."""
    for group, member_ids in over.items():
        yield _without(group, membership_of(state, group), member_ids, Parting.EXPIRED)


def membership_of(state: State, group: str) -> Membership:
    known = state.groups.get(group)
    return Membership() if known is None or known.membership is None else known.membership


def assignor_of(members: Sequence[Member]) -> str:
    """That most members name; of several, the one that somebody named first."""
    votes = Counter(member.assignor for member in members if member.assignor)
    return max(votes, key=votes.__getitem__, default=DEFAULT_ASSIGNOR)


# --------------------------------------------------------------------------------- who and what


def _member_state(membership: Membership, command: Heartbeat) -> MemberState | None:
    """None: it joins. Raises FencedInstance, UnknownMember, IllegalGeneration."""
    member = command.member
    joins = member.generation == 0 and member.member_id not in membership.gone
    if joins and member.member_id not in membership.member_states:
        membership.require_named(command.group, member, command.replaces)
        return None
    member_state = membership.require_member(command.group, member)
    if member.generation > membership.generation:
        raise IllegalGeneration(
            f"group {command.group!r} is in generation {membership.generation}, before "
            f"{member.generation}; join again under a new member id",
            group=command.group,
            member_id=member.member_id,
        )
    return member_state


def _described(
    membership: Membership,
    config: OffsetManagerConfig,
    command: Heartbeat,
    member_state: MemberState | None,
) -> tuple[tuple[Member, ...], tuple[MemberGone, ...]]:
    """What it says of itself, where that is news, and whom it replaces. What was said before the
    last description was heard of is a late copy."""
    identity = command.member
    member = Member(
        identity.member_id,
        identity.instance_id,
        command.subscribed,
        command.assignor,
        command.session_timeout_ms,
        command.client_id,
        command.host,
    )
    if member_state is not None:
        known = member_state.member
        same = (known.subscribed, known.assignor, known.session_timeout_ms) == (
            member.subscribed,
            member.assignor,
            member.session_timeout_ms,
        )
        if same or identity.generation < member_state.described:
            return (), ()
    _require_session(config, command.session_timeout_ms)
    replaced = membership.instances.get(identity.instance_id, "") if member_state is None else ""
    before = membership.member_states[replaced] if replaced else member_state
    _require_few_subscriptions(membership, config, command, before)
    if replaced:
        return (member,), (MemberGone(replaced, Parting.REPLACED, identity.member_id),)
    limit = config.members_per_group_max
    if member_state is None and len(membership.member_states) >= limit:
        raise LimitExceeded(
            f"group {command.group!r} has {limit} members; use several groups, or raise "
            "offset_manager.members_per_group_max",
            limit="members_per_group_max",
        )
    return (member,), ()


def _require_few_subscriptions(
    membership: Membership,
    config: OffsetManagerConfig,
    command: Heartbeat,
    before: MemberState | None,
) -> None:
    """An assignment costs by the number of different ones. Whoever wants what others want brings no
    new one. `before`: whose place it takes; its own, or an instance's in an earlier life."""
    wanted, limit = command.subscribed, config.subscriptions_per_group_max
    others = [state for state in membership.member_states.values() if state is not before]
    if len(others) < limit:
        return
    known = {other.member.subscribed for other in others}
    if wanted not in known and len(known) >= limit:
        raise LimitExceeded(
            f"the members of group {command.group!r} have {limit} different subscriptions; let "
            "more of them subscribe to the same topics, use several groups, or raise "
            "offset_manager.subscriptions_per_group_max",
            limit="subscriptions_per_group_max",
        )


def _require_session(config: OffsetManagerConfig, session_ms: int) -> None:
    least, most = config.member_session_ms_min, config.member_session_ms_max
    if not least <= session_ms <= most:
        limit = "member_session_ms_min" if session_ms < least else "member_session_ms_max"
        raise InvalidTimeout(
            f"a session of {session_ms} ms is not between {least} and {most} ms "
            "(offset_manager.member_session_ms_min, member_session_ms_max)",
            limit=limit,
        )


def _topic_news(
    membership: Membership, command: Heartbeat, members: Sequence[Member]
) -> tuple[GroupTopic, ...]:
    """What this process sees of its topics, and the group does not know. A topic never shrinks, and
    goes only where etcd says so: views may be behind."""
    said = membership.member_states.get(command.member.member_id)
    wanted = members[0] if members else said.member if said is not None else None
    subscribed = set(wanted.subscribed) if wanted is not None else set()
    news: dict[str, GroupTopic] = {}
    for name, known in membership.topics.items():
        if name in subscribed and known.topic_id in command.gone:
            news[name] = GroupTopic(name, known.topic_id, 0)
    for topic in command.topics:
        if topic.name not in subscribed or topic.topic_id in command.gone:
            continue
        before = membership.topics.get(topic.name)
        if before is not None and before.topic_id not in command.gone:
            grew = before.topic_id == topic.topic_id and before.partitions < topic.partitions
            if not grew:
                continue
        news[topic.name] = topic
    return tuple(news[name] for name in sorted(news))


def _require_partitions(
    config: OffsetManagerConfig, group: str, membership: Membership, news: News
) -> News:
    """Who asks for too many is refused: for topics that nobody else of the group wants. What others
    want has grown, or was made, and that is nobody's fault: as many such topics as there is room
    for are taken in, by name, and the group goes on with what it has of the rest. That it is
    deleted is news of a topic in any case."""
    if not news.members and not news.topics:
        # All but a few heartbeats: what looks at every member would make them cost milliseconds.
        return news
    limit = config.partitions_per_group_max
    if _count(_topics_then(membership, news)) <= limit:
        return news
    wanted = {
        name for state in membership.member_states.values() for name in state.member.subscribed
    }
    came = [topic for topic in news.topics if topic.partitions and topic.name in wanted]
    taken = {topic.name: topic for topic in news.topics if topic not in came}
    for topic in came:
        before = membership.topics.get(topic.name)
        if before is not None and before.topic_id != topic.topic_id:
            taken[topic.name] = GroupTopic(topic.name, before.topic_id, 0)
    fitting = news._replace(topics=tuple(taken.values()))
    then = _topics_then(membership, fitting)
    count = _count(then)
    if news.members and count > limit:
        raise LimitExceeded(
            f"the topics of group {group!r} have more than {limit} partitions; use several groups, "
            "or raise offset_manager.partitions_per_group_max",
            limit="partitions_per_group_max",
        )
    for topic in came:
        more = topic.partitions - (then[topic.name].partitions if topic.name in then else 0)
        if count + more <= limit:
            taken[topic.name] = topic
            count += more
    return news._replace(topics=tuple(taken[name] for name in sorted(taken)))


def _count(topics: Mapping[str, GroupTopic]) -> int:
    return sum(topic.partitions for topic in topics.values())


# ----------------------------------------------------------------------------------- the outcome


def _without(
    group: str, membership: Membership, member_ids: Sequence[str], how: Parting
) -> MembershipChanged:
    gone = tuple(MemberGone(member_id, how) for member_id in member_ids)
    return change_of(group, membership, News(gone=gone))


def change_of(group: str, membership: Membership, news: News) -> MembershipChanged:
    """With the targets that the assignor finds for what the group is then."""
    heirs = {gone.member_id: gone.successor for gone in news.gone}
    members, topics = _members_then(membership, news), _topics_then(membership, news)
    dropped = tuple(
        GroupTopic(name, topic.topic_id, 0)
        for name, topic in membership.topics.items()
        if name not in topics
    )
    previous = {
        partition: heir
        for partition, member_id in membership.targets.items()
        if (heir := heirs.get(member_id, member_id))
    }
    target = assign(
        assignor_of(list(members.values())),
        _subscriptions(members, topics),
        {topic.topic_id: topic.partitions for topic in topics.values()},
        previous,
        {m.member_id: m.instance_id for m in members.values() if m.instance_id},
    )
    moves = {
        partition: member_id
        for partition, member_id in target.items()
        if previous.get(partition) != member_id
    }
    moves.update((partition, "") for partition in previous if partition not in target)
    return MembershipChanged(
        group, news.members, news.gone, (*dropped, *news.topics), shares_by_member(moves)
    )


def _members_then(membership: Membership, news: News) -> dict[str, Member]:
    gone = {parting.member_id for parting in news.gone}
    members = {
        member_id: member_state.member
        for member_id, member_state in membership.member_states.items()
        if member_id not in gone
    }
    members.update((member.member_id, member) for member in news.members)
    return members


def _topics_then(membership: Membership, news: News) -> dict[str, GroupTopic]:
    """Those that somebody subscribes to."""
    wanted = {member.subscribed for member in _members_then(membership, news).values()}
    names = {name for subscribed in wanted for name in subscribed}
    topics = {name: topic for name, topic in membership.topics.items() if name in names}
    topics.update((topic.name, topic) for topic in news.topics)
    return topics


def _subscriptions(
    members: Mapping[str, Member], topics: Mapping[str, GroupTopic]
) -> dict[str, frozenset[TopicId]]:
    """By member; one set for all who want the same."""
    sets: dict[tuple[str, ...], frozenset[TopicId]] = {}
    subscriptions = {}
    for member_id, member in members.items():
        names = member.subscribed
        known = sets.get(names)
        if known is None:
            known = frozenset(topics[name].topic_id for name in names if name in topics)
            sets[names] = known
        subscriptions[member_id] = known
    return subscriptions


def _assigned(
    membership: Membership,
    command: Heartbeat,
    generation: int,
    changed: MembershipChanged | None,
    released: set[PartitionId],
) -> Assigned:
    """What its reply says: what it will own and shall own, once the records are applied."""
    member_id = command.member.member_id
    member_state = membership.member_states.get(member_id)
    target = set(member_state.targeted) if member_state is not None else set()
    gone: set[str] = set()
    topics = dict(membership.topics)
    if changed is not None:
        gone = {parting.member_id for parting in changed.gone}
        for parting in changed.gone:
            if parting.successor == member_id:
                target |= set(membership.member_states[parting.member_id].targeted)
        for share in changed.targets:
            moved = {PartitionId(share.topic_id, number) for number in share.numbers}
            target = target | moved if share.member_id == member_id else target - moved
        topics.update((topic.name, topic) for topic in changed.topics)

    def may_have(partition: PartitionId) -> bool:
        """It is free, or the member's, or will be."""
        if partition in released:
            # Whose target it was has it by now.
            return membership.targets.get(partition) in (None, *gone)
        owner = membership.owners.get(partition)
        return owner is None or owner.member_id == member_id or owner.member_id in gone

    partitions = tuple(sorted(partition for partition in target if may_have(partition)))
    ids = {partition.topic_id for partition in partitions}
    named = {topic.topic_id: name for name, topic in topics.items() if topic.topic_id in ids}
    session_ms = (
        command.session_timeout_ms
        if member_state is None
        else member_state.member.session_timeout_ms
    )
    for member in changed.members if changed is not None else ():
        session_ms = member.session_timeout_ms
    interval_ms = session_ms // HEARTBEATS_PER_SESSION
    if len(partitions) < len(target):
        waiting_ms = max(WAITING_MS, WAITING_MS_PER_MEMBER * len(membership.member_states))
        interval_ms = min(interval_ms, waiting_ms)
    heard, names = _heard(command.member, generation), tuple(sorted(named.items()))
    return Assigned(heard, partitions, names, session_ms, interval_ms)


def _heard(identity: MemberIdentity, generation: int) -> MemberIdentity:
    return MemberIdentity(generation, identity.member_id, identity.instance_id)
