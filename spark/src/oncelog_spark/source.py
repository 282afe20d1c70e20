"""Readers of committed records, batch and streaming.

The stream reader lives in a process of its own for the whole run of a query; what `read` gets in
the tasks is a pickled twin, which knows the options and nothing else. Positions are planned once
per micro-batch, in `partitions`, and travel in each task's partition.

With `transactionalSink`, every reading task enters the batch's transaction exactly as the sink's
tasks do and registers the whole batch's positions, before it gives a row: so the rows and the
positions they came from commit together. Without it, `commit` tells the group where
the query stands, for lag only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from oncelog_spark import transaction
from oncelog_spark.claim import Claim
from oncelog_spark.connection import connection
from oncelog_spark.fetch import DataLoss, read_range
from oncelog_spark.living_members import refusal
from oncelog_spark.offsets import (
    Edge,
    OffsetRange,
    Positions,
    TopicPartition,
    Vector,
    forward,
    from_json,
    kept,
    limit_step,
    losses,
    ranges,
    replaced_topics,
    to_json,
)
from oncelog_spark.options import SourceOptions
from oncelog_spark.schema import source_arrow_schema, source_batch
from oncelog_spark.subscription import (
    Subscription,
    not_standing_at,
    plain_offsets,
    step_offsets,
)
from oncelog_spark.transaction import Standing
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchStep:
    """The positions that a whole batch moves a group by; empty where there is nothing to register.
    Serialized, for it travels in each task's partition."""

    # A GroupOffsets.
    positions: bytes = b""
    # The Partition of `__consumer_offsets` that takes part.
    participant: bytes = b""

    @classmethod
    def of(
        cls, subscription: Subscription, group: str, start: Positions, end: Positions
    ) -> BatchStep:
        offsets = step_offsets(subscription, group, start, end)
        [participant] = transaction.offset_partitions(subscription.protocol, [group])
        return cls(
            offsets.SerializeToString(deterministic=True),
            participant.SerializeToString(deterministic=True),
        )


NO_STEP: Final = BatchStep()


@dataclass(frozen=True, slots=True)
class RangePartition(InputPartition):
    """One task's range, and the step of the whole batch."""

    topic_id: bytes
    range: OffsetRange
    step: BatchStep = NO_STEP


