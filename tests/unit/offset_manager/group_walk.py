"""A group and its members, who follow the protocol, on a network that loses, repeats and reorders,
with an offset manager that fails over and stands still. For walks in any order of steps.

A member holds a partition from the reply that grants it until it sends a heartbeat without it, or
until its own session is over by its own clock: it counts from when it sent the last heartbeat that
was answered. It takes replies to its newest heartbeat only. A process that was stopped does not
know that its session is over, and commits what it has read.

Left out: static members. Who comes with an instance id takes over at once from whoever has it, so
that two processes may hold a partition for a moment; the first one is fenced when it commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.commands import (
    FROM_ANY,
    Assigned,
    CommitOffsets,
    GroupTopic,
    Heartbeat,
    LeaveGroup,
    MemberHeard,
    MemberIdentity,
    OffsetCommit,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import CODEC
from oncelogpb.errors import OncelogError
from tests.golden.host import MachineHost

SESSION_MS: Final = 10_000
STEP_MS: Final = 1_000
# What members subscribe to, in turn.
TOPICS: Final = {"a": 3, "b": 2}
SUBSCRIPTIONS: Final = (("a",), ("a", "b"), ("b",), ())
ASSIGNORS: Final = ("", "range")


class Sent(NamedTuple):
    """A heartbeat on its way."""

    by: Member
    number: int
    sent_ms: int
    command: Heartbeat


class Member:
    """A client. Every process may join again and again, each time under a new id."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.joins = 0
        self.subscribed: tuple[str, ...] = SUBSCRIPTIONS[0]
        self.assignor = ""
        # When it sent the last heartbeat that was answered.
        self.answered_ms = 0
        self.number = 0
        self._join()

    def _join(self) -> None:
        self.joins += 1
        self.member_id = f"{self.name}{self.joins}"
        self.generation = 0
        self.held: set[PartitionId] = set()
        # What it has read and not committed, by the grant that it read it under.
        self.read: dict[PartitionId, int] = {}
        self.assigned: set[PartitionId] = set()

    def holds(self, now_ms: int) -> set[PartitionId]:
        """What it would process now."""
        return self.held if now_ms - self.answered_ms < SESSION_MS else set()

    def heartbeat(self, now_ms: int) -> Sent:
        if now_ms - self.answered_ms >= SESSION_MS:
            self.held, self.assigned, self.read = set(), set(), {}
        self.number += 1
        command = Heartbeat(
            "g",
            MemberIdentity(self.generation, self.member_id),
            self.subscribed,
            frozenset(self.held),
            tuple(GroupTopic(name, topic_id(name), TOPICS[name]) for name in self.subscribed),
            assignor=self.assignor,
            session_timeout_ms=SESSION_MS,
        )
        return Sent(self, self.number, now_ms, command)

    def hear(self, sent: Sent, reply: object, now_ms: int) -> set[PartitionId]:
        """What it holds since now. Of a heartbeat that is not the newest any more: nothing."""
        if sent.number != self.number:
            return set()
        if isinstance(reply, OncelogError):
            self._join()
            return set()
        assert isinstance(reply, Assigned)
        # However long it was on its way: the session goes on from when it was asked for.
        self.answered_ms = sent.sent_ms
        self.generation = reply.member.generation
        self.assigned = set(reply.partitions)
        if now_ms - sent.sent_ms >= SESSION_MS:
            return set()
        new = self.assigned - self.held
        self.held |= new
        return new

    def let_go(self) -> None:
        self.held &= self.assigned
        self.read = {
            partition: grant for partition, grant in self.read.items() if partition in self.held
        }

    def left(self) -> None:
        self._join()


