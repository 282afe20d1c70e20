"""Runnable jobs. `python -m oncelog_spark.jobs.flights` is the one that shows everything."""

import os

# A job starts Spark's JVM, by a fork, from a process that may use gRPC already. With gRPC's fork
# handlers, which are on by default and read before grpc is imported, some of those forks crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
