"""Topics, transactions and groups, as operators and tools see them.

Answers are frozen dataclasses, not messages: what a field means stands at the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oncelog._core import group_offsets, paging
from oncelog._core.requests import made, require_partition, require_text
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.access import Access
from oncelog.batch import TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import parse_generation, parse_id, show_generation
from oncelogpb.v1 import (
    cluster_pb2,
    coordinator_pb2,
    offset_manager_pb2,
    partition_leader_pb2,
    types_pb2,
)

STATES = {
    "ongoing": types_pb2.TRANSACTION_STATE_ONGOING,
    "committed": types_pb2.TRANSACTION_STATE_COMMITTED,
    "aborted": types_pb2.TRANSACTION_STATE_ABORTED,
}


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a topic."""

    number: int
    # host:port of its leader; None where nobody leads it now.
    leader: str | None
    epoch: int
    # Node ids.
    replicas: tuple[str, ...]
    # Incarnations of those in sync: of each replica's directory.
    isr: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `topic_id` in hexadecimal; times in milliseconds since 1970."""

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    replication_factor: int
    configs: Mapping[str, str]
    created_ms: int


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction. Times in milliseconds since 1970, 0 where unknown or not yet."""

    tx_id: int
    # ongoing, committed, aborted or expired (nobody knows any more); already committed: its
    # commit_seq was committed before, and it has no transaction of its own.
    state: str
    # Every participant knows the outcome.
    visible: bool
    # Why it was aborted: producer, timeout, fenced, session, operator, offsets; "" otherwise.
    cause: str
    producer_id: int
    # Shown as epoch.counter.
    generation: str
    group: str
    name: str
    begin_time_ms: int
    end_time_ms: int
    timeout_ms: int
    commit_seq: tuple[str, int] | None
    # (partition, writer, records) of the manifest; before the commit, those known to take part.
    parts: tuple[tuple[TopicPartition, int, int], ...]
    unacknowledged: tuple[TopicPartition, ...]
    # Partitions whose part did not match the manifest: `resolve_transaction`.
    damaged: tuple[TopicPartition, ...]
    # A one-shot that waits for the offset manager.
    staged: bool


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group."""

    group: str
    committed_partitions: int
    pending_partitions: int
    last_commit_time_ms: int


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group stands in one partition. `offset` None: it has committed nothing there."""

    topic: str
    partition: int
    offset: int | None
    metadata: str
    commit_time_ms: int
    # The transaction that holds a pending offset here; 0: none.
    pending_tx_id: int
    # First offset that is kept, and one past the last record; None where no leader says so now, or
    # the topic is gone.
    start_offset: int | None = None
    end_offset: int | None = None
    # Records that wait for the group: all there are where it has committed nothing.
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A process of the cluster."""

    node_id: str
    address: str
    roles: tuple[str, ...]
    version: str
    # Where it stands (its setting `node.rack`); empty where it does not say.
    rack: str = ""
    # When this run of it began, milliseconds since 1970; 0 where it does not say.
    started_ms: int = 0


class Admin:
    """Made as `log.admin`."""

    def __init__(self, protocol: AsyncProtocol) -> None:
        self._protocol = protocol
        # Who may do what, and how much of it.
        self.access = Access(protocol)

    # ------------------------------------------------------------------------------------- topics

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        *,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """0: the cluster's default. Returns when a leader of each partition can be named, or at the
        deadline with those that can. Raises TopicExists, InvalidArgument, UnknownOutcome (look
        whether it is there)."""
        request = made(
            partition_leader_pb2.CreateTopicRequest,
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            validate_only=validate_only,
        )
        deadline = self._protocol.deadline()
        reply = await self._protocol.call("partition_leader.create_topic", request)
        if validate_only:
            return topic_info(reply.topic)
        return topic_info(await self._protocol.led_topic(reply.topic, deadline))

    async def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """By name. `internal`: the control topics as well."""
        request = partition_leader_pb2.ListTopicsRequest(internal=internal)
        reply = await self._protocol.call("partition_leader.list_topics", request)
        return [topic_info(topic) for topic in reply.topics]

    async def describe_topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""
        require_text("name", name)
        request = partition_leader_pb2.DescribeTopicsRequest(names=[name])
        reply = await self._protocol.call("partition_leader.describe_topics", request)
        return topic_info(reply.topics[0])

    async def alter_topic(
        self, name: str, configs: Mapping[str, str] | None = None, *, partitions: int = 0
    ) -> TopicInfo:
        """Changes these settings; an empty value restores the default. `partitions`: how many there
        shall be, 0: as many as there are. Some can be added, none taken away; the next records of a
        key may then go to another partition than those before. Clients hear of it within
        `topic_refresh_ms`. Raises UnknownTopic, InvalidArgument."""
        request = made(
            partition_leader_pb2.AlterTopicRequest,
            name=name,
            configs=configs or {},
            partitions=partitions,
        )
        deadline = self._protocol.deadline()
        reply = await self._protocol.call("partition_leader.alter_topic", request)
        return topic_info(await self._protocol.led_topic(reply.topic, deadline))

    async def delete_topic(self, name: str) -> None:
        """The topic of that name, and not one that is made under it later: a request that was lost
        may arrive late. Raises UnknownTopic, UnknownOutcome (look whether it exists)."""
        require_text("name", name)
        topic_id = (await self._protocol.topic(name)).topic_id
        self._protocol.directory.forget_topic(name)
        try:
            await self._delete_only(name, topic_id)
        except errors.UnknownTopic as error:
            standing = error.metadata.get("topic_id", "")
            if not standing:
                raise
            # It was made again since we looked.
            await self._delete_only(name, bytes.fromhex(standing))

    async def _delete_only(self, name: str, topic_id: bytes) -> None:
        request = partition_leader_pb2.DeleteTopicRequest(name=name, topic_id=topic_id)
        await self._protocol.call("partition_leader.delete_topic", request)

    async def offsets(
        self, topic: str, at: str | int = "latest", *, isolation: str = "committed"
    ) -> list[int]:
        """By partition: "earliest", "latest", or of the first record at or after a time in
        microseconds since 1970. Raises UnknownTopic, InvalidArgument."""
        request = partition_leader_pb2.ListOffsetsRequest(isolation=_isolation(isolation))
        since = _since(at)
        require_text("topic", topic)
        description = await self._protocol.topic(topic)
        for partition in description.partitions:
            key = PartitionKey(description.topic_id, partition.number)
            request.queries.add(partition=key.wire()).MergeFrom(since)
        reply = await self._protocol.call("partition_leader.list_offsets", request)
        for listed in reply.offsets:
            if listed.HasField("error"):
                raise errors.from_status(listed.error)
        return [listed.offset for listed in reply.offsets]

    # ------------------------------------------------------------------------------- transactions

    async def transactions(
        self,
        *,
        states: Sequence[str] = (),
        min_age_ms: int = 0,
        name: str = "",
        group: str = "",
        limit: int = 0,
    ) -> list[TransactionInfo]:
        """Those that are open or whose markers are on their way, by TxId; at most `limit` of them,
        or all where it is 0. `states`: ongoing, committed, aborted."""
        for state in states:
            if state not in STATES:
                raise errors.InvalidArgument(
                    f"state is {state!r}; allowed: {', '.join(STATES)}", field="states"
                )
        request = made(
            coordinator_pb2.ListTransactionsRequest,
            states=[STATES[state] for state in states],
            min_age_ms=min_age_ms,
            name=name,
            group=group,
            limit=limit,
        )
        found = await self._all_pages("coordinator.list_transactions", request, limit)
        return [await self._transaction_info(item) for item in found]

    async def describe_transaction(
        self,
        transaction: int | str | errors.OncelogError = 0,
        *,
        producer_id: int = 0,
        generation: int = 0,
        request_number: int = 0,
    ) -> TransactionInfo:
        """What became of it. Never a guess. `transaction` is a TxId, as a number or as it is shown,
        or an error that names one: the UnknownOutcome of a commit. A small transaction has a TxId
        only once it is answered: before, its producer's id, generation and request number name it,
        which that error carries.

        Raises UnknownTransaction: of a TxId, there never was one; of a request number, nothing of
        it happened, and nothing will once its producer has registered again. Raises
        InvalidArgument where nothing is named."""
        request = _transaction_request(transaction)
        if request_number:
            producer = made(types_pb2.Producer, producer_id=producer_id, generation=generation)
            numbered = made(coordinator_pb2.GetTransactionRequest, request_number=request_number)
            numbered.producer.CopyFrom(producer)
            request.MergeFrom(numbered)
        if not request.tx_id and not request.request_number:
            raise errors.InvalidArgument(
                "name a transaction: by its TxId, by an UnknownOutcome, or by producer_id, "
                "generation and request_number",
                field="transaction",
            )
        reply = await self._protocol.call("coordinator.get_transaction", request)
        info = await self._transaction_info(reply.transaction)
        return replace(info, state="already committed") if reply.already_committed else info

    async def abort_transaction(self, tx_id: int) -> None:
        """Ends somebody's open transaction. Raises TransactionEnded where it was committed."""
        request = made(coordinator_pb2.AbortTransactionRequest, tx_id=tx_id, operator=True)
        await self._protocol.call("coordinator.abort_transaction", request)

    async def resolve_transaction(self, tx_id: int, topic: str, partition: int, action: str) -> int:
        """Ends a damaged part: "drop" or "expose". Returns how many records that were."""
        actions = {
            "drop": partition_leader_pb2.ResolveTransactionRequest.ACTION_DROP,
            "expose": partition_leader_pb2.ResolveTransactionRequest.ACTION_EXPOSE,
        }
        if action not in actions:
            raise errors.InvalidArgument(
                f"action is {action!r}; allowed: drop, expose", field="action"
            )
        request = made(partition_leader_pb2.ResolveTransactionRequest, tx_id=tx_id)
        request.action = actions[action]
        require_text("topic", topic)
        require_partition(partition)
        description = await self._protocol.topic(topic)
        request.partition.CopyFrom(PartitionKey(description.topic_id, partition).wire())
        reply = await self._protocol.call("partition_leader.resolve_transaction", request)
        return int(reply.record_count)

    # ------------------------------------------------------------------------------------- groups

    async def groups(self, prefix: str = "") -> list[GroupInfo]:
        """By name."""
        request = made(offset_manager_pb2.ListGroupsRequest, prefix=prefix)
        return [
            GroupInfo(
                item.group,
                item.committed_partitions,
                item.pending_partitions,
                item.last_commit_time_ms,
            )
            for item in await self._all_pages("offset_manager.list_groups", request)
        ]

    async def _all_pages(self, method: str, request: Any, limit: int = 0) -> list[Any]:
        """All items, or the first `limit` of them."""
        found: list[Any] = []
        while request is not None and not (limit and len(found) >= limit):
            reply = await self._protocol.call(method, request)
            found += getattr(reply, paging.LISTINGS[method].items)
            request = paging.following(method, request, reply)
        return found[:limit] if limit else found

    async def group_offsets(self, group: str) -> list[GroupOffset]:
        """Where the group stands in every partition of the topics that it has offsets of; pending
        offsets are named, not waited for. Empty for a group that has none."""
        reply = await self._fetch_offsets(group)
        wanted = cluster_pb2.GetMetadataRequest(topic_ids=group_offsets.topic_ids(reply.offsets))
        metadata = await self._protocol.call("cluster.get_metadata", wanted)
        offsets = group_offsets.of_whole_topics(reply.offsets, metadata.topics)
        names = {topic.topic_id: topic.name for topic in metadata.topics}
        standing = [offset for offset in offsets if offset.partition.topic_id in names]
        edges = group_offsets.edges(
            [
                await self._protocol.call("partition_leader.list_offsets", request)
                for request in group_offsets.edges_requests(standing)
            ]
        )
        return [
            _group_offset(item, names, edges.get(PartitionKey.of(item.partition)))
            for item in offsets
        ]

    async def _fetch_offsets(self, group: str) -> offset_manager_pb2.FetchOffsetsReply:
        """In whichever view they are."""
        request = made(offset_manager_pb2.FetchOffsetsRequest, group=group)
        try:
            reply = await self._protocol.call("offset_manager.fetch_offsets", request)
        except errors.InvalidArgument as error:
            if error.metadata.get("stored") != "JOURNAL":
                raise
            request.view = types_pb2.VIEW_JOURNAL
            reply = await self._protocol.call("offset_manager.fetch_offsets", request)
        return reply  # type: ignore[no-any-return]

    async def delete_group(self, group: str) -> None:
        """Forgets its offsets. Raises PendingTransaction, NotFound."""
        request = made(offset_manager_pb2.DeleteGroupRequest, group=group)
        await self._protocol.call("offset_manager.delete_group", request)

    # -------------------------------------------------------------------------------------- nodes

    async def nodes(self) -> list[NodeInfo]:
        """The processes that are alive, by id."""
        await self._protocol.refresh()
        nodes = self._protocol.directory.nodes
        return sorted(
            (
                NodeInfo(
                    node.node_id,
                    str(Endpoint(node.endpoint.host, node.endpoint.port)),
                    tuple(node.roles),
                    node.version,
                    node.rack,
                    node.started_ms,
                )
                for node in nodes
            ),
            key=lambda node: node.node_id,
        )

    async def _place(self, partition: types_pb2.Partition) -> TopicPartition:
        """By name; a topic that is gone, by its id."""
        topic = self._protocol.directory.topic_by_id(partition.topic_id)
        if topic is None:
            await self._protocol.refresh(topic_ids=[partition.topic_id])
            topic = self._protocol.directory.topic_by_id(partition.topic_id)
        name = partition.topic_id.hex() if topic is None else topic.name
        return TopicPartition(name, partition.number)

    async def _transaction_info(self, item: Any) -> TransactionInfo:
        parts = [
            (
                await self._place(types_pb2.Partition(topic_id=topic.topic_id, number=number)),
                writer,
                count,
            )
            for topic in item.parts.topics
            for number, writer, count in zip(
                topic.partition, topic.writer, topic.record_count, strict=True
            )
        ]
        generation = item.producer.generation
        return TransactionInfo(
            tx_id=item.tx_id,
            state=_word(types_pb2.TransactionState.Name(item.state), "TRANSACTION_STATE_"),
            visible=item.visible,
            cause=_word(types_pb2.AbortCause.Name(item.cause), "ABORT_CAUSE_"),
            producer_id=item.producer.producer_id,
            generation=show_generation(generation),
            group=item.group,
            name=item.name,
            begin_time_ms=item.begin_time_ms,
            end_time_ms=item.end_time_ms,
            timeout_ms=item.timeout_ms,
            commit_seq=(
                (item.commit_seq.scope, item.commit_seq.number)
                if item.HasField("commit_seq")
                else None
            ),
            parts=tuple(parts),
            unacknowledged=tuple([await self._place(place) for place in item.unacknowledged]),
            damaged=tuple([await self._place(part.partition) for part in item.damaged]),
            staged=item.staged,
        )