class Walk:
    """See the module. Steps are numbers, so that whatever makes them can make them smaller."""

    def __init__(self, processes: int) -> None:
        self.host = MachineHost(lambda: OffsetManagerMachine(OffsetManagerConfig()), CODEC)
        self.members = [Member(name) for name in "xyzuvw"[:processes]]
        self.on_the_way: list[Sent] = []
        # Replies that the high watermark does not cover.
        self.parked: dict[str, Sent] = {}
        self.replies: list[tuple[Sent, object]] = []
        self._labels = 0
        # The last grant of each partition that was heard.
        self.grants: dict[PartitionId, int] = {}

    @property
    def now_ms(self) -> int:
        return self.host.now.monotonic_ms

    # ------------------------------------------------------------------------------------- steps

    def step(self, what: str, which: int) -> None:
        member = self.members[which % len(self.members)]
        match what:
            case "send":
                self.on_the_way.append(member.heartbeat(self.now_ms))
            case "deliver" if self.on_the_way:
                self._deliver(self.on_the_way.pop(which % len(self.on_the_way)))
            case "copy" if self.on_the_way:
                # Delivered, and still on the way.
                self._deliver(self.on_the_way[which % len(self.on_the_way)])
            case "durable":
                self._sync()
            case "hear" if self.replies:
                sent, reply = self.replies.pop(which % len(self.replies))
                self._hear(sent, reply)
            case "commit":
                self._commit(member)
            case "lose" if self.replies:
                self.replies.pop(which % len(self.replies))
            case "let go":
                member.let_go()
            case "subscribe":
                member.subscribed = SUBSCRIPTIONS[which // 8 % len(SUBSCRIPTIONS)]
                member.assignor = ASSIGNORS[which // 64 % len(ASSIGNORS)]
            case "leave":
                self._leave(member)
            case "round":
                self.round([member])
            case "pass":
                self.host.pass_time(STEP_MS * (which % 6))
                self.host.tick()
            case "stall":
                self.host.pass_time(STEP_MS * 10)
                self.host.tick()
            case "failover" | "crash":
                self.host.failover(lose_tail=what == "crash")
                self.parked.clear()
                self.host.sync()
        self.check()

    def check(self) -> None:
        """At most one at a time."""
        holders: dict[PartitionId, str] = {}
        for member in self.members:
            for partition in member.holds(self.now_ms):
                other = holders.setdefault(partition, member.member_id)
                assert other == member.member_id, f"{partition}: {other} and {member.member_id}"

    def heal(self) -> None:
        """Everybody follows the protocol, and nothing is lost any more."""
        self.on_the_way, self.replies = [], []
        self._sync()
        for _ in range(2 * SESSION_MS // STEP_MS):
            self.host.pass_time(STEP_MS)
            self.host.tick()
            self.round(self.members)
            self.check()

    def round(self, members: Sequence[Member]) -> None:
        """A heartbeat that is answered, and obeyed."""
        for member in members:
            sent = member.heartbeat(self.now_ms)
            self._deliver(sent)
            self._sync()
            mine = [pair for pair in self.replies if pair[0] == sent]
            self.replies = [pair for pair in self.replies if pair[0] != sent]
            for of_it, reply in mine:
                self._hear(of_it, reply)
            member.let_go()

    # ------------------------------------------------------------------------------------- parts

    def _deliver(self, sent: Sent) -> None:
        self._labels += 1
        label = str(self._labels)
        self.parked[label] = sent
        self.host.submit(sent.command, label)
        self.host.signal(MemberHeard("g", sent.command.member.member_id))

    def _hear(self, sent: Sent, reply: object) -> None:
        for partition in sorted(sent.by.hear(sent, reply, self.now_ms)):
            self.grants[partition] = self.grants.get(partition, 0) + 1
            sent.by.read[partition] = self.grants[partition]

    def _commit(self, member: Member) -> None:
        """Also of a member that was stopped, and does not know that it is none any more."""
        for partition, grant in sorted(member.read.items()):
            step = OffsetCommit(partition, FROM_ANY, 1)
            identity = MemberIdentity(member.generation, member.member_id)
            self.host.submit(CommitOffsets("g", (step,), member=identity))
            _, reply = self.host.take_parked()
            is_taken = not isinstance(reply, OncelogError)
            is_last = self.grants[partition] == grant
            assert is_last or not is_taken, f"{member.member_id} commits what another one has"
            holds = partition in member.holds(self.now_ms)
            assert is_taken or not holds, (
                f"{member.member_id} is fenced from what it holds: {reply}"
            )

    def _leave(self, member: Member) -> None:
        self.host.submit(LeaveGroup("g", member.heartbeat(self.now_ms).command.member))
        member.left()

    def _sync(self) -> None:
        for parked in self.host.sync():
            sent = self.parked.pop(parked.label, None)
            if sent is not None:
                self.replies.append((sent, parked.reply))


def topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"."))


def partitions_of(subscriptions: Sequence[tuple[str, ...]]) -> Mapping[PartitionId, None]:
    """All that somebody subscribes to."""
    names = sorted({name for subscribed in subscriptions for name in subscribed})
    return {PartitionId(topic_id(name), n): None for name in names for n in range(TOPICS[name])}
