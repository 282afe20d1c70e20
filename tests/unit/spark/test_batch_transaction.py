"""One transaction over all tasks, against a coordinator that is a script."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, cast

import pytest

from oncelog.protocol import Protocol
from oncelog_spark import batch_transaction as transaction
from oncelog_spark.batch_transaction import Entered, Standing, TransactionLost
from oncelog_spark.manifest import PartCount, TaskWritten, TransactionKey
from oncelog_spark.options import sink_options
from oncelog_spark.sink import batch_key, write_task
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import types_pb2 as pb

KEY = TransactionKey("job", b"r" * 16, "query", 3)
PRODUCER = pb.Producer(producer_id=5, generation=1 << 32 | 2)
OFFSETS = pb.Partition(topic_id=b"oncelog:offsets0", number=9)
Begun = coordinator_pb2.BeginTransactionReply
MESSAGE = TaskWritten(KEY, 77, 5, 1 << 32 | 2, 11, (PartCount(b"t" * 16, 0, 4),))


class Script:
    """Answers each method with a reply or an error, and remembers the requests."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._answers: dict[str, Any] = {
            "init_producer": coordinator_pb2.InitProducerReply(producer=PRODUCER),
            "begin_transaction": Begun(result=Begun.RESULT_OPEN, tx_id=77),
            "commit_transaction": coordinator_pb2.CommitTransactionReply(visible=True),
            "abort_transaction": coordinator_pb2.AbortTransactionReply(),
            "commit_transaction_offsets": offset_manager_pb2.CommitTransactionOffsetsReply(),
            "get_metadata": cluster_pb2.GetMetadataReply(
                consumer_groups=[cluster_pb2.Route(group="g", partition=OFFSETS)]
            ),
            **answers,
        }

    def call(self, method: str, request: Any, timeout_ms: int | None = None) -> Any:
        name = method.partition(".")[2]
        copy = type(request)()
        copy.CopyFrom(request)
        self.asked.append((name, copy))
        answer = self._answers[name]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def only(self, name: str) -> Any:
        (request,) = (asked for method, asked in self.asked if method == name)
        return request

    @property
    def protocol(self) -> Protocol:
        return cast(Protocol, self)


def test_i34_every_attempt_asks_for_the_same_transaction() -> None:
    script = Script()
    entered = transaction.enter(script.protocol, KEY)
    assert entered == Entered(Standing.OPEN, 77, 5, 1 << 32 | 2)
    init, begin = script.only("init_producer"), script.only("begin_transaction")
    assert (init.name, init.group, init.instance_id, init.session) == ("job", "", b"r" * 16, False)
    assert (begin.request_id, begin.commit_seq) == (3, pb.CommitSeq(scope="query", number=3))
    assert begin.timeout_ms == 15 * 60 * 1000


@pytest.mark.parametrize(
    ("begun", "standing"),
    [
        (Begun(result=Begun.RESULT_ALREADY_COMMITTED), Standing.ALREADY_COMMITTED),
        (
            Begun(result=Begun.RESULT_ENDED, tx_id=77, state=pb.TRANSACTION_STATE_COMMITTED),
            Standing.COMMITTED_BY_US,
        ),
    ],
)
def test_a_committed_batch_is_known(begun: Any, standing: Standing) -> None:
    assert transaction.enter(Script(begin_transaction=begun).protocol, KEY).standing is standing


@pytest.mark.parametrize(
    ("last", "is_behind"),
    [(("query", 3), False), (("query", 4), True), (("another", 9), False)],
    ids=["replayed", "a checkpoint that was put back", "another query's"],
)
def test_i34_of_committed_batches_only_the_last_is_replayed(
    last: tuple[str, int], *, is_behind: bool
) -> None:
    scope, number = last
    script = Script(
        begin_transaction=Begun(result=Begun.RESULT_ALREADY_COMMITTED),
        init_producer=coordinator_pb2.InitProducerReply(
            producer=PRODUCER, last_commit_seq=pb.CommitSeq(scope=scope, number=number)
        ),
    )
    if not is_behind:
        entered = transaction.enter(script.protocol, KEY)
        assert entered.standing is Standing.ALREADY_COMMITTED
        return
    with pytest.raises(transaction.CheckpointBehind, match=r"last one is 4.*new checkpoint"):
        transaction.enter(script.protocol, KEY)


