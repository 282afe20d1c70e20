"""The smallest role there is: a counter. For tests of what runs any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from oncelog_server.core.frame import At, Frame, FrameKind
from oncelog_server.core.ids import JournalOffset, PartitionId, TopicId
from oncelog_server.core.machine import (
    NOTHING_SAVED,
    REST_MS_MAX,
    Codec,
    Decision,
    EpochStart,
    Instant,
    Snapshot,
    Table,
    Tick,
    refuse,
)
from oncelog_server.core.needs import Tables
from oncelog_server.core.ports import Replica, Slots
from oncelog_server.core.role import RoleEnv
from oncelog_server.core.settling import Settler
from oncelogpb.errors import InvalidArgument


class Add(msgspec.Struct, frozen=True):
    number: int


class Added(msgspec.Struct, frozen=True):
    number: int


class CounterMachine:
    """Adds; refuses negative numbers; remembers every sum in a table."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.total = 0
        self.epoch = 0
        self.sums: list[int] = []
        self.ticks = 0
        self.rests = True
        self.rests_at_most_ms = REST_MS_MAX
        # What a test says of the frames that are read again.
        self.needs_from = 0
        self.wants_from = 0

    def decide(self, command: Add | Tick, now: Instant) -> Decision[Added]:
        match command:
            case Tick():
                return Decision()
            case Add(number=number) if number < 0:
                return refuse(InvalidArgument("only upwards", total=self.total))
            case Add(number=0):
                return Decision((), self.total)
            case Add(number=number):
                return Decision((Added(number),), self.total + number)

    def apply(self, record: Added | EpochStart, at: At) -> None:
        self.next_offset = at.offset + 1
        match record:
            case EpochStart():
                self.epoch = at.epoch
            case Added(number=number):
                self.total += number
                self.sums.append(self.total)

    def seen(self, signal: object, now: Instant) -> None:
        self.ticks += isinstance(signal, Tick)

    def owed(self, below: int) -> Sequence[Any]:
        return ()

    @property
    def rests_ms(self) -> int:
        return self.rests_at_most_ms if self.rests else 0

    def check(self) -> None:
        assert self.total == (self.sums[-1] if self.sums else 0)

    def needed_from(self) -> JournalOffset:
        return JournalOffset(min(self.needs_from, self.next_offset))

    def wanted_from(self) -> JournalOffset:
        return JournalOffset(min(self.wants_from, self.needed_from()))

    def slots_from(self) -> JournalOffset:
        return self.wanted_from()

    def settled(self) -> None:
        """It has no committed log."""

    def snapshot(self, rows_saved: Mapping[str, int] = NOTHING_SAVED) -> Snapshot:
        saved = rows_saved.get("sums", 0)
        rows = b"".join(value.to_bytes(8, "big") for value in self.sums[saved:])
        table = Table(row_bytes=8, first_row=saved, rows=rows)
        state = msgspec.msgpack.encode((self.next_offset, self.total, self.epoch))
        return Snapshot(state, {"sums": table})

    def restore(self, state: bytes, tables: Mapping[str, bytes]) -> None:
        self.next_offset, self.total, self.epoch = msgspec.msgpack.decode(state)
        rows = tables["sums"]
        self.sums = [int.from_bytes(rows[i : i + 8], "big") for i in range(0, len(rows), 8)]


class CounterCodec:
    def encode(self, record: Added) -> Frame:
        return Frame(FrameKind.RECORD, msgspec.msgpack.encode(record))

    def decode(self, frame: Frame) -> Added:
        return msgspec.msgpack.decode(frame.payload, type=Added)


class Quiet:
    """The Outbox port, owing nothing."""

    def __init__(self) -> None:
        self.wakes = 0
        self.stopped = False

    def wake(self) -> None:
        self.wakes += 1

    async def stop(self) -> None:
        self.stopped = True


class CounterRole:
    name = "coordinator"
    control_topic: TopicId | None = TopicId(b"c" * 16)

    def __init__(self) -> None:
        self.codec: Codec[Any] = CounterCodec()
        self.projected: list[tuple[int, int]] = []

    def machine(self, partition: PartitionId) -> CounterMachine:
        return CounterMachine()

    def projection(self, partition: PartitionId, slots: Callable[[str, int], Slots]) -> CounterRole:
        return self

    def project(self, record: Added, at: At) -> None:
        self.projected.append((at.offset, record.number))

    def settler(self) -> Settler | None:
        """No committed log."""
        return None

    def outbox(self, replica: Replica[CounterMachine], env: RoleEnv[CounterMachine]) -> Quiet:
        return Quiet()

    def checkpoint(self, machine: object) -> None:
        """Nothing to tell."""

    def services(self, env: RoleEnv[CounterMachine]) -> Mapping[str, object]:
        return {}

    def access(self, env: RoleEnv[CounterMachine]) -> Tables:
        return {}


class Silent:
    """The Reporter port."""

    def __init__(self) -> None:
        self.events: list[str] = []
        # By name and the labels' values.
        self.gauges: dict[tuple[str, ...], float] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Not looked at."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[(name, *labels.values())] = value

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        """Not looked at."""

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None:
        self.gauges = {key: held for key, held in self.gauges.items() if value not in key[1:]}

    def event(self, event: str, **fields: object) -> None:
        self.events.append(event)
