"""Reads partitions, and keeps track of what is processed.

    consumer = await log.consumer(["payments"], group="enricher")
    async for batch in consumer:
        ...

What a batch held counts as processed when the next commit says so: a transaction that was given
the consumer, or `commit`. A consumer is a member of its group, which shares out partitions
(`subscribe`; `member` says how that works), or it stands alone and reads what it was given
(`assign`, or no group).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, overload

from oncelog._core.deletions import Deletions
from oncelog._core.open_transactions import OpenTransactions
from oncelog._core.positions import Positions, Progress
from oncelog._core.routing import PartitionKey
from oncelog.aio.across import TransactionsAcross, gathering
from oncelog.aio.assigned import Assigned
from oncelog.aio.auto_commit import AutoCommit
from oncelog.aio.feeding import Feeding, GroupMetadata
from oncelog.aio.group_commits import wait_for_commit
from oncelog.aio.member import Callbacks, Member, compiled_pattern, settings_of
from oncelog.aio.offsets import Offsets
from oncelog.aio.prefetchers import prefetcher_for
from oncelog.aio.sign_of_life import SignOfLife
from oncelog.aio.starting import Starting
from oncelog.aio.units import Transactions
from oncelog.batch import Batch, TopicPartition
from oncelog.errors import Closed
from oncelog.groups import ConsumerPosition, Rows
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors

log = logging.getLogger("oncelog.consumer")

# How long `async for` waits at a time; it goes on waiting until the consumer is closed.
IDLE_S: Final = 1.0


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
        callbacks: Callbacks | None = None,
    ) -> None:
        """`whole_topics`: those of which it reads every partition, also what comes later."""
        self.group = group
        self._protocol = protocol
        self._options = options
        self._callbacks = callbacks or Callbacks()
        self._assigned = Assigned(protocol, assigned, whole_topics)
        self._positions = Positions(assigned)
        # Set where `close` begins, and where it is done with its group: until then what was given
        # may be committed.
        self._closed = False
        self._has_left = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None
        committed = options.isolation == "committed"
        self._deletions = Deletions(
            options.if_deleted, noun="offsets" if committed else "journal offsets"
        )
        self._prefetcher = prefetcher_for(
            protocol, options, self._positions, self._assigned.names, self._deletions
        )
        self._offsets = Offsets(
            protocol,
            options,
            self._positions,
            self._assigned.names,
            self._prefetcher,
            group,
            lambda: self.feeding.member_now(),
        )
        self._sign_of_life = SignOfLife(options.sign_of_life_ms, self._offsets.give_sign)
        self._starting = Starting(
            self._offsets,
            self._positions,
            options.pending_timeout_ms,
            self._prefetcher.wake,
        )
        # None: it stands alone.
        self._member: Member | None = None
        every_ms = 0 if group is None else options.auto_commit_ms
        self.auto_commit = AutoCommit(every_ms, self._commit_processed, protocol.now_ms)
        self._open = OpenTransactions()
        # What transactions commit of it.
        self.feeding = Feeding(
            options,
            self._positions,
            self._assigned,
            self._prefetcher,
            self._offsets,
            self._open,
            start=self._start_unknown,
            begin_anew=self._starting.begin_anew,
            wake=self._prefetcher.wake,
            said_alive=self._said_alive,
            commits_by_itself=self.auto_commit.is_on,
        )
        # None: it gives batches.
        self._transactions: Transactions | TransactionsAcross | None = None

    # -------------------------------------------------------------------------------- subscribing

    async def subscribe(
        self, topics: Sequence[str] = (), *, pattern: str | re.Pattern[str] | None = None
    ) -> None:
        """Becomes a member of its group, which shares out the partitions of these topics, or of all
        whose whole name matches the pattern, among its members; or subscribes to others than
        before. What it is given is read from the next `poll` on. Raises InvalidArgument,
        Unavailable, CannotConnect, what the group refuses."""
        self._require_open()
        if isinstance(topics, str):
            raise errors.InvalidArgument("topics is a list of names", field="topics")
        if (pattern is None) != bool(topics):
            raise errors.InvalidArgument("subscribe to topics, or by a pattern", field="topics")
        compiled = None if pattern is None else compiled_pattern(pattern)
        if self._member is None:
            if self._positions.assigned:
                raise errors.InvalidArgument(
                    "this consumer reads what was assigned to it: use another one to subscribe",
                    field="topics",
                )
            self._member = self._make_member(self._offsets.require_group())
            self.feeding.member = self._member
            self._assigned.only_what_is_named()
        await self._member.subscribe(topics, compiled)
        if self._callbacks.on_assigned is None:
            # So that a lone member may ask where it stands at once.
            await self._take_first()

    async def assign(self, partitions: Sequence[TopicPartition | tuple[str, int]]) -> None:
        """Stands alone and reads these partitions, instead of those before. With a group, its
        offsets are continued and committed, as long as the group has no members. Raises
        InvalidArgument, UnknownTopic, UnknownPartition."""
        self._require_open()
        if self._member is not None:
            raise errors.InvalidArgument(
                "this consumer is a member of its group, which assigns partitions to it: use "
                "another one to choose them",
                field="partitions",
            )
        chosen: dict[PartitionKey, TopicPartition] = {}
        for place in partitions:
            name = TopicPartition(*place)
            topic = await self._protocol.topic(name.topic)
            if not 0 <= name.partition < len(topic.partitions):
                raise errors.UnknownPartition(
                    f"{name.topic!r} has no partition {name.partition}", topic=name.topic
                )
            chosen[PartitionKey(topic.topic_id, name.partition)] = name
        await self.auto_commit.over()
        dropped = [key for key in self._positions.assigned if key not in chosen]
        self.feeding.require_not_given(dropped, "assign others")
        self._assigned.only_what_is_named()
        self._positions.revoke(dropped)
        self._positions.assign(chosen)
        self._rename(chosen)

    # ------------------------------------------------------------------------------------ reading

    async def poll(self, timeout_s: float = 1.0) -> Batch | None:
        """The next records, at most `batch_records_max`; None where none came in time. Raises
        PendingTransaction (an open transaction holds the group's offsets), OffsetOutOfRange (what
        comes next was deleted, with if_deleted="error", or the partition ends before: seek),
        CorruptBatch, Internal and others that a leader met, Closed: each time, for as long as it is
        so; reading goes on once it is not. UnknownTopic: deleted, for ever, also where a topic of
        that name was made since (it is another one: open a new consumer); members of a group are
        not told, for theirs are taken back, and they are given those of the new one."""
        self._require_open()
        if self._transactions is not None:
            self._transactions.require_gathering()
        deadline_ms = self._protocol.now_ms() + timeout_s * 1000
        self._positions.poll_begins()
        self.auto_commit.polls()
        if self._member is not None:
            async with self._member.polling():
                return await self._poll_as_member(self._member, deadline_ms)
        await self.auto_commit.where_due(deadline_ms)
        self._positions.assign_added(self._assigned.take_added())
        await self._start_unknown()
        while not self._closed:
            self._prefetcher.follow_positions()
            wait_s = max(0.0, (deadline_ms - self._protocol.now_ms()) / 1000)
            if not await self._prefetcher.wait(wait_s) or self._closed:
                break
            # A commit that was refused meanwhile has it ask where it stands.
            self._prefetcher.follow_positions()
            if not self._prefetcher.is_ready:
                continue
            batch = self._give()
            if batch is not None or self._transactions is not None:
                return batch
        return None

    async def _poll_as_member(self, member: Member, deadline_ms: float) -> Batch | None:
        """What comes and goes meanwhile is taken in meanwhile; what is started does not hold back
        what is read already."""
        await self.auto_commit.where_due(deadline_ms)
        while not self._closed:
            await member.settle()
            if self.closed:
                # By a callback, or by another task.
                break
            # From here to the end of the turn nothing is awaited: what is given is our own.
            self._prefetcher.follow_positions()
            self._starting.go_on()
            wait_s = max(0.0, (deadline_ms - self._protocol.now_ms()) / 1000)
            if self._prefetcher.is_ready:
                batch = self._give_to_member()
                if batch is not None or self._transactions is not None:
                    return batch
                continue
            if not wait_s:
                break
            await self._prefetcher.wait(wait_s)
        return None

    def _give_to_member(self) -> Batch | None:
        """None, too: a topic was deleted. The group takes its partitions back with one of the next
        heartbeats."""
        try:
            return self._give()
        except errors.UnknownTopic as error:
            log.warning("%s; its partitions go back to the group", error)
            return None

    def _give(self) -> Batch | None:
        """None: what came next was deleted, or compacted away, and is passed over; or
        `_transactions` have it."""
        if self._transactions is not None:
            self._transactions.take()
            return None
        self._positions.require_plain()
        taken = self._prefetcher.take(self._options.batch_records_max)
        for partition, chunk in taken:
            self._positions.given(partition, chunk.next_offset)
        # What holds none told only that there is none up to there.
        chunks = [chunk for _, chunk in taken if chunk.count]
        if not chunks:
            return None
        self.feeding.gave()
        return Batch(chunks)

    @overload
    def transactions(self, *, across: Literal[False] = False) -> Transactions: ...
    @overload
    def transactions(self, *, across: Literal[True]) -> TransactionsAcross: ...
    def transactions(self, *, across: bool = False) -> Transactions | TransactionsAcross:
        """Whole transactions from here on, for `async for`, instead of batches: of each partition,
        or `across` all that it reads. What is gathered of them lies in memory up to
        `buffer_memory_bytes`, above that in `buffer_dir`. Safe to repeat: there is one. Raises
        InvalidArgument with isolation="uncommitted"."""
        self._transactions = gathering(
            self,
            self._options,
            self._prefetcher,
            self._positions,
            across=across,
            before=self._transactions,
            protocol=self._protocol,
            ends=self._offsets.look_up,
        )
        self.feeding.require_named = self._transactions.require_named
        return self._transactions

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
    def is_member(self) -> bool:
        """Of a group that shares out partitions."""
        return self._member is not None

    def place(self, partition: PartitionKey) -> TopicPartition:
        """The partition by the topic's name."""
        return self._assigned.names[partition]

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads."""
        return self._assigned.places

    async def position(self, topic: str, partition: int) -> int:
        """Offset of the next record that will be given."""
        self._require_usable()
        key = self._assigned.key(topic, partition)
        await self._start_unknown()
        position = self._positions.position(key)
        assert position is not None
        return position

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset (next to read); None where there is none. A transaction in
        flight that moves it is waited for. Raises PendingTransaction where that takes longer than
        `pending_timeout_ms`, InvalidArgument without a group."""
        self._require_usable()
        return await self._offsets.settled(self._assigned.key(topic, partition))

    async def end_offset(self, topic: str, partition: int) -> int:
        """One past the last record that can be read now."""
        self._require_usable()
        return (await self._offsets.look_up([self._assigned.key(topic, partition)], "latest"))[0]

    async def lag(self) -> dict[TopicPartition, int]:
        """Of each partition that it reads: how many offsets lie before its end, as it can be read
        now. So many records it has not given yet, or fewer where the topic is compacted."""
        self._require_usable()
        await self._start_unknown()
        return await self._offsets.lag()

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """How many offsets it passed over because they were deleted before it read them (with
        if_deleted="earliest" or "latest"), of those partitions where it did."""
        return self._deletions.counts(self._assigned.names)

    async def positions(self) -> Rows[ConsumerPosition]:
        """Where it stands in each partition that it reads, as a table. Does not wait for
        transactions in flight."""
        self._require_usable()
        await self._start_unknown()
        return await self._offsets.table()

    async def wait_for_commit(
        self, group: str, transaction: int | str | errors.OncelogError, *, timeout_s: float = 30.0
    ) -> None:
        """See `Admin.wait_for_commit`: of its own group, or of another one, whose output it reads
        say."""
        await wait_for_commit(self._protocol, group, transaction, timeout_s)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reads on at `offset`. The next commit is not checked against the group's offset. Across
        partitions (`transactions`), what was given behind an offset further on stays given. Raises
        InvalidArgument where an open transaction commits what was given before."""
        self._require_usable()
        if offset < 0:
            raise errors.InvalidArgument(f"offset is {offset}, below 0", field="offset")
        key = self._assigned.key(topic, partition)
        self.feeding.require_not_given([key], "seek")
        await self._seek([(key, offset)])

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Of these partitions, or of all."""
        await self._seek_all(partitions, "earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Of these partitions, or of all."""
        await self._seek_all(partitions, "latest")

    async def pause(self, *partitions: TopicPartition) -> None:
        """Gives nothing of these partitions (or of all) until `resume`."""
        self._require_usable()
        for key in self._assigned.chosen(partitions):
            self._positions.pause(key)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Takes back `pause`."""
        self._require_usable()
        for key in self._assigned.chosen(partitions):
            self._positions.resume(key)

    # ---------------------------------------------------------------------------------- committing

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Commits, outside of a transaction, what was given so far; or up to these offsets, of each
        the next one to read (`batch.next_offsets`, say). Raises StalePosition where
        another consumer of the group committed meanwhile (of those that stand alone, who commits
        just what another one did is told that it is done: it may be a repeat), UnknownMember,
        IllegalGeneration and FencedInstance where it is no member any more, UnknownOutcome where an
        answer was lost and the group does not stand where this commit puts it (positions are asked
        of the group again after all of these), PendingTransaction, InvalidArgument without a group,
        while a transaction is open that commits the same, and where an offset is of a partition
        that it does not read (any more)."""
        self._require_usable()
        self._offsets.require_group()
        await self.auto_commit.over()
        if offsets is None:
            progress = self._positions.progress()
        else:
            self.feeding.require_named()
            await self._start_unknown()
            named = {self._to_commit(*place): to for place, to in offsets.items()}
            progress = self._positions.progress_to(named)
        await self._commit(progress)

    async def _commit_processed(self) -> None:
        """By itself."""
        await self._commit(self._positions.progress(without_last=self.auto_commit.spares_last))

    async def _commit(self, progress: list[Progress]) -> None:
        """Raises as `commit`."""
        if not progress:
            return
        self.feeding.require_not_taken([step.partition for step in progress], "commit it")
        member = None
        if self._member is not None:
            self._member.require()
            member = self._member.core.wire()
        try:
            await self._offsets.commit(progress, member)
        except (errors.GroupMoved, errors.UnknownOutcome) as error:
            told = error if member is None else self.feeding.told(member, error)
            if member is not None:
                self.feeding.refused_as(member, error)
            self.feeding.forget()
            if told is error:
                raise
            raise told from error
        self._positions.committed(progress, None)
        self._said_alive()

    def _to_commit(self, topic: str, partition: int) -> PartitionKey:
        """Raises InvalidArgument where it is another one's, or nobody's."""
        key = self._assigned.keys.get(TopicPartition(topic, partition))
        if key is not None:
            return key
        why = "it was not assigned to it, or is not any more; only what it reads is committed"
        if self._member is not None:
            why = (
                "its group never gave it to this member, or has taken it back since; whoever has "
                "it now commits its offsets, and reads again what was not committed"
            )
        raise errors.InvalidArgument(
            f"offsets names {topic!r} partition {partition}, which this consumer does not read: "
            f"{why}. Leave that partition out: the others are not committed yet",
            field="offsets",
        )

    def group_metadata(self) -> GroupMetadata:
        """For `Transaction.send_offsets`; take it before the records are read. Raises
        InvalidArgument without a group; UnknownMember, IllegalGeneration, FencedInstance where it
        is no member any more: the next `poll` goes on."""
        self._require_usable()
        return self.feeding.metadata()

    async def close(self) -> None:
        """Ends reading; what was not committed will be read again. A member leaves its group, and
        its partitions go to others at once; a static one (`instance_id`) keeps them for its
        successor. With `auto_commit_ms` all that was given is committed; where another task or
        thread polled last, only what was given before that poll. Safe to repeat. Raises what
        `on_revoked` does, or a last automatic commit."""
        was_closed, self._closed = self._closed, True
        if not was_closed:
            self.auto_commit.closes()
        self._prefetcher.wake()
        try:
            if self._member is not None and not was_closed:
                await self._leave(self._member)
            elif not was_closed:
                await self.auto_commit.at_last()
                await self.feeding.flights_over()
        finally:
            # Where this is the end of a close within a callback, the outer one is not done.
            self._has_left |= not was_closed
            await self._starting.stop()
            await self._prefetcher.stop()
            await self._sign_of_life.stop()
            await self._prefetcher.close()
            await self.auto_commit.end()
            if self._transactions is not None:
                await self._transactions.close()
            self.on_closed()

    def commit_no_more(self) -> None:
        """Not by itself: what was given last was not processed, for its step has failed."""
        self.auto_commit.stop()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self.commit_no_more()
        await self.close()

    # ------------------------------------------------------------------------------------- inside

    def _make_member(self, group: str) -> Member:
        return Member(
            self._protocol,
            settings_of(group, self._options),
            self._positions,
            self._open,
            self._callbacks,
            wake=self._prefetcher.wake,
            before_letting_go=self.auto_commit.at_last,
            flights_over=self.feeding.flights_over,
            changed=self._follow_member,
        )

    def _follow_member(self) -> None:
        """The group has given or taken partitions."""
        assert self._member is not None, "it is one"
        self._starting.begin_anew()
        self._rename({key: self._member.place(key) for key in self._positions.assigned})

    def _rename(self, names: Mapping[PartitionKey, TopicPartition]) -> None:
        """These are the partitions now."""
        self._prefetcher.follow_positions()
        self._assigned.replace(names)

    async def _take_first(self) -> None:
        """What the first answer gave, without a poll."""
        assert self._member is not None, "it has joined"
        async with self._member.polling():
            await self._member.settle()

    async def _leave(self, member: Member) -> None:
        """The last commits, then the farewell, which is said in any case."""
        try:
            member.core.look(self._protocol.now_ms())
            if member.core.held:
                await member.give_up(self._positions.assigned)
        finally:
            await member.leave()

    def _said_alive(self) -> None:
        """A group with members lives by their heartbeats."""
        if self._member is None:
            self._sign_of_life.given()

    async def _start_unknown(self) -> None:
        """Finds where partitions begin."""
        retention_ms = await self._starting.all_started()
        if retention_ms is not None and self._member is None and self.group is not None:
            self._sign_of_life.begin(retention_ms)

    async def _seek_all(self, partitions: Iterable[TopicPartition], at: str) -> None:
        self._require_usable()
        chosen = self._assigned.chosen(partitions)
        self.feeding.require_not_given(chosen, "seek")
        offsets = await self._offsets.look_up(chosen, at)
        await self._seek(zip(chosen, offsets, strict=True))

    async def _seek(self, places: Iterable[tuple[PartitionKey, int]]) -> None:
        await self.auto_commit.over()
        across = isinstance(self._transactions, TransactionsAcross)
        if across:
            # What was given beyond a position, by others too, is the group's to say.
            await self._start_unknown()
        for partition, offset in places:
            if across:
                self._positions.seek_across(partition, offset)
            else:
                self._positions.seek(partition, offset)
        self._starting.begin_anew()

    def _require_usable(self) -> None:
        """In the last callbacks of `close` it is."""
        if self._has_left:
            raise Closed("this consumer is closed: open another one")

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this consumer is closed: open another one")
