"""Spark source and exactly-once sink for Oncelog, format name `oncelog`.

    datasource    what Spark looks up; imports the rest when it is needed
    this_python   which Python Spark is told to look for the format with
    options       strings from Spark in, frozen values out; unknown_options: what is said of others
    schema        columns of source and sink, and their way from and to Arrow batches of the log
    offsets       PURE: position vectors, rate limits, ranges; packing: into how many tasks
    subscription  what a source's topics are, and where their partitions begin and end
    living_members  a group belongs to one query, or to members
    claim           keeps members out of the group of a query that runs
    source        batch and streaming readers; fetch: ranges of partitions as Arrow batches
    progress      PURE: what `query.lastProgress` shows of a source
    routing       PURE: which rows go to which partition
    sink          batch and streaming writers; producing: one task's batches
    batch_transaction  one over all tasks: begin, offsets, commit; manifest: its pure part
    foreach_batch  one transaction for all that a function of foreachBatch writes; hand_over: from
                  its writers to it; driver_records: what the driver itself adds
    outcomes      what became of a transaction
    query_names   a query's name as its producer's
    connection    one connection per process; worker_memory: what workers need not collect
    jobs          runnable jobs

Nothing with weight is imported here, so that looking up the format costs nothing. But the import
itself does something: it tells Spark, before that starts, which Python has the format.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oncelog_spark.this_python import name_to_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from oncelog_spark.foreach_batch import BatchTransaction
    from oncelog_spark.outcomes import Outcome

__all__ = ["outcome", "transaction"]

__version__ = "0.1.0"

name_to_spark(os.environ)


def transaction(
    batch_df: DataFrame, batch_id: int, options: Mapping[str, str] | None = None, **more: str
) -> BatchTransaction:
    """One transaction for all that a function of foreachBatch writes, with its two arguments:

        with oncelog_spark.transaction(batch, batch_id, options) as tx:
            tx.write(frame, topic="enriched")

    `options`, `more`: those of the sink (`bootstrap`, `inputGroups`, ...). The end of the block
    commits; an exception aborts. Raises OptionError; in the block whatever a sink raises.
    """
    from oncelog_spark.foreach_batch import BatchTransaction

    return BatchTransaction(batch_df, batch_id, {**(options or {}), **more})


def outcome(tx_id: int, options: Mapping[str, str] | None = None, **more: str) -> Outcome:
    """What became of the transaction with that TxId (`tx.tx_id`): COMMITTED, ABORTED or OPEN.
    `options`, `more`: where the cluster is, as for source and sink. Raises OutcomeForgotten after 7
    days, UnknownTransaction where there was none, or another OncelogError."""
    from oncelog_spark import outcomes

    return outcomes.outcome(tx_id, {**(options or {}), **more})
