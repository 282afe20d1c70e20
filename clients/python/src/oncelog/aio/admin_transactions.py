"""Transactions, as operators see them: the part of `log.admin` that concerns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oncelog._core.requests import made, require_partition, require_text
from oncelog._core.routing import PartitionKey
from oncelog.aio.listing import all_pages
from oncelog.batch import TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import parse_generation, parse_id, show_generation
from oncelogpb.v1 import coordinator_pb2, partition_leader_pb2, types_pb2

STATES = {
    "ongoing": types_pb2.TRANSACTION_STATE_ONGOING,
    "committed": types_pb2.TRANSACTION_STATE_COMMITTED,
    "aborted": types_pb2.TRANSACTION_STATE_ABORTED,
}


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
    # It ended, and nobody knows its `parts` and `commit_seq` any more: they are empty here.
    parts_forgotten: bool = False


class TransactionAdmin:
    """Transactions, of `log.admin`."""

    def __init__(self, protocol: AsyncProtocol) -> None:
        self._protocol = protocol

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
        found = await all_pages(self._protocol, "coordinator.list_transactions", request, limit)
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
        request = transaction_request(transaction)
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
            parts_forgotten=item.parts_forgotten,
        )


def transaction_request(
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


def _word(name: str, prefix: str) -> str:
    """TRANSACTION_STATE_ONGOING as ongoing; the unspecified as nothing."""
    word = name.removeprefix(prefix).lower()
    return "" if word == "unspecified" else word
