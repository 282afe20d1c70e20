"""One transaction over several writes of one foreachBatch, without a JVM: frames are lists, and the
writers, which Spark would run, run here."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation
from pyspark.sql.types import BinaryType, StructField, StructType

import oncelog_spark
from oncelog_spark import batch_transaction as transaction
from oncelog_spark import driver_records, foreach_batch, hand_over, outcomes, sink
from oncelog_spark.batch_transaction import SecondWrite
from oncelog_spark.foreach_batch import BatchTransaction
from oncelog_spark.manifest import PartCount, TaskWritten, TransactionKey
from oncelog_spark.options import PART_FILE, OptionError, sink_options, source_options
from oncelog_spark.outcomes import Outcome, OutcomeForgotten
from oncelog_spark.sink import OncelogBatchWriter
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import OFFSETS, TOPIC_ID, Leaders

Begun = coordinator_pb2.BeginTransactionReply
QUERY = "the-query"
PROPERTIES = {
    transaction.BATCH_ID_PROPERTY: "3",
    transaction.QUERY_ID_PROPERTY: QUERY,
    transaction.RUN_ID_PROPERTY: "00000000-0000-0000-0000-00000000000a",
}
KEY = TransactionKey("job", bytes(15) + b"\n", QUERY, 3)


class Frame:
    """A DataFrame of values. Writing it does what Spark does: tasks, then the writer's commit."""

    def __init__(self, *values: bytes, tasks: int = 1, broken: bool = False) -> None:
        self.values, self.tasks, self.broken = values, tasks, broken
        self.options_seen: dict[str, str] = {}
        # Formats that it was written in; "take" where rows of it were taken.
        self.jobs: list[str] = []
        self.write = self

    def take(self, _rows: int) -> None:
        self.jobs.append("take")

    def format(self, name: str) -> Frame:
        self.jobs.append(name)
        return self

    def mode(self, name: str) -> Frame:
        assert name == "append"
        return self

    def options(self, **options: str) -> Frame:
        self.options_seen |= {name.lower(): value for name, value in options.items()}
        return self

    def option(self, name: str, value: str) -> Frame:
        return self.options(**{name: value})

    def save(self) -> None:
        if self.jobs[-1] == "noop":
            return
        options = sink_options(self.options_seen, streaming=False)
        schema = StructType([StructField("value", BinaryType())])
        writer = OncelogBatchWriter(options, schema, overwrite=False)
        writer = pickle.loads(pickle.dumps(writer))
        messages: list[Any] = [
            sink.write_task(options, KEY, iter([pa.record_batch({"value": list(self.values)})]))
            for _ in range(self.tasks)
        ]
        if self.broken:
            writer.abort([*messages, None])
            raise RuntimeError("a task failed")
        writer.commit(messages)

    @property
    def frame(self) -> DataFrame:
        return cast(DataFrame, self)


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    made = Leaders([], [])
    for module in (sink, foreach_batch, outcomes):
        monkeypatch.setattr(module, "connection", lambda _: made.protocol)
    monkeypatch.setattr(foreach_batch, "_properties", lambda _: PROPERTIES.get)
    return made


def begun(batch: Frame | None = None, **options: str) -> BatchTransaction:
    given = {"bootstrap": "x:1", "producer": "job", **options}
    return oncelog_spark.transaction((batch or Frame()).frame, 3, given)


def manifest(leaders: Leaders) -> list[tuple[bytes, int]]:
    """Topic and records of each part that was committed, in the only commit."""
    (request,) = leaders.of("commit_transaction")
    return [
        (topic.topic_id, count) for topic in request.manifest.topics for count in topic.record_count
    ]


def committed_before(leaders: Leaders, number: int = 3) -> None:
    reply = coordinator_pb2.InitProducerReply(
        producer=pb.Producer(producer_id=5, generation=2),
        last_commit_seq=pb.CommitSeq(scope=QUERY, number=number),
    )
    leaders.script["init_producer"] = [reply] * 9


def test_i34_several_frames_and_the_drivers_own_records_are_one_commit(leaders: Leaders) -> None:
    with begun(inputGroups="g") as tx:
        tx.write(Frame(b"a", b"b", tasks=2).frame, topic="t")
        tx.write(Frame(b"c").frame, topic="t")
        tx.send("t", "so many", key="batch")
        assert leaders.of("commit_transaction") == []
    # Two tasks, one task, the driver; and where the group's positions are.
    assert sorted(manifest(leaders)) == sorted(
        [(TOPIC_ID, 2), (TOPIC_ID, 2), (TOPIC_ID, 1), (TOPIC_ID, 1), (OFFSETS.topic_id, 0)]
    )
    assert leaders.of("abort_transaction") == []


