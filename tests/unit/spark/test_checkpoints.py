"""What a checkpoint says and what it does not: where a first batch begins, batches that are planned
anew, and a group that a lost run or another checkpoint has moved (I15, I34)."""

from __future__ import annotations

import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable

from oncelog_spark import batch_transaction as transaction
from oncelog_spark import source
from oncelog_spark.offsets import OffsetRange
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import TOPIC_ID, Leaders
from tests.unit.spark.readers import (
    GROUP,
    PROPERTIES,
    T0,
    T1,
    TaskOf,
    at,
    begins_at,
    first_batch,
    planned,
    read_of,
    stream,
)


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    made = Leaders([10], [4])
    monkeypatch.setattr(source, "connection", lambda _: made.protocol)
    return made


# --------------------------------------------------------------------- where a first batch begins


def test_i34_a_first_batch_begins_where_it_was_planned_from_whenever_it_is_run(
    leaders: Leaders,
) -> None:
    """Spark asks for its start again, and writes it down nowhere."""
    reader = stream()
    begin = reader.initialOffset()
    leaders.logs[0].append(5)
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert end == first_batch(at(10, 4), at(15, 4))
    leaders.logs[1].append(1)
    again = reader.initialOffset()
    assert again == begins_at(15, 5)
    for start in (begin, again):
        assert read_of(planned(stream(), start, end)) == [OffsetRange(T0, 10, 15)]
    # The next batch is one like any other; where nothing came, there is none.
    assert reader.latestOffset(end, ReadAllAvailable()) == at(15, 5)
    assert read_of(planned(reader, end, at(15, 5))) == [OffsetRange(T1, 4, 5)]
    leaders.logs[1].pop()
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_i34_an_empty_first_batch_is_followed_by_what_comes(leaders: Leaders) -> None:
    reader = stream()
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    assert planned(reader, begin, begin) == []
    leaders.logs[1].append(1)
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert read_of(planned(reader, begin, end)) == [OffsetRange(T1, 4, 5)]


def test_i34_a_first_batch_that_was_committed_is_read_again_from_its_start(
    leaders: Leaders,
) -> None:
    """The group stands at its end by then, and what state Spark keeps of it is made from it."""
    reader = stream(**GROUP, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    leaders.group = {0: (10, 0), 1: (4, 0)}
    start = stream(**GROUP, startingOffsets="earliest").initialOffset()
    assert start == begins_at(10, 4)
    parts = planned(stream(**GROUP), start, end)
    assert read_of(parts) == [OffsetRange(T0, 0, 10), OffsetRange(T1, 0, 4)]


# ------------------------------------------------------------------------- batches planned anew


def test_i34_a_batch_that_was_committed_with_other_records_gives_no_row(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint was put back: Spark plans a batch of that number anew, with what came."""
    monkeypatch.setattr(TaskContext, "get", lambda: TaskOf(PROPERTIES))
    reader = stream(**GROUP)
    (part, *_) = planned(reader, at(2, 0), at(6, 3))
    leaders.group = {0: (5, 0), 1: (3, 0)}
    reply = coordinator_pb2.BeginTransactionReply
    leaders.script["begin_transaction"] = [reply(result=reply.RESULT_ALREADY_COMMITTED)]
    with pytest.raises(transaction.CheckpointBehind, match=r"0 \(5, not 6\).*new checkpoint"):
        next(reader.read(part))


# ------------------------------------------------------------------------- where a group stands


def test_i34_a_named_producer_of_a_lost_run_is_taken_over_before_the_group_is_asked(
    leaders: Leaders,
) -> None:
    stream(**GROUP, sinkName="s").initialOffset()
    names = [name for name, _ in leaders.asked]
    assert names.index("init_producer") < names.index("fetch_offsets")
    assert leaders.of("init_producer")[0].name == "job/s"
    stream(**GROUP).initialOffset()
    one, other = (request.instance_id for request in leaders.of("init_producer"))
    assert one != other, "each is a run of its own"
    leaders.asked.clear()
    stream(group="g", transactionalSink="true").initialOffset()
    assert leaders.of("init_producer") == [], "the default name is of the query: nobody else's"


def test_i34_what_a_lost_run_of_an_unknown_name_left_open_is_ended(leaders: Leaders) -> None:
    """A query that is its own name's producer: nobody tells its source that name."""
    leaders.group = {0: (None, 9), 1: (None, 9)}
    leaders.described = {"commit_seq": pb.CommitSeq(scope="the-query", number=0)}
    stream(group="g", transactionalSink="true").initialOffset()
    assert [request.tx_id for request in leaders.of("abort_transaction")] == [9]
    names = [name for name, _ in leaders.asked]
    assert names.index("claim_group") < names.index("abort_transaction"), "nobody else moves it"


@pytest.mark.parametrize(
    ("state", "scope"),
    [(pb.TRANSACTION_STATE_COMMITTED, "the-query"), (pb.TRANSACTION_STATE_ONGOING, "")],
    ids=["decided", "of somebody else"],
)
def test_i34_what_is_decided_or_no_batch_is_waited_for(
    leaders: Leaders, state: pb.TransactionState.ValueType, scope: str
) -> None:
    leaders.group = {0: (None, 9)}
    leaders.tx_state = state
    if scope:
        leaders.described = {"commit_seq": pb.CommitSeq(scope=scope, number=0)}
    stream(group="g", transactionalSink="true").initialOffset()
    assert leaders.of("abort_transaction") == []
    assert [request.stable for request in leaders.of("fetch_offsets")] == [False, True]


def test_positions_that_stay_pending_are_explained(leaders: Leaders) -> None:
    leaders.script["fetch_offsets"] = [errors.PendingTransaction("open")]
    says = r"not of this query's sink.*group describe g"
    with pytest.raises(transaction.TransactionLost, match=says):
        stream(**GROUP).initialOffset()


@pytest.mark.parametrize("options", [{"group": "g"}, GROUP])
def test_i21_a_group_that_was_given_more_than_its_offset_says_is_no_querys(
    leaders: Leaders, options: dict[str, str]
) -> None:
    """By `transactions(across=True)`: the query would read that again."""
    read = offset_manager_pb2.FetchOffsetsReply()
    for number in range(2):
        read.offsets.add(
            partition=pb.Partition(topic_id=TOPIC_ID, number=number),
            offset=number,
            metadata="oncelog-across/1 3:1200,7:1215 mine" if number else "mine",
        )
    leaders.script["fetch_offsets"] = [read]
    with pytest.raises(ValueError, match=r"behind its offset of t/1: .*reset-offsets"):
        stream(**options).initialOffset()


def test_a_group_that_stands_elsewhere_than_the_option_says_is_told_of(
    leaders: Leaders, caplog: pytest.LogCaptureFixture
) -> None:
    leaders.group = {0: (7, 0), 1: (0, 0)}
    stream(group="g").initialOffset()
    assert caplog.messages == [], "nobody said where"
    stream(group="g", startingOffsets="earliest").initialOffset()
    (warning,) = caplog.messages
    assert "begins where group 'g' stands (t/0: 7)" in warning
    assert "oncelog group reset-offsets" in warning
