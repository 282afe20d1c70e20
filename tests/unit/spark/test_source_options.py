"""Options that Spark's Kafka source has: what the readers make of them, against a scripted
cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from oncelog_spark import packing, source, subscription
from oncelog_spark.fetch import DataLoss
from oncelog_spark.offsets import FROM, TOPIC_IDS, OffsetRange, TopicPartition
from oncelog_spark.options import source_options
from oncelog_spark.progress import LAG
from oncelog_spark.source import OncelogBatchReader
from oncelogpb import errors
from tests.unit.spark.leaders import TOPIC_ID, Leaders
from tests.unit.spark.readers import (
    BASE,
    GROUP,
    SCHEMA,
    T0,
    T1,
    Clock,
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


def test_progress_shows_where_the_log_ends_and_how_far_the_query_is_behind(
    leaders: Leaders,
) -> None:
    reader = stream()
    assert reader.reportLatestOffset() is None
    reader.latestOffset(at(2, 0), ReadMaxRows(6))
    ends = {"t": {"0": 10, "1": 4}}
    lag: dict[str, Any] = {
        "minOffsetsBehindLatest": 2,
        "maxOffsetsBehindLatest": 4,
        "avgOffsetsBehindLatest": 3.0,
        "offsetsBehindLatest": 6,
    }
    assert reader.reportLatestOffset() == {**ends, LAG: lag}
    # The group stands where the batch begins, until it is committed.
    of_a_group = stream(group="g", failOnDataLoss="false")
    of_a_group.latestOffset(at(2, 0), ReadMaxRows(6))
    lag |= {"group": "g", "groupOffsetsBehindLatest": 12}
    assert of_a_group.reportLatestOffset() == {**ends, LAG: lag}
    # What is shown can be given as startingOffsets.
    shown = json.dumps(of_a_group.reportLatestOffset())
    assert stream(startingOffsets=shown).initialOffset() == begins_at(10, 4)
    leaders.starts[0] = 5
    planned(of_a_group, at(2, 0), at(6, 2))
    counted = of_a_group.reportLatestOffset()
    assert counted is not None
    assert counted[LAG]["offsetsDeletedUnread"] == 3


# ------------------------------------------------------------------------- enough for a batch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(source, "time", made)
    return made


def test_a_batch_waits_for_enough_records_and_no_longer_than_the_delay(
    leaders: Leaders, clock: Clock
) -> None:
    reader = stream(minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    assert reader.latestOffset(at(8, 4), limit) == at(10, 4), "a run begins with what there is"
    begin = at(10, 4)
    leaders.logs[0].append(4)
    assert reader.latestOffset(begin, limit) is begin
    leaders.logs[0].append(1)
    assert reader.latestOffset(begin, limit) == at(15, 4), "five are enough"
    leaders.logs[1].append(1)
    begin = at(15, 4)
    clock.now += 9
    assert reader.latestOffset(begin, limit) is begin
    clock.now += 2
    assert reader.latestOffset(begin, limit) == at(15, 5), "the delay is over"


def test_a_batch_that_waits_is_not_asked_for_all_the_time(leaders: Leaders, clock: Clock) -> None:
    reader = stream(minOffsetsPerTrigger="50", maxTriggerDelay="1s", longPollMs="700")
    limit, begin = reader.getDefaultReadLimit(), at(9, 4)
    reader.latestOffset(at(8, 4), limit)
    while reader.latestOffset(begin, limit) is begin:
        assert len(clock.slept) < 5
    assert clock.slept == pytest.approx([0.7, 0.3])


def test_who_asks_for_all_gets_all_however_little(leaders: Leaders, clock: Clock) -> None:
    reader = stream(minOffsetsPerTrigger="500", maxOffsetsPerTrigger="500")
    reader.latestOffset(at(0, 0), ReadAllAvailable())
    assert reader.latestOffset(at(8, 4), ReadAllAvailable()) == at(10, 4), "Trigger.Once"
    begin = at(8, 4)
    assert reader.latestOffset(begin, ReadMaxRows(500)) is not None
    assert reader.latestOffset(begin, ReadMaxRows(500)) is begin
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(begin, ReadMaxRows(500)) == at(10, 4), "AvailableNow"


# ----------------------------------------------------------------------------- topics by pattern

PATTERN = {"subscribe": "", "subscribePattern": "t|u.*"}


def test_a_pattern_finds_topics_that_come_while_the_query_runs(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders.names = ["t", "other"]
    reader = stream(**PATTERN, startingOffsets="latest")
    begin = reader.initialOffset()
    assert begin == begins_at(10, 4)
    leaders.names.append("us")
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin, "asked a moment ago"
    monkeypatch.setattr(subscription, "PATTERN_EVERY_S", 0.0)
    ids = {"t": TOPIC_ID.hex(), "us": TOPIC_ID.hex()}
    came = {**at(10, 4), "us": {"0": 0, "1": 0}}
    grown = first_batch(came, {**at(10, 4), "us": {"0": 10, "1": 4}, TOPIC_IDS: ids})
    assert reader.latestOffset(begin, ReadAllAvailable()) == grown
    found = read_of(planned(reader, begin, grown))
    assert found == [
        OffsetRange(TopicPartition("us", 0), 0, 10),
        OffsetRange(TopicPartition("us", 1), 0, 4),
    ], "from its first record"


def test_a_pattern_that_matches_nothing_yet_waits(
    leaders: Leaders, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "time", clock)
    leaders.names = []
    with pytest.raises(ValueError, match="create the first topic"):
        stream(**PATTERN, **GROUP).initialOffset()
    reader = stream(**PATTERN, group="g", longPollMs="700")
    begin = reader.initialOffset()
    assert begin == {TOPIC_IDS: {}, FROM: {}}
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    assert clock.slept == [0.7]
    assert planned(reader, begin, begin) == []
    leaders.names = ["t"]
    clock.now += subscription.PATTERN_EVERY_S
    assert reader.latestOffset(begin, ReadAllAvailable()) == first_batch(at(0, 0), at(10, 4))


def test_i14_a_topic_of_a_pattern_that_was_deleted_is_a_loss_or_left_out(
    leaders: Leaders, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {"t": TOPIC_ID.hex(), "us": TOPIC_ID.hex()}
    begin = {**at(10, 4), "us": {"0": 10, "1": 4}, TOPIC_IDS: ids}
    with pytest.raises(DataLoss, match="'us', which the query reads, was deleted"):
        stream(**PATTERN).latestOffset(begin, ReadAllAvailable())
    goes_on = stream(**PATTERN, failOnDataLoss="false")
    assert goes_on.latestOffset(begin, ReadAllAvailable()) == at(10, 4)
    assert "without topic 'us'" in caplog.text
    # A pattern that does not match it any more is what the user wants.
    other = stream(subscribe="", subscribePattern="t")
    assert other.latestOffset(begin, ReadAllAvailable()) == at(10, 4)


def test_a_group_is_told_nothing_of_a_topic_that_was_deleted(leaders: Leaders) -> None:
    ids = {"t": TOPIC_ID.hex(), "us": TOPIC_ID.hex()}
    end = {**at(10, 4), "us": {"0": 10, "1": 4}, TOPIC_IDS: ids}
    stream(**PATTERN, group="g", failOnDataLoss="false").commit(end)
    (request,) = leaders.of("commit_offsets")
    assert [offset.to_offset for offset in request.offsets.offsets] == [10, 4]


def test_i15_a_batch_of_available_now_that_a_topic_comes_to_is_no_new_one(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PATTERN_EVERY_S", 0.0)
    reader = stream(**PATTERN)
    reader.prepareForTriggerAvailableNow()
    leaders.names.append("us")
    assert reader.latestOffset(at(10, 4), ReadAllAvailable()) == at(10, 4)


# ------------------------------------------------------------------------- times to begin at


def test_starting_times_are_milliseconds(leaders: Leaders) -> None:
    leaders.logs = [[9_000], [6_000]]
    assert stream(startingTimestamp="5").initialOffset() == begins_at(5_000, 5_000)
    queries = [query for request in leaders.of("list_offsets") for query in request.queries]
    assert {query.timestamp_us for query in queries} == {5_000}
    each = stream(startingOffsetsByTimestamp='{"t": {"0": 5, "1": 2}}')
    assert each.initialOffset() == begins_at(5_000, 2_000)
    with pytest.raises(ValueError, match=r"ByTimestamp` must name exactly.*missing: \['t/1'\]"):
        stream(startingOffsetsByTimestamp='{"t": {"0": 5}}').initialOffset()


def test_a_time_behind_the_last_record_is_an_error_or_the_end(leaders: Leaders) -> None:
    leaders.logs = [[9_000], [6_000]]
    late = {"startingTimestamp": "7"}
    with pytest.raises(ValueError, match="t/1: no record is so late"):
        stream(**late).initialOffset()
    at_the_end = stream(**late, startingOffsetsByTimestampStrategy="latest")
    assert at_the_end.initialOffset() == begins_at(7_000, 6_000)
    ends = {**BASE, "endingOffsetsByTimestamp": '{"t": {"0": 7, "1": 7}}'}
    reader = OncelogBatchReader(source_options(ends, streaming=False), SCHEMA)
    assert read_of(reader.partitions()) == [OffsetRange(T0, 0, 7_000), OffsetRange(T1, 0, 6_000)]


def test_where_nobody_leads_is_asked_again_as_often_as_the_user_says(
    leaders: Leaders, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "time", clock)
    retries = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "300"}
    away = errors.Unavailable("nobody leads")
    leaders.script["list_offsets"] = [away, away]
    assert stream(**retries).initialOffset() == begins_at(10, 4)
    assert clock.slept == [0.3, 0.3]
    leaders.script["list_offsets"] = [away] * 3
    with pytest.raises(errors.Unavailable):
        stream(**retries).initialOffset()
    leaders.script["list_offsets"] = [errors.PermissionDenied("no"), away]
    with pytest.raises(errors.PermissionDenied):
        stream(**retries).initialOffset()


# ------------------------------------------------------------------------------- tasks of a batch


def test_ranges_of_a_small_batch_share_a_task_and_more_are_to_be_had(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sizes(**options: str) -> list[list[int]]:
        parts = planned(stream(**options), at(0, 0), at(10, 4))
        assert read_of(parts)[0].start == 0
        assert sum(one.offset_count for one in read_of(parts)) == 14
        return [[one.offset_count for one in part.ranges] for part in parts]

    assert sizes() == [[10, 4]]
    assert sizes(minPartitions="2") == [[10], [4]]
    assert sizes(maxRecordsPerPartition="5") == [[5], [5], [4]]
    assert sizes(maxRecordsPerPartition="10") == [[10], [4]]
    monkeypatch.setattr(packing, "TASK_RECORDS", 10)
    assert sizes() == [[10], [4]]
