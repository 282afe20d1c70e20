"""What one round of a workload is given, and what it gives back.

A workload makes ready what it needs, and then does its work within the meter, for as long as that
goes on:

    with task.meter as meter:
        while meter.goes_on():
            ...                         # some hundred records, or one transaction
    return Result(operations=..., seconds=meter.seconds)

What is made ready before and cleared away after is in none of the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.observer import Look, Usage, own_usage

RECORDS_PER_S: Final = "records_per_s"
TX_PER_S: Final = "tx_per_s"


@dataclass(frozen=True, slots=True)
class Shape:
    """What varies within one kind of workload."""

    value_bytes: int = 100
    partitions: int = 1
    # Different keys; 0: records have none.
    keys: int = 0
    # Of one transaction; 0: what comes within `every_ms`.
    records: int = 0
    every_ms: int = 0
    producers: int = 1
    processes: int = 1
    # Transactions of one producer that are on their way at a time.
    in_flight: int = 1
    # Written out before the commit: Oncelog's slow way, and the only one that Kafka has.
    flushed: bool = False
    # A transaction is open in the partition all the time.
    beside_open: bool = False
    # By Arrow tables instead of record objects.
    arrow: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """By one side in one measured part of a round."""

    client: Usage
    # Role -> usage, of the servers.
    servers: Mapping[str, Usage]
    # Busy seconds of the machine that were not this side's, and all that there were.
    foreign_s: float
    capacity_s: float

    @property
    def total(self) -> Usage:
        total = self.client
        for usage in self.servers.values():
            total = total.plus(usage)
        return total


@dataclass(frozen=True, slots=True)
class Result:
    """What was done in so many seconds: records, transactions (`unit` says which) or rounds."""

    operations: int
    seconds: float
    value_bytes: int = 0
    unit: str = RECORDS_PER_S
    # Seconds of each single one, where they count.
    latencies_s: tuple[float, ...] = ()
    # What worker processes used while it was measured; they know it themselves.
    workers: Usage = Usage()  # noqa: RUF009 (it cannot change)


@dataclass(slots=True)
class Meter:
    """The measured part of a round; entered once."""

    seconds_wanted: float
    # What the servers used so far; None where nobody asks.
    look: Callable[[], Look] | None = None
    cores: int = 1
    root: str = ""
    seconds: float = 0.0
    began: float = 0.0
    used: Used | None = None
    _until: float = 0.0
    _before: Look | None = None
    _own_before: Usage = field(default_factory=Usage)

    def goes_on(self) -> bool:
        return time.perf_counter() < self._until

    def left_s(self) -> float:
        return max(self._until - time.perf_counter(), 0.0)

    def __enter__(self) -> Meter:
        assert not self.began, "a meter measures once"
        if self.look is not None:
            self._before = self.look()
        self._own_before = own_usage()
        self.began = time.perf_counter()
        self._until = self.began + self.seconds_wanted
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self.began
        client = own_usage().since(self._own_before)
        if self.look is None or self._before is None:
            return
        look = self.look().since(self._before)
        servers = look.roots.get(self.root, {})
        ours = client.cpu_s + sum(usage.cpu_s for usage in servers.values())
        self.used = Used(
            client=client,
            servers=servers,
            foreign_s=max(look.machine_s - ours, 0.0),
            capacity_s=self.cores * self.seconds,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """One round: where, in which shape, for how long."""

    # A fresh one, with as many partitions as the shape says.
    topic: str
    shape: Shape
    meter: Meter

    @property
    def value(self) -> bytes:
        return b"v" * self.shape.value_bytes

    @property
    def seconds(self) -> float:
        return self.meter.seconds_wanted


def credited(used: Used, workers: Usage) -> Used:
    """With what worker processes say that they used, which was taken for others' until now."""
    return Used(
        client=used.client.plus(workers),
        servers=used.servers,
        foreign_s=max(used.foreign_s - workers.cpu_s, 0.0),
        capacity_s=used.capacity_s,
    )
