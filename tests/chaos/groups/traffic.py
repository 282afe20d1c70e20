"""What goes into the input topic, and what comes out of the output topic.

Numbers go in, in order, by turns into all partitions, at a steady pace: so a partition always has
something to do, and each of its records that is late shows that nobody looks after it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict

import oncelog
from benchmarks.standstill import Arrival

# So often the next ones are sent.
FEED_EVERY_S = 0.1
# Between the number and the name of who copied it.
BY = b" by "
CALL_MS = 120_000


class Thread(ABC):
    """Works beside the rest; what it raises is raised by `check`."""

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)
        self._thread.start()

    @abstractmethod
    def _work(self) -> None: ...

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:
            self._failure = failure

    def check(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"{type(self).__name__} failed") from self._failure

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


class Feeder(Thread):
    """So many records in so many seconds."""

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int, records: int, seconds: float
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._records = records
        self._seconds = seconds
        self.fed = 0
        super().__init__()

    def _work(self) -> None:
        begun = time.monotonic()
        with (
            oncelog.connect(self._bootstrap, timeout_ms=CALL_MS) as log,
            log.producer() as producer,
        ):
            while self.fed < self._records and not self._ends.wait(FEED_EVERY_S):
                part = min(1.0, (time.monotonic() - begun) / self._seconds)
                for number in range(self.fed, int(self._records * part)):
                    key = b"key-%d" % (number % 100)
                    partition = number % self._partitions
                    producer.send(self._topic, b"%d" % number, key=key, partition=partition)
                    self.fed = number + 1
            producer.flush()


class Watcher(Thread):
    """Reads what was committed, and writes down when, and who did it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)
        self.numbers: dict[int, list[int]] = defaultdict(list)
        self.seen = 0
        super().__init__()

    def _work(self) -> None:
        with (
            oncelog.connect(self._bootstrap, timeout_ms=CALL_MS) as log,
            log.consumer([self._topic]) as consumer,
        ):
            while not self._ends.is_set():
                batch = consumer.poll(0.2)
                now = time.monotonic()
                for record in batch or ():
                    number, _, by = (record.value or b"").partition(BY)
                    arrival = Arrival(now, by.decode())
                    if self.arrivals[record.partition][-1:] != [arrival]:
                        self.arrivals[record.partition].append(arrival)
                    self.numbers[record.partition].append(int(number))
                    self.seen += 1
