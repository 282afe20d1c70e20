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

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from oncelog._core import beyond
from oncelog_spark import batch_transaction as transaction
from oncelog_spark import failed_jobs
from oncelog_spark.batch_transaction import Standing
from oncelog_spark.claim import Claim
from oncelog_spark.connection import connection
from oncelog_spark.fetch import DataLoss, RangeOf, RangeReader
from oncelog_spark.living_members import refusal
from oncelog_spark.offsets import (
    Edge,
    OffsetRange,
    Place,
    Positions,
    Times,
    TopicPartition,
    Vector,
    backlog,
    counted,
    forward,
    from_json,
    kept,
    limit_step,
    losses,
    ranges,
    replaced_topics,
    to_json,
)
from oncelog_spark.options import OptionError, SourceOptions
from oncelog_spark.packing import packed, tasks_at_least
from oncelog_spark.progress import Progress
from oncelog_spark.schema import record_columns, source_arrow_schema, source_batch
from oncelog_spark.subscription import (
    Edges,
    GroupStanding,
    Matching,
    RecordSize,
    Subscription,
    not_standing_at,
    plain_offsets,
    step_offsets,
)
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
    def of(cls, offsets: offset_manager_pb2.GroupOffsets, participant: pb.Partition) -> BatchStep:
        return cls(
            offsets.SerializeToString(deterministic=True),
            participant.SerializeToString(deterministic=True),
        )


NO_STEP: Final = BatchStep()
# Of partitions that a message names.
SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class TaskRanges(InputPartition):
    """One task's ranges, with the ids of their topics, and the step of the whole batch."""

    topic_ids: tuple[bytes, ...]
    ranges: tuple[OffsetRange, ...]
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
        end = subscription.place(options.end, "endingOffsets")
        edges = subscription.edges()
        named = _named_offsets(options.start)
        start = {tp: at if tp in named else max(at, edges.earliest[tp]) for tp, at in start.items()}
        start = _within(edges, options, start)
        end = _within(edges, options, end)
        backwards = [str(tp) for tp, at in sorted(start.items()) if at > end[tp]]
        if backwards:
            raise OptionError(f"the read ends before it begins, at {', '.join(backwards)}")
        return _plan(subscription, options, start, end, RecordSize())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes InputPartition(None) of an empty plan.
        if isinstance(partition, TaskRanges):
            yield from _read(self._options, self._schema, partition)


class OncelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, in steps that Spark remembers as vectors of positions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = source_arrow_schema(schema)
        # Trigger.AvailableNow: where the query ends.
        self._target: Positions | None = None
        # For reportLatestOffset.
        self._progress = Progress(options.group)
        self._matching = Matching()
        self._size = RecordSize()
        # When the last batch with records was planned, seconds of the monotonic clock.
        self._triggered: float | None = None
        # Keeps members out of the group, once this run has begun.
        self._claim: Claim | None = None
        # Begin and end of the newest batch of this run that a sink has to commit.
        self._planned: tuple[Positions, Positions] | None = None

    # ------------------------------------------------------------------ in the driver

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        subscription = self._alone()
        self._require_some(subscription)
        start = dict(_start(subscription, options))
        if options.group is not None:
            standing = _settled(subscription, options, options.group)
            start = _where_the_group_stands(options, standing, start)
        return to_json(Vector(start, subscription.ids_hex(), begin=start))

    def getDefaultReadLimit(self) -> ReadLimit:
        at_most, at_least = (
            self._options.max_offsets_per_trigger,
            self._options.min_offsets_per_trigger,
        )
        if at_most is not None:
            return ReadMaxRows(at_most)
        return ReadAllAvailable() if at_least is None else ReadMinRows(at_least)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._subscription().at(Edge.LATEST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # A query that goes on from its checkpoint asks this first.
        subscription = self._subscription() if self._claim else self._alone()
        before = from_json(start)
        vector = self._checked(subscription, before)
        latest = self._latest(subscription, vector.positions)
        end = forward(vector.positions, latest)
        # Spark's Trigger.Once asks for all, whatever the limits.
        if not isinstance(limit, ReadAllAvailable) and self._waits(vector.positions, end):
            self._progress.saw(latest, vector.positions, vector.positions)
            return start
        if isinstance(limit, ReadMaxRows):
            begin = self._begins(subscription, vector.positions)
            end = limit_step(begin, forward(begin, end), limit.max_rows)
        self._progress.saw(latest, vector.positions, end)
        if end == before.positions:
            # In the same words: Spark compares these, and would run a batch of nothing.
            return start
        began = vector.positions if before.is_initial else None
        return to_json(Vector(end, _ids_of(end, subscription), began))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._progress.document()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        subscription = self._alone()
        self._require_some(subscription)
        last = from_json(end)
        # Spark asks for the start of a first batch again: where the batch is planned, and each time
        # it is. By then the group may stand at its end, and the newest record be another one.
        first = from_json(start) if last.begin is None else Vector(last.begin, last.topic_ids)
        begin = self._checked(subscription, first).positions
        until = self._checked(subscription, last).positions
        step = NO_STEP
        if options.transactional_sink is not None and options.group is not None:
            standing = subscription.committed(options.group, stable=False)
            self._require_committed(subscription, options.group, standing, begin, until)
            offsets = step_offsets(subscription, options.group, standing, begin, until)
            [lives_in] = transaction.offset_partitions(subscription.protocol, [options.group])
            step = BatchStep.of(offsets, lives_in)
        readable = _within(subscription.edges(), options, begin, self._progress)
        return _plan(subscription, options, readable, until, self._size, step)

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
        if isinstance(partition, TaskRanges):
            yield from _read(self._options, self._schema, partition)

    # ------------------------------------------------------------------------- inside

    def _subscription(self) -> Subscription:
        return Subscription.resolve(
            connection(self._options.cluster), self._options, self._matching
        )

    def _alone(self) -> Subscription:
        """Members are kept out of the query's group. Raises GroupHasMembers where it has some."""
        subscription, options = self._subscription(), self._options
        if options.group is not None:
            claim = self._claim or Claim(subscription.protocol, options.group, _named(options))
            claim.hold()
            self._claim = claim
        return subscription

    def _require_committed(
        self,
        subscription: Subscription,
        group: str,
        standing: GroupStanding,
        begin: Positions,
        until: Positions,
    ) -> None:
        """Spark plans a batch when the sink is done with the one before: then its positions are
        committed, or nobody will ever do it. Raises SinkNeverCommits, before the tasks of this
        batch wait for the transaction that the last one left open."""
        planned, self._planned = self._planned, (begin, until)
        if planned is None or planned == (begin, until) or planned[1] != begin:
            return
        behind = not_standing_at(subscription, standing, begin)
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

    def _waits(self, start: Positions, end: Positions) -> bool:
        """Whether what is there is left to a later trigger (`minOffsetsPerTrigger`)."""
        at_least, now = self._options.min_offsets_per_trigger, time.monotonic()
        # AvailableNow reads all that there was, however little.
        if at_least is None or self._target is not None:
            return False
        behind = sum(backlog(start, end).values())
        waited_s = None if self._triggered is None else now - self._triggered
        if waited_s is not None and behind < at_least:
            left_s = self._options.trigger_delay_ms_max / 1000 - waited_s
            if left_s > 0:
                if behind:
                    # Else Spark asks again at once, a hundred times a second.
                    time.sleep(min(left_s, self._options.long_poll_ms / 1000))
                return True
        if behind:
            self._triggered = now
        return False

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
        self._require_there(subscription, vector)
        known = {tp: at for tp, at in vector.positions.items() if tp in subscription.partitions}
        if len(known) < len(subscription.partitions):
            read = {tp.topic for tp in vector.positions}
            earliest = subscription.at(Edge.EARLIEST)
            begins = {tp: 0 if tp.topic in read else at for tp, at in earliest.items()}
            known = {**begins, **known}
        return Vector(known, vector.topic_ids)

    def _require_some(self, subscription: Subscription) -> None:
        """A batch has positions to commit, where a sink commits them. Raises OptionError."""
        pattern = self._options.pattern
        if pattern is None or subscription.partitions or self._options.transactional_sink is None:
            return
        raise OptionError(
            f"no topic matches `subscribePattern` {pattern.pattern!r}, and `transactionalSink` "
            "needs positions to commit: create the first topic, then start the query"
        )

    def _require_there(self, subscription: Subscription, vector: Vector) -> None:
        """Raises DataLoss where a topic is gone that the query has read and whose name still
        matches; of a topic that it names, Spark is told when the topic is looked up."""
        pattern = self._options.pattern
        if pattern is None:
            return
        gone = [
            topic
            for topic in sorted(vector.topic_ids)
            if topic not in subscription.topic_ids and pattern.fullmatch(topic)
        ]
        if gone and self._options.fail_on_data_loss:
            raise DataLoss(
                f"topic {gone[0]!r}, which the query reads, was deleted. With failOnDataLoss=false "
                "the query goes on without it"
            )
        for topic in gone:
            log.warning("goes on without topic %r, which was deleted", topic)


def _ids_of(positions: Positions, subscription: Subscription) -> dict[str, str]:
    """Of the topics of these positions: a topic that is not read yet makes no new offset."""
    topics = {tp.topic for tp in positions}
    return {topic: hexed for topic, hexed in subscription.ids_hex().items() if topic in topics}


def _named(options: SourceOptions) -> str:
    """The query, as its group's operators may know it."""
    topics = options.topics or sorted({place.topic for place in options.assigned})
    if options.pattern is not None:
        topics = [f"what matches {options.pattern.pattern}"]
    reads = f"a Spark query that reads {', '.join(topics)}"
    if not options.transactional_sink:
        return reads
    name = transaction.producer_name(options.transactional_sink, options.sink_name)
    return f"{reads}, with producer {name}"


def _start(subscription: Subscription, options: SourceOptions) -> Positions:
    return subscription.place(options.start, "startingOffsets", late=options.late_start)


def _settled(
    subscription: Subscription, options: SourceOptions, group: str
) -> dict[TopicPartition, int]:
    """Where the group stands once nothing of it is pending. A named producer is taken over, and
    what a run of another name left open is ended, so that it is decided now and not when its time
    is over."""
    if options.transactional_sink:
        name = transaction.producer_name(options.transactional_sink, options.sink_name)
        transaction.take_over(subscription.protocol, name)
    elif options.transactional_sink is not None:
        # Which name that is, nobody tells a source; that nobody else moves the group, its claim.
        standing = subscription.committed(group, stable=False)
        for tx_id in sorted({at.pending_tx_id for at in standing.values()} - {0}):
            failed_jobs.end_earlier_run(subscription.protocol, tx_id)
    try:
        standing = subscription.committed(group, stable=True)
    except errors.PendingTransaction as error:
        raise transaction.TransactionLost(
            f"positions of group {group!r} are pending under a transaction that is not of this "
            f"query's sink, or not decided in time ({error}): `oncelog group describe {group}` "
            "shows which; try again when it has ended"
        ) from error
    across = [str(tp) for tp, at in sorted(standing.items()) if beyond.decode(at.metadata)[0]]
    if across:
        raise OptionError(
            f"group {group!r} was read by transactions(across=True), which has given transactions "
            f"behind its offset of {', '.join(across)}: a query would read them again, and forget "
            "that. Go on that way until all before them is committed, move the group (`oncelog "
            "group reset-offsets`), or give the query a `group` of its own"
        )
    subscription.await_what_was_made(standing)
    return {tp: at.offset for tp, at in standing.items() if at.HasField("offset")}


def _where_the_group_stands(
    options: SourceOptions, standing: Positions, start: Positions
) -> dict[TopicPartition, int]:
    """Where a query begins whose group has positions already: there, whatever the option says. A
    partition that its topic got since begins at 0, as in a query that goes on, unless the option
    names it."""
    moved = [tp for tp in sorted(standing) if standing[tp] != start.get(tp)]
    if moved and options.start_is_given:
        log.warning(
            "the query begins where group %r stands (%s), and not where `startingOffsets` says; "
            "`oncelog group reset-offsets` moves a group",
            options.group,
            ", ".join(f"{tp}: {standing[tp]}" for tp in moved[:SHOWN_MAX]),
        )
    read, named = {tp.topic for tp in standing}, _named_offsets(options.start)
    came = {tp: 0 for tp in start if tp.topic in read and tp not in named}
    return {**start, **came, **standing}


def _named_offsets(wanted: Place) -> Positions:
    """Those that the user named as numbers. The others begin where the log does, also where that
    has moved since it was asked."""
    if isinstance(wanted, Edge | Times):
        return {}
    return {tp: at for tp, at in wanted.items() if at >= 0}


def _within(
    edges: Edges,
    options: SourceOptions,
    positions: Positions,
    progress: Progress | None = None,
) -> dict[TopicPartition, int]:
    """Positions that the log can serve. Raises DataLoss, unless the user does not mind: then each
    one is moved to the nearest that it can, and `progress` counts what was passed over."""
    earliest, latest = edges.earliest, edges.latest
    lost = losses(positions, earliest=earliest, latest=latest)
    deleted = sum(loss.offset_count for loss in lost)
    if lost and options.fail_on_data_loss:
        in_all = f", {counted(deleted)} in all" if len(lost) > 1 else ""
        raise DataLoss(
            f"what the query should read is not there: {'; '.join(map(str, lost))}{in_all}. With "
            "failOnDataLoss=false the query goes on with what is there"
        )
    if progress is not None:
        progress.passed_over += deleted
    for loss in lost:
        log.warning("goes on with what is there (failOnDataLoss=false): %s", loss)
    return {tp: min(max(at, earliest[tp]), latest[tp]) for tp, at in positions.items()}


def _plan(
    subscription: Subscription,
    options: SourceOptions,
    start: Positions,
    end: Positions,
    size: RecordSize,
    step: BatchStep = NO_STEP,
) -> list[InputPartition]:
    """A task for each range, or for several of a small batch; a batch with positions to register
    has one task at least."""
    at_least, at_most = options.min_partitions, options.records_per_partition_max
    wanted = ranges(start, end, min_partitions=at_least, max_records=at_most)
    largest = max(wanted, key=lambda part: part.offset_count, default=None)
    planned = packed(
        wanted,
        # What is one range is one task, however large its records are.
        record_bytes=size.ask(subscription, largest) if largest and len(wanted) > 1 else 0.0,
        min_partitions=max(at_least or 1, tasks_at_least(options.transactional_sink)),
        max_records=at_most,
    )
    if not planned and step.positions:
        nowhere = min(end)
        planned = [(OffsetRange(nowhere, end[nowhere], end[nowhere]),)]
    ids = subscription.topic_ids
    return [
        TaskRanges(tuple(ids[part.partition.topic] for part in parts), parts, step)
        for parts in planned
    ]


def _register(options: SourceOptions, step: BatchStep) -> None:
    """Makes the batch's positions part of its transaction, before the first row. They are announced
    where the transaction opens, so that a sink that forgets their group cannot commit without."""
    key = transaction.streaming_key(options.transactional_sink or None, options.sink_name)
    if key is None:
        raise RuntimeError("`transactionalSink` works in micro-batches of streaming queries only")
    protocol = connection(options.cluster)
    idle_ms = options.transaction_timeout_ms
    entered = transaction.enter(
        protocol, key, [pb.Partition.FromString(step.participant)], idle_timeout_ms=idle_ms
    )
    offsets = offset_manager_pb2.GroupOffsets.FromString(step.positions)
    # A batch that is committed is read again where Spark replays it, or where a second action of
    # the same foreachBatch reads it: its positions are committed as well.
    if entered.standing is Standing.OPEN:
        transaction.register_positions(protocol, entered, offsets, idle_timeout_ms=idle_ms)
    elif entered.standing is Standing.ALREADY_COMMITTED:
        transaction.require_moved(protocol, offsets)


def _read(options: SourceOptions, schema: pa.Schema, task: TaskRanges) -> Iterator[pa.RecordBatch]:
    """The rows are fetched while the batch's positions are registered, and given after."""
    parts = [
        RangeOf(pb.Partition(topic_id=topic_id, number=part.partition.number), part)
        for topic_id, part in zip(task.topic_ids, task.ranges, strict=True)
    ]
    reader = RangeReader(
        connection(options.cluster),
        parts,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout_ms=options.poll_timeout_ms,
        columns=record_columns(schema),
    )
    with contextlib.closing(reader):
        if task.step.positions:
            _register(options, task.step)
        for chunk in reader:
            topic, number = chunk.partition
            yield source_batch(
                chunk.rows, schema, topic=topic, partition=number, offsets=chunk.offsets
            )
