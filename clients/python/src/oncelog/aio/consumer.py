"""Reads assigned partitions, and keeps track of what is processed.

    consumer = await log.consumer(["payments"], group="enricher")
    async for batch in consumer:
        ...

What a batch held counts as processed when the next commit says so: a transaction that was given the
consumer, or `commit`. A group remembers offsets; membership (partitions shared among consumers)
comes in a later version: until then a consumer reads all partitions, or those that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from oncelog._core.positions import After, Origin, Positions, Progress, start_of
from oncelog._core.routing import PartitionKey
from oncelog.aio.fetching import Prefetcher, why_gone
from oncelog.aio.sign_of_life import SignOfLife
from oncelog.batch import Batch, TopicPartition
from oncelog.errors import Closed
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.doubt import Doubt
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2, types_pb2

# How long `async for` waits at a time; it goes on waiting until the consumer is closed.
IDLE_S: Final = 1.0
# Plain commits that are repeated after a lost answer.
COMMIT_ATTEMPTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's standing in its group, for `Transaction.send_offsets`."""

    group: str
    # Where the next commit must start, by partition: what the group has committed, as far as this
    # consumer knew. What is not here is asked of `consumer`; without one it is not checked.
    since: Mapping[TopicPartition, int | Origin] = field(default_factory=dict)
    view: types_pb2.View.ValueType = types_pb2.VIEW_COMMITTED
    # Decided commits on which the next one may chain, by partition.
    after: Mapping[TopicPartition, After] = field(default_factory=dict)
    # Whose metadata they are: told what becomes of the offsets.
    consumer: Consumer | None = field(default=None, repr=False, compare=False)


