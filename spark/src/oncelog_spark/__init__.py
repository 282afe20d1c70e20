"""Spark source and exactly-once sink for Oncelog, format name `oncelog`.

    datasource    what Spark looks up; imports the rest when it is needed
    this_python   which Python Spark is told to look for the format with
    options       strings from Spark in, frozen values out; unknown_options: what is said of others
    schema        columns of source and sink, and their way from and to Arrow batches of the log
    offsets       PURE: position vectors, rate limits, ranges
    subscription  what a source's topics are, and where their partitions begin and end
    living_members  a group belongs to one query, or to members
    claim           keeps members out of the group of a query that runs
    source        batch and streaming readers; fetch: one range of a partition as Arrow batches
    routing       PURE: which rows go to which partition
    sink          batch and streaming writers; producing: one task's batches
    transaction   one transaction over all tasks: begin, offsets, commit; manifest is its pure part
    connection    one connection per process
    jobs          runnable jobs

Nothing with weight is imported here, so that looking up the format costs nothing. But the import
itself does something: it tells Spark, before that starts, which Python has the format.
"""

import os

from oncelog_spark.this_python import name_to_spark

__version__ = "0.1.0"

name_to_spark(os.environ)
