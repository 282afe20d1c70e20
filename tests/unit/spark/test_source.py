"""The readers against a scripted cluster, without Spark's JVM: where batches begin and end, and
what becomes of positions (I14, I15, I21, I34)."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from oncelog_spark import batch_transaction as transaction
from oncelog_spark import claim, source
from oncelog_spark.fetch import DataLoss
from oncelog_spark.living_members import GroupHasMembers
from oncelog_spark.offsets import TOPIC_IDS, OffsetRange
from oncelog_spark.options import source_options
from oncelog_spark.source import OncelogBatchReader, OncelogStreamReader, TaskRanges
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.spark.leaders import OFFSETS, TOPIC_ID, Leaders
from tests.unit.spark.readers import (
    BASE,
    GROUP,
    PROPERTIES,
    SCHEMA,
    T0,
    T1,
    TaskOf,
    at,
    begins_at,
    planned,
    read_of,
    stream,
)


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    made = Leaders([10], [4])
    monkeypatch.setattr(source, "connection", lambda _: made.protocol)
    return made


def step(part: TaskRanges) -> dict[int, tuple[str | None, int, int]]:
    """By partition: kind of from, from, to."""
    message = offset_manager_pb2.GroupOffsets.FromString(part.step.positions)
    return {
        offset.partition.number: (
            offset.WhichOneof("from"),
            offset.from_offset,
            offset.to_offset,
        )
        for offset in message.offsets
    }


# ------------------------------------------------------------------- members of the query's group

USES = [{"group": "g"}, GROUP]


@pytest.mark.parametrize("options", USES)
def test_i23_a_query_whose_group_has_members_does_not_begin(
    leaders: Leaders, options: dict[str, str]
) -> None:
    leaders.members = ["ada", "bob", "cyd", "dan"]
    says = r"'g' has living members: ada on 10.0.0.7, .*cyd on 10.0.0.7 and 1 more"
    with pytest.raises(GroupHasMembers, match=says):
        stream(**options).initialOffset()
    # From a checkpoint it begins with either of these.
    with pytest.raises(GroupHasMembers, match="oncelog group describe g"):
        stream(**options).latestOffset(at(2, 0), ReadAllAvailable())
    with pytest.raises(GroupHasMembers):
        stream(**options).partitions(at(2, 0), at(6, 3))
    assert leaders.of("init_producer") == [], "nobody was fenced for it"


@pytest.mark.parametrize("options", USES)
def test_i23_a_query_whose_group_gets_members_plans_no_batch_more(
    leaders: Leaders, options: dict[str, str]
) -> None:
    reader = stream(**options)
    reader.latestOffset(at(2, 0), ReadAllAvailable())
    assert planned(reader, at(2, 0), at(6, 3))
    # It stood still, and its claim was over.
    leaders.members = ["ada"]
    # Twice a second, where nothing comes: only what commits is looked at.
    reader.latestOffset(at(6, 3), ReadAllAvailable())
    with pytest.raises(GroupHasMembers):
        reader.partitions(at(6, 3), at(10, 4))


@pytest.mark.parametrize("options", USES)
def test_i23_a_query_claims_its_group_from_its_first_look_to_its_end(
    leaders: Leaders, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RENEWED_EVERY_S", 0.001)
    reader = stream(**options)
    reader.initialOffset()
    [holder] = leaders.claims.values()
    assert holder.startswith("a Spark query that reads t")
    assert ("with producer job" in holder) == ("transactionalSink" in options)
    leaders.script["claim_group"] = [errors.Unavailable("nobody leads"), errors.Unavailable("no")]
    give_up = time.monotonic() + 60
    while leaders.script["claim_group"]:
        assert time.monotonic() < give_up, "nobody renews it"
        time.sleep(0.001)
    assert planned(reader, at(2, 0), at(6, 3))
    twin = pickle.loads(pickle.dumps(reader))
    twin.stop()
    assert len(leaders.claims) == 1, "the one in the tasks has no claim to end"
    reader.stop()
    assert leaders.claims == {}
    assert leaders.of("claim_group")[-1].release


def test_i23_members_that_left_meanwhile_do_not_end_a_query(leaders: Leaders) -> None:
    leaders.script["claim_group"] = [errors.UnknownMember("has living members")]
    reader = stream(group="g")
    reader.initialOffset()
    assert len(leaders.claims) == 1
    reader.stop()


def test_i23_a_plain_commit_that_members_are_in_the_way_of_ends_the_query(
    leaders: Leaders,
) -> None:
    leaders.script["commit_offsets"] = [errors.UnknownMember("has living members")]
    with pytest.raises(GroupHasMembers, match="'g' has living members"):
        stream(group="g").commit(at(6, 3))


def test_a_query_without_a_group_asks_nobody_for_members(leaders: Leaders) -> None:
    leaders.members = ["ada"]
    reader = stream()
    reader.initialOffset()
    assert planned(reader, at(2, 0), at(6, 3))
    assert leaders.of("claim_group") == []
    reader.stop()
    assert leaders.of("describe_group") == []


# ------------------------------------------------------------------------------- begin and end


def test_a_batch_ends_at_the_newest_record_or_at_its_limit(leaders: Leaders) -> None:
    reader = stream()
    assert reader.latestOffset(at(2, 0), ReadAllAvailable()) == at(10, 4)
    limited = reader.latestOffset(at(2, 0), ReadMaxRows(6))
    assert limited == at(6, 2)


def test_i15_the_end_never_goes_back(leaders: Leaders) -> None:
    reader = stream(failOnDataLoss="false")
    assert reader.latestOffset(at(12, 4), ReadAllAvailable()) == at(12, 4)
    assert reader.latestOffset(at(12, 3), ReadMaxRows(1)) == at(12, 4)
    with pytest.raises(DataLoss, match="t/0"):
        stream().latestOffset(at(12, 4), ReadAllAvailable())


def test_available_now_ends_where_it_was_prepared(leaders: Leaders) -> None:
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    leaders.logs[0].append(5)
    assert reader.latestOffset(at(0, 0), ReadAllAvailable()) == at(10, 4)
    assert reader.latestOffset(at(10, 4), ReadAllAvailable()) == at(10, 4)
    assert stream().latestOffset(at(10, 4), ReadAllAvailable()) == at(15, 4)


def test_a_long_poll_waits_only_where_there_is_nothing_yet(leaders: Leaders) -> None:
    reader = stream(longPollMs="700")
    reader.latestOffset(at(9, 4), ReadAllAvailable())
    assert leaders.of("fetch") == []

    def later(request: leader.FetchRequest) -> leader.FetchReply:
        leaders.logs[1].append(1)
        return leaders._fetch(request)

    leaders.script["fetch"] = [later]
    assert reader.latestOffset(at(10, 4), ReadAllAvailable()) == at(10, 5)
    (poll,) = leaders.of("fetch")
    assert [part.offset for part in poll.partitions] == [10, 4]
    assert poll.isolation == leader.ISOLATION_COMMITTED


def test_a_poll_that_a_leader_refuses_is_no_end(leaders: Leaders) -> None:
    error = errors.to_status(errors.CorruptLog("bad"))
    parts = [leader.FetchedPartition(error=error), leader.FetchedPartition(error=error)]
    leaders.script["fetch"] = [leader.FetchReply(partitions=parts)]
    with pytest.raises(errors.CorruptLog):
        stream(longPollMs="700").latestOffset(at(10, 4), ReadAllAvailable())


def test_a_topic_that_was_made_anew_is_a_loss_whatever_the_option_says(leaders: Leaders) -> None:
    reader = stream(failOnDataLoss="false")
    for use in (
        lambda: reader.latestOffset(at(0, 0, b"o" * 16), ReadAllAvailable()),
        lambda: reader.partitions(at(0, 0, b"o" * 16), at(1, 0, b"o" * 16)),
    ):
        with pytest.raises(DataLoss, match="deleted and created again"):
            use()


# A topic of which the query has read one partition, and that has another one now.
GROWN = {"t": {"0": 4}, TOPIC_IDS: {"t": TOPIC_ID.hex()}}


def test_i14_a_partition_that_came_to_a_topic_is_read_from_its_first_record(
    leaders: Leaders, caplog: pytest.LogCaptureFixture
) -> None:
    assert stream().latestOffset(GROWN, ReadMaxRows(5)) == at(7, 2)
    ranges = read_of(planned(stream(), GROWN, at(7, 3)))
    assert ranges == [OffsetRange(T0, 4, 7), OffsetRange(T1, 0, 3)]
    # Then some of it is deleted before the batch is planned.
    leaders.starts[1] = 2
    with pytest.raises(DataLoss, match="t/1: offsets 0 to 1 are deleted, it begins at 2"):
        planned(stream(), GROWN, at(7, 3))
    assert caplog.messages == []
    goes_on = stream(failOnDataLoss="false")
    ranges = read_of(planned(goes_on, GROWN, at(7, 3)))
    assert ranges == [OffsetRange(T0, 4, 7), OffsetRange(T1, 2, 3)]
    assert "t/1: offsets 0 to 1 are deleted" in caplog.text


def test_a_topic_that_the_checkpoint_does_not_know_begins_at_its_earliest(
    leaders: Leaders,
) -> None:
    leaders.starts[1] = 2
    unknown: dict[str, Any] = {TOPIC_IDS: {}}
    assert stream().latestOffset(unknown, ReadAllAvailable()) == at(10, 6)
    ranges = read_of(planned(stream(), unknown, at(7, 4)))
    assert ranges == [OffsetRange(T0, 0, 7), OffsetRange(T1, 2, 4)]


# ----------------------------------------------------------------------------- where it begins


@pytest.mark.parametrize(
    ("options", "group", "begins"),
    [
        ({}, {}, (10, 4)),
        ({"startingOffsets": "earliest"}, {}, (0, 0)),
        ({"startingOffsets": '{"t": {"0": -2, "1": -1}}'}, {}, (0, 4)),
        ({"startingOffsets": '{"t": {"0": 3, "1": 1}}'}, {}, (3, 1)),
        ({"startingTimestamp": "0"}, {}, (0, 0)),
        # The other one came since: it was not there when the group was moved.
        ({"group": "g"}, {0: (7, 0)}, (7, 0)),
        ({"group": "g", "startingOffsets": "earliest"}, {0: (7, 0)}, (7, 0)),
        ({"group": "g", "startingOffsets": '{"t": {"0": 1, "1": 3}}'}, {0: (7, 0)}, (7, 3)),
        ({"group": "g"}, {0: (0, 0), 1: (0, 0)}, (0, 0)),
        ({"group": "g", "startingOffsets": "earliest"}, {0: (7, 0), 1: (0, 0)}, (7, 0)),
    ],
)
def test_i15_it_begins_where_the_group_stands_or_where_the_option_says(
    leaders: Leaders,
    options: Mapping[str, str],
    group: dict[int, tuple[int | None, int]],
    begins: tuple[int, int],
) -> None:
    leaders.group = group
    assert stream(**options).initialOffset() == begins_at(*begins)
    assert all(request.stable for request in leaders.of("fetch_offsets"))


# --------------------------------------------------------------------------- the batch's step


@pytest.mark.parametrize(
    ("group", "kinds"),
    [
        ({}, ("from_none", "from_none")),
        ({0: (2, 0), 1: (0, 0)}, ("from_offset", "from_offset")),
        ({0: (None, 9), 1: (0, 0)}, ("from_offset", "from_offset")),
    ],
    ids=["nothing", "committed", "decided and on its way"],
)
def test_i21_the_step_of_a_batch_says_where_it_begins(
    leaders: Leaders, group: dict[int, tuple[int | None, int]], kinds: tuple[str, str]
) -> None:
    leaders.group, leaders.tx_state = group, pb.TRANSACTION_STATE_COMMITTED
    parts = planned(stream(**GROUP), at(2, 0), at(6, 3))
    assert len({part.step for part in parts}) == 1, "every task sends the same"
    froms = [2 if kind == "from_offset" else 0 for kind in kinds]
    assert step(parts[0]) == {0: (kinds[0], froms[0], 6), 1: (kinds[1], 0, 3)}


def test_i21_what_an_open_transaction_holds_is_of_an_earlier_run(leaders: Leaders) -> None:
    leaders.group = {0: (None, 9)}
    (first, *_) = planned(stream(**GROUP), at(0, 0), at(6, 3))
    assert step(first)[0] == ("from_none", 0, 6)


def test_i21_a_batch_without_records_registers_its_step_in_one_task(leaders: Leaders) -> None:
    parts = planned(stream(**GROUP), at(6, 3), at(6, 3))
    assert [(part.ranges[0].offset_count, step(part)[0][2]) for part in parts] == [(0, 6)]
    assert planned(stream(), at(6, 3), at(6, 3)) == []


def test_i34_what_was_deleted_is_not_read_but_its_step_begins_where_the_last_one_ended(
    leaders: Leaders, caplog: pytest.LogCaptureFixture
) -> None:
    leaders.starts[0] = 5
    leaders.group = {0: (2, 0), 1: (0, 0)}
    with pytest.raises(DataLoss, match="t/0: offsets 2 to 4 are deleted, it begins at 5"):
        planned(stream(**GROUP), at(2, 0), at(8, 0))
    assert caplog.messages == []
    (part,) = planned(stream(**GROUP, failOnDataLoss="false"), at(2, 0), at(8, 0))
    (warning,) = caplog.messages
    assert "t/0: offsets 2 to 4 are deleted" in warning
    assert part.ranges == (OffsetRange(T0, 5, 8),)
    assert step(part)[0] == ("from_offset", 2, 8)


def test_what_was_deleted_does_not_count_against_the_limit_of_a_batch(leaders: Leaders) -> None:
    leaders.starts[0] = 1_000
    goes_on = stream(failOnDataLoss="false")
    assert goes_on.latestOffset(at(2, 4), ReadMaxRows(6)) == at(1_006, 4)
    # All of it: a batch of nothing that passes over it.
    leaders.logs[0] = []
    assert goes_on.latestOffset(at(2, 4), ReadMaxRows(6)) == at(1_000, 4)
    assert planned(goes_on, at(2, 4), at(1_000, 4)) == []
    # Who minds is told when the batch is planned.
    with pytest.raises(DataLoss, match="t/0: offsets 2 to 999"):
        planned(stream(), at(2, 4), at(8, 4))


def test_a_sink_that_never_commits_is_told_at_the_next_batch(leaders: Leaders) -> None:
    reader = stream(**GROUP)
    leaders.group = {0: (0, 0), 1: (0, 0)}
    planned(reader, at(0, 0), at(5, 2))
    # Spark plans a batch again where a second action reads it: that says nothing.
    leaders.group = {0: (9, 0), 1: (9, 0)}
    planned(reader, at(0, 0), at(5, 2))
    with pytest.raises(transaction.SinkNeverCommits, match="'g'"):
        planned(reader, at(5, 2), at(6, 2))
    leaders.group = {0: (5, 0), 1: (2, 0)}
    again = stream(**GROUP)
    planned(again, at(0, 0), at(5, 2))
    planned(again, at(5, 2), at(6, 2))


# --------------------------------------------------------------------------------- plain commits


def test_a_group_without_a_sink_is_told_where_the_query_stands(leaders: Leaders) -> None:
    stream(group="g").commit(at(6, 3))
    (request,) = leaders.of("commit_offsets")
    assert request.offsets.group == "g"
    assert [(o.partition.number, o.from_any, o.to_offset) for o in request.offsets.offsets] == [
        (0, True, 6),
        (1, True, 3),
    ]
    leaders.script["commit_offsets"] = [errors.Unavailable("away")]
    stream(group="g").commit(at(7, 3))


@pytest.mark.parametrize("options", [{}, GROUP])
def test_i21_nothing_is_committed_plainly_without_group_or_beside_transactions(
    leaders: Leaders, options: dict[str, str]
) -> None:
    stream(**options).commit(at(6, 3))
    assert leaders.of("commit_offsets") == []


# ------------------------------------------------------------------------------------- the tasks


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    properties = dict(PROPERTIES)
    monkeypatch.setattr(TaskContext, "get", lambda: TaskOf(properties))
    return properties


def read(reader: OncelogStreamReader | OncelogBatchReader, part: Any) -> list[tuple[int, int]]:
    return [
        (row["offset"], int(row["value"]))
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_i34_a_task_registers_the_batchs_step_before_it_gives_a_row(
    leaders: Leaders, task: dict[str, str]
) -> None:
    reader = stream(**GROUP)
    (part, *_) = planned(reader, at(2, 0), at(6, 3))
    leaders.asked.clear()
    rows = reader.read(part)
    next(rows)
    # The rows are fetched beside it, and given after.
    names = [name for name, _ in leaders.asked if name != "fetch"]
    assert names == ["init_producer", "begin_transaction", "commit_transaction_offsets"]
    (registered,) = leaders.of("commit_transaction_offsets")
    assert registered.tx_id == 77
    assert registered.offsets.SerializeToString(deterministic=True) == part.step.positions
    (init,), (begin,) = leaders.of("init_producer"), leaders.of("begin_transaction")
    assert (init.name, init.instance_id, init.session) == ("job", bytes(15) + b"\n", False)
    assert (begin.request_id, begin.commit_seq.scope, begin.commit_seq.number) == (
        3,
        "the-query",
        3,
    )
    # Announced, so that the commit of a sink that forgets their group is refused.
    assert list(begin.parts) == [OFFSETS]


def test_i34_a_batch_that_is_committed_is_read_again_and_registers_nothing(
    leaders: Leaders, task: dict[str, str]
) -> None:
    reader = stream(**GROUP)
    parts = planned(reader, at(2, 0), at(6, 3))
    reply = coordinator_pb2.BeginTransactionReply
    leaders.script["begin_transaction"] = [
        reply(result=reply.RESULT_ALREADY_COMMITTED) for _ in parts
    ]
    leaders.group = {0: (6, 0), 1: (3, 0)}
    assert sum(len(read(reader, part)) for part in parts) == 7
    assert leaders.of("commit_transaction_offsets") == []


def test_i21_a_group_that_stands_elsewhere_gives_no_row(
    leaders: Leaders, task: dict[str, str]
) -> None:
    reader = stream(**GROUP)
    (part, *_) = planned(reader, at(2, 0), at(6, 3))
    leaders.script["commit_transaction_offsets"] = [errors.StalePosition("at 9")]
    with pytest.raises(transaction.TransactionLost, match="does not stand where"):
        next(reader.read(part))


def test_i23_a_group_that_got_members_since_the_batch_was_planned_gives_no_row(
    leaders: Leaders, task: dict[str, str]
) -> None:
    reader = stream(**GROUP)
    (part, *_) = planned(reader, at(2, 0), at(6, 3))
    leaders.script["commit_transaction_offsets"] = [errors.UnknownMember("living members")]
    with pytest.raises(GroupHasMembers, match="'g' has living members"):
        next(reader.read(part))


def test_the_key_of_a_batch_is_its_query_run_and_number(task: dict[str, str]) -> None:
    key = transaction.streaming_key(None, None)
    assert key is not None
    assert (key.producer_name, key.scope, key.number) == ("the-query", "the-query", 3)
    assert key.instance_id == bytes(15) + b"\n"
    named = transaction.streaming_key("job", "s")
    assert named is not None
    assert (named.producer_name, named.scope) == ("job/s", "the-query")
    task[transaction.RUN_ID_PROPERTY] = "my jobs"
    with pytest.raises(RuntimeError, match="setJobGroup"):
        transaction.streaming_key(None, None)
    del task[transaction.BATCH_ID_PROPERTY]
    assert transaction.streaming_key(None, None) is None


# ----------------------------------------------------------------------------------- batch reads


def test_a_batch_read_is_of_the_range_that_its_options_say(leaders: Leaders) -> None:
    given = {
        "startingOffsets": '{"t": {"0": 3, "1": 4}}',
        "endingOffsets": '{"t": {"0": 7, "1": -1}}',
    }
    reader = OncelogBatchReader(source_options({**BASE, **given}, streaming=False), SCHEMA)
    (part,) = reader.partitions()
    assert read(reader, part) == [(number, number) for number in range(3, 7)]
    # Spark makes InputPartition(None) of an empty plan.
    assert read(reader, InputPartition(None)) == []
    timed = {**BASE, "startingTimestamp": "0", "endingTimestamp": "1"}
    leaders.logs = [[2000], [2000]]
    by_time = OncelogBatchReader(source_options(timed, streaming=False), SCHEMA)
    ranges = read_of(by_time.partitions())
    assert ranges == [OffsetRange(T0, 0, 1000), OffsetRange(T1, 0, 1000)]


@pytest.mark.parametrize("begins", ["earliest", '{"t": {"0": -2, "1": 0}}'])
def test_what_goes_while_a_batch_read_is_planned_is_no_loss_of_who_reads_from_the_earliest(
    leaders: Leaders, begins: str
) -> None:
    def first_asked(request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
        reply = leaders._list_offsets(request)
        leaders.starts[0] = 3
        return reply

    leaders.script["list_offsets"] = [first_asked]
    given = {**BASE, "startingOffsets": begins, "endingOffsets": '{"t": {"0": 7, "1": 0}}'}
    reader = OncelogBatchReader(source_options(given, streaming=False), SCHEMA)
    ranges = read_of(reader.partitions())
    assert ranges == [OffsetRange(T0, 3, 7)]


def test_positions_that_leave_a_partition_out_are_refused(leaders: Leaders) -> None:
    given = {**BASE, "startingOffsets": '{"t": {"0": 3}}'}
    with pytest.raises(ValueError, match=r"missing: \['t/1'\]"):
        OncelogBatchReader(source_options(given, streaming=False), SCHEMA).partitions()
