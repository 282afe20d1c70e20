"""A group belongs to one query, or to members: whoever comes second is told, or the query is."""

from __future__ import annotations

import time

import pytest

import oncelog
from oncelog import errors
from tests.spark.conftest import AVAILABLE_SECONDS_MAX, Lab, numbers

pytestmark = pytest.mark.spark

TOLD = r"'{group}' has living members: .*oncelog group describe {group}"


def test_i23_a_query_whose_group_has_members_is_refused_until_they_leave(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 30)
    shown = lab.stream(source, group=group).select("value")
    held = lab.stream(source, group=group, transactionalSink="true").select("value")
    with oncelog.connect(lab.bootstrap) as log:
        consumer = log.consumer([source], group=group, start="earliest")
        assert consumer.poll(20.0) is not None
        with pytest.raises(Exception, match=TOLD.format(group=group)):
            lab.copy(shown, lab.checkpoint(), topic=sink)
        with pytest.raises(Exception, match=TOLD.format(group=group)):
            lab.copy(held, lab.checkpoint(), topic=sink, inputGroups=group)
        assert lab.values(sink) == []
        consumer.close()
    lab.copy(held, checkpoint, topic=sink, inputGroups=group)
    assert sorted(lab.values(sink)) == numbers(30)
    lab.fill(source, 10, first=30)
    with oncelog.connect(lab.bootstrap) as log:
        consumer = _joined(log, source, group)
        assert consumer.poll(20.0) is not None
        # From its checkpoint, too.
        with pytest.raises(Exception, match=TOLD.format(group=group)):
            lab.copy(held, checkpoint, topic=sink, inputGroups=group)
        consumer.close()
    lab.copy(held, checkpoint, topic=sink, inputGroups=group)
    assert sorted(lab.values(sink)) == numbers(40)


def test_i23_members_that_join_a_running_querys_group_are_kept_out_until_it_stops(
    lab: Lab,
) -> None:
    source, sink, group = lab.topic(1), lab.topic(), lab.group()
    stream = lab.stream(source, group=group, transactionalSink="true").select("value")
    writer = stream.writeStream.format("oncelog").option("bootstrap", lab.bootstrap)
    writer = writer.options(topic=sink, inputGroups=group, checkpointLocation=str(lab.checkpoint()))
    query = writer.start()
    try:
        lab.fill(source, 20)
        lab.wait_for_values(sink, numbers(20))
        with oncelog.connect(lab.bootstrap) as log:
            with pytest.raises(errors.GroupClaimed, match=f"a Spark query that reads {source}"):
                log.consumer([source], group=group, start="earliest")
            [claim] = log.admin.describe_group(group).claims
            assert claim.holder.startswith(f"a Spark query that reads {source} (")
            lab.fill(source, 10, first=20)
            lab.wait_for_values(sink, numbers(30))
            query.stop()
            lab.fill(source, 10, first=30)
            consumer = _joined(log, source, group)
            given: list[bytes] = []
            while len(given) < 10 and (batch := consumer.poll(20.0)) is not None:
                given += [record.value for record in batch if record.value is not None]
            consumer.close()
    finally:
        query.stop()
    assert sorted(value.decode() for value in given) == numbers(10, first=30)
    assert sorted(lab.values(sink)) == numbers(30)


def _joined(log: oncelog.Log, topic: str, group: str) -> oncelog.Consumer:
    """Its reader's process may have been killed by Spark before it said that it ends."""
    give_up = time.monotonic() + AVAILABLE_SECONDS_MAX
    while True:
        try:
            return log.consumer([topic], group=group, start="earliest")
        except errors.GroupClaimed:
            assert time.monotonic() < give_up, "the claim of a query that has stopped is not over"
            time.sleep(0.5)
