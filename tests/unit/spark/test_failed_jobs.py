"""What a failed job left open is ended at once, whether a task lived to tell of it or none did; and
never what belongs to a later run."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from oncelog_spark import sink
from oncelog_spark.failed_jobs import abort_told, abort_untold
from oncelog_spark.manifest import PartCount, TaskWritten, TransactionKey
from oncelog_spark.options import sink_options
from oncelog_spark.sink import OncelogBatchWriter, batch_key
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import TOPIC_ID, Leaders
from tests.unit.spark.test_sink import SCHEMA

RUN = uuid.UUID(int=10)
PRODUCER = pb.Producer(producer_id=5, generation=2)
Begun = coordinator_pb2.BeginTransactionReply


def key_of(**options: str) -> TransactionKey:
    return batch_key(sink_options({"bootstrap": "x:1", **options}, streaming=False), RUN)


def listed(tx_id: int, scope: str) -> coordinator_pb2.TransactionDescription:
    return coordinator_pb2.TransactionDescription(
        tx_id=tx_id, producer=PRODUCER, commit_seq=pb.CommitSeq(scope=scope, number=0)
    )


@pytest.mark.parametrize(
    ("options", "name", "group"),
    [({}, "", str(RUN)), ({"txnId": "load"}, "load", ""), ({"sinkName": "a"}, "", str(RUN))],
)
def test_what_no_task_told_of_is_found_by_the_tasks_own_two_calls(
    options: dict[str, str], name: str, group: str
) -> None:
    leaders = Leaders()
    abort_untold(leaders.protocol, key_of(**options))
    (init,), (aborted,) = leaders.of("init_producer"), leaders.of("abort_transaction")
    assert (init.name, init.group, init.instance_id) == (name, group, RUN.bytes)
    assert (aborted.tx_id, aborted.producer) == (77, PRODUCER)


@pytest.mark.parametrize(
    "script",
    [
        {"init_producer": errors.ProducerFenced("a later run")},
        {"begin_transaction": Begun(result=Begun.RESULT_ALREADY_COMMITTED)},
        {
            "begin_transaction": Begun(
                result=Begun.RESULT_ENDED, state=pb.TRANSACTION_STATE_COMMITTED
            )
        },
        {"begin_transaction": Begun(result=Begun.RESULT_ENDED, state=pb.TRANSACTION_STATE_ABORTED)},
    ],
    ids=["replaced", "committed by an earlier run", "committed", "aborted"],
)
def test_i16_what_is_decided_or_of_a_later_run_stays(
    script: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    leaders = Leaders()
    leaders.script = {name: [answer] for name, answer in script.items()}
    abort_untold(leaders.protocol, key_of(txnId="load"))
    assert leaders.of("abort_transaction") == []
    assert caplog.records == []


def test_i16_a_producer_that_may_be_a_querys_is_not_registered_again() -> None:
    """Inside of foreachBatch the tasks registered the query's run: the job's own id would fence it.
    The job's transaction, where there is one, has a scope that no other has."""
    leaders = Leaders()
    key = key_of(producer="enricher", sinkName="a")
    mine, other = listed(78, str(RUN)), listed(79, "the-query")
    leaders.script["list_transactions"] = [
        coordinator_pb2.ListTransactionsReply(transactions=[other, mine])
    ]
    abort_untold(leaders.protocol, key)
    assert leaders.of("init_producer") == []
    (asked,) = leaders.of("list_transactions")
    assert (asked.name, list(asked.states)) == ("enricher/a", [pb.TRANSACTION_STATE_ONGOING])
    assert [aborted.tx_id for aborted in leaders.of("abort_transaction")] == [78]


def test_a_cluster_that_is_away_is_told_of_and_hides_no_other_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leaders = Leaders()
    leaders.script["init_producer"] = [errors.Unavailable("away")]
    leaders.script["abort_transaction"] = [errors.Unavailable("away")]
    with caplog.at_level(logging.WARNING):
        abort_untold(leaders.protocol, key_of())
        message = TaskWritten(key_of(), 77, 5, 2, 11, (PartCount(TOPIC_ID, 0, 4),))
        assert abort_told(leaders.protocol, [message])
    assert len(caplog.records) == 2
    assert all("or after `transactionTimeout`" in record.message for record in caplog.records)


def test_an_abort_of_a_committed_batch_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Spark aborts where the answer to the commit was lost."""
    leaders = Leaders()
    leaders.script["abort_transaction"] = [errors.TransactionEnded("it is", outcome="COMMITTED")]
    message = TaskWritten(key_of(), 77, 5, 2, 11, (PartCount(TOPIC_ID, 0, 4),))
    assert abort_told(leaders.protocol, [message])
    assert not abort_told(leaders.protocol, [])
    assert len(leaders.of("abort_transaction")) == 1
    assert caplog.records == []


def test_the_writer_of_a_batch_job_ends_what_its_tasks_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders()
    monkeypatch.setattr(sink, "connection", lambda _: leaders.protocol)
    options = sink_options({"bootstrap": "x:1", "topic": "t"}, streaming=False)
    writer = OncelogBatchWriter(options, SCHEMA, overwrite=False)
    writer.abort([None, None])
    assert [aborted.tx_id for aborted in leaders.of("abort_transaction")] == [77]
