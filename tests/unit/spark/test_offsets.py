"""Position vectors: their written form, rate limits and ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_spark.offsets import (
    TOPIC_IDS,
    OffsetRange,
    Times,
    TopicPartition,
    Vector,
    forward,
    from_json,
    limit_step,
    losses,
    parse_positions,
    parse_times,
    ranges,
    replaced_topics,
    to_json,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "c.d"]), st.integers(0, 20))
vectors = st.dictionaries(partitions, st.integers(0, 2**62), min_size=1, max_size=12)
steps = st.dictionaries(
    partitions, st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=12
)


def test_positions_are_written_as_the_kafka_source_writes_them() -> None:
    vector = Vector({A1: 7, A0: 5, B0: 0}, {"a": "00ff", "b": "11"})
    written = to_json(vector)
    assert list(written) == ["a", "b", TOPIC_IDS]
    assert written["a"] == {"0": 5, "1": 7}
    # What a checkpoint holds can be given as startingOffsets.
    assert parse_positions(json.dumps(written)) == {A0: 5, A1: 7, B0: 0}


@given(vectors)
def test_a_vector_survives_the_checkpoint(positions: dict[TopicPartition, int]) -> None:
    vector = Vector(positions, {tp.topic: "ab" for tp in positions})
    assert from_json(json.loads(json.dumps(to_json(vector)))) == vector


@pytest.mark.parametrize(
    "text",
    [
        "newest",
        "{}",
        "[]",
        '{"a": 5}',
        '{"a": {"x": 5}}',
        '{"a": {"0": -3}}',
        '{"a": {"0": 1.5}}',
        '{"a": {"0": true}}',
        '{"a": {"-1": 5}}',
    ],
)
def test_wrong_positions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"offsets|earliest"):
        parse_positions(text)


@given(steps, st.integers(1, 10**7))
def test_i15_a_limited_step_takes_exactly_the_limit_and_never_goes_back(
    lags: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {tp: at for tp, (at, _) in lags.items()}
    latest = {tp: at + lag for tp, (at, lag) in lags.items()}
    end = limit_step(start, latest, limit)
    backlog = sum(lag for _, lag in lags.values())
    assert sum(end.values()) - sum(start.values()) == min(limit, backlog)
    assert all(start[tp] <= end[tp] <= latest[tp] for tp in lags)


def test_limited_steps_reach_the_end() -> None:
    position, latest, taken = {A0: 0, A1: 0}, {A0: 10, A1: 3}, 0
    while position != latest:
        position = limit_step(position, latest, 4)
        taken += 1
    assert taken == 4


def test_a_log_that_ends_earlier_never_moves_a_position_back() -> None:
    assert forward({A0: 9, A1: 2}, {A0: 4, A1: 5}) == {A0: 9, A1: 5}
    assert limit_step({A0: 9}, {A0: 4}, 100) == {A0: 9}


@given(steps, st.integers(1, 40))
def test_ranges_cover_each_record_once(
    lags: dict[TopicPartition, tuple[int, int]], wanted: int
) -> None:
    start = {tp: at for tp, (at, _) in lags.items()}
    end = {tp: at + lag for tp, (at, lag) in lags.items()}
    planned = ranges(start, end, min_partitions=wanted)
    for partition, (at, lag) in lags.items():
        mine = [part for part in planned if part.partition == partition]
        edges = [at, *(part.end for part in mine)]
        assert [part.start for part in mine] == edges[:-1]
        assert edges[-1] == at + lag
        assert all(part.offset_count > 0 for part in mine)


@given(steps, st.integers(1, 10**6), st.one_of(st.none(), st.integers(1, 40)))
def test_no_range_is_longer_than_was_asked_for(
    lags: dict[TopicPartition, tuple[int, int]], most: int, wanted: int | None
) -> None:
    most = max(most, max(lag for _, lag in lags.values()) // 50)
    start = {tp: at for tp, (at, _) in lags.items()}
    end = {tp: at + lag for tp, (at, lag) in lags.items()}
    planned = ranges(start, end, min_partitions=wanted, max_records=most)
    assert all(0 < part.offset_count <= most for part in planned)
    assert sum(part.offset_count for part in planned) == sum(lag for _, lag in lags.values())


def test_times_are_written_as_the_kafka_source_writes_them() -> None:
    assert parse_times('{"a": {"0": 5, "1": 7}}') == Times({A0: 5, A1: 7})
    assert Times(9).at(A0) == 9
    with pytest.raises(ValueError, match="whole numbers from 0"):
        parse_times('{"a": {"0": -1}}')


def test_without_min_partitions_a_partition_is_one_range() -> None:
    assert ranges({A0: 1, A1: 5}, {A0: 4, A1: 5}) == [OffsetRange(A0, 1, 4)]


def test_what_the_log_cannot_serve_is_named() -> None:
    lost = losses(
        {A0: 3, A1: 5, B0: 1}, earliest={A0: 4, A1: 0, B0: 0}, latest={A0: 9, A1: 4, B0: 1}
    )
    assert [str(one) for one in lost] == [
        "a/0: offsets 3 to 3 are deleted, it begins at 4 (1 offset)",
        "a/1: it ends at 4, before 5",
    ]


def test_a_topic_that_was_made_anew_is_another_topic() -> None:
    assert replaced_topics({"a": "1", "b": "2"}, {"a": "1", "b": "9"}) == ["b"]
    assert replaced_topics({"a": "1"}, {}) == []
