"""One transaction for all that a function of `foreachBatch` writes: several DataFrames, several
topics, records of the driver's own, and the positions of every source that it read.

    with oncelog_spark.transaction(batch, batch_id, options) as tx:
        tx.write(enriched, topic="enriched")
        tx.write(statistics, topic="statistics")

Each `write` is a Spark job of the batch sink, whose tasks join the micro-batch's transaction as any
sink's do; but its `commit` only hands over what the winning tasks wrote. The end of the block
commits all of it in one manifest, or aborts.

Invariants: nothing is visible before the block ends, and all of it is, or nothing. Whoever replays
a batch that was committed writes and sends nothing (`replayed`), but reads it to its end, for what
state Spark keeps of it (ADR 91). What a block that ends by an exception opened is aborted, also by
its sources alone.

Left out: batches that are not of a streaming query, and Spark Connect; `txnId` is for them.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from oncelog_spark import agreement, failed_jobs, hand_over
from oncelog_spark import batch_transaction as transaction
from oncelog_spark.batch_transaction import Entered, Standing
from oncelog_spark.connection import connection
from oncelog_spark.driver_records import DriverRecords, observed_value
from oncelog_spark.manifest import TaskWritten, TransactionKey, one_transaction
from oncelog_spark.options import PART_FILE, OptionError, sink_options
from oncelog_spark.producing import TaskProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation


class _Phase(Enum):
    NEW = "not entered yet: use it in a `with` block"
    OPEN = "open"
    OVER = "over: its `with` block has ended"


class BatchTransaction:
    """The transaction of one micro-batch, in the driver. Use as a context manager, once."""

    def __init__(self, batch: DataFrame, batch_id: int, options: Mapping[str, str]) -> None:
        self._batch = batch
        self._batch_id = batch_id
        self._given = dict(options)
        self._options = sink_options(self._given, streaming=False)
        if self._options.txn_id is not None:
            raise OptionError("`txnId` belongs to batch jobs: this batch has its query and number")
        self._protocol = connection(self._options.cluster)
        self._phase = _Phase.NEW
        self._replayed = False
        self._key: TransactionKey | None = None
        self._entered: Entered | None = None
        self._messages: list[TaskWritten] = []
        self._records = DriverRecords()
        self._folder: Path | None = None
        self._files = itertools.count()

    # ------------------------------------------------------------------------------ for the user

    @property
    def replayed(self) -> bool:
        """The batch was committed by an earlier run: there is nothing to do. `write` and `send` do
        nothing then; whatever else the block would do, it must leave alone."""
        self._require_open()
        return self._replayed

    @property
    def tx_id(self) -> int:
        """Of the transaction, for `oncelog_spark.outcome`. 0 where the batch is `replayed`: whose
        transaction committed it is not told."""
        self._require_open()
        if self._replayed:
            return 0
        if self._entered is None:
            if not (self._options.input_groups or self._messages):
                # Who begins it says which positions belong to it: the source must be the first.
                self._batch.take(1)
            self._entered = self._enter()
        return self._entered.tx_id

    def write(self, frame: DataFrame, topic: str | None = None, **options: str) -> None:
        """Writes a DataFrame as the sink does, to be committed with the block. `options`: further
        ones of the sink for this frame alone. What several frames are made from, persist."""
        self._require_open()
        if self._replayed:
            return
        fixed = {"producer", "sinkname", "inputgroups", "txnid", "wait"}
        wrong = sorted(name for name in options if name.lower() in fixed)
        if wrong:
            raise OptionError(f"`{wrong[0]}` is the whole transaction's: give it to transaction()")
        file = self._temporary() / str(next(self._files))
        writer = frame.write.format("oncelog").mode("append").options(**self._given)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**options).option(PART_FILE, str(file)).save()
        written = hand_over.take(file)
        # Here, where it says which write it was.
        one_transaction([*self._messages, *written])
        self._messages += written

    def send(
        self, topic: str, value: bytes | str | None, *, key: bytes | str | None = None
    ) -> None:
        """A record of the driver's own: a summary of the batch, or a mark. For few and small ones;
        the limits are in `driver_records`."""
        self._require_open()
        if not self._replayed:
            self._records.add(topic, value, key)

    def send_observed(
        self, topic: str, observation: Observation, *, key: bytes | str | None = None
    ) -> None:
        """The metrics of an `Observation`, as one record of JSON. Call it after the observed frame
        was written. Where the batch is `replayed` nobody waits for what never ran."""
        self._require_open()
        if not self._replayed:
            self._records.add(topic, observed_value(observation), key)

    # ------------------------------------------------------------------------------------ inside

    def __enter__(self) -> BatchTransaction:
        if self._phase is not _Phase.NEW:
            raise RuntimeError(f"this transaction is {self._phase.value}")
        key = transaction.key_of_batch(
            _properties(self._batch), self._options.producer, self._options.sink_name
        )
        if key is None:
            raise RuntimeError(
                "transaction() is for the function of foreachBatch, in its own thread: here Spark "
                "knows of no micro-batch. A batch job has the sink's option `txnId`"
            )
        if key.number != self._batch_id:
            raise ValueError(f"this is batch {key.number} of its query, not {self._batch_id!r}")
        self._key = transaction.resolved(self._protocol, key)
        self._replayed = self._committed_before(self._key)
        self._phase = _Phase.OPEN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._replayed:
                if kind is None:
                    self._read_to_its_end()
                return
            if kind is not None:
                self._abort()
                return
            try:
                self._commit()
            except BaseException:
                # Nothing is changed by it where the commit stands.
                self._abort()
                raise
        finally:
            self._phase = _Phase.OVER
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _committed_before(self, key: TransactionKey) -> bool:
        """Opens nothing. Raises SecondWrite where it was this run that committed it."""
        granted = transaction.register(self._protocol, key)
        last = granted.last_commit_seq
        if last.scope != key.scope or last.number < key.number or not last.scope:
            return False
        standing = transaction.enter(self._protocol, key).standing
        if standing is Standing.COMMITTED_BY_US:
            raise transaction.second_write(key)
        return standing is Standing.ALREADY_COMMITTED

    def _commit(self) -> None:
        if not self._messages and self._options.input_groups:
            # Nothing came of it, but the positions move: their sources register them when read.
            self._read_to_its_end()
        begun = self._entered is not None or self._options.input_groups
        if self._records or (begun and not self._messages):
            self._messages.append(self._own())
        first = one_transaction(self._messages)
        if first is None or not first.tx_id:
            return
        agreement.require_positions_here(self._protocol, first, self._options.input_groups)
        options = self._options
        transaction.commit(self._protocol, self._messages, options.input_groups, options.wait)

    def _read_to_its_end(self) -> None:
        self._batch.write.format("noop").mode("append").save()

    def _own(self) -> TaskWritten:
        """What the driver itself has to say: its records, or that there are none."""
        key, entered = self._required_key(), self._enter()
        if entered.standing is Standing.COMMITTED_BY_US:
            raise transaction.second_write(key)
        writer = secrets.randbits(64) or 1
        with TaskProducer(
            self._protocol, entered, writer=writer, topic=None, unkeyed=key.number
        ) as producer:
            producer.write(self._records.batch())
            parts = producer.finish()
        return TaskWritten(
            key, entered.tx_id, entered.producer_id, entered.generation, writer, parts
        )

    def _enter(self) -> Entered:
        parts = transaction.offset_partitions(self._protocol, self._options.input_groups)
        return transaction.enter(
            self._protocol,
            self._required_key(),
            parts,
            idle_timeout_ms=self._options.transaction_timeout_ms,
        )

    def _abort(self) -> None:
        if not failed_jobs.abort_told(self._protocol, self._messages):
            failed_jobs.abort_untold(self._protocol, self._required_key())

    def _required_key(self) -> TransactionKey:
        assert self._key is not None, "it was entered"
        return self._key

    def _require_open(self) -> None:
        if self._phase is not _Phase.OPEN:
            raise RuntimeError(f"this transaction is {self._phase.value}")

    def _temporary(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="oncelog-transaction-"))
        return self._folder


def _properties(batch: DataFrame) -> Callable[[str], str | None]:
    """Of the batch that this thread runs. Raises RuntimeError with Spark Connect, whose server runs
    the function's jobs in threads that know nothing of the query: not even a task could tell."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    if not isinstance(batch, ClassicDataFrame):
        raise RuntimeError(
            "transaction() needs a classic session: Spark Connect tells a function of foreachBatch "
            "nothing of its query. Write by the query, with writeStream.format('oncelog'), or "
            "give each save() a `producer` and the batch's number as its `txnId`"
        )
    # A method of the context; stubs know no type of it.
    found: Callable[[str], str | None] = batch.sparkSession.sparkContext.getLocalProperty
    return found
