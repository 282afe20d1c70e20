"""Spark over a topic whose oldest records were deleted: failOnDataLoss, as of its Kafka source
(I14, I34)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelogpb.v1 import partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.spark.conftest import Lab

pytestmark = pytest.mark.spark

LOSES = {"failOnDataLoss": "false"}


def truncate(lab: Lab, topic: str, before: int) -> None:
    """Of its one partition."""
    partition = pb.Partition(topic_id=lab.protocol.topic(topic).topic_id, number=0)
    request = partition_leader_pb2.TruncatePartitionRequest(partition=partition, offset=before)
    reply = lab.protocol.call("partition_leader.truncate_partition", request)
    assert reply.start_after == before


@contextmanager
def told(topic: str, first: int, last: int) -> Iterator[None]:
    """What fails says which offsets of which partition are gone, and what to do."""
    with pytest.raises(Exception, match="failOnDataLoss=false") as caught:
        yield
    assert f"{topic}/0: offsets {first} to {last} are deleted" in str(caught.value)


def offsets_in(lab: Lab, topic: str, **options: str) -> list[int]:
    return sorted(row.offset for row in lab.read(topic, **options).collect())


def test_i14_a_batch_job_that_names_what_was_deleted_ends_or_goes_on_as_it_was_told(
    lab: Lab,
) -> None:
    topic = lab.topic(1)
    lab.fill(topic, 100)
    truncate(lab, topic, 40)
    # Who begins at the earliest misses nothing that is there.
    assert offsets_in(lab, topic) == list(range(40, 100))
    named = {"startingOffsets": json.dumps({topic: {"0": 10}})}
    with told(topic, 10, 39):
        offsets_in(lab, topic, **named)
    assert offsets_in(lab, topic, **named, **LOSES) == list(range(40, 100))
    ended = {**named, "endingOffsets": json.dumps({topic: {"0": 30}})}
    with told(topic, 10, 39):
        offsets_in(lab, topic, **ended)
    assert offsets_in(lab, topic, **ended, **LOSES) == []


def test_i34_a_stream_that_fell_behind_ends_and_goes_on_from_its_checkpoint_once_it_may(
    lab: Lab,
) -> None:
    """Exactly once up to the gap and from it on: the checkpoint, the group and the sink agree."""
    topic, out, group = lab.topic(1), lab.topic(1), lab.group()
    options = {"group": group, "transactionalSink": f"job-{group}"}
    sink: dict[str, Any] = {"topic": out, "producer": f"job-{group}", "inputGroups": group}
    checkpoint: Path = lab.checkpoint()

    def copy(**more: str) -> None:
        source = lab.stream(topic, **options, **more).select("value")
        lab.copy(source, checkpoint, **sink)

    lab.fill(topic, 50)
    copy()
    copied = lab.values(out)
    assert len(copied) == 50
    lab.fill(topic, 100, first=50)
    truncate(lab, topic, 90)
    with told(topic, 50, 89):
        copy()
    assert lab.values(out) == copied, "nothing was written by what failed"
    assert lab.positions(group, topic) == {0: 50}
    copy(maxOffsetsPerTrigger="25", **LOSES)
    kept = [row.value.decode() for row in lab.read(topic).collect()]
    assert len(kept) == 60
    assert sorted(lab.values(out)) == sorted(copied + kept)
    assert lab.positions(group, topic) == {0: 150}


def test_i14_what_is_deleted_while_a_query_runs_ends_it_unless_it_may_lose(lab: Lab) -> None:
    topic = lab.topic(1)
    lab.fill(topic, 100)
    planned = lab.read(topic)
    # Spark plans it here, once; its tasks come later.
    planned.rdd.getNumPartitions()
    careless = lab.read(topic, **LOSES)
    careless.rdd.getNumPartitions()
    truncate(lab, topic, 70)
    with told(topic, 0, 69):
        planned.rdd.collect()
    assert sorted(row.offset for row in careless.rdd.collect()) == list(range(70, 100))
