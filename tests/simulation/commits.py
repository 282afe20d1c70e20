"""All that ever became readable in some topics' partitions, record by record, taken from the index
and the journal of their leaders at the very moment at which it became so: later, what is superseded
is gone everywhere.

    follow(topic)     from here on
    look_at(process)  a high watermark moved there
    of(partition)     what became readable so far (`cleaned.Committed`)
    start(partition)  what is below is deleted

What was committed once stays so (I5): nothing is ever taken back here. A story that elects a leader
who lacks something says from which offset on its records are others (`forget`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from oncelog_server.core.ids import PartitionId, TopicId
from tests.simulation.cleaned import Commit, Committed
from tests.simulation.rows import Row, rows_of

if TYPE_CHECKING:
    from oncelog_server.runtime.replica.driver import Driver
    from tests.simulation.world import World


class Commits:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Names by id.
        self._topics: dict[TopicId, str] = {}
        self._of: dict[PartitionId, list[Commit]] = defaultdict(list)
        self._starts: dict[PartitionId, int] = {}

    def follows(self, topic_id: TopicId) -> bool:
        return topic_id in self._topics

    def follow(self, topic_id: TopicId, name: str) -> None:
        self._topics[topic_id] = name

    def partition(self, name: str, number: int) -> PartitionId:
        [topic_id] = [known for known, called in self._topics.items() if called == name]
        return PartitionId(topic_id, number)

    @property
    def partitions(self) -> list[PartitionId]:
        """Of which something was committed."""
        return sorted(self._of)

    def name(self, partition: PartitionId) -> str:
        return self._topics[partition.topic_id]

    def of(self, partition: PartitionId) -> Committed:
        return self._of[partition]

    def start(self, partition: PartitionId) -> int:
        return self._starts.get(partition, 0)

    def forget(self, partition: PartitionId, *, end: int) -> None:
        """An unclean election took back what stood from there on, and what was deleted since."""
        del self._of[partition][end:]
        self._starts.pop(partition, None)

    def look(self) -> None:
        """At all leaders."""
        for name in self._world.processes:
            if self._world.is_up(name):
                self.look_at(name)

    def look_at(self, name: str) -> None:
        """At those of one process, in the step in which a high watermark moved there."""
        if self._topics:
            for driver in self._world.processes[name].node.led_replicas():
                self._look_at(driver)

    def _look_at(self, driver: Driver) -> None:
        partition = driver.partition
        if partition.topic_id not in self._topics or not driver.is_open:
            return
        log, known = driver.machine.committed, self._of[partition]
        start, end = (
            log.readable_start(driver.high_watermark),
            log.readable_end(driver.high_watermark),
        )
        self._starts[partition] = max(start, self.start(partition))
        at_ms = self._world.loop.now_s * 1000
        while len(known) < end:
            offset = len(known)
            for row in self._rows_at(driver, offset)[: end - offset]:
                known.append(Commit(row, at_ms))

    @staticmethod
    def _rows_at(driver: Driver, offset: int) -> list[Row]:
        """From there to the end of the frame that has it."""
        log = driver.machine.committed
        entry = log.entry_of(offset)
        position = log.journal[entry] + offset - log.first_offset(entry)
        stored = next(iter(driver.journal.replay(position)))
        assert stored.at.offset <= position < stored.end, f"{offset} is in no frame"
        rows = rows_of(stored.frame.encoding, stored.frame.payload)
        return rows[position - stored.at.offset :]
