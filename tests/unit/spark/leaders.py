"""A cluster for the connector that is a dictionary: partitions hold batches, every call is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from oncelog._core.routing import Endpoint
from oncelog.protocol import AsyncProtocol, Protocol
from oncelogpb import errors, records
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.client.scripted import ScriptedTransport, blocking_over, produced

R = TypeVar("R")
TOPIC_ID = b"t" * 16
# Where all groups live.
OFFSETS = pb.Partition(topic_id=b"oncelog:offsets0", number=9)


class _Streaming(ScriptedTransport):
    """What the client's own parts talk to."""

    def __init__(self, leaders: Leaders) -> None:
        super().__init__(*([7] * len(leaders.logs)))
        self._leaders = leaders

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """Of one partition, as often as `streamed` says; then it waits, or what `breaks` says."""
        leaders = self._leaders
        leaders.asked.append((method.partition(".")[2], request))
        [wanted] = request.partitions
        for _ in range(leaders.streamed):
            found = leaders._fetched(wanted)
            if found.batches:
                last = found.batches[-1]
                wanted.offset = last.first_offset + last.record_count
                yield leader.FetchReply(partitions=[found])
        if leaders.breaks == "error":
            raise errors.Unavailable("the process stops")
        if leaders.breaks == "part":
            moved = errors.to_status(errors.NotLeader("another one leads"))
            yield leader.FetchReply(
                partitions=[leader.FetchedPartition(partition=wanted.partition, error=moved)]
            )
        if leaders.breaks == "silent":
            await asyncio.sleep(3_600)


