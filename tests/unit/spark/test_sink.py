"""The writers without a JVM: what a task reports, what the driver commits or ends, and what it
refuses (I34)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from oncelog.protocol import Protocol
from oncelog_spark import connection, sink
from oncelog_spark.connection import ClusterAddress, TlsFiles
from oncelog_spark.manifest import Disagreement, PartCount, TaskWritten, TransactionKey
from oncelog_spark.options import OptionError, sink_options
from oncelog_spark.sink import (
    OncelogBatchWriter,
    OncelogStreamWriter,
    abort_job,
    commit_job,
    write_task,
)
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.rpc.authority import Authority
from tests.unit.spark.leaders import TOPIC_ID, Leaders

KEY = TransactionKey("job", b"r" * 16, "query", 3)
OPTIONS = sink_options({"bootstrap": "x:1", "topic": "t"}, streaming=True)
SCHEMA = StructType([StructField("value", BinaryType())])
Begun = coordinator_pb2.BeginTransactionReply


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    made = Leaders([], [])
    monkeypatch.setattr(sink, "connection", lambda _: made.protocol)
    return made


def rows(count: int) -> Any:
    return iter([pa.record_batch({"value": [b"v"] * count})])


def written(writer: int, number: int, count: int) -> TaskWritten:
    return TaskWritten(KEY, 77, 5, 2, writer, (PartCount(TOPIC_ID, number, count),))


def test_i34_a_task_reports_its_own_writer_and_what_it_wrote(leaders: Leaders) -> None:
    first, second = (write_task(OPTIONS, KEY, rows(count)) for count in (4, 6))
    assert first.writer != second.writer
    assert [request.writer for request in leaders.of("produce")] == [first.writer, second.writer]
    # Rows without a key: the batch's number chooses the partition.
    assert (first.parts, second.parts) == (
        (PartCount(TOPIC_ID, 1, 4),),
        (PartCount(TOPIC_ID, 1, 6),),
    )
    assert (first.key, first.tx_id, first.producer_id, first.generation) == (KEY, 77, 5, 2)


def test_i21_a_task_lets_its_source_begin_first(leaders: Leaders) -> None:
    """Who begins the transaction announces the positions that belong to it."""

    def source() -> Iterator[pa.RecordBatch]:
        assert [name for name, _ in leaders.asked] == []
        yield pa.record_batch({"value": [b"v"]})
        assert "begin_transaction" in [name for name, _ in leaders.asked]

    write_task(OPTIONS, KEY, source())


def test_i34_a_task_of_a_replayed_batch_writes_none_of_its_rows(leaders: Leaders) -> None:
    leaders.script["begin_transaction"] = [Begun(result=Begun.RESULT_ALREADY_COMMITTED)]
    assert write_task(OPTIONS, KEY, rows(4)).parts == ()
    assert leaders.of("produce") == []


def test_i34_the_driver_commits_the_parts_of_all_tasks(leaders: Leaders) -> None:
    commit_job(OPTIONS, [written(8, 0, 4), written(9, 0, 6), written(9 + 1, 1, 1)])
    (request,) = leaders.of("commit_transaction")
    (topic,) = request.manifest.topics
    assert list(zip(topic.partition, topic.writer, topic.record_count, strict=True)) == [
        (0, 8, 4),
        (0, 9, 6),
        (1, 10, 1),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [written(8, 0, 4), None],
        [written(8, 0, 4), replace(written(9, 0, 6), tx_id=78)],
        [written(8, 0, 4), written(8, 0, 4)],
    ],
    ids=["a silent task", "two transactions", "one writer twice"],
)
def test_i34_a_job_whose_tasks_disagree_commits_nothing(
    leaders: Leaders, messages: list[Any]
) -> None:
    with pytest.raises(Disagreement):
        commit_job(OPTIONS, messages)
    assert leaders.asked == []


def test_an_abort_ends_what_some_tasks_opened_and_names_where_they_wrote(
    leaders: Leaders,
) -> None:
    replayed = replace(written(7, 0, 1), tx_id=0, parts=())
    abort_job(OPTIONS, [None, replayed, written(8, 1, 4)], None)
    (request,) = leaders.of("abort_transaction")
    assert request.tx_id == 77
    assert list(request.parts) == [pb.Partition(topic_id=TOPIC_ID, number=1)]
    abort_job(OPTIONS, [None, replayed], None)
    assert len(leaders.of("abort_transaction")) == 1


def test_what_a_writer_cannot_do_is_refused_when_it_is_made() -> None:
    named = sink_options({"bootstrap": "x:1", "topic": "t", "txnId": "load"}, streaming=True)
    with pytest.raises(OptionError, match="txnId"):
        OncelogStreamWriter(named, SCHEMA)
    with pytest.raises(OptionError, match="append"):
        OncelogBatchWriter(OPTIONS, SCHEMA, overwrite=True)


def test_a_forked_process_makes_a_connection_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fork: the process id is what tells it, and the lock may be held."""
    monkeypatch.setattr(connection, "_connect", lambda _: object())
    monkeypatch.setattr(connection, "_open", {})
    here, there = ClusterAddress("x:1"), ClusterAddress("y:1")
    mine: Protocol = connection.connection(here)
    assert connection.connection(here) is mine
    assert connection.connection(there) is not mine
    connection._lock.acquire()
    connection._unlock()
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert connection._lock.acquire(blocking=False)
    connection._lock.release()
    assert connection.connection(here) is not mine


def test_a_secured_connection_is_never_shared_with_plain_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection, "_open", {})
    files = Authority(tmp_path).issue("spark")
    secured = ClusterAddress("x:1", TlsFiles(files.ca, files.certificate, files.key, "log"))
    with (
        connection.connection(ClusterAddress("x:1")) as plain,
        connection.connection(pickle.loads(pickle.dumps(secured))) as other,
    ):
        assert other is not plain
        assert connection.connection(secured) is other
    absent = ClusterAddress("x:1", TlsFiles(ca=str(tmp_path / "absent.pem")))
    with pytest.raises(InvalidArgument, match=r"TLS file cannot be read.*absent\.pem"):
        connection.connection(absent)
