"""Registers the format `oncelog`: Spark imports every top-level package named `pyspark_*` once per
session and takes its `DefaultSource`. Nothing heavy may be imported here: a package of that kind
that fails to import disables the registration of all of them.
"""

from oncelog_spark.datasource import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
