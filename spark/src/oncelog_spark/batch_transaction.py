"""One transaction over all tasks of a micro-batch, or of a batch job.

    tasks    enter: InitProducer(name, instance = run id), BeginTransaction(request id = batch id)
    readers  register_positions: the whole batch's input positions under the same TxId
    driver   commit: the winners' manifest under commit_seq; where the job failed: failed_jobs

Everything here may be repeated: the same run and batch get the same TxId, a batch that was
committed is never committed again, and a new run fences the earlier one. Tasks open no session: the
first finished task's stream would end it. `enter` is the only way in, for readers and writers
alike, so that whichever comes first opens the transaction in the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

from pyspark import TaskContext

from oncelog_spark import query_names
from oncelog_spark.living_members import refusal
from oncelog_spark.manifest import TaskWritten, TransactionKey, build_manifest
from oncelogpb import errors
from oncelogpb.doubt import Doubt
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# Idle time after which a batch's transaction is aborted, unless `transactionTimeout` says another:
# a task may compute for long before its first record. A driver that died is fenced by its next run
# long before.
IDLE_TIMEOUT_MS: Final = 15 * 60 * 1000
# How long a task waits for its transaction, and the driver for its commit.
ENTER_TIMEOUT_MS: Final = 60_000
COMMIT_TIMEOUT_MS: Final = 60_000

# Runs whose generations a process remembers, per connection.
GENERATIONS_MAX: Final = 100

# Of the runs that this process has entered a batch of; a task asks once, and not for each batch.
_generations: WeakKeyDictionary[Protocol, dict[tuple[str, str, bytes], pb.Producer]] = (
    WeakKeyDictionary()
)
_group_partitions: WeakKeyDictionary[Protocol, dict[str, pb.Partition]] = WeakKeyDictionary()

# Local properties that Spark gives every task of a micro-batch.
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
# The query's name, if it has one, and the ids, in words.
DESCRIPTION_PROPERTY: Final = "spark.job.description"


class TransactionLost(RuntimeError):
    """The batch's transaction cannot be used (any more). Nothing of it will be seen; restart the
    query and Spark runs the batch again."""


class CheckpointBehind(RuntimeError):
    """The query's checkpoint is older than what the query committed: it plans batches anew whose
    numbers are taken, and other records would be in them. Nothing was written."""


class SecondWrite(RuntimeError):
    """The batch's transaction was committed by this very run: another write came before."""


class SinkNeverCommits(RuntimeError):
    """The source's `transactionalSink` is not a sink of this query: its positions would never be
    committed, and each batch would wait for the transaction of the one before."""


class Standing(Enum):
    """How a task finds its batch's transaction."""

    OPEN = "open"
    # Committed by an earlier run: there is nothing to write.
    ALREADY_COMMITTED = "already committed"
    # Committed by this run.
    COMMITTED_BY_US = "committed by us"


@dataclass(frozen=True, slots=True)
class Entered:
    """A task's place in the transaction of its batch."""

    standing: Standing
    # 0 with ALREADY_COMMITTED.
    tx_id: int
    producer_id: int
    generation: int

    @property
    def producer(self) -> pb.Producer:
        return pb.Producer(producer_id=self.producer_id, generation=self.generation)


def producer_name(base: str, sink_name: str | None) -> str:
    """Of a sink: the option `producer`, the query's name or id, and what tells two sinks apart."""
    return base if sink_name is None else f"{base}/{sink_name}"


def streaming_key(producer: str | None, sink_name: str | None) -> TransactionKey | None:
    """The key of the micro-batch that the calling task belongs to; None outside of one."""
    context = TaskContext.get()
    if context is None:
        return None
    return key_of_batch(context.getLocalProperty, producer, sink_name)


def key_of_batch(
    local_property: Callable[[str], str | None], producer: str | None, sink_name: str | None
) -> TransactionKey | None:
    """The same by the local properties of a task, or of the driver's thread in foreachBatch."""
    batch_id, query_id = local_property(BATCH_ID_PROPERTY), local_property(QUERY_ID_PROPERTY)
    if batch_id is None or query_id is None:
        return None
    run_id = local_property(RUN_ID_PROPERTY) or ""
    try:
        instance = uuid.UUID(run_id)
    except ValueError:
        raise RuntimeError(
            f"the job group {run_id!r} is not the run id of the query, which fences earlier runs: "
            "do not call setJobGroup inside of a streaming query"
        ) from None
    base, before = producer or "", ""
    if not base:
        description = local_property(DESCRIPTION_PROPERTY)
        base, before = query_names.default_names(description, query_id)
    return TransactionKey(
        producer_name(base, sink_name),
        instance.bytes,
        scope=query_id,
        number=int(batch_id),
        name_before=producer_name(before, sink_name) if before else "",
    )