def _transaction_request(
    transaction: int | str | errors.OncelogError,
) -> coordinator_pb2.GetTransactionRequest:
    """Names what is named. Raises InvalidArgument."""
    request = coordinator_pb2.GetTransactionRequest()
    names: Mapping[str, str] = {}
    if isinstance(transaction, errors.OncelogError):
        names = transaction.metadata
    elif isinstance(transaction, str):
        names = {"tx_id": transaction}
    try:
        if isinstance(transaction, int):
            request.tx_id = transaction
        elif "tx_id" in names:
            request.tx_id = parse_id(names["tx_id"])
        elif "request_number" in names:
            request.producer.producer_id = parse_id(names["producer_id"])
            request.producer.generation = parse_generation(names["generation"])
            request.request_number = int(names["request_number"])
    except (KeyError, TypeError, ValueError) as error:
        raise errors.InvalidArgument(
            f"{transaction!r} names no transaction: {error}", field="transaction"
        ) from None
    return request


def _group_offset(
    item: offset_manager_pb2.CommittedOffset,
    names: Mapping[bytes, str],
    edges: group_offsets.Edges | None,
) -> GroupOffset:
    offset = item.offset if item.HasField("offset") else None
    return GroupOffset(
        names.get(item.partition.topic_id, item.partition.topic_id.hex()),
        item.partition.number,
        offset,
        item.metadata,
        item.commit_time_ms,
        item.pending_tx_id,
        None if edges is None else edges.start,
        None if edges is None else edges.end,
        group_offsets.lag(offset, edges),
    )


