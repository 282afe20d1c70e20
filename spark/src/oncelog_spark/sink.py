"""Writers: one transaction per micro-batch, or per batch job, over all tasks.

What Spark gives decides the shape. A task knows query, run and batch, and opens or joins the
batch's transaction; each attempt writes under a random writer number. The driver's `commit` gets
the messages of the winning attempts and commits exactly their writers. A streaming writer is made
anew in every process and must have no side effects; a batch writer is made once, in the driver, and
pickled, so its identity is drawn when it is made.

Batch jobs in `foreachBatch` are micro-batches: their tasks know it, and write as streaming ones do.
"""

from __future__ import annotations

import itertools
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from oncelog_spark import agreement, failed_jobs, hand_over
from oncelog_spark import batch_transaction as transaction
from oncelog_spark.batch_transaction import Standing
from oncelog_spark.connection import connection
from oncelog_spark.manifest import PartCount, TaskWritten, TransactionKey, one_transaction
from oncelog_spark.options import OptionError, SinkOptions
from oncelog_spark.producing import TaskProducer
from oncelog_spark.schema import check_sink_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class OncelogStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_sink_schema(schema, topic_given=options.topic is not None)
        if options.txn_id is not None:
            raise OptionError("`txnId` belongs to batch jobs: a stream has its query and batch id")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        key = transaction.streaming_key(self._options.producer, self._options.sink_name)
        if key is None:
            raise RuntimeError("Spark tells this task neither query nor batch: report this, please")
        return write_task(self._options, key, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        first = one_transaction(messages)
        is_alone = (
            first is not None
            and first.tx_id != 0
            and agreement.require_only_sink(connection(self._options.cluster), first)
        )
        commit_job(self._options, messages, is_alone=is_alone)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort_job(self._options, messages, None)


class OncelogBatchWriter(DataSourceArrowWriter):
    """The sink of a batch job, also inside of foreachBatch."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        check_sink_schema(schema, topic_given=options.topic is not None)
        if overwrite:
            raise OptionError('a log is only appended to: use mode("append")')
        self._options = options
        self._job_key = batch_key(options, uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = self._options
        key = transaction.streaming_key(options.producer, options.sink_name)
        if key is not None and options.txn_id is not None:
            raise OptionError(
                "`txnId` belongs to batch jobs: foreachBatch has its query and batch id"
            )
        return write_task(options, key or self._job_key, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.part_file is None:
            commit_job(self._options, messages)
        elif one_transaction(messages) is not None:
            hand_over.leave(Path(self._options.part_file), _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # What is only a part is aborted with the rest, by who began it all.
        if self._options.part_file is None:
            abort_job(self._options, messages, self._job_key)


def batch_key(options: SinkOptions, run: uuid.UUID) -> TransactionKey:
    """Of a batch job. With `txnId` a job that is run again finds its transaction committed, or
    takes over the one that its failed run left open. Where nothing shall be remembered, the
    producer has no name: named ones never expire."""
    job = options.txn_id or str(run)
    base = options.producer or options.txn_id
    if base is None:
        return TransactionKey("", run.bytes, scope=job, number=0, group=job)
    name = transaction.producer_name(base, options.sink_name)
    return TransactionKey(name, run.bytes, scope=job, number=0)


def write_task(
    options: SinkOptions, key: TransactionKey, iterator: Iterator[pa.RecordBatch]
) -> TaskWritten:
    """One task attempt. Where the batch was committed by an earlier run, it writes nothing."""
    protocol = connection(options.cluster)
    # Before the first rows are there, their source may have opened the transaction, and announced
    # the positions that belong to it.
    first = next(iterator, None)
    key = transaction.resolved(protocol, key)
    entered = transaction.enter(protocol, key, idle_timeout_ms=options.transaction_timeout_ms)
    if entered.standing is Standing.COMMITTED_BY_US:
        raise transaction.second_write(key)
    # A fresh number, never Spark's attempt numbers: they repeat over restarts.
    writer = secrets.randbits(64) or 1
    parts: tuple[PartCount, ...] = ()
    if entered.standing is Standing.OPEN:
        context = TaskContext.get()
        first_unkeyed = (context.partitionId() if context else 0) + key.number
        with TaskProducer(
            protocol, entered, writer=writer, topic=options.topic, unkeyed=first_unkeyed
        ) as producer:
            for batch in () if first is None else itertools.chain((first,), iterator):
                producer.write(batch)
            parts = producer.finish()
    return TaskWritten(key, entered.tx_id, entered.producer_id, entered.generation, writer, parts)


def commit_job(
    options: SinkOptions, messages: list[WriterCommitMessage | None], *, is_alone: bool = False
) -> None:
    """Commits what the winning tasks wrote. `is_alone`: no other transaction has positions of this
    query. Raises Disagreement, SinkMismatch, TransactionLost or an OncelogError; Spark then aborts
    and, in a stream, runs the batch again."""
    first = one_transaction(messages)
    if first is None:
        return
    protocol = connection(options.cluster)
    if first.tx_id and not is_alone:
        agreement.require_positions_here(protocol, first, options.input_groups)
    transaction.commit(protocol, _written(messages), options.input_groups, options.wait)


def abort_job(
    options: SinkOptions,
    messages: list[WriterCommitMessage | None],
    job_key: TransactionKey | None,
) -> None:
    """Ends the transaction of a failed job; does nothing for one that is committed. `job_key`: of a
    batch job, what its tasks were given."""
    protocol = connection(options.cluster)
    if not failed_jobs.abort_told(protocol, _written(messages)) and job_key is not None:
        failed_jobs.abort_untold(protocol, job_key)


def _written(messages: list[WriterCommitMessage | None]) -> list[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]
