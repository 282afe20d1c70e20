"""What goes into the job's input, and when its output comes."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from typing import Final

import oncelog
from oncelogpb.errors import OncelogError
from tests.chaos.groups.traffic import CALL_MS, FEED_EVERY_S, Thread
from tests.spark.chaos.job import DONE, SOURCE, TARGET

PARTITIONS: Final = 4
# A key is of one partition, in and out: KEYS is a multiple of PARTITIONS.
KEYS: Final = 100
# Longer than any fault: what the input goes through is not what the run is about.
FEED_MS: Final = 600_000


class Feeder(Thread):
    """0, 1, 2, ... at a steady pace, until it is told to end; each is sent again until it is there,
    so that what services go through is not the input's to lose."""

    def __init__(self, bootstrap: str, *, pace: float) -> None:
        self._bootstrap = bootstrap
        self._pace = pace
        # Numbers below it were sent, and stand in the log once `acknowledged` has come to them.
        self.fed = 0
        self.acknowledged = 0
        # When so many had been sent.
        self._marks: list[tuple[float, int]] = []
        super().__init__()

    def fed_at(self, at_s: float) -> int:
        """Numbers from there on were sent later."""
        after = bisect_right(self._marks, at_s, key=lambda mark: mark[0])
        return self._marks[after][1] if after < len(self._marks) else self.fed

    def _work(self) -> None:
        begun = time.monotonic()
        with (
            oncelog.connect(self._bootstrap, timeout_ms=FEED_MS) as log,
            log.producer() as producer,
        ):
            while not self._ends.wait(FEED_EVERY_S):
                due = int((time.monotonic() - begun) * self._pace)
                for number in range(self.fed, due):
                    producer.send(
                        SOURCE,
                        b"%d" % number,
                        key=b"key-%d" % (number % KEYS),
                        partition=number % PARTITIONS,
                    )
                    self.fed = number + 1
                self._marks.append((time.monotonic(), self.fed))
                producer.flush()
                self.acknowledged = self.fed


class Watcher(Thread):
    """Reads what the job has committed, and remembers when it first saw a number."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.seen: set[int] = set()
        self.newest = -1
        # Numbers that came again: the run ends with them.
        self.twice: list[int] = []
        # When the newest number became another one.
        self._marks: list[tuple[float, int]] = []
        super().__init__()

    def first_from(self, number: int) -> float | None:
        """When the first one came that is not below."""
        after = bisect_left(self._marks, number, key=lambda mark: mark[1])
        return self._marks[after][0] if after < len(self._marks) else None

    def _work(self) -> None:
        with (
            oncelog.connect(self._bootstrap, timeout_ms=CALL_MS) as log,
            log.consumer([TARGET], start="earliest") as consumer,
        ):
            while not self._ends.is_set():
                try:
                    batch = consumer.poll(0.2)
                except OncelogError as error:
                    if not error.retriable:
                        raise
                    continue
                for record in batch or ():
                    number = int((record.value or b"").removesuffix(DONE))
                    if number in self.seen:
                        self.twice.append(number)
                    self.seen.add(number)
                    self.newest = max(self.newest, number)
                if batch:
                    self._marks.append((time.monotonic(), self.newest))