def topic_info(topic: partition_leader_pb2.TopicDescription) -> TopicInfo:
    """The description as users see it."""
    return TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id.hex(),
        partitions=tuple(
            PartitionInfo(
                part.number,
                str(Endpoint(part.leader.endpoint.host, part.leader.endpoint.port))
                if part.HasField("leader")
                else None,
                part.epoch,
                tuple(part.replicas),
                tuple(part.isr),
            )
            for part in topic.partitions
        ),
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        created_ms=topic.created_ms,
    )


def _since(at: str | int) -> partition_leader_pb2.OffsetQuery:
    """Of no partition yet. Raises InvalidArgument."""
    if at == "earliest":
        return partition_leader_pb2.OffsetQuery(earliest=True)
    if at == "latest":
        return partition_leader_pb2.OffsetQuery(latest=True)
    if not isinstance(at, int) or isinstance(at, bool) or not -(1 << 63) <= at < 1 << 63:
        raise errors.InvalidArgument(
            f"at is {at!r}; allowed: earliest, latest, a time in microseconds", field="at"
        )
    return partition_leader_pb2.OffsetQuery(timestamp_us=at)


def _isolation(isolation: str) -> partition_leader_pb2.Isolation.ValueType:
    choices: dict[str, partition_leader_pb2.Isolation.ValueType] = {
        "committed": partition_leader_pb2.ISOLATION_COMMITTED,
        "uncommitted": partition_leader_pb2.ISOLATION_UNCOMMITTED,
    }
    require_text("isolation", isolation)
    if isolation not in choices:
        raise errors.InvalidArgument(
            f"isolation is {isolation!r}; allowed: {', '.join(choices)}", field="isolation"
        )
    return choices[isolation]


def _word(name: str, prefix: str) -> str:
    """TRANSACTION_STATE_ONGOING as ongoing; the unspecified as nothing."""
    word = name.removeprefix(prefix).lower()
    return "" if word == "unspecified" else word
