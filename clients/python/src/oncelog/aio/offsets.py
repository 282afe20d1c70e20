"""What a consumer asks of leaders and of its group's offset manager: where partitions begin and
end, what the group has committed, and the plain commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from oncelog._core import beyond
from oncelog._core.group_offsets import Edges, waiting
from oncelog._core.positions import Origin, Positions, Progress, start_of
from oncelog._core.routing import PartitionKey
from oncelog.aio.fetching import Prefetcher, why_gone
from oncelog.aio.visibility import Visibility
from oncelog.batch import TopicPartition
from oncelog.groups import ConsumerPosition, Rows
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.doubt import Doubt
from oncelogpb.ids import parse_id, show_id
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, partition_leader_pb2, types_pb2

# Plain commits that are repeated after a lost answer.
COMMIT_ATTEMPTS_MAX: Final = 3
# How long it may take to say of a transaction in flight whose it is, for an error, milliseconds.
EXPLAIN_MS: Final = 2_000


class HeldUp(Exception):
    """Partitions whose position was moved by a transaction that is not known to be visible, by
    partition: they begin when it is. The others have begun."""

    def __init__(self, movers: Mapping[PartitionKey, int]) -> None:
        super().__init__(movers)
        self.movers = movers


class NotBegun(Exception):
    """The group did not take note of where a member begins, or nobody knows."""

    def __init__(self, why: errors.OncelogError) -> None:
        super().__init__(why)
        self.why = why


class Offsets:
    """Of one consumer."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ConsumerOptions,
        positions: Positions,
        names: Mapping[PartitionKey, TopicPartition],
        prefetcher: Prefetcher,
        group: str | None,
        member_now: Callable[[], offset_manager_pb2.GroupMember | None],
    ) -> None:
        """`member_now`: as whom it begins; None: it stands alone."""
        self.group = group
        self._member_now = member_now
        self._protocol = protocol
        self._options = options
        self._positions = positions
        self._names = names
        self._prefetcher = prefetcher
        self.visibility = Visibility(protocol)
        self.isolation = isolation_of(options)
        committed = self.isolation == partition_leader_pb2.ISOLATION_COMMITTED
        self.view = types_pb2.VIEW_COMMITTED if committed else types_pb2.VIEW_JOURNAL

    def require_group(self) -> str:
        """Raises InvalidArgument."""
        if self.group is None:
            raise errors.InvalidArgument(
                "this consumer has no group: give one to log.consumer", field="group"
            )
        return self.group

    # ------------------------------------------------------------------------------------ reading

    async def start(self, partitions: list[PartitionKey], *, pending_ms: int | None = None) -> int:
        """Finds where these begin: the group's offset, else `start`. Returns how long the group is
        remembered (0: nobody said). `pending_ms`: as the option of that name, where None. Raises
        NotBegun: ask again; HeldUp: those not yet."""
        if self.group is None:
            for partition, offset in (await self._first(partitions)).items():
                self._positions.start(
                    partition, offset, Origin.ANY, is_at_first=self._begins_at_first(partition)
                )
            return 0
        reply = await self.fetch(partitions, stable=True, pending_ms=pending_ms)
        fresh = [
            PartitionKey.of(offset.partition)
            for offset in reply.offsets
            if not offset.HasField("offset")
        ]
        fallback = await self._first(fresh)
        begun = await self._begin(fallback)
        movers: dict[PartitionKey, int] = {}
        for known in reply.offsets:
            if not self.visibility.is_known(known.moved_by_tx_id):
                movers[PartitionKey.of(known.partition)] = known.moved_by_tx_id
                continue
            beside = known.metadata
            given_beyond, known.metadata = beyond.decode(beside)
            self._prefetcher.learn(known)
            position, since = start_of(known, fallback)
            partition = PartitionKey.of(known.partition)
            since = position if partition in begun else since
            is_at_first = since is Origin.NONE and self._begins_at_first(partition)
            self._positions.start(
                partition, position, since, given_beyond, beside, is_at_first=is_at_first
            )
        if movers:
            raise HeldUp(movers)
        return int(reply.group_retention_ms)

    async def _begin(self, places: Mapping[PartitionKey, int]) -> frozenset[PartitionKey]:
        """Has the group take note of where a member begins: where the end is now, which is nowhere
        to be found later. Who gets the partition next would begin behind what comes until then.
        Returns those that are committed now. Raises NotBegun."""
        member = self._member_now()
        if member is None or not places or self._options.start != "latest":
            return frozenset()
        message = offset_manager_pb2.GroupOffsets(group=self.require_group(), member=member)
        for partition, offset in sorted(places.items()):
            message.offsets.add(
                partition=partition.wire(), from_none=True, to_offset=offset, view=self.view
            )
        request = offset_manager_pb2.CommitOffsetsRequest(offsets=message)
        try:
            await self._protocol.call("offset_manager.commit_offsets", request)
        except (errors.GroupMoved, errors.UnknownOutcome) as error:
            raise NotBegun(error) from error
        return frozenset(places)

    async def fetch(
        self, partitions: Iterable[PartitionKey], *, stable: bool, pending_ms: int | None = None
    ) -> offset_manager_pb2.FetchOffsetsReply:
        """What the group has committed."""
        request = offset_manager_pb2.FetchOffsetsRequest(
            group=self.require_group(),
            partitions=[partition.wire() for partition in partitions],
            stable=stable,
            view=self.view,
        )
        if pending_ms is None:
            # Only a stable answer waits for transactions in flight.
            pending_ms = self._options.pending_timeout_ms if stable else 0
        timeout_ms = max(self._protocol.options.timeout_ms, pending_ms)
        reply: offset_manager_pb2.FetchOffsetsReply = await self._protocol.call(
            "offset_manager.fetch_offsets", request, timeout_ms, pending_ms=pending_ms
        )
        return reply

    async def committed(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int | None]:
        """What the group has committed now, whatever is pending; None: nothing."""
        reply = await self.fetch(partitions, stable=False)
        return {
            PartitionKey.of(known.partition): known.offset if known.HasField("offset") else None
            for known in reply.offsets
        }

    async def settled(self, partition: PartitionKey) -> int | None:
        """What it has committed, once no transaction in flight moves it. Raises
        PendingTransaction."""
        try:
            [known] = (await self.fetch([partition], stable=True)).offsets
        except errors.PendingTransaction as error:
            raise await self.explained(error) from None
        return known.offset if known.HasField("offset") else None

    async def look_up(self, partitions: list[PartitionKey], at: str) -> list[int]:
        """Where they begin (earliest) or end (latest) now."""
        return await self._look_up([(partition, at) for partition in partitions])

    async def _look_up(self, places: list[tuple[PartitionKey, str]]) -> list[int]:
        request = partition_leader_pb2.ListOffsetsRequest(isolation=self.isolation)
        for partition, at in places:
            query = request.queries.add(partition=partition.wire())
            if at == "latest":
                query.latest = True
            else:
                query.earliest = True
        reply = await self._protocol.call("partition_leader.list_offsets", request)
        for (partition, _), listed in zip(places, reply.offsets, strict=True):
            if listed.HasField("error"):
                error = errors.from_status(listed.error)
                if isinstance(error, errors.UnknownTopic):
                    raise await why_gone(self._protocol, self._names[partition])
                raise error
        return [listed.offset for listed in reply.offsets]

    async def lag(self) -> dict[TopicPartition, int]:
        """Of each partition that has begun: how many records were not given yet."""
        now = await self._positions_and_edges()
        return {self._names[key]: waiting(at, edges) for key, (at, edges) in now.items()}

    async def table(self) -> Rows[ConsumerPosition]:
        """The same as rows, with what the group has committed."""
        now = await self._positions_and_edges()
        committed = await self.committed(now) if now and self.group is not None else {}
        rows = [
            ConsumerPosition(
                *self._names[key], at, committed.get(key), edges.end, waiting(at, edges)
            )
            for key, (at, edges) in now.items()
            if key in self._names
        ]
        return Rows(ConsumerPosition, sorted(rows, key=lambda row: (row.topic, row.partition)))

    async def _positions_and_edges(self) -> dict[PartitionKey, tuple[int, Edges]]:
        """Of each partition that is read, and still is once its leader has answered."""
        keys = list(self._positions.assigned)
        asked = [(key, at) for key in keys for at in ("earliest", "latest")]
        found = await self._look_up(asked) if asked else []
        return {
            key: (position, Edges(start, end))
            for key, start, end in zip(keys, found[::2], found[1::2], strict=True)
            if key in self._names and (position := self._positions.position(key)) is not None
        }

    async def explained(self, error: errors.PendingTransaction) -> errors.PendingTransaction:
        """With the producer and the age of the transaction that holds the offsets, where its
        coordinator says so."""
        tx_id = error.metadata.get("tx_id", "")
        try:
            reply = await self._protocol.call(
                "coordinator.get_transaction",
                coordinator_pb2.GetTransactionRequest(tx_id=parse_id(tx_id)),
                EXPLAIN_MS,
            )
        except (errors.OncelogError, ValueError):
            return error
        told = type(error)(f"{error.message}; {self._described(reply.transaction)}")
        told.metadata = {**error.metadata}
        return told

    def _described(self, told: coordinator_pb2.TransactionDescription) -> str:
        whose = repr(told.name) if told.name else show_id(told.producer.producer_id)
        state = types_pb2.TransactionState.Name(told.state).removeprefix("TRANSACTION_STATE_")
        age_ms = max(0, self._protocol.wall_ns() // 1_000_000 - told.begin_time_ms)
        return (
            f"it is of producer {whose}, {state}, began {age_ms} ms ago, and is aborted after "
            f"{told.timeout_ms} ms without a sign of life"
        )

    async def _first(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Where `start` says; of partitions that came later, the first that is kept. Who has begun
        already begins there again, wherever the end is now."""
        found: dict[PartitionKey, int] = {}
        asked: dict[str, list[PartitionKey]] = {}
        for key in partitions:
            began = self._positions.began_at(key)
            if began is not None:
                found[key] = began
            else:
                at = "earliest" if self._begins_at_first(key) else "latest"
                asked.setdefault(at, []).append(key)
        for at, keys in asked.items():
            found.update(zip(keys, await self.look_up(keys, at), strict=True))
        return found

    def _begins_at_first(self, partition: PartitionKey) -> bool:
        """Where nothing is committed, it begins at the first record that is kept."""
        if self._positions.began_at(partition) is not None:
            return False
        return self._positions.is_added(partition) or self._options.start == "earliest"

    # ---------------------------------------------------------------------------------- committing

    def commits(
        self, progress: Iterable[Progress], producer_id: int
    ) -> list[offset_manager_pb2.OffsetCommit]:
        """The wire form. `producer_id` 0: of a plain commit."""
        steps = list(progress)
        offsets = self._positions.offsets(steps, producer_id=producer_id, view=self.view)
        self._prefetcher.annotate(offsets)
        for step, offset in zip(steps, offsets, strict=True):
            offset.metadata = beyond.encode(step.beyond, offset.metadata)
            self._positions.asks(step.partition, offset.metadata)
        return offsets

    async def commit(
        self, progress: list[Progress], member: offset_manager_pb2.GroupMember | None
    ) -> None:
        """Outside of a transaction. Where this raises GroupMoved or UnknownOutcome, the group must
        be asked where it stands."""
        request = self._plain(self.commits(progress, 0), member)
        doubt = Doubt("offset_manager.commit_offsets", request)
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            try:
                await self._protocol.call("offset_manager.commit_offsets", request)
                return
            except errors.OncelogError as error:
                doubt.as_reported(error)
                # A member sends the same again: the group knows what this member did. Where the
                # group stands says nothing: another one may have taken the same step.
                if member is None and doubt.lost and await self._stands(progress):
                    return
                if not error.may_have_applied or attempt + 1 == COMMIT_ATTEMPTS_MAX:
                    doubt.give_up(error)

    def _plain(
        self,
        commits: Iterable[offset_manager_pb2.OffsetCommit],
        member: offset_manager_pb2.GroupMember | None,
    ) -> offset_manager_pb2.CommitOffsetsRequest:
        message = offset_manager_pb2.GroupOffsets(
            group=self.require_group(), member=member, offsets=commits
        )
        return offset_manager_pb2.CommitOffsetsRequest(offsets=message)

    async def _stands(self, progress: Iterable[Progress]) -> bool:
        """Does the group have exactly this? After a commit whose answer was lost. False also where
        nobody says."""
        wanted = {item.partition: item.to for item in progress}
        try:
            reply = await self.fetch(wanted, stable=True)
        except errors.OncelogError:
            return False
        return all(
            offset.HasField("offset") and offset.offset == wanted[PartitionKey.of(offset.partition)]
            for offset in reply.offsets
        )

    async def give_sign(self) -> bool:
        """Commits one partition where the group has it; False where nobody heard it. Nothing is
        lost with a sign: its outcome is in no doubt that matters."""
        standing = self._positions.standing(self.view)
        for step in standing:
            request = self._plain([step], None)
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
        return not standing


def isolation_of(options: ConsumerOptions) -> partition_leader_pb2.Isolation.ValueType:
    if options.isolation == "committed":
        return partition_leader_pb2.ISOLATION_COMMITTED
    return partition_leader_pb2.ISOLATION_UNCOMMITTED