class Leaders:
    """`logs`: by partition number of topic "t", the sizes of its batches. Offset n holds b"n". What
    a test scripts in `script` by method comes first: replies, errors, or functions of the request.
    """

    def __init__(self, *logs: Sequence[int], batches_per_fetch: int = 2) -> None:
        self.logs = [list(log) for log in logs]
        self.starts = [0] * len(logs)
        self.batches_per_fetch = batches_per_fetch
        self.topic_id = TOPIC_ID
        # Every topic that there is; each of them has all the partitions.
        self.names = ["t"]
        self.asked: list[tuple[str, Any]] = []
        # How many replies a stream has, and how it ends: "error", "part", "silent", or "" without.
        self.streamed = 0
        self.breaks = ""
        self._blocking: Protocol | None = None
        self.script: dict[str, list[Any]] = {}
        # What the group has, by partition number: (offset, TxId that is pending).
        self.group: dict[int, tuple[int | None, int]] = {}
        # Ids of who has joined it.
        self.members: list[str] = []
        # Who keeps members out of it, by claim.
        self.claims: dict[str, str] = {}
        self.tx_state = pb.TRANSACTION_STATE_ONGOING
        # What else GetTransaction says of any transaction.
        self.described: dict[str, Any] = {}

    @property
    def protocol(self) -> Protocol:
        return cast(Protocol, self)

    def run(self, work: Callable[[AsyncProtocol], Coroutine[Any, Any, R]]) -> R:
        return self._on_loop().run(work)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._on_loop().post(callback, *arguments)

    def _on_loop(self) -> Protocol:
        """What the client's own parts meet: the same leaders, by the calls that those make."""
        if self._blocking is None:
            transport = _Streaming(self)
            transport.handlers["partition_leader.produce"] = lambda _to, request: self.call(
                "partition_leader.produce", produced(request)
            )
            self._blocking = blocking_over(transport)
        return self._blocking

    def of(self, name: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == name]

    def topic(self, name: str) -> leader.TopicDescription:
        parts = [leader.PartitionDescription(number=number) for number in range(len(self.logs))]
        return leader.TopicDescription(name=name, topic_id=self.topic_id, partitions=parts)

    def _list_topics(self, request: leader.ListTopicsRequest) -> leader.ListTopicsReply:
        assert request.names_only, "all partitions of a cluster are much to send"
        topics = [leader.TopicDescription(name=n, topic_id=self.topic_id) for n in self.names]
        return leader.ListTopicsReply(topics=topics)

    def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        name = method.partition(".")[2]
        self.asked.append((name, type(request).FromString(request.SerializeToString())))
        answer: Any = getattr(self, f"_{name}", None)
        if self.script.get(name):
            answer = self.script[name].pop(0)
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # ------------------------------------------------------------------------------------ leaders

    def end(self, number: int) -> int:
        return self.starts[number] + sum(self.logs[number])

    def _fetch(self, request: leader.FetchRequest) -> leader.FetchReply:
        return leader.FetchReply(
            partitions=[self._fetched(wanted) for wanted in request.partitions]
        )

    def _fetched(self, wanted: leader.FetchPartition) -> leader.FetchedPartition:
        number = wanted.partition.number
        found = leader.FetchedPartition(
            partition=wanted.partition,
            start_offset=self.starts[number],
            end_offset=self.end(number),
        )
        if not self.starts[number] <= wanted.offset <= self.end(number):
            error = errors.OffsetOutOfRange("not there", start=self.starts[number])
            found.error.CopyFrom(errors.to_status(error))
            return found
        first = self.starts[number]
        for size in self.logs[number]:
            if first + size > wanted.offset and len(found.batches) < self.batches_per_fetch:
                found.batches.append(batch_of(first, size))
            first += size
        return found

    def _list_offsets(self, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
        reply = leader.ListOffsetsReply()
        for query in request.queries:
            number, at = query.partition.number, query.WhichOneof("at")
            offset, found_us = self.end(number), None
            if at == "earliest":
                offset = self.starts[number]
            elif at == "timestamp_us" and query.timestamp_us < offset:
                # Offset n was written n microseconds after 1970.
                offset = found_us = max(query.timestamp_us, self.starts[number])
            reply.offsets.add(partition=query.partition, offset=offset, timestamp_us=found_us)
        return reply

    def _produce(self, request: leader.ProduceRequest) -> leader.ProduceReply:
        results = [leader.BatchResult(partition=batch.partition) for batch in request.batches]
        return leader.ProduceReply(results=results)

    # -------------------------------------------------------------------------------------- others

    def _fetch_offsets(
        self, request: offset_manager_pb2.FetchOffsetsRequest
    ) -> offset_manager_pb2.FetchOffsetsReply:
        reply = offset_manager_pb2.FetchOffsetsReply()
        every = [pb.Partition(topic_id=self.topic_id, number=number) for number in self.group]
        for partition in request.partitions or every:
            offset, pending = self.group.get(partition.number, (None, 0))
            reply.offsets.add(partition=partition, offset=offset, pending_tx_id=pending)
        return reply

    def _describe_group(
        self, request: offset_manager_pb2.DescribeGroupRequest
    ) -> offset_manager_pb2.DescribeGroupReply:
        if not (self.group or self.members):
            raise errors.NotFound("no such group")
        reply = offset_manager_pb2.DescribeGroupReply(group=request.group)
        for name in self.members:
            reply.members.add(member_id=name, host="10.0.0.7")
        return reply

    def _claim_group(
        self, request: offset_manager_pb2.ClaimGroupRequest
    ) -> offset_manager_pb2.ClaimGroupReply:
        if request.release:
            self.claims.pop(request.claim_id, None)
        elif self.members:
            raise errors.UnknownMember("the group has living members")
        else:
            self.claims[request.claim_id] = request.holder
        return offset_manager_pb2.ClaimGroupReply(timeout_ms=10_000)

    _commit_offsets = offset_manager_pb2.CommitOffsetsReply()
    _commit_transaction_offsets = offset_manager_pb2.CommitTransactionOffsetsReply()
    _init_producer = coordinator_pb2.InitProducerReply(
        producer=pb.Producer(producer_id=5, generation=2)
    )
    _list_transactions = coordinator_pb2.ListTransactionsReply()
    _abort_transaction = coordinator_pb2.AbortTransactionReply()
    _commit_transaction = coordinator_pb2.CommitTransactionReply()
    _begin_transaction = coordinator_pb2.BeginTransactionReply(
        result=coordinator_pb2.BeginTransactionReply.RESULT_OPEN, tx_id=77
    )

    def _get_metadata(
        self, request: cluster_pb2.GetMetadataRequest
    ) -> cluster_pb2.GetMetadataReply:
        routes = [cluster_pb2.Route(group=g, partition=OFFSETS) for g in request.consumer_groups]
        return cluster_pb2.GetMetadataReply(consumer_groups=routes)

    def _get_transaction(self, request: Any) -> coordinator_pb2.GetTransactionReply:
        described = coordinator_pb2.TransactionDescription(
            state=self.tx_state, tx_id=request.tx_id, **self.described
        )
        return coordinator_pb2.GetTransactionReply(transaction=described)


def batch_of(first: int, size: int) -> leader.FetchedBatch:
    """Records whose values are their offsets."""
    values = [b"%d" % offset for offset in range(first, first + size)]
    sealed = records.seal(records.make_batch([None] * size, values, first))
    return leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA,
        first_offset=first,
        record_count=size,
        encoding=sealed.encoding,
        crc32c=sealed.crc32c,
        payload=sealed.payload,
    )
