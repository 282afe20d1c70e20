"""A consumer that writes what it asks and is told into a history (`recorder`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncelog._core.deletions import Gap
from oncelog.aio import Consumer
from oncelog.batch import Batch, TopicPartition
from oncelog.checker.events import HistoryWriter
from oncelog.checker.telling import placed, raised, telling
from oncelog.errors import OffsetOutOfRange


class RecordedConsumer:
    """A consumer. Before each poll it is asked where it stands, so that a jump is in the history
    with its place in time."""

    def __init__(
        self, inner: Consumer, history: HistoryWriter, isolation: str, made_us: int
    ) -> None:
        """`made_us`: from when on it may have learned where it stands."""
        self.inner = inner
        self.name = history.fresh("consumer")
        self._history = history
        self._isolation = isolation
        self._expected: dict[TopicPartition, int] = {}
        # What the next commit starts from: it changes with a commit, and where the group was asked.
        self._since: Mapping[TopicPartition, object] = {}
        # When something was committed last: a poll gives records behind it.
        self._committed_us = 0
        # When its positions were looked at last, and when its last poll was over.
        self._looked_us = self._polled_us = made_us
        # When it passed over something last: the poll that does so gives records behind it.
        self._passed_us = 0
        inner._deletions.on_passed_over = self._note_passed

    @property
    def group(self) -> str | None:
        return self.inner.group

    async def poll(self, timeout_s: float = 1.0) -> Batch | None:
        await self._look_where_it_stands()
        at_us = self._history.now_us()
        try:
            batch = await self.inner.poll(timeout_s)
        except BaseException as error:
            raised(self._history, self._invoke_read(at_us), error, **starts_of(error))
            raise
        finally:
            self._polled_us = self._history.now_us()
        records: dict[TopicPartition, list[list[Any]]] = {}
        for record in batch or ():
            value = "" if record.value is None else record.value.decode()
            place = TopicPartition(record.topic, record.partition)
            records.setdefault(place, []).append([record.offset, value])
        at_us = max(at_us, self._passed_us)
        if self.group is not None:
            # What came within the poll begins where the group stands, or the checker says so; or
            # one in flight was refused within it.
            at_us = max(at_us, self._committed_us)
            self._note_positions(at_us, self._begun({p: rows[0][0] for p, rows in records.items()}))
        # Behind all that its poll did first: where it began, what it passed over.
        op = self._invoke_read(at_us)
        self._history.ok(
            op,
            **self._in_whose_name(),
            parts=[{**placed(place), "records": rows} for place, rows in records.items()],
        )
        for place, next_offset in (batch.next_offsets() if batch is not None else {}).items():
            self._expected[place] = next_offset
        return batch

    async def position(self, topic: str, partition: int) -> int:
        return await self.inner.position(topic, partition)

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset, once nothing is pending."""
        op = self._history.invoke("fetch_offsets", group=self.group, stable=True)
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
        self._committed_us = self._history.now_us()
        since = self.inner.feeding.commit_starts()
        commits = []
        for item in self.inner.feeding.progress():
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
        begun: dict[TopicPartition, int] = {}
        if self.inner.is_member:
            # It learns that beside its polls, and may have lost it since: only a poll finds out.
            # Where it began within the last poll, no commit was of that; it went back behind it.
            begun_us, self._looked_us = self._looked_us, at_us
            at_us = max(self._polled_us, self._committed_us)
            offsets = self.inner.feeding.standing()
            self._expected = {place: at for place, at in self._expected.items() if place in offsets}
            begun = {place: at for place, at in offsets.items() if place not in self._expected}
            self._note_positions(begun_us, begun)
        else:
            offsets = {place: await self.inner.position(*place) for place in self.inner.assignment}
        since = {} if self.group is None else self.inner.feeding.commit_starts()
        moved = {
            place: offset
            for place, offset in offsets.items()
            if place not in begun and self._has_jumped(place, offset, since)
        }
        self._since = since
        self._note_positions(at_us, moved)

    def _begun(self, firsts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Of the first records of a poll, those where it began within it, or asked the group."""
        since = self.inner.feeding.commit_starts() if self.group is not None else {}
        begun = {
            place: first for place, first in firsts.items() if self._has_jumped(place, first, since)
        }
        self._since = {**self._since, **{place: since.get(place) for place in firsts}}
        return begun

    def _has_jumped(
        self, place: TopicPartition, offset: int, since: Mapping[TopicPartition, object]
    ) -> bool:
        """It is not where it was left; or it asked the group, for the next commit starts elsewhere.
        Where a commit in flight has moved that, it did not ask: it may go back yet."""
        if self._expected.get(place) != offset:
            return True
        return self._since.get(place) != since.get(place) and not self._is_ahead(place)

    def _is_ahead(self, place: TopicPartition) -> bool:
        key = self.inner._assigned.keys.get(place)
        return key is not None and self.inner._positions.is_ahead(key)

    def _note_passed(self, place: TopicPartition, gap: Gap, to: int, if_deleted: str) -> None:
        """Within a poll: what comes next is deleted, and it goes on there."""
        self._passed_us = self._history.now_us()
        self._expected[place] = to
        if self.group is not None:
            # Where the group stands, which it may have asked within this poll, is before that.
            since = self.inner.feeding.commit_starts()
            self._since = {**self._since, place: since.get(place)}
        where = {
            **placed(place),
            "offset": to,
            "since": gap.position,
            "start": gap.start,
            "if_deleted": if_deleted,
        }
        self._tell_positions(self._passed_us, [where])

    def _in_whose_name(self) -> dict[str, Any]:
        """It was given what it was given."""
        member = self.inner.feeding.member_now()
        if member is None:
            return {}
        return {"group": self.group, "member": member.member_id, "generation": member.generation}

    def _invoke_read(self, at_us: int) -> str:
        return self._history.invoke(
            "read", at_us=at_us, consumer=self.name, isolation=self._isolation
        )

    def _note_positions(self, at_us: int, moved: Mapping[TopicPartition, int]) -> None:
        self._expected |= moved
        if moved:
            self._tell_positions(at_us, [{**placed(p), "offset": at} for p, at in moved.items()])

    def _tell_positions(self, at_us: int, positions: Sequence[Mapping[str, Any]]) -> None:
        op = self._history.invoke(
            "position",
            at_us=at_us,
            consumer=self.name,
            group=self.group,
            isolation=self._isolation,
        )
        self._history.ok(op, positions=positions)


def starts_of(error: BaseException) -> dict[str, Any]:
    """Where a partition begins, as an error says whose position was deleted."""
    told = error.metadata if isinstance(error, OffsetOutOfRange) else {}
    if not {"topic", "partition", "start"} <= told.keys():
        return {}
    place = {"topic": told["topic"], "partition": int(told["partition"])}
    return {"starts": [{**place, "start": int(told["start"])}]}