def register(
    protocol: Protocol, key: TransactionKey, *, timeout_ms: int = ENTER_TIMEOUT_MS
) -> coordinator_pb2.InitProducerReply:
    """This run's generation of the key's producer: a new one where an earlier run had it. Raises an
    OncelogError (ProducerFenced: a later run took over)."""
    request = coordinator_pb2.InitProducerRequest(
        name=key.producer_name, group=key.group, instance_id=key.instance_id
    )
    reply: coordinator_pb2.InitProducerReply = protocol.call(
        "coordinator.init_producer", request, timeout_ms=timeout_ms
    )
    return reply


def resolved(protocol: Protocol, key: TransactionKey) -> TransactionKey:
    """The key by the name that counts, the same in all tasks of a batch."""
    return query_names.resolved(protocol, key, lambda asked: register(protocol, asked))


def enter(
    protocol: Protocol,
    key: TransactionKey,
    parts: Sequence[pb.Partition] = (),
    *,
    idle_timeout_ms: int = IDLE_TIMEOUT_MS,
    timeout_ms: int = ENTER_TIMEOUT_MS,
) -> Entered:
    """Opens the transaction of the batch, or joins it. `parts` announces partitions that will take
    part; those of whoever opens it count, and so does its `idle_timeout_ms`. Raises
    TransactionLost, CheckpointBehind, QueryNameTaken, or an OncelogError (ProducerFenced: a later
    run of the query took over)."""
    key = resolved(protocol, key)
    run = (key.producer_name, key.group, key.instance_id)
    known = _generations.setdefault(protocol, {})
    producer = known.pop(run, None)
    if producer is None:
        reply = register(protocol, key, timeout_ms=timeout_ms)
        query_names.require_known(key, reply)
        producer = reply.producer
    try:
        begun = protocol.call(
            "coordinator.begin_transaction",
            coordinator_pb2.BeginTransactionRequest(
                producer=producer,
                request_id=key.number,
                timeout_ms=idle_timeout_ms,
                commit_seq=commit_seq(key),
                parts=parts,
            ),
            timeout_ms=timeout_ms,
        )
    except errors.ConcurrentTransaction as error:
        raise TransactionLost(
            f"producer {key.shown} still has an earlier transaction open ({error}): does "
            "the query have an Oncelog sink of that name, and only one query use it?"
        ) from error
    standing = _standing(begun, key)
    if standing is Standing.ALREADY_COMMITTED:
        _require_last(key, register(protocol, key, timeout_ms=timeout_ms).last_commit_seq)
    # Back only where that went well: what is wrong with it, another InitProducer tells.
    known[run] = producer
    if len(known) > GENERATIONS_MAX:
        del known[next(iter(known))]
    return Entered(standing, begun.tx_id, producer.producer_id, producer.generation)


def _require_last(key: TransactionKey, last: pb.CommitSeq) -> None:
    """Of what is committed, Spark replays the last batch alone. Raises CheckpointBehind."""
    if last.scope == key.scope and last.number > key.number:
        raise CheckpointBehind(
            f"batch {key.number} of query {key.scope} was committed long ago, the last one is "
            f"{last.number}: its checkpoint was put back to an earlier state. The positions that "
            "it plans from are not those of that time, so records would be left out. Start the "
            "query with a new checkpoint: with `group` it goes on where that stands"
        )


def second_write(key: TransactionKey) -> SecondWrite:
    """What a write is told that comes after the commit of its own batch and run."""
    return SecondWrite(
        f"second write in one batch (batch {key.number} of {key.scope}): set sinkName, another one "
        "for each write, so that each has a transaction of its own; or write all of them in one, "
        "with oncelog_spark.transaction"
    )


def register_positions(
    protocol: Protocol,
    entered: Entered,
    offsets: offset_manager_pb2.GroupOffsets,
    *,
    idle_timeout_ms: int = IDLE_TIMEOUT_MS,
) -> None:
    """Makes the batch's input positions part of its transaction. Idempotent: every reading task
    sends the same vector. Raises TransactionLost where the group stands elsewhere, GroupHasMembers
    where consumers have joined it since the batch was planned."""
    request = offset_manager_pb2.CommitTransactionOffsetsRequest(
        tx_id=entered.tx_id,
        producer=entered.producer,
        offsets=offsets,
        timeout_ms=idle_timeout_ms,
    )
    try:
        protocol.call(
            "offset_manager.commit_transaction_offsets", request, timeout_ms=ENTER_TIMEOUT_MS
        )
    except errors.UnknownMember as error:
        raise refusal(offsets.group) from error
    except errors.StalePosition as error:
        raise TransactionLost(
            f"group {offsets.group!r} does not stand where this batch begins ({error}): a group "
            "belongs to one query, and its positions must not be moved while a checkpoint exists"
        ) from error