def test_i34_a_run_asks_for_its_generation_once_in_a_process() -> None:
    script = Script()
    for number in range(3):
        transaction.enter(script.protocol, replace(KEY, number=number))
    assert [name for name, _ in script.asked] == ["init_producer", *["begin_transaction"] * 3]
    transaction.enter(script.protocol, replace(KEY, instance_id=b"s" * 16))
    assert [name for name, _ in script.asked[4:]] == ["init_producer", "begin_transaction"]


def test_i34_a_generation_that_is_refused_is_asked_for_again() -> None:
    answers = [Begun(result=Begun.RESULT_OPEN, tx_id=77), errors.ProducerFenced("another run")]
    script = Script(begin_transaction=lambda _: answers.pop(0))
    transaction.enter(script.protocol, KEY)
    with pytest.raises(errors.ProducerFenced):
        transaction.enter(script.protocol, KEY)
    answers.append(Begun(result=Begun.RESULT_OPEN, tx_id=78))
    transaction.enter(script.protocol, KEY)
    assert [name for name, _ in script.asked].count("init_producer") == 2


def test_where_a_group_lives_is_asked_once() -> None:
    script = Script()
    for _ in range(2):
        assert transaction.offset_partitions(script.protocol, ["g"]) == [OFFSETS]
    assert list(script.only("get_metadata").consumer_groups) == ["g"]


def test_the_idle_time_is_what_the_option_says() -> None:
    script = Script()
    transaction.enter(script.protocol, KEY, idle_timeout_ms=3_600_000)
    assert script.only("begin_transaction").timeout_ms == 3_600_000


def test_an_aborted_batch_is_lost() -> None:
    ended = Begun(
        result=Begun.RESULT_ENDED,
        tx_id=77,
        state=pb.TRANSACTION_STATE_ABORTED,
        cause=pb.ABORT_CAUSE_TIMEOUT,
    )
    with pytest.raises(TransactionLost, match=r"ABORTED.*TIMEOUT"):
        transaction.enter(Script(begin_transaction=ended).protocol, KEY)


def test_another_open_transaction_is_explained() -> None:
    script = Script(begin_transaction=errors.ConcurrentTransaction("open"))
    with pytest.raises(TransactionLost, match="does the query have an Oncelog sink"):
        transaction.enter(script.protocol, KEY)


def test_the_commit_names_writers_offset_partitions_and_the_batch() -> None:
    script = Script()
    transaction.commit(script.protocol, [MESSAGE], ["g"], "visible")
    request = script.only("commit_transaction")
    assert (request.tx_id, request.producer, request.wait) == (77, PRODUCER, pb.WAIT_VISIBLE)
    assert request.commit_seq == pb.CommitSeq(scope="query", number=3)
    assert [(t.topic_id, list(t.writer)) for t in request.manifest.topics] == [
        (OFFSETS.topic_id, [0]),
        (b"t" * 16, [11]),
    ]


def test_i34_a_replayed_batch_commits_nothing() -> None:
    script = Script()
    transaction.commit(
        script.protocol, [TaskWritten(KEY, 0, 5, 1 << 32 | 2, 11, ())], ["g"], "visible"
    )
    assert script.asked == []


def test_a_commit_whose_visibility_is_not_known_asks_for_the_decision() -> None:
    def answer(request: Any) -> Any:
        if request.wait == pb.WAIT_VISIBLE:
            return errors.UnknownOutcome("a leader is away")
        return coordinator_pb2.CommitTransactionReply()

    script = Script(commit_transaction=answer)
    transaction.commit(script.protocol, [MESSAGE], [], "visible")
    waits = [asked.wait for name, asked in script.asked if name == "commit_transaction"]
    assert waits == [pb.WAIT_VISIBLE, pb.WAIT_PREPARED]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (errors.TransactionEnded("aborted"), "ended before its commit"),
        (errors.ManifestMismatch("no offsets"), "inputGroups"),
    ],
)
def test_a_refused_commit_is_explained(error: errors.OncelogError, says: str) -> None:
    with pytest.raises(TransactionLost, match=says):
        transaction.commit(Script(commit_transaction=error).protocol, [MESSAGE], [], "prepared")


