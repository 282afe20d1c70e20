"""What Spark looks up under the format name `oncelog`.

Spark makes this object many times, in many processes, and pickles it: construction has no side
effect, and everything with weight (Arrow, gRPC) is imported by the method that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from oncelog_spark.sink import OncelogBatchWriter, OncelogStreamWriter
    from oncelog_spark.source import OncelogBatchReader, OncelogStreamReader


class OncelogDataSource(DataSource):
    """Source and sink of Oncelog topics; README.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "oncelog"

    def schema(self) -> str:
        from oncelog_spark.options import includes_headers
        from oncelog_spark.schema import source_ddl

        return source_ddl(include_headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> OncelogBatchReader:
        from oncelog_spark.options import source_options
        from oncelog_spark.source import OncelogBatchReader

        return OncelogBatchReader(source_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> OncelogStreamReader:
        from oncelog_spark.options import source_options
        from oncelog_spark.source import OncelogStreamReader

        return OncelogStreamReader(source_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> OncelogBatchWriter:
        from oncelog_spark.options import sink_options
        from oncelog_spark.sink import OncelogBatchWriter

        return OncelogBatchWriter(
            sink_options(self.options, streaming=False), schema, overwrite=overwrite
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> OncelogStreamWriter:
        from oncelog_spark.options import sink_options
        from oncelog_spark.sink import OncelogStreamWriter
        from oncelog_spark.worker_memory import freeze_imports

        writer = OncelogStreamWriter(sink_options(self.options, streaming=True), schema)
        # Made for every micro-batch, in a worker that never connects.
        freeze_imports()
        return writer