def require_moved(protocol: Protocol, offsets: offset_manager_pb2.GroupOffsets) -> None:
    """Of a batch that an earlier run committed: the group stands where it ends, so it is of the
    same records; where it was deleted, nobody knows. Raises CheckpointBehind, or an OncelogError.
    """
    request = offset_manager_pb2.FetchOffsetsRequest(
        group=offsets.group, partitions=[p.partition for p in offsets.offsets], stable=True
    )
    reply = protocol.call("offset_manager.fetch_offsets", request, timeout_ms=ENTER_TIMEOUT_MS)
    elsewhere = [
        f"{found.partition.number} ({found.offset}, not {wanted.to_offset})"
        for found, wanted in zip(reply.offsets, offsets.offsets, strict=True)
        if found.HasField("offset") and found.offset != wanted.to_offset
    ]
    if elsewhere:
        raise CheckpointBehind(
            "a batch of this number was committed, with other records: group "
            f"{offsets.group!r} does not stand where this one ends (of partitions "
            f"{', '.join(elsewhere)}). The checkpoint was put back to an earlier state, or the "
            "group was moved by hand. Start the query with a new checkpoint: it goes on where "
            "the group stands"
        )


def commit(
    protocol: Protocol,
    messages: Sequence[TaskWritten],
    input_groups: Sequence[str],
    wait: Literal["visible", "prepared"],
) -> None:
    """Commits the transaction that `messages`, which agree, belong to. A batch that was committed
    before stays as it is. Raises an OncelogError where it is not known to be committed."""
    first = messages[0]
    if first.tx_id == 0:
        return
    request = coordinator_pb2.CommitTransactionRequest(
        tx_id=first.tx_id,
        producer=pb.Producer(producer_id=first.producer_id, generation=first.generation),
        manifest=build_manifest(messages, offset_partitions(protocol, input_groups)),
        commit_seq=commit_seq(first.key),
        wait=pb.WAIT_VISIBLE if wait == "visible" else pb.WAIT_PREPARED,
    )
    doubt = Doubt("coordinator.commit_transaction", request)
    try:
        _commit(protocol, request)
    except errors.UnknownOutcome as error:
        doubt.as_reported(error)
        # The decision may stand while a leader is away: ask for it alone, the same call again.
        request.wait = pb.WAIT_PREPARED
        try:
            _commit(protocol, request)
        except errors.OncelogError as again:
            doubt.give_up(again)


def described(
    protocol: Protocol, tx_id: int, *, timeout_ms: int
) -> coordinator_pb2.TransactionDescription:
    """What the coordinator knows of any transaction. Raises OncelogError."""
    request = coordinator_pb2.GetTransactionRequest(tx_id=tx_id)
    reply = protocol.call("coordinator.get_transaction", request, timeout_ms=timeout_ms)
    found: coordinator_pb2.TransactionDescription = reply.transaction
    return found


def take_over(protocol: Protocol, name: str) -> None:
    """Ends what an earlier run of producer `name` left open, so that the group's positions are
    settled. For a query that begins without a checkpoint; its tasks take over in turn."""
    request = coordinator_pb2.InitProducerRequest(name=name, instance_id=uuid.uuid4().bytes)
    protocol.call("coordinator.init_producer", request, timeout_ms=ENTER_TIMEOUT_MS)


def offset_partitions(protocol: Protocol, groups: Sequence[str]) -> list[pb.Partition]:
    """The partitions of `__consumer_offsets` that the groups live in, as the cluster computes:
    always the same ones."""
    known = _group_partitions.setdefault(protocol, {})
    unknown = [group for group in groups if group not in known]
    if unknown:
        reply = protocol.call(
            "cluster.get_metadata",
            cluster_pb2.GetMetadataRequest(consumer_groups=unknown),
            timeout_ms=ENTER_TIMEOUT_MS,
        )
        known.update(
            (group, route.partition)
            for group, route in zip(unknown, reply.consumer_groups, strict=True)
        )
    return [known[group] for group in groups]


def commit_seq(key: TransactionKey) -> pb.CommitSeq:
    return pb.CommitSeq(scope=key.scope, number=key.number)


def _commit(protocol: Protocol, request: coordinator_pb2.CommitTransactionRequest) -> None:
    try:
        protocol.call("coordinator.commit_transaction", request, timeout_ms=COMMIT_TIMEOUT_MS)
    except errors.TransactionEnded as error:
        raise TransactionLost(
            f"the transaction ended before its commit ({error}): idle for longer than "
            "`transactionTimeout`, aborted by an operator, or taken over"
        ) from error
    except errors.ManifestMismatch as error:
        raise TransactionLost(
            f"{error}; where a source has `transactionalSink`, name its group in the sink's option "
            "`inputGroups`"
        ) from error


def _standing(begun: coordinator_pb2.BeginTransactionReply, key: TransactionKey) -> Standing:
    reply = coordinator_pb2.BeginTransactionReply
    if begun.result == reply.RESULT_OPEN:
        return Standing.OPEN
    if begun.result == reply.RESULT_ALREADY_COMMITTED:
        return Standing.ALREADY_COMMITTED
    if begun.state == pb.TRANSACTION_STATE_COMMITTED:
        return Standing.COMMITTED_BY_US
    raise TransactionLost(
        f"the transaction of batch {key.number} of {key.scope} has ended: "
        f"{pb.TransactionState.Name(begun.state)}, {pb.AbortCause.Name(begun.cause)}"
    )
