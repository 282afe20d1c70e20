"""The sink, with a hand on it: its `commit` fails, or waits, where a test says so.

Spark makes writers anew in processes of its own, so what a test says stands in files of a folder:
a file that exists is a thing that has happened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

FORMAT: Final = "oncelog_held"
# What happens, once each; told by the file of that name that a test makes before.
FAIL_BEFORE: Final = "commit-fails-before"
FAIL_AFTER: Final = "commit-fails-after"
WAIT_IN_COMMIT: Final = "commit-waits"
WAIT_IN_WRITE: Final = "write-waits"
# Made here, or by the test: somebody waits; he may go on; he has gone on to this end.
WAITING: Final = "waiting"
GO_ON: Final = "go-on"
ENDED: Final = "ended"
ABORTED: Final = "aborted"
# One for each attempt of a task: the task's partition, and the number of the attempt.
ATTEMPTS: Final = "attempt-*-*"
# A bound that only ends what nobody waits for any more.
WAIT_S_MAX: Final = 240.0


def held_data_source(folder: Path) -> type[DataSource]:
    """To be registered with a session. The classes are made here, inside of a function, so that
    they travel to Spark's workers by value: those do not have these tests on their path."""
    import time
    from collections.abc import Iterator
    from typing import Any

    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

    from oncelog_spark.datasource import OncelogDataSource

    bound_s, at = WAIT_S_MAX, str(folder)
    name = FORMAT

    class Hand:
        """What a test says, and what happened."""

        def take(self, what: str) -> bool:
            """True once after a test has said it, in whichever process."""
            try:
                Path(at, what).unlink()
            except FileNotFoundError:
                return False
            return True

        def wait(self) -> None:
            Path(at, "waiting").touch()
            give_up = time.monotonic() + bound_s
            while not Path(at, "go-on").exists() and time.monotonic() < give_up:
                time.sleep(0.02)

    class HeldWriter(DataSourceStreamArrowWriter):
        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self._hand = Hand()

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            task = TaskContext.get()
            assert task is not None
            Path(at, f"attempt-{task.partitionId()}-{task.attemptNumber()}").touch()
            written: WriterCommitMessage = self._inner.write(iterator)
            # Its rows stand in the log, and Spark has not heard of it.
            if self._hand.take("write-waits"):
                self._hand.wait()
            return written

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            if self._hand.take("commit-fails-before"):
                raise RuntimeError("the commit fails before its effect")
            late = self._hand.take("commit-waits")
            if late:
                self._hand.wait()
            try:
                self._inner.commit(messages, batchId)
            except Exception as error:
                if late:
                    Path(at, "ended").write_text(f"{type(error).__name__}: {error}")
                raise
            if late:
                Path(at, "ended").write_text("committed")
            if self._hand.take("commit-fails-after"):
                raise RuntimeError("the commit fails after its effect")

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            self._inner.abort(messages, batchId)
            Path(at, "aborted").touch()

    class HeldDataSource(OncelogDataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return HeldWriter(OncelogDataSource.streamWriter(self, schema, overwrite))

    return HeldDataSource