def test_i34_a_block_that_fails_commits_nothing_and_ends_what_it_opened(leaders: Leaders) -> None:
    with pytest.raises(ZeroDivisionError), begun() as tx:
        tx.write(Frame(b"a").frame, topic="t")
        raise ZeroDivisionError
    assert leaders.of("commit_transaction") == []
    (aborted,) = leaders.of("abort_transaction")
    assert (aborted.tx_id, len(aborted.parts)) == (77, 1)


def test_i34_what_only_the_sources_opened_is_ended_as_well(leaders: Leaders) -> None:
    with pytest.raises(ZeroDivisionError), begun():
        raise ZeroDivisionError
    assert [aborted.tx_id for aborted in leaders.of("abort_transaction")] == [77]


def test_i34_a_frame_whose_job_fails_ends_all_of_it(leaders: Leaders) -> None:
    """By the block, and not by the writer of that frame: others are of the same transaction."""
    with pytest.raises(RuntimeError, match="a task failed"), begun() as tx:
        tx.write(Frame(b"a").frame, topic="t")
        with pytest.raises(RuntimeError):
            tx.write(Frame(b"b", broken=True).frame, topic="t")
        assert leaders.of("abort_transaction") == []
        tx.write(Frame(b"b", broken=True).frame, topic="t")
    assert leaders.of("commit_transaction") == []
    assert len(leaders.of("abort_transaction")) == 1


def test_i34_a_replayed_batch_is_read_for_its_state_and_writes_nothing(leaders: Leaders) -> None:
    committed_before(leaders)
    leaders.script["begin_transaction"] = [Begun(result=Begun.RESULT_ALREADY_COMMITTED)]
    frame = Frame(b"a")
    with begun(frame, inputGroups="g") as tx:
        assert (tx.replayed, tx.tx_id) == (True, 0)
        tx.write(frame.frame, topic="t")
        tx.send("t", b"x")
        tx.send_observed("t", Observation("never ran"))
        assert frame.jobs == []
    # Spark demands that each of its state stores commits in every batch.
    assert frame.jobs == ["noop"]
    assert leaders.of("produce") == leaders.of("commit_transaction") == []


def test_i34_a_replayed_batch_that_fails_aborts_nothing(leaders: Leaders) -> None:
    committed_before(leaders)
    leaders.script["begin_transaction"] = [Begun(result=Begun.RESULT_ALREADY_COMMITTED)]
    frame = Frame(b"a")
    with pytest.raises(ZeroDivisionError), begun(frame):
        raise ZeroDivisionError
    assert frame.jobs == leaders.of("abort_transaction") == []


def test_a_second_block_in_one_batch_is_told(leaders: Leaders) -> None:
    committed_before(leaders)
    ended = Begun(result=Begun.RESULT_ENDED, tx_id=77, state=pb.TRANSACTION_STATE_COMMITTED)
    leaders.script["begin_transaction"] = [ended]
    with pytest.raises(SecondWrite, match="set sinkName"), begun():
        pass


def test_the_batch_after_a_committed_one_is_new(leaders: Leaders) -> None:
    committed_before(leaders, 2)
    with begun() as tx:
        assert not tx.replayed
        assert leaders.of("begin_transaction") == []


def test_i21_positions_move_where_nothing_came_of_a_batch(leaders: Leaders) -> None:
    batch = Frame()
    with begun(batch, inputGroups="g"):
        pass
    assert batch.jobs == ["noop"], "its sources were read, and registered their positions"
    assert manifest(leaders) == [(OFFSETS.topic_id, 0)]


def test_nothing_is_begun_where_there_is_nothing(leaders: Leaders) -> None:
    batch = Frame()
    with begun(batch):
        pass
    assert batch.jobs == []
    assert leaders.of("begin_transaction") == []


@pytest.mark.parametrize(("options", "jobs"), [({}, ["take"]), ({"inputGroups": "g"}, [])])
def test_i21_whose_positions_belong_to_it_is_said_by_who_begins_it(
    leaders: Leaders, options: dict[str, str], jobs: list[str]
) -> None:
    """The source, or we, where we know the group."""
    batch = Frame()
    with begun(batch, **options) as tx:
        assert (tx.tx_id, tx.tx_id) == (77, 77)
        assert batch.jobs == jobs
        (begin,) = leaders.of("begin_transaction")
        assert list(begin.parts) == ([OFFSETS] if options else [])


def test_i34_a_commit_that_is_refused_leaves_nothing_open(leaders: Leaders) -> None:
    leaders.script["commit_transaction"] = [errors.ManifestMismatch("a group is missing")]
    with pytest.raises(transaction.TransactionLost, match="inputGroups"), begun() as tx:
        tx.write(Frame(b"a").frame, topic="t")
    assert len(leaders.of("abort_transaction")) == 1


