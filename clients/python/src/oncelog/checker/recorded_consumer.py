"""A consumer that writes what it asks and is told into a history (`recorder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncelog.aio import Consumer
from oncelog.batch import Batch, TopicPartition
from oncelog.checker.events import HistoryWriter
from oncelog.checker.telling import placed, telling


class RecordedConsumer:
    """A consumer. Before each poll it is asked where it stands, so that a jump is in the history
    with its place in time."""

    def __init__(self, inner: Consumer, history: HistoryWriter, isolation: str) -> None:
        self.inner = inner
        self.name = history.fresh("consumer")
        self._history = history
        self._isolation = isolation
        self._expected: dict[TopicPartition, int] = {}
        # What the next commit starts from: it changes with a commit, and where the group was asked.
        self._since: Mapping[TopicPartition, object] = {}

    @property
    def group(self) -> str | None:
        return self.inner.group

    async def poll(self, timeout_s: float = 1.0) -> Batch | None:
        await self._look_where_it_stands()
        op = self._history.invoke("read", consumer=self.name, isolation=self._isolation)
        with telling(self._history, op):
            batch = await self.inner.poll(timeout_s)
        records: dict[TopicPartition, list[list[Any]]] = {}
        for record in batch or ():
            value = "" if record.value is None else record.value.decode()
            place = TopicPartition(record.topic, record.partition)
            records.setdefault(place, []).append([record.offset, value])
        self._history.ok(
            op, parts=[{**placed(place), "records": rows} for place, rows in records.items()]
        )
        for place, next_offset in (batch.next_offsets() if batch is not None else {}).items():
            self._expected[place] = next_offset
        return batch

    async def position(self, topic: str, partition: int) -> int:
        return await self.inner.position(topic, partition)

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset, whatever is pending."""
        op = self._history.invoke("fetch_offsets", group=self.group, stable=False)
        with telling(self._history, op):
            offset = await self.inner.committed(topic, partition)
        self._history.ok(op, offsets=[{"topic": topic, "partition": partition, "offset": offset}])
        return offset

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        op = self._history.invoke(
            "seek", consumer=self.name, topic=topic, partition=partition, offset=offset
        )
        await self.inner.seek(topic, partition, offset)
        self._history.ok(op)
        self._expected[TopicPartition(topic, partition)] = offset

    async def commit(self) -> None:
        offsets = self.offsets_to_commit()
        if not offsets:
            return
        op = self._history.invoke("commit_offsets", group=self.group, offsets=offsets)
        with telling(self._history, op):
            await self.inner.commit()
        self._history.ok(op)

    async def close(self) -> None:
        await self.inner.close()

    # ------------------------------------------------------------------ what transactions use

    def offsets_to_commit(self) -> list[dict[str, Any]]:
        """What a commit now says: by partition, from where to where."""
        if self.group is None:
            return []
        since = self.inner.group_metadata().since
        commits = []
        for item in self.inner.progress():
            place = self.inner.place(item.partition)
            start = since[place]
            commits.append(
                {
                    "group": self.group,
                    "consumer": self.name,
                    **placed(place),
                    "from": start if isinstance(start, int) else start.value,
                    "base": item.base,
                    "to": item.to,
                }
            )
        return commits

    async def _look_where_it_stands(self) -> None:
        """A `position` where it is not where it was left (it went back), or where the next commit
        starts elsewhere than the last one ended (it asked the group)."""
        at_us = self._history.now_us()
        moved: list[dict[str, Any]] = []
        offsets = {place: await self.inner.position(*place) for place in self.inner.assignment}
        since = {} if self.group is None else self.inner.group_metadata().since
        for place, offset in offsets.items():
            if self._expected.get(place) != offset or self._since.get(place) != since.get(place):
                self._expected[place] = offset
                moved.append({**placed(place), "offset": offset})
        self._since = since
        if moved:
            op = self._history.invoke(
                "position",
                at_us=at_us,
                consumer=self.name,
                group=self.group,
                isolation=self._isolation,
            )
            self._history.ok(op, positions=moved)