def test_i16_a_late_commit_of_a_stopped_run_is_fenced() -> None:
    script = Script(commit_transaction=errors.ProducerFenced("replaced"))
    with pytest.raises(errors.ProducerFenced):
        transaction.commit(script.protocol, [MESSAGE], [], "visible")


def test_positions_are_registered_under_the_transaction() -> None:
    script = Script()
    offsets = offset_manager_pb2.GroupOffsets(group="g")
    offsets.offsets.add(from_offset=4, to_offset=9)
    transaction.register_positions(
        script.protocol, Entered(Standing.OPEN, 77, 5, 1 << 32 | 2), offsets
    )
    request = script.only("commit_transaction_offsets")
    assert (request.tx_id, request.producer, request.offsets) == (77, PRODUCER, offsets)


def test_i21_a_group_that_stands_elsewhere_stops_the_query() -> None:
    script = Script(commit_transaction_offsets=errors.StalePosition("at 7", committed=7))
    with pytest.raises(TransactionLost, match="belongs to one query"):
        transaction.register_positions(
            script.protocol,
            Entered(Standing.OPEN, 77, 5, 1),
            offset_manager_pb2.GroupOffsets(group="g"),
        )


def test_a_second_write_in_one_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Begun(result=Begun.RESULT_ENDED, tx_id=77, state=pb.TRANSACTION_STATE_COMMITTED)
    script = Script(begin_transaction=ended)
    monkeypatch.setattr("oncelog_spark.sink.connection", lambda _: script.protocol)
    options = sink_options({"bootstrap": "x:1", "topic": "t"}, streaming=False)
    with pytest.raises(transaction.SecondWrite, match="set sinkName"):
        write_task(options, KEY, iter(()))


def test_i34_a_task_of_a_replayed_batch_writes_nothing_and_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(begin_transaction=Begun(result=Begun.RESULT_ALREADY_COMMITTED))
    monkeypatch.setattr("oncelog_spark.sink.connection", lambda _: script.protocol)
    options = sink_options({"bootstrap": "x:1", "topic": "t"}, streaming=False)
    written = write_task(options, KEY, iter(()))
    assert (written.tx_id, written.parts) == (0, ())


def test_a_batch_job_is_itself_again_only_by_its_txn_id() -> None:
    one, two = uuid.uuid4(), uuid.uuid4()
    plain = sink_options({"bootstrap": "x:1"}, streaming=False)
    assert batch_key(plain, one).scope != batch_key(plain, two).scope
    # Nobody will ask for it again: it has no name, so that the cluster may forget it.
    assert {batch_key(plain, run).producer_name for run in (one, two)} == {""}
    assert batch_key(plain, one).group != batch_key(plain, two).group
    named = sink_options({"bootstrap": "x:1", "txnId": "load-7", "sinkName": "a"}, streaming=False)
    again = (batch_key(named, one), batch_key(named, two))
    assert {(key.producer_name, key.scope, key.number) for key in again} == {
        ("load-7/a", "load-7", 0)
    }
    # A run of its own, so that the earlier one is fenced and its commit found by commit_seq.
    assert again[0].instance_id != again[1].instance_id


def test_i34_a_commit_in_doubt_that_is_fenced_on_repetition_stays_in_doubt() -> None:
    """The first call may have committed; who heard PRODUCER_FENCED would take it for undone."""
    answers = iter([errors.UnknownOutcome("lost"), errors.ProducerFenced("a later run")])
    script = Script(commit_transaction=lambda request: next(answers))
    with pytest.raises(errors.UnknownOutcome) as told:
        transaction.commit(script.protocol, [MESSAGE], [], "visible")
    assert isinstance(told.value.__cause__, errors.ProducerFenced)