class OncelogBatchReader(DataSourceReader):
    """Reads from one vector of positions to another, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = source_arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        subscription = Subscription.resolve(connection(options.cluster), options)
        start = _start(subscription, options)
        if options.end_time_ms is not None:
            end = subscription.by_time(options.end_time_ms)
        else:
            end = subscription.place(options.end, "endingOffsets")
        edges = Edges.of(subscription)
        named = {} if options.start_time_ms is not None else _named_offsets(options.start)
        start = {tp: at if tp in named else max(at, edges.earliest[tp]) for tp, at in start.items()}
        start = _within(edges, options, start)
        end = _within(edges, options, end)
        return _plan(subscription, start, end, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes InputPartition(None) of an empty plan.
        if isinstance(partition, RangePartition):
            yield from _read(self._options, self._schema, partition)


class OncelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, in steps that Spark remembers as vectors of positions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = source_arrow_schema(schema)
        # Trigger.AvailableNow: where the query ends.
        self._target: Positions | None = None
        # The newest ends seen, for reportLatestOffset.
        self._seen: Vector | None = None
        # Keeps members out of the group, once this run has begun.
        self._claim: Claim | None = None
        # Begin and end of the newest batch of this run that a sink has to commit.
        self._planned: tuple[Positions, Positions] | None = None

    # ------------------------------------------------------------------ in the driver

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        subscription = self._alone()
        start = dict(_start(subscription, options))
        if options.group is not None:
            start.update(_settled(subscription, options, options.group))
        return to_json(Vector(start, subscription.ids_hex()))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._subscription().at(Edge.LATEST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # A query that goes on from its checkpoint asks this first.
        subscription = self._subscription() if self._claim else self._alone()
        vector = self._checked(subscription, from_json(start))
        latest = self._latest(subscription, vector.positions)
        self._seen = Vector(latest, subscription.ids_hex())
        end = forward(vector.positions, latest)
        if isinstance(limit, ReadMaxRows):
            begin = self._begins(subscription, vector.positions)
            end = limit_step(begin, forward(begin, end), limit.max_rows)
        return to_json(Vector(end, subscription.ids_hex()))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._seen is None else to_json(self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        subscription = self._alone()
        begin = self._checked(subscription, from_json(start)).positions
        until = self._checked(subscription, from_json(end)).positions
        step = NO_STEP
        if options.transactional_sink is not None and options.group is not None:
            self._require_committed(subscription, options.group, begin, until)
            step = BatchStep.of(subscription, options.group, begin, until)
        readable = _within(Edges.of(subscription), options, begin)
        return _plan(subscription, readable, until, options.min_partitions, step)

    def commit(self, end: dict[str, Any]) -> None:
        options = self._options
        if options.group is None or options.transactional_sink is not None:
            return
        subscription = self._subscription()
        offsets = plain_offsets(subscription, options.group, from_json(end).positions)
        request = offset_manager_pb2.CommitOffsetsRequest(offsets=offsets)
        try:
            subscription.protocol.call(
                "offset_manager.commit_offsets", request, timeout_ms=transaction.ENTER_TIMEOUT_MS
            )
        except errors.UnknownMember as error:
            raise refusal(options.group) from error
        except errors.OncelogError as error:
            # The checkpoint is what this query goes by; the group only shows its lag.
            log.warning("group %s does not show the query's position: %s", options.group, error)

    def stop(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def __getstate__(self) -> dict[str, Any]:
        """Of the twin in the tasks: the claim belongs to the process that renews it."""
        return {**self.__dict__, "_claim": None}

    # ------------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return
        if partition.step.positions:
            _register(self._options, partition.step)
        yield from _read(self._options, self._schema, partition)

    # ------------------------------------------------------------------------- inside

    def _subscription(self) -> Subscription:
        return Subscription.resolve(connection(self._options.cluster), self._options)

    def _alone(self) -> Subscription:
        """Members are kept out of the query's group. Raises GroupHasMembers where it has some."""
        subscription, options = self._subscription(), self._options
        if options.group is not None:
            claim = self._claim or Claim(subscription.protocol, options.group, _named(options))
            claim.hold()
            self._claim = claim
        return subscription

    def _require_committed(
        self, subscription: Subscription, group: str, begin: Positions, until: Positions
    ) -> None:
        """Spark plans a batch when the sink is done with the one before: then its positions are
        committed, or nobody will ever do it. Raises SinkNeverCommits, before the tasks of this
        batch wait for the transaction that the last one left open."""
        planned, self._planned = self._planned, (begin, until)
        if planned is None or planned == (begin, until) or planned[1] != begin:
            return
        behind = not_standing_at(subscription, group, begin)
        if behind:
            raise transaction.SinkNeverCommits(
                f"the sink is done with the last batch, but group {group!r} did not get its "
                f"positions (of {', '.join(map(str, behind))}): `transactionalSink` names a sink "
                'that never commits. Write every batch with format("oncelog"), the option '
                f"inputGroups={group}, and the `producer` and `sinkName` of the source; or, for "
                "another sink, leave `transactionalSink` out: the group then shows the lag"
            )

    def _latest(self, subscription: Subscription, start: Positions) -> Positions:
        """The ends of all partitions: of AvailableNow the fixed ones, else the newest, waited for
        where there is nothing to read yet."""
        if self._target is not None:
            return self._target
        latest = subscription.at(Edge.LATEST)
        behind = [str(tp) for tp, end in sorted(latest.items()) if end < start[tp]]
        if behind and self._options.fail_on_data_loss:
            raise DataLoss(f"the log ends before the query's position at {', '.join(behind)}")
        if self._options.long_poll_ms and all(end <= start[tp] for tp, end in latest.items()):
            latest = subscription.await_more(forward(start, latest), self._options.long_poll_ms)
        return latest

    def _begins(self, subscription: Subscription, start: Positions) -> Positions:
        """Where the next batch has its first records: what is deleted does not count against
        `maxOffsetsPerTrigger`, or millions of it would be as many batches of nothing."""
        if self._options.fail_on_data_loss:
            return start
        return kept(start, earliest=subscription.at(Edge.EARLIEST))

    def _checked(self, subscription: Subscription, vector: Vector) -> Vector:
        """A vector from the checkpoint, completed by partitions that it does not know: those of a
        topic that was read then came since, and begin at 0, whatever is kept of them; those of
        others at their earliest record. Raises DataLoss for a topic that was made anew."""
        replaced = replaced_topics(subscription.ids_hex(), vector.topic_ids)
        if replaced:
            raise DataLoss(
                f"topic {replaced[0]!r} was deleted and created again since the checkpoint was "
                "written: start the query with a new checkpoint"
            )
        known = {tp: at for tp, at in vector.positions.items() if tp in subscription.partitions}
        if len(known) < len(subscription.partitions):
            read = {tp.topic for tp in vector.positions}
            earliest = subscription.at(Edge.EARLIEST)
            begins = {tp: 0 if tp.topic in read else at for tp, at in earliest.items()}
            known = {**begins, **known}
        return Vector(known, vector.topic_ids)


