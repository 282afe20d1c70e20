"""What a consumer gives to transactions: the positions that one of them commits, in whose name, and
what becomes of them when it has ended (I21, I23).

A transaction that was made for a consumer commits all that it gave since its last commit; one that
was sent offsets (`GroupMetadata`) commits those. `consumed` is the transaction's side of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from oncelog._core.open_transactions import OpenTransactions
from oncelog._core.positions import After, Ahead, Origin, Positions, Progress
from oncelog._core.routing import PartitionKey
from oncelog.aio.assigned import Assigned
from oncelog.aio.fetching import Prefetcher
from oncelog.aio.line import Flight, Line, until_decided
from oncelog.aio.member import Member
from oncelog.aio.offsets import Offsets
from oncelog.batch import TopicPartition
from oncelog.options import ConsumerOptions
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's standing in its group, for `Transaction.send_offsets`."""

    group: str
    # Where the next commit must start, by partition: what the group has committed, as far as this
    # consumer knew. What is not here is asked of `feeding`; without it it is not checked.
    since: Mapping[TopicPartition, int | Origin] = field(default_factory=dict)
    view: types_pb2.View.ValueType = types_pb2.VIEW_COMMITTED
    # Decided commits on which the next one may chain, by partition.
    after: Mapping[TopicPartition, After] = field(default_factory=dict)
    # Of the consumer whose metadata they are: told what becomes of the offsets.
    feeding: Feeding | None = field(default=None, repr=False, compare=False)
    # Who commits, of a group that shares out partitions: fenced by the group (KIP-447). None: a
    # consumer that stands alone.
    member: offset_manager_pb2.GroupMember | None = None
    # A transaction of a member must not live longer than its session, milliseconds.
    session_timeout_ms: int = 0
    # What must stand beside what is in `since`, by partition, where that is known.
    beside: Mapping[TopicPartition, str] = field(default_factory=dict)


