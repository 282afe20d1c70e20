"""Which rows go where."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_spark.routing import RoutingError, hash_keys, route

COUNTS = {"a": 3, "b": 5}


def routed(batch: pa.RecordBatch, topic: str | None = None) -> dict[tuple[str, int], list[Any]]:
    return {
        (piece.topic, piece.partition): piece.rows.column("value").to_pylist()
        for piece in route(batch, topic=topic, partition_counts=COUNTS, unkeyed=7)
    }


@given(st.lists(st.none() | st.binary(max_size=4), max_size=50), st.integers(1, 17))
def test_keys_go_where_the_client_puts_them(keys: list[bytes | None], count: int) -> None:
    found = hash_keys(pa.array(keys, pa.binary()), count).to_pylist()
    assert found == [None if key is None else zlib.crc32(key) % count for key in keys]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.none() | st.binary(max_size=2),
            st.none() | st.integers(0, 2),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_every_row_goes_to_one_place_in_order(
    rows: list[tuple[str, bytes | None, int | None]],
) -> None:
    batch = pa.record_batch(
        {
            "value": pa.array(range(len(rows))),
            "topic": pa.array([row[0] for row in rows], pa.string()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "partition": pa.array([row[2] for row in rows], pa.int32()),
        }
    )
    expected: dict[tuple[str, int], list[int]] = {}
    for index, (topic, key, partition) in enumerate(rows):
        count = COUNTS[topic]
        by_key = 7 % count if key is None else zlib.crc32(key) % count
        where = by_key if partition is None else partition
        expected.setdefault((topic, where), []).append(index)
    assert routed(batch) == expected


def test_the_option_wins_over_the_column() -> None:
    batch = pa.record_batch({"value": [b"x"], "topic": ["b"]})
    assert routed(batch, topic="a") == {("a", 7 % 3): [b"x"]}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": [b"x"], "topic": pa.array([None], pa.string())}, "no topic"),
        ({"value": [b"x"], "topic": ["c"]}, "unknown topic 'c'"),
        ({"value": [b"x"], "topic": ["a"], "partition": pa.array([3], pa.int32())}, "asks for 3"),
        ({"value": [b"x"], "topic": ["a"], "partition": pa.array([-1], pa.int32())}, "asks for -1"),
    ],
)
def test_a_row_that_goes_nowhere_is_refused(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(RoutingError, match=says):
        routed(pa.record_batch(columns))