def _named(options: SourceOptions) -> str:
    """The query, as its group's operators may know it."""
    topics = options.topics or sorted({place.topic for place in options.assigned})
    reads = f"a Spark query that reads {', '.join(topics)}"
    if not options.transactional_sink:
        return reads
    name = transaction.producer_name(options.transactional_sink, options.sink_name)
    return f"{reads}, with producer {name}"


def _start(subscription: Subscription, options: SourceOptions) -> Positions:
    if options.start_time_ms is not None:
        return subscription.by_time(options.start_time_ms)
    return subscription.place(options.start, "startingOffsets")


def _settled(
    subscription: Subscription, options: SourceOptions, group: str
) -> dict[TopicPartition, int]:
    """Where the group stands once nothing of it is pending. A named producer is taken over, so that
    the transaction which a lost run left open is decided now and not when its time is over."""
    if options.transactional_sink:
        name = transaction.producer_name(options.transactional_sink, options.sink_name)
        transaction.take_over(subscription.protocol, name)
    try:
        standing = subscription.committed(group, stable=True)
    except errors.PendingTransaction as error:
        raise transaction.TransactionLost(
            f"positions of group {group!r} are pending under an earlier run's transaction "
            f"({error}): name the producer in `transactionalSink` and in the sink's `producer`, so "
            "that a new run can end it, or try again when its time is over"
        ) from error
    subscription.await_what_was_made(standing)
    return {tp: at.offset for tp, at in standing.items() if at.HasField("offset")}


@dataclass(frozen=True, slots=True)
class Edges:
    """What the log holds: where its partitions begin and end."""

    earliest: Positions
    latest: Positions

    @classmethod
    def of(cls, subscription: Subscription) -> Edges:
        return cls(subscription.at(Edge.EARLIEST), subscription.at(Edge.LATEST))


def _named_offsets(wanted: Edge | Positions) -> Positions:
    """Those that the user named as numbers. The others begin where the log does, also where that
    has moved since it was asked."""
    if isinstance(wanted, Edge):
        return {}
    return {tp: at for tp, at in wanted.items() if at >= 0}


def _within(
    edges: Edges, options: SourceOptions, positions: Positions
) -> dict[TopicPartition, int]:
    """Positions that the log can serve. Raises DataLoss, unless the user does not mind: then each
    one is moved to the nearest that it can."""
    earliest, latest = edges.earliest, edges.latest
    lost = losses(positions, earliest=earliest, latest=latest)
    if lost and options.fail_on_data_loss:
        raise DataLoss(
            f"what the query should read is not there: {'; '.join(map(str, lost))}. With "
            "failOnDataLoss=false the query goes on with what is there"
        )
    for loss in lost:
        log.warning("goes on with what is there (failOnDataLoss=false): %s", loss)
    return {tp: min(max(at, earliest[tp]), latest[tp]) for tp, at in positions.items()}


def _plan(
    subscription: Subscription,
    start: Positions,
    end: Positions,
    min_partitions: int | None,
    step: BatchStep = NO_STEP,
) -> list[InputPartition]:
    """One task per range; a batch with positions to register has one task at least."""
    planned = ranges(start, end, min_partitions=min_partitions)
    if not planned and step.positions:
        nowhere = min(end)
        planned = [OffsetRange(nowhere, end[nowhere], end[nowhere])]
    return [
        RangePartition(subscription.topic_ids[part.partition.topic], part, step) for part in planned
    ]


def _register(options: SourceOptions, step: BatchStep) -> None:
    """Makes the batch's positions part of its transaction, before the first row. They are announced
    where the transaction opens, so that a sink that forgets their group cannot commit without."""
    key = transaction.streaming_key(options.transactional_sink or None, options.sink_name)
    if key is None:
        raise RuntimeError("`transactionalSink` works in micro-batches of streaming queries only")
    protocol = connection(options.cluster)
    entered = transaction.enter(protocol, key, [pb.Partition.FromString(step.participant)])
    # A batch that is committed is read again where Spark replays it, or where a second action of
    # the same foreachBatch reads it: its positions are committed as well.
    if entered.standing is Standing.OPEN:
        offsets = offset_manager_pb2.GroupOffsets.FromString(step.positions)
        transaction.register_positions(protocol, entered, offsets)


def _read(
    options: SourceOptions, schema: pa.Schema, task: RangePartition
) -> Iterator[pa.RecordBatch]:
    (topic, number), start, end = task.range
    chunks = read_range(
        connection(options.cluster),
        pb.Partition(topic_id=task.topic_id, number=number),
        start,
        end,
        name=f"{topic}/{number}",
        fail_on_data_loss=options.fail_on_data_loss,
    )
    for chunk in chunks:
        yield source_batch(chunk.rows, schema, topic=topic, partition=number, offsets=chunk.offsets)