class Feeding:
    """Of one consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        positions: Positions,
        assigned: Assigned,
        prefetcher: Prefetcher,
        offsets: Offsets,
        transactions: OpenTransactions,
        *,
        start: Callable[[], Awaitable[None]],
        begin_anew: Callable[[], None],
        wake: Callable[[], None],
        said_alive: Callable[[], None],
        commits_by_itself: bool,
    ) -> None:
        """`start`: finds where partitions begin; `begin_anew`: what was asked of that is worthless.
        `wake`: one has ended, on which something may wait. `said_alive`: its group has heard of
        it."""
        # None: it has none.
        self.group = offsets.group
        # `auto_commit_ms` is set.
        self.commits_by_itself = commits_by_itself
        # None: it stands alone.
        self.member: Member | None = None
        # Raises InvalidArgument where offsets that a user names are not all that was given.
        self.require_named: Callable[[], None] = _are_all
        self._options = options
        self._positions = positions
        self._assigned = assigned
        self._prefetcher = prefetcher
        self._offsets = offsets
        self._start = start
        self._open = transactions
        self._begin_anew = begin_anew
        self._wake = wake
        self._said_alive = said_alive
        # Commits of what it gave that are on their way, and of which line.
        self._flights: list[Flight] = []
        self._line: Line | None = None
        # Why it was sent back by one of them since it last gave something: what was given last is
        # given again.
        self._sent_back: errors.OncelogError | None = None

    # ----------------------------------------------------------------------------- where it stands

    def standing(self) -> dict[TopicPartition, int]:
        """Offset of the next record, of each partition of which that is known."""
        known = {place: self._positions.position(key) for place, key in self._assigned.keys.items()}
        return {place: offset for place, offset in sorted(known.items()) if offset is not None}

    def commit_starts(self) -> dict[TopicPartition, int | Origin]:
        """Where the next commit must start, of each partition of which that is known."""
        starts = {name: self._positions.since(key) for key, name in self._assigned.names.items()}
        return {name: start for name, start in starts.items() if start is not None}

    async def since(self, place: TopicPartition) -> tuple[int | Origin, str | None]:
        """What the group has committed, and what stands beside it, asked of it where that is not
        known."""
        await self._start()
        key = self._assigned.key(*place)
        since = self._positions.since(key)
        assert since is not None, "it was started"
        return since, self._positions.beside(key)

    def metadata(self) -> GroupMetadata:
        """See `Consumer.group_metadata`."""
        chains = {name: self._positions.after(key) for key, name in self._assigned.names.items()}
        after = {name: chain for name, chain in chains.items() if chain is not None}
        since, group = self.commit_starts(), self._offsets.require_group()
        self.require()
        return GroupMetadata(
            group,
            since,
            self._offsets.view,
            after,
            self,
            self.member_now(),
            self.session_timeout_ms,
            {
                name: beside
                for key, name in self._assigned.names.items()
                if (beside := self._positions.beside(key)) is not None
            },
        )

    # ------------------------------------------------------------------------- while one is open

    def feeds(
        self, transaction: object, began: int, named: Container[TopicPartition] | None = None
    ) -> None:
        """What it gives is committed with this transaction, until `fed`: see
        `OpenTransactions.begin`. Raises why it was sent back since it gave what this one is of."""
        # A thread begins it, and the loop sends the consumer back: either the transaction is open
        # by then and is spoiled, or this finds why.
        self._open.begin(transaction, began, named)
        if self._sent_back is not None:
            raise self._sent_back

    def fed(self, transaction: object) -> None:
        """That one has ended."""
        self._open.end(transaction)
        self._wake()

    def require_its_own_commits(self) -> None:
        """Raises InvalidArgument where it commits by itself, what a transaction has read, too."""
        if self.commits_by_itself:
            raise errors.InvalidArgument(
                "this consumer commits by itself (auto_commit_ms), also what a transaction that "
                "aborts has read: give one that does not",
                field="consumer",
            )

    def require_not_taken(self, partitions: Iterable[PartitionKey], what: str) -> None:
        """Raises InvalidArgument where an open transaction commits what was given of these."""
        for partition in partitions:
            self._open.require_not_taken(self._assigned.names[partition], what)

    def require_not_given(self, partitions: Iterable[PartitionKey], what: str) -> None:
        """The same, where something of them was given that is not committed."""
        given = {item.partition for item in self._positions.progress()}
        self.require_not_taken([key for key in partitions if key in given], what)

    @property
    def session_timeout_ms(self) -> int:
        """A transaction with its positions must not live longer; 0: it stands alone."""
        return 0 if self.member is None else self._options.session_timeout_ms

    def progress(self, transaction: object = None) -> list[Progress]:
        """What a commit now would cover. Raises UnknownMember, IllegalGeneration, FencedInstance
        where a part of it is another one's now."""
        self.require(transaction)
        return self._positions.progress()

    def require(self, transaction: object = None) -> None:
        """Raises as `progress`, and what has spoiled that transaction."""
        if self.member is not None:
            self.member.require()
        self._open.require(transaction)

    async def follow_others(self, progress: Iterable[Progress], producer_id: int) -> None:
        """Where a transaction of another producer moved these positions last: returns once that is
        visible, for nothing orders the two. Raises PendingTransaction."""
        moved: dict[int, list[PartitionKey]] = {}
        for item in progress:
            after = self._positions.after(item.partition)
            if after is not None and after.producer_id != producer_id:
                moved.setdefault(after.tx_id, []).append(item.partition)
        for tx_id, partitions in moved.items():
            await self.wait_for(tx_id, partitions)

    async def wait_for(self, tx_id: int, partitions: Collection[PartitionKey]) -> None:
        """Until that one, which moved these positions, is visible. Raises PendingTransaction."""
        within_ms = self._options.pending_timeout_ms
        await self._offsets.visibility.wait(tx_id, partitions, within_ms)

    def member_now(self) -> offset_manager_pb2.GroupMember | None:
        """In whose name it commits."""
        return None if self.member is None else self.member.core.wire()

    def offset_commits(
        self, progress: Iterable[Progress], producer_id: int
    ) -> list[offset_manager_pb2.OffsetCommit]:
        """The wire form."""
        return self._offsets.commits(progress, producer_id)

    def annotate(self, offsets: Iterable[offset_manager_pb2.OffsetCommit]) -> None:
        """Adds what stands beside offsets of its partitions in a commit."""
        self._prefetcher.annotate(offsets)

    # -------------------------------------------------------------------------- what became of it

    def told(
        self, member: offset_manager_pb2.GroupMember, error: errors.OncelogError
    ) -> errors.OncelogError:
        """What the user is told of how a commit in the name of that member ended."""
        return error if self.member is None else self.member.told(member, error)

    def refused_as(
        self, member: offset_manager_pb2.GroupMember, error: errors.OncelogError
    ) -> None:
        """A commit in the name of that member was refused."""
        if self.member is not None:
            self.member.refused_as(member, error)

    def committed_in(self, progress: Iterable[Progress], after: After | None) -> None:
        """A transaction with this progress is decided."""
        self._positions.committed(progress, after)
        self._said_alive()

    def committed_for(
        self,
        offsets: Mapping[TopicPartition, offset_manager_pb2.OffsetCommit],
        after: After | None,
    ) -> None:
        """A transaction with these offsets, which named them itself, is decided."""
        for place, commit in offsets.items():
            key = self._assigned.keys.get(place)
            if key is not None:
                self._positions.sent(key, commit.to_offset, after, commit.metadata)
        self._said_alive()

    # -------------------------------------------------------------- several commits on their way

    def require_line(self, line: Line) -> None:
        """Raises InvalidArgument where commits of another producer are on their way: nothing orders
        the two."""
        if self._flights and self._line is not line:
            raise errors.InvalidArgument(
                "transactions of another producer are in flight that commit what this consumer has "
                "given: flush that one first",
                field="consumer",
            )

    def sent_in(
        self, transaction: object, flight: Flight, line: Line, progress: Iterable[Progress]
    ) -> Ahead:
        """A commit of this progress is on its way: the next one begins behind it."""
        self._open.sent(transaction)
        self._flights.append(flight)
        self._line = line
        return self._positions.go_ahead(progress)

    def arrived(self, flight: Flight, ahead: Ahead, after: After | None) -> None:
        """It is decided: committed."""
        self._flights.remove(flight)
        self._positions.arrived(ahead, after)
        self._said_alive()

    def take_back(self, flight: Flight, ahead: Ahead, cause: errors.OncelogError) -> None:
        """It was refused, or nobody knows: `rewind`, or `forget`, follows. The last one first."""
        self._flights.remove(flight)
        self._positions.take_back(ahead)
        self._sent_back = cause

    def gave(self) -> None:
        """What is given now is of where it stands now."""
        self._sent_back = None

    async def flights_over(self) -> None:
        """Until what was sent of it is decided, for a session at most: before its partitions go to
        others."""
        await until_decided(list(self._flights), self._options.session_timeout_ms)

    def rewind(self, cause: BaseException | None = None) -> None:
        """To where the open transaction began; where the group moved on, to what it committed."""
        if isinstance(cause, errors.GroupMoved):
            self.forget()
        else:
            self._drop()
            self._positions.rewind()

    def forget(self) -> None:
        """The group is asked again before the next record is given."""
        self._drop()
        self._positions.forget()
        self._begin_anew()

    def _drop(self) -> None:
        """What was given and not committed is given again."""
        self._open.drop(
            errors.InvalidArgument(
                "what this transaction has processed is given again: its consumer was sent back "
                "by another transaction, or asked its group anew; abort it",
                field="consumer",
            )
        )


def _are_all() -> None:
    """Who gives batches has given what is below its positions."""
