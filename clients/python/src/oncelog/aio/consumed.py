"""What a transaction has consumed: positions that commit with its records, and who is told what
became of them (I21).

They come from the consumer that the transaction was made for (all that it gave since its last
commit), and from other consumers, by `send_offsets`. A one-shot carries the offsets of one group;
an open transaction makes each group's pending at the offset manager, before its commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from oncelog._core.open_transactions import this_moment
from oncelog._core.positions import After, Ahead, Origin, Progress
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import ProducerCore
from oncelog.batch import TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2

if TYPE_CHECKING:
    from oncelog.aio.feeding import Feeding, GroupMetadata
    from oncelog.aio.line import Flight, Line


class Consumed:
    """Of one transaction. `feeding`: of the consumer that it was made for; None: there is none."""

    def __init__(self, protocol: AsyncProtocol, feeding: Feeding | None) -> None:
        self._protocol = protocol
        self._feeding = feeding
        # Offsets of other consumers (send_offsets), by group, and whom to tell what became of them.
        self._offsets: dict[str, offset_manager_pb2.GroupOffsets] = {}
        self._senders: dict[Feeding, dict[TopicPartition, offset_manager_pb2.OffsetCommit]] = {}
        # Of the records of other consumers it is told at its end, what it was made of since then.
        self._began = this_moment()
        # As which member the transaction's own consumer commits: who it was when it was last asked
        # for its progress. Within a commit the heartbeats go on, and may begin another life.
        self._commits_as: offset_manager_pb2.GroupMember | None = None
        # As which one it was last said to commit.
        self._sent_as: offset_manager_pb2.GroupMember | None = None
        # What its commit has moved, while that is on its way as one of several.
        self._flight: tuple[Flight, Ahead] | None = None

    def begins(self) -> None:
        """From now on its own consumer keeps what it has given until the transaction has ended.
        Raises InvalidArgument where another one takes that."""
        self._began = this_moment()
        if self._feeding is not None:
            self._feeding.feeds(self, self._began)

    def progress(self) -> Sequence[Progress]:
        """Of the transaction's own consumer, as a commit now covers it. Raises as `require`."""
        self.require()
        if self._feeding is None:
            return []
        self._commits_as = self._feeding.member_now()
        return self._feeding.progress(self)

    def require(self) -> None:
        """Raises GroupMoved where a part of what it has consumed is another member's by now."""
        for feeding in (self._feeding, *self._senders):
            if feeding is not None:
                feeding.require(self)

    def groups(self, progress: Sequence[Progress]) -> set[str]:
        """Those whose offsets commit with it."""
        groups = set(self._offsets)
        if progress and self._feeding is not None and self._feeding.group is not None:
            groups.add(self._feeding.group)
        return groups

    async def add(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        group: GroupMetadata,
        producer_id: int,
    ) -> None:
        """See `Transaction.send_offsets`. Raises as `require`. Once this has raised, it does not
        commit all that it should."""
        if group.feeding is not None:
            group.feeding.require_named()
            group.feeding.require_its_own_commits()
            sent = self._senders.setdefault(group.feeding, {})
            group.feeding.feeds(self, self._began, sent)
        self.require()
        message = self._offsets.setdefault(
            group.group, offset_manager_pb2.GroupOffsets(group=group.group)
        )
        if group.member is not None:
            _commit_as(group.member, message)
        named = {TopicPartition(*place): to for place, to in offsets.items()}
        for place, to in sorted(named.items()):
            topic = await self._protocol.topic(place.topic)
            partition = PartitionKey(topic.topic_id, place.partition).wire()
            before = next((item for item in message.offsets if item.partition == partition), None)
            if before is not None:
                before.to_offset = to
                if group.feeding is not None:
                    self._senders[group.feeding][place] = before
                continue
            since, chain = group.since.get(place), group.after.get(place)
            beside = group.beside.get(place)
            if since is None:
                asked = group.feeding
                since, beside = (Origin.ANY, None) if asked is None else await asked.since(place)
            commit = message.offsets.add(partition=partition, to_offset=to, view=group.view)
            if group.feeding is not None:
                self._senders[group.feeding][place] = commit
            if since is Origin.NONE:
                commit.from_none = True
            elif since is Origin.ANY:
                commit.from_any = True
            else:
                commit.from_offset = since
                if beside is not None:
                    commit.from_metadata = beside
                if chain is not None and chain.producer_id == producer_id:
                    commit.after_tx_id = chain.tx_id
                elif chain is not None and group.feeding is not None:
                    await group.feeding.wait_for(chain.tx_id, [PartitionKey.of(partition)])

        if group.feeding is not None:
            group.feeding.annotate(message.offsets)

    async def follow_others(self, progress: Sequence[Progress], producer_id: int) -> None:
        """See `Feeding.follow_others`. Nothing is awaited where there are no others."""
        if self._feeding is not None:
            await self._feeding.follow_others(progress, producer_id)

    def messages(
        self, progress: Sequence[Progress], producer_id: int
    ) -> dict[str, offset_manager_pb2.GroupOffsets]:
        """All that commits with it, by group. Raises as `require`: since `progress` a coordinator
        was waited for, and whoever was lost meanwhile may be back under another id."""
        self.require()
        offsets = dict(self._offsets)
        if progress and self._feeding is not None and self._feeding.group is not None:
            group = self._feeding.group
            message = offset_manager_pb2.GroupOffsets(group=group)
            if group in offsets:
                message.CopyFrom(offsets[group])
            if self._commits_as is not None:
                _commit_as(self._commits_as, message)
            self._sent_as = self._commits_as
            message.offsets.extend(self._feeding.offset_commits(progress, producer_id))
            offsets[group] = message
        return offsets

    async def make_pending(
        self,
        offsets: Mapping[str, offset_manager_pb2.GroupOffsets],
        identity: ProducerCore,
        *,
        tx_id: int,
        timeout_ms: int,
        participants: set[PartitionKey],
    ) -> None:
        """What `messages` gave, under this TxId, until its marker. Adds the partitions of
        `__consumer_offsets` that took them as they answer, so that an abort half way through knows
        them."""
        for message in offsets.values():
            reply = await self._protocol.call(
                "offset_manager.commit_transaction_offsets",
                offset_manager_pb2.CommitTransactionOffsetsRequest(
                    tx_id=tx_id,
                    producer=identity.wire(),
                    offsets=message,
                    timeout_ms=timeout_ms or identity.default_timeout_ms,
                ),
            )
            participants.add(PartitionKey.of(reply.participant))

    # -------------------------------------------------------------- one of several on their way

    @property
    def may_go_ahead(self) -> bool:
        """All that it commits, its own consumer knows of."""
        return not self._offsets

    def require_line(self, line: Line) -> None:
        """Raises InvalidArgument where its consumer feeds another producer's in flight."""
        for feeding in (self._feeding, *self._senders):
            if feeding is not None:
                feeding.require_line(line)

    def go_ahead(self, flight: Flight, line: Line, progress: Sequence[Progress]) -> None:
        """It was sent: its consumer goes on before it is decided."""
        if self._feeding is not None:
            self._flight = flight, self._feeding.sent_in(self, flight, line, progress)

    def arrived(self, after: After | None) -> None:
        """It is decided: committed."""
        if self._feeding is not None and self._flight is not None:
            self._feeding.arrived(*self._flight, after)
        self.ended()

    def taken_back(self, cause: errors.OncelogError) -> None:
        """It was refused: its consumer goes back to where it began. The last one first."""
        if self._feeding is not None and self._flight is not None:
            self._feeding.take_back(*self._flight, cause)
        self.aborted(cause)

    def lost(self, cause: errors.OncelogError) -> None:
        """Nobody could say."""
        if self._feeding is not None and self._flight is not None:
            self._feeding.take_back(*self._flight, cause)
        self.unknown()

    # ------------------------------------------------------------------------- what became of it

    def committed(self, progress: Sequence[Progress], after: After | None) -> None:
        """The consumers go on from here. `after`: the transaction, where it may not be visible
        yet."""
        if self._feeding is not None:
            self._feeding.committed_in(progress, after)
        for feeding, offsets in self._senders.items():
            feeding.committed_for(offsets, after)
        self.ended()

    def aborted(self, cause: BaseException | None) -> None:
        """Its own consumer goes back to where it began."""
        self.ended()
        if self._feeding is not None:
            if self._sent_as is not None and isinstance(cause, errors.GroupMoved):
                self._feeding.refused_as(self._sent_as, cause)
            self._feeding.rewind(cause)

    def unknown(self) -> None:
        """Only their groups know where to go on."""
        self.ended()
        for feeding in (self._feeding, *self._senders):
            if feeding is not None:
                feeding.forget()

    def told(self, error: errors.OncelogError) -> errors.OncelogError:
        """What the user is told of an error of the commit."""
        if self._feeding is None or self._sent_as is None:
            return error
        return self._feeding.told(self._sent_as, error)

    def group_moved(self) -> None:
        """Somebody else commits for a group: those who sent offsets ask where it stands. Its own
        consumer does so when it is rewound."""
        for feeding in self._senders:
            feeding.forget()

    def ended(self) -> None:
        """Its consumers may let go of what they gave. Safe to repeat."""
        for feeding in (self._feeding, *self._senders):
            if feeding is not None:
                feeding.fed(self)


def _commit_as(
    member: offset_manager_pb2.GroupMember, message: offset_manager_pb2.GroupOffsets
) -> None:
    """All that is in the message, too: so only in the name of the same member. An earlier life's
    input may have been given to another one, or again to this one."""
    if message.HasField("member") and message.member.member_id != member.member_id:
        raise errors.UnknownMember(
            f"this transaction has offsets of another member of group {message.group!r}: of "
            "another consumer, or of this one before it was lost to the group and joined again. A "
            "transaction commits for one member: abort it, and what was not committed is read again"
        )
    message.member.CopyFrom(member)
