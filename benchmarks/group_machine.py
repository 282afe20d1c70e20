"""What a group of 1,000 members costs the machine of its offset manager: heartbeats, joins, leaves,
the journal, memory, snapshots. Called by `benchmarks.groups`."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from oncelog_server.core.frame import At
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.machine import EpochStart, Instant, Tick
from oncelog_server.core.wire import partition_message
from oncelog_server.offset_manager import wire
from oncelog_server.offset_manager.commands import (
    Assigned,
    Command,
    GroupTopic,
    LeaveGroup,
    MemberHeard,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.records import CODEC, Record
from oncelog_server.runtime.storage.frames import HEADER_BYTES
from oncelogpb.v1 import offset_manager_pb2 as pb

GROUP: Final = "crew"
COLUMNS: Final = ("what happens", "calls", "median ms", "max ms", "records", "journal bytes")
NOW: Final = Instant(1_000, 1_767_225_600_000)


class Cost(NamedTuple):
    """CPU of one call, and what it writes."""

    ms: float
    records: int
    journal_bytes: int


class Row(NamedTuple):
    """Of several calls of one kind."""

    what: str
    calls: int
    median_ms: float
    max_ms: float
    records: int
    journal_bytes: int

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        return (
            self.what,
            f"{self.calls:,}",
            f"{self.median_ms:.2f}",
            f"{self.max_ms:.1f}",
            f"{self.records:,}",
            f"{self.journal_bytes:,}",
        )


class Crew:
    """Members of one group, each of whom does at once what its heartbeat is told."""

    def __init__(self, topics: Iterable[GroupTopic]) -> None:
        self._machine = OffsetManagerMachine(OffsetManagerConfig())
        self._topics = tuple(topics)
        self._names = tuple(sorted(topic.name for topic in self._topics))
        self._members: dict[str, Assigned] = {}
        self._reply: object = None
        self._apply(EpochStart())

    def rows(self, member_ids: list[str]) -> Iterator[Row]:
        """What happens in the life of a group."""
        *most, last = member_ids
        yield _row("join, one after the other", [self.beat(each) for each in most])
        yield _row("heartbeats until all have what they shall have", self.settle())
        yield _row("heartbeat", [self.beat(each) for each in self._members])
        yield _row("one more joins", [self.beat(last)])
        yield _row("heartbeats until all have what they shall have", self.settle())
        yield _row("one leaves", [self.leave(most[0])])
        yield _row("heartbeats until all have what they shall have", self.settle())
        ticks = [self._timed(lambda: self._submit(Tick(), Tick())) for _ in range(100)]
        yield _row("tick", ticks)

    def stored(self) -> str:
        """Snapshot and memory."""
        start = time.process_time()
        snapshot = self._machine.snapshot()
        saved_ms = (time.process_time() - start) * 1000
        other = OffsetManagerMachine(OffsetManagerConfig())
        start = time.process_time()
        other.restore(snapshot.state, {})
        restored_ms = (time.process_time() - start) * 1000
        tracemalloc.start()
        other.restore(snapshot.state, {})
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return (
            f"snapshot {len(snapshot.state):,} bytes, made in {saved_ms:.1f} ms, loaded in "
            f"{restored_ms:.1f} ms; memory of what it holds {memory / 1e6:.1f} MB"
        )

    def settle(self) -> list[Cost]:
        """Heartbeats of all, in turns, until none of them hears or changes anything."""
        costs: list[Cost] = []
        while True:
            before = dict(self._members)
            costs += [self.beat(each) for each in before]
            if self._members == before:
                return costs

    def beat(self, member_id: str) -> Cost:
        """From the request's message to the reply's."""
        before = self._members.get(member_id)
        generation = 0 if before is None else before.member.generation
        owned = () if before is None else before.partitions
        request = pb.HeartbeatRequest(
            group=GROUP,
            member=pb.GroupMember(member_id=member_id, generation=generation),
            subscribed_topics=self._names,
            owned=[partition_message(partition) for partition in owned],
        )

        def answered() -> tuple[int, int]:
            command = replace(wire.heartbeat(request, "10.0.0.7"), topics=self._topics)
            written = self._submit(command, MemberHeard(GROUP, member_id))
            assigned = cast(Assigned, self._reply)
            wire.heartbeat_reply(assigned)
            self._members[member_id] = assigned
            return written

        return self._timed(answered)

    def leave(self, member_id: str) -> Cost:
        identity = self._members.pop(member_id).member
        return self._timed(lambda: self._submit(LeaveGroup(GROUP, identity), None))

    def _submit(self, command: Command, heard: object) -> tuple[int, int]:
        """Records and bytes of the journal."""
        if heard is not None:
            self._machine.seen(heard, NOW)
        decision = self._machine.decide(command, NOW)
        written = 0
        for record in decision.records:
            written += HEADER_BYTES + len(CODEC.encode(record).payload)
            self._apply(record)
        self._reply = decision.reply
        return len(decision.records), written

    def _apply(self, record: Record | EpochStart) -> None:
        at = At(JournalOffset(self._machine.next_offset), LeaderEpoch(1), NOW.wall_ms)
        self._machine.apply(record, at)

    def _timed(self, call: Callable[[], tuple[int, int]]) -> Cost:
        start = time.process_time()
        records, written = call()
        return Cost((time.process_time() - start) * 1000, records, written)


def _row(what: str, costs: Sequence[Cost]) -> Row:
    took = [cost.ms for cost in costs]
    return Row(
        what,
        len(costs),
        statistics.median(took),
        max(took),
        sum(cost.records for cost in costs),
        sum(cost.journal_bytes for cost in costs),
    )
