"""What the driver makes of its tasks' messages."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from oncelog_spark.manifest import (
    Disagreement,
    PartCount,
    TaskWritten,
    TransactionKey,
    build_manifest,
    one_transaction,
    participants,
)
from oncelogpb.v1 import types_pb2 as pb

TOPIC, OTHER, OFFSETS = b"t" * 16, b"u" * 16, b"oncelog:offsets0"
KEY = TransactionKey("query", b"r" * 16, "query", 3)


def written(writer: int, *parts: PartCount, tx_id: int = 77) -> TaskWritten:
    return TaskWritten(KEY, tx_id, 5, 1 << 32 | 1, writer, parts)


def test_i34_the_manifest_names_exactly_the_winners() -> None:
    messages = [
        written(9, PartCount(TOPIC, 1, 10), PartCount(TOPIC, 0, 5)),
        written(8, PartCount(TOPIC, 1, 2), PartCount(OTHER, 0, 1), PartCount(OTHER, 1, 0)),
        written(7),
    ]
    manifest = build_manifest(messages, [pb.Partition(topic_id=OFFSETS, number=4)])
    rows = [
        (topic.topic_id, number, writer, count)
        for topic in manifest.topics
        for number, writer, count in zip(
            topic.partition, topic.writer, topic.record_count, strict=True
        )
    ]
    assert rows == [
        (OFFSETS, 4, 0, 0),
        (TOPIC, 0, 9, 5),
        (TOPIC, 1, 8, 2),
        (TOPIC, 1, 9, 10),
        (OTHER, 0, 8, 1),
    ]
    assert len({topic.topic_id for topic in manifest.topics}) == len(manifest.topics)


def test_messages_survive_the_way_to_the_driver() -> None:
    message = written(9, PartCount(TOPIC, 1, 10))
    assert pickle.loads(pickle.dumps(message)) == message


def test_agreeing_messages_are_one_transaction() -> None:
    assert one_transaction([written(1), written(2)]) == written(1)
    assert one_transaction([]) is None
    # Of an earlier run's batch: nobody wrote.
    assert one_transaction([written(1, tx_id=0), written(2, tx_id=0)]) == written(1, tx_id=0)


@pytest.mark.parametrize(
    "other",
    [
        written(2, tx_id=78),
        written(2, tx_id=0),
        replace(written(2), generation=1 << 32 | 2),
        replace(written(2), key=replace(KEY, number=4)),
        replace(written(2), key=replace(KEY, instance_id=b"s" * 16)),
    ],
)
def test_messages_that_disagree_are_refused(other: TaskWritten) -> None:
    with pytest.raises(Disagreement, match="different transactions"):
        one_transaction([written(1), other])


def test_a_task_without_message_and_a_writer_twice_are_refused() -> None:
    with pytest.raises(Disagreement, match="1 of 2 tasks"):
        one_transaction([written(1), None])
    with pytest.raises(Disagreement, match="same writer"):
        one_transaction([written(1), written(1)])


def test_participants_are_named_once() -> None:
    named = participants([written(1, PartCount(TOPIC, 1, 1)), written(2, PartCount(TOPIC, 1, 4))])
    assert named == [pb.Partition(topic_id=TOPIC, number=1)]