class Consumer:
    """Made by `Log.consumer`. Used by one task (or thread) at a time."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ConsumerOptions,
        assigned: Mapping[PartitionKey, TopicPartition],
        group: str | None,
        *,
        whole_topics: Sequence[str] = (),
    ) -> None:
        """`whole_topics`: those of which it reads every partition, also what comes later."""
        self.group = group
        # By name, as they were when the partitions were taken.
        self._whole_topics: dict[str, partition_leader_pb2.TopicDescription | None] = dict.fromkeys(
            whole_topics
        )
        self._protocol = protocol
        self._options = options
        self._names = dict(assigned)
        self._keys = {name: key for key, name in assigned.items()}
        self._positions = Positions(assigned)
        self._closed = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None
        committed = options.isolation == "committed"
        self._view = types_pb2.VIEW_COMMITTED if committed else types_pb2.VIEW_JOURNAL
        self._isolation: partition_leader_pb2.Isolation.ValueType = (
            partition_leader_pb2.ISOLATION_COMMITTED
            if committed
            else partition_leader_pb2.ISOLATION_UNCOMMITTED
        )
        self._sign_of_life = SignOfLife(options.sign_of_life_ms, self._live)
        self._prefetcher = Prefetcher(
            protocol,
            self._positions,
            self._names,
            isolation=self._isolation,
            bytes_max=options.prefetch_bytes_max,
        )

    # ------------------------------------------------------------------------------------ reading

    async def poll(self, timeout_s: float = 1.0) -> Batch | None:
        """The next records, at most `batch_records_max`; None where none came in time. Raises
        PendingTransaction (an open transaction holds the group's offsets), OffsetOutOfRange (seek),
        CorruptBatch, Internal and others that a leader met, Closed: each time, for as long as it is
        so; reading goes on once it is not. UnknownTopic: deleted, for ever, also where a topic of
        that name was made since (it is another one: open a new consumer)."""
        self._require_open()
        deadline_ms = self._protocol.now_ms() + timeout_s * 1000
        self._take_added()
        await self._start_unknown()
        await self._prefetcher.follow_positions()
        wait_s = max(0.0, (deadline_ms - self._protocol.now_ms()) / 1000)
        if not await self._prefetcher.wait(wait_s) or self._closed:
            return None
        taken = self._prefetcher.take(self._options.batch_records_max)
        for partition, chunk in taken:
            self._positions.given(partition, chunk.next_offset)
        return Batch([chunk for _, chunk in taken]) if taken else None

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Batch:
        """Waits as long as it takes; ends when the consumer is closed."""
        while not self._closed:
            batch = await self.poll(IDLE_S)
            if batch is not None:
                return batch
        raise StopAsyncIteration

    # ---------------------------------------------------------------------------------- positions

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads."""
        return sorted(self._keys)

    async def position(self, topic: str, partition: int) -> int:
        """Offset of the next record that will be given."""
        key = self._key(topic, partition)
        await self._start_unknown()
        position = self._positions.position(key)
        assert position is not None
        return position

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset (next to read); None where there is none. Does not wait for
        transactions in flight. Raises InvalidArgument without a group."""
        reply = await self._fetch_offsets([self._key(topic, partition)], stable=False)
        offset = reply.offsets[0]
        return offset.offset if offset.HasField("offset") else None

    async def end_offset(self, topic: str, partition: int) -> int:
        """One past the last record that can be read now."""
        return (await self._list_offsets([self._key(topic, partition)], "latest"))[0]

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reads on at `offset`. The next commit is not checked against the group's offset."""
        if offset < 0:
            raise errors.InvalidArgument(f"offset is {offset}, below 0", field="offset")
        self._positions.seek(self._key(topic, partition), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Of these partitions, or of all."""
        await self._seek_all(partitions, "earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Of these partitions, or of all."""
        await self._seek_all(partitions, "latest")

    async def pause(self, *partitions: TopicPartition) -> None:
        """Gives nothing of these partitions (or of all) until `resume`."""
        for key in self._chosen(partitions):
            self._positions.pause(key)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Takes back `pause`."""
        for key in self._chosen(partitions):
            self._positions.resume(key)

    # ---------------------------------------------------------------------------------- committing

    async def commit(self) -> None:
        """Commits, outside of a transaction, what was given so far. Raises StalePosition where
        another consumer of the group committed meanwhile, UnknownOutcome where an answer was lost
        and the group does not stand where this commit puts it (positions are asked of the group
        again after both), PendingTransaction, InvalidArgument without a group."""
        group = self._require_group()
        progress = self._positions.progress()
        if not progress:
            return
        offsets = self._positions.offsets(progress, producer_id=0, view=self._view)
        request = offset_manager_pb2.CommitOffsetsRequest(
            offsets=offset_manager_pb2.GroupOffsets(group=group, offsets=offsets)
        )
        doubt = Doubt("offset_manager.commit_offsets", request)
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            try:
                await self._protocol.call("offset_manager.commit_offsets", request)
                break
            except errors.OncelogError as error:
                told = doubt.as_reported(error)
                if doubt.lost and await self._stands(progress):
                    break
                if not error.may_have_applied or attempt + 1 == COMMIT_ATTEMPTS_MAX:
                    if isinstance(told, errors.GroupMoved | errors.UnknownOutcome):
                        self.forget()
                    doubt.give_up(error)
        self._positions.committed(progress, None)
        self._sign_of_life.given()

    def group_metadata(self) -> GroupMetadata:
        """For `Transaction.send_offsets`; take it before the records are read. Raises
        InvalidArgument without a group."""
        since: dict[TopicPartition, int | Origin] = {}
        after: dict[TopicPartition, After] = {}
        for key, name in self._names.items():
            start, chain = self._positions.since(key), self._positions.after(key)
            if start is not None:
                since[name] = start
            if chain is not None:
                after[name] = chain
        return GroupMetadata(self._require_group(), since, self._view, after, self)

    async def close(self) -> None:
        """Ends reading; what was not committed will be read again. Safe to repeat."""
        self._closed = True
        self._prefetcher.wake()
        await self._prefetcher.stop()
        await self._sign_of_life.stop()
        self.on_closed()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ what transactions use

    def progress(self) -> list[Progress]:
        """What a commit now would cover."""
        return self._positions.progress()

    def place(self, partition: PartitionKey) -> TopicPartition:
        """The partition by the topic's name."""
        return self._names[partition]

    def offset_commits(
        self, progress: Iterable[Progress], producer_id: int
    ) -> list[offset_manager_pb2.OffsetCommit]:
        return self._positions.offsets(progress, producer_id=producer_id, view=self._view)

    def committed_in(self, progress: Iterable[Progress], after: After | None) -> None:
        """A transaction with this progress is decided."""
        self._positions.committed(progress, after)
        self._sign_of_life.given()

    async def since(self, place: TopicPartition) -> int | Origin:
        """What the group has committed, asked of it where that is not known."""
        await self._start_unknown()
        since = self._positions.since(self._key(*place))
        assert since is not None, "it was started"
        return since

    def committed_for(self, offsets: Mapping[TopicPartition, int], after: After | None) -> None:
        """A transaction with these offsets, which named them itself, is decided."""
        for place, to in offsets.items():
            self._positions.sent(self._keys[place], to, after)
        self._sign_of_life.given()

    def rewind(self, cause: BaseException | None = None) -> None:
        """To where the open transaction began; where the group moved on, to what it committed."""
        if isinstance(cause, errors.GroupMoved):
            self.forget()
        else:
            self._positions.rewind()

    def forget(self) -> None:
        """The group is asked again before the next record is given."""
        self._positions.forget()

    # ------------------------------------------------------------------------------------- inside

    def _take_added(self) -> None:
        """Partitions that were added to its topics, as far as this client has heard of them."""
        if not self._whole_topics:
            return
        self._protocol.look_again()
        for name, seen in self._whole_topics.items():
            topic = self._protocol.directory.topic(name)
            if topic is None or topic is seen:
                continue
            self._whole_topics[name] = topic
            # Another topic of that name is not this one.
            if PartitionKey(topic.topic_id, 0) not in self._names:
                continue
            for partition in topic.partitions:
                key = PartitionKey(topic.topic_id, partition.number)
                if key not in self._names:
                    place = TopicPartition(name, partition.number)
                    self._names[key] = place
                    self._keys[place] = key
                    self._positions.assign([key])

    async def _start_unknown(self) -> None:
        """Finds where partitions begin: the group's offset, else `start`."""
        unknown = self._positions.unknown()
        if not unknown:
            return
        if self.group is None:
            offsets = await self._first_offsets(unknown)
            for partition, offset in zip(unknown, offsets, strict=True):
                self._positions.start(partition, offset, Origin.ANY)
            return
        reply = await self._fetch_offsets(unknown, stable=True)
        fresh = [
            PartitionKey.of(offset.partition)
            for offset in reply.offsets
            if not offset.HasField("offset")
        ]
        listed = await self._first_offsets(fresh) if fresh else []
        fallback = dict(zip(fresh, listed, strict=True))
        for known in reply.offsets:
            position, since = start_of(known, fallback)
            self._positions.start(PartitionKey.of(known.partition), position, since)
        self._sign_of_life.begin(reply.group_retention_ms)

    async def _live(self) -> bool:
        """Commits one partition where the group has it; False where nobody heard it. Nothing is
        lost with a sign: its outcome is in no doubt that matters."""
        assert self.group is not None, "who has no group is not asked for a sign"
        for standing in self._positions.standing():
            offsets = self._positions.offsets([standing], producer_id=0, view=self._view)
            message = offset_manager_pb2.GroupOffsets(group=self.group, offsets=offsets)
            request = offset_manager_pb2.CommitOffsetsRequest(offsets=message)
            try:
                await self._protocol.call("offset_manager.commit_offsets", request, pending_ms=0)
            except (errors.StalePosition, errors.PendingTransaction):
                # Another one has committed here, or is about to: the group lives.
                return True
            except errors.TryAgain:
                return False
            except errors.OncelogError:
                # The topic may be gone, or is not ours to commit any more: another partition.
                continue
            return True
        return not self._positions.standing()

    async def _first_offsets(self, partitions: list[PartitionKey]) -> list[int]:
        """Where `start` says; of partitions that came later, the first that is kept."""
        starts = await self._list_offsets(partitions, self._options.start)
        added = [key for key in partitions if self._positions.is_added(key)]
        if added and self._options.start != "earliest":
            firsts = dict(zip(added, await self._list_offsets(added, "earliest"), strict=True))
            starts = [firsts.get(k, start) for k, start in zip(partitions, starts, strict=True)]
        return starts

    async def _fetch_offsets(
        self, partitions: Iterable[PartitionKey], *, stable: bool
    ) -> offset_manager_pb2.FetchOffsetsReply:
        request = offset_manager_pb2.FetchOffsetsRequest(
            group=self._require_group(),
            partitions=[partition.wire() for partition in partitions],
            stable=stable,
            view=self._view,
        )
        # Only a stable answer waits for transactions in flight.
        pending_ms = self._options.pending_timeout_ms if stable else 0
        timeout_ms = max(self._protocol.options.timeout_ms, pending_ms)
        reply: offset_manager_pb2.FetchOffsetsReply = await self._protocol.call(
            "offset_manager.fetch_offsets", request, timeout_ms, pending_ms=pending_ms
        )
        return reply

    async def _list_offsets(self, partitions: list[PartitionKey], at: str) -> list[int]:
        request = partition_leader_pb2.ListOffsetsRequest(isolation=self._isolation)
        for partition in partitions:
            query = request.queries.add(partition=partition.wire())
            if at == "latest":
                query.latest = True
            else:
                query.earliest = True
        reply = await self._protocol.call("partition_leader.list_offsets", request)
        for partition, listed in zip(partitions, reply.offsets, strict=True):
            if listed.HasField("error"):
                error = errors.from_status(listed.error)
                if isinstance(error, errors.UnknownTopic):
                    raise await why_gone(self._protocol, self._names[partition])
                raise error
        return [listed.offset for listed in reply.offsets]

    async def _stands(self, progress: Iterable[Progress]) -> bool:
        """Does the group have exactly this? After a commit whose answer was lost. False also where
        nobody says."""
        wanted = {item.partition: item.to for item in progress}
        try:
            reply = await self._fetch_offsets(wanted, stable=True)
        except errors.OncelogError:
            return False
        return all(
            offset.HasField("offset") and offset.offset == wanted[PartitionKey.of(offset.partition)]
            for offset in reply.offsets
        )

    async def _seek_all(self, partitions: Iterable[TopicPartition], at: str) -> None:
        chosen = self._chosen(partitions)
        offsets = await self._list_offsets(chosen, at)
        for partition, offset in zip(chosen, offsets, strict=True):
            self._positions.seek(partition, offset)

    def _chosen(self, partitions: Iterable[TopicPartition]) -> list[PartitionKey]:
        chosen = [self._key(*place) for place in partitions]
        return chosen or [self._keys[name] for name in self.assignment]

    def _key(self, topic: str, partition: int) -> PartitionKey:
        key = self._keys.get(TopicPartition(topic, partition))
        if key is None:
            raise errors.InvalidArgument(
                f"{topic!r} partition {partition} is not assigned to this consumer",
                field="partition",
            )
        return key

    def _require_group(self) -> str:
        if self.group is None:
            raise errors.InvalidArgument(
                "this consumer has no group: give one to log.consumer", field="group"
            )
        return self.group

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this consumer is closed")
