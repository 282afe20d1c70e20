"""A sink that means another transaction than its source is refused before it commits."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_spark import agreement, sink
from oncelog_spark.agreement import SinkMismatch, require_only_sink, require_positions_here
from oncelog_spark.manifest import PartCount, TaskWritten, TransactionKey
from oncelog_spark.options import sink_options
from oncelog_spark.sink import OncelogStreamWriter, commit_job
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import OFFSETS, TOPIC_ID, Leaders
from tests.unit.spark.test_sink import SCHEMA

MINE, THEIRS, EARLIER = 77, 78, 79
WRITTEN = TaskWritten(
    TransactionKey("sink", b"r" * 16, "query", 3), MINE, 5, 2, 11, (PartCount(TOPIC_ID, 0, 4),)
)
SOURCES: dict[str, Any] = {"name": "source", "producer": pb.Producer(producer_id=6, generation=1)}
THIS_BATCH = pb.CommitSeq(scope="query", number=3)
SAYS = r"`transactionalSink` of the source names producer 'source', .*`producer` is 'sink'"


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    made = Leaders([], [])
    monkeypatch.setattr(sink, "connection", lambda _: made.protocol)
    monkeypatch.setattr(agreement, "_found_alone", {})
    return made


def listing(tx_id: int, number: int = 3, *, topic_id: bytes = OFFSETS.topic_id) -> Any:
    parts = pb.Manifest(topics=[pb.Manifest.Topic(topic_id=topic_id, partition=[9])])
    return coordinator_pb2.TransactionDescription(
        tx_id=tx_id,
        state=pb.TRANSACTION_STATE_ONGOING,
        commit_seq=pb.CommitSeq(scope="query", number=number),
        parts=parts,
        **SOURCES,
    )


def is_refused(leaders: Leaders) -> bool:
    try:
        require_positions_here(leaders.protocol, WRITTEN, ["g"])
    except SinkMismatch:
        return True
    return False


def test_positions_of_the_batch_under_another_producer_are_refused_and_ended(
    leaders: Leaders,
) -> None:
    leaders.group = {0: (4, MINE), 1: (None, THEIRS)}
    leaders.described = {**SOURCES, "commit_seq": THIS_BATCH}
    with pytest.raises(SinkMismatch, match=SAYS):
        require_positions_here(leaders.protocol, WRITTEN, ["g"])
    (aborted,) = leaders.of("abort_transaction")
    assert (aborted.tx_id, aborted.producer.producer_id) == (THEIRS, 6)


@pytest.mark.parametrize(
    ("group", "described"),
    [
        ({}, {}),
        ({0: (4, 0), 1: (None, 0)}, {}),
        ({0: (4, MINE)}, {}),
        ({0: (4, EARLIER)}, {"commit_seq": pb.CommitSeq(scope="query", number=2)}),
        ({0: (4, EARLIER)}, {"commit_seq": pb.CommitSeq(scope="another", number=3)}),
    ],
    ids=["nothing", "nothing pending", "mine", "the batch before", "another query"],
)
def test_what_is_not_of_this_batch_is_nobodys_mistake_here(
    leaders: Leaders, group: dict[int, tuple[int | None, int]], described: dict[str, Any]
) -> None:
    """A batch without new input registers nothing, and one source of several may be quiet."""
    leaders.group, leaders.described = group, described
    assert not is_refused(leaders)
    assert leaders.of("abort_transaction") == []


def test_what_is_decided_already_is_an_earlier_runs(leaders: Leaders) -> None:
    leaders.group = {0: (4, THEIRS)}
    leaders.described = {**SOURCES, "commit_seq": THIS_BATCH}
    leaders.tx_state = pb.TRANSACTION_STATE_COMMITTED
    assert not is_refused(leaders)


def test_a_streams_sink_finds_positions_of_groups_that_it_does_not_know(leaders: Leaders) -> None:
    reply = coordinator_pb2.ListTransactionsReply(
        transactions=[listing(MINE), listing(EARLIER, 2), listing(THEIRS)]
    )
    leaders.script["list_transactions"] = [reply]
    with pytest.raises(SinkMismatch, match=SAYS):
        require_only_sink(leaders.protocol, WRITTEN)
    assert [aborted.tx_id for aborted in leaders.of("abort_transaction")] == [THEIRS]


def test_a_transaction_without_positions_is_what_a_renamed_sink_left(leaders: Leaders) -> None:
    left = coordinator_pb2.ListTransactionsReply(transactions=[listing(THEIRS, topic_id=TOPIC_ID)])
    leaders.script["list_transactions"] = [left]
    require_only_sink(leaders.protocol, WRITTEN)
    assert leaders.of("abort_transaction") == []


def test_a_run_is_asked_about_once(leaders: Leaders) -> None:
    options = sink_options({"bootstrap": "x:1", "topic": "t"}, streaming=True)
    writer = OncelogStreamWriter(options, SCHEMA)
    for batch in (3, 4):
        writer.commit([WRITTEN], batch)
    assert len(leaders.of("list_transactions")) == 1
    assert len(leaders.of("commit_transaction")) == 2


@pytest.mark.parametrize("refused", [errors.PermissionDenied("no"), errors.Unavailable("away")])
def test_what_cannot_be_asked_is_not_refused(
    leaders: Leaders, refused: errors.OncelogError
) -> None:
    leaders.script["list_transactions"] = [refused]
    leaders.script["fetch_offsets"] = [refused]
    require_only_sink(leaders.protocol, WRITTEN)
    require_positions_here(leaders.protocol, WRITTEN, ["g"])


def test_a_job_that_is_refused_commits_nothing(leaders: Leaders) -> None:
    leaders.group = {1: (None, THEIRS)}
    leaders.described = {**SOURCES, "commit_seq": THIS_BATCH}
    given = {"bootstrap": "x:1", "topic": "t", "inputGroups": "g"}
    with pytest.raises(SinkMismatch):
        commit_job(sink_options(given, streaming=False), [WRITTEN])
    assert leaders.of("commit_transaction") == []