def test_it_is_of_one_batch_and_one_block(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = begun()
    with pytest.raises(RuntimeError, match="use it in a `with` block"):
        tx.write(Frame().frame)
    with tx:
        pass
    with pytest.raises(RuntimeError, match="has ended"):
        tx.send("t", b"x")
    with pytest.raises(RuntimeError, match="has ended"), tx:
        pass
    with (
        pytest.raises(ValueError, match="batch 3 of its query, not 4"),
        oncelog_spark.transaction(Frame().frame, 4, bootstrap="x:1"),
    ):
        pass
    monkeypatch.setattr(foreach_batch, "_properties", lambda _: {}.get)
    with pytest.raises(RuntimeError, match="for the function of foreachBatch"), begun():
        pass


def test_options_that_are_the_whole_transactions_are_not_one_frames(leaders: Leaders) -> None:
    with begun() as tx, pytest.raises(OptionError, match="`inputGroups`"):
        tx.write(Frame().frame, topic="t", inputGroups="g")
    with pytest.raises(OptionError, match="txnId"):
        begun(txnId="load")
    with pytest.raises(OptionError, match=r"no such option.*did you mean `producer`"):
        begun(producr="job")


def test_the_option_between_our_processes_is_nobody_elses() -> None:
    given = {"bootstrap": "x:1", "topic": "t", PART_FILE: "/tmp/x"}
    assert sink_options(given, streaming=False).part_file == "/tmp/x"
    with pytest.raises(OptionError, match="no such option"):
        sink_options(given, streaming=True)
    with pytest.raises(OptionError, match="no such option"):
        source_options({"bootstrap": "x:1", "subscribe": "t", PART_FILE: "x"}, streaming=False)


def test_what_is_handed_over_comes_whole_and_once(tmp_path: Path) -> None:
    parts = (PartCount(TOPIC_ID, 0, 4), PartCount(TOPIC_ID, 2, 1))
    key = TransactionKey("job", b"r" * 16, "query", 3, "group", "before")
    messages = [TaskWritten(key, 2**64 - 1, 5, 1 << 63, 2**64 - 7, parts)]
    file = tmp_path / "0"
    hand_over.leave(file, messages)
    assert hand_over.take(file) == messages
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        hand_over.take(file)


def test_the_drivers_records_have_limits(leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_records, "DRIVER_RECORDS_MAX", 2)
    monkeypatch.setattr(driver_records, "DRIVER_BYTES_MAX", 10)
    with begun() as tx:
        with pytest.raises(ValueError, match="DRIVER_BYTES_MAX"):
            tx.send("t", b"x" * 8, key="abc")
        tx.send("t", None)
        tx.send("t", "ü")
        with pytest.raises(ValueError, match="DRIVER_RECORDS_MAX"):
            tx.send("t", b"")
    assert [count for _, count in manifest(leaders)] == [2]


def test_metrics_of_what_never_ran_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_records, "OBSERVED_SECONDS_MAX", 0.01)
    over = threading.Event()

    class Stuck:
        @property
        def get(self) -> dict[str, int]:
            over.wait()
            return {}

    with pytest.raises(TimeoutError, match="write the frame that `observe` gave"):
        driver_records.observed_value(cast(Observation, Stuck()))
    over.set()
    with pytest.raises(AttributeError):
        driver_records.observed_value(cast(Observation, SimpleNamespace()))
    there = SimpleNamespace(get={"rows": 3, "least": None})
    assert driver_records.observed_value(cast(Observation, there)) == '{"least": null, "rows": 3}'


@pytest.mark.parametrize(
    ("state", "is_it"),
    [
        (pb.TRANSACTION_STATE_COMMITTED, Outcome.COMMITTED),
        (pb.TRANSACTION_STATE_ABORTED, Outcome.ABORTED),
        (pb.TRANSACTION_STATE_ONGOING, Outcome.OPEN),
    ],
)
def test_i4_an_outcome_is_what_the_coordinator_says(
    leaders: Leaders, state: Any, is_it: Outcome
) -> None:
    leaders.tx_state = state
    assert oncelog_spark.outcome(77, {"bootstrap": "x:1", "producer": "job"}) is is_it
    assert [request.tx_id for request in leaders.of("get_transaction")] == [77]


def test_an_outcome_is_not_asked_for_in_plain_text_where_tls_was_meant() -> None:
    with pytest.raises(OptionError, match=r"tls.ca`: did you mean `oncelog.tls.ca`"):
        oncelog_spark.outcome(77, {"bootstrap": "x:1", "tls.ca": "ca.pem"})


def test_i4_an_outcome_that_is_forgotten_is_no_answer(leaders: Leaders) -> None:
    leaders.tx_state = pb.TRANSACTION_STATE_EXPIRED
    with pytest.raises(OutcomeForgotten, match="7 days"):
        oncelog_spark.outcome(77, bootstrap="x:1")
