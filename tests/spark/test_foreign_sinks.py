"""Batches of a source with `transactionalSink` that no Oncelog sink commits: the query is told what
to do before the next batch would wait for the transaction that the last one left open; where it is
an Oncelog sink that means another transaction, before its first batch is committed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame

from oncelog_spark.batch_transaction import take_over
from tests.spark.conftest import Lab, numbers

pytestmark = pytest.mark.spark

SAYS = r"names a sink that never commits.*inputGroups=.*leave `transactionalSink` out"


def parquet(lab: Lab) -> dict[str, Any]:
    return {"format": "parquet", "path": str(lab.folder / "out")}


def ignoring(_lab: Lab) -> dict[str, Any]:
    def each(_batch: DataFrame, _number: int) -> None:
        """Does not even read."""

    return {"each": each}


def counting(_lab: Lab) -> dict[str, Any]:
    def each(batch: DataFrame, _number: int) -> None:
        batch.count()

    return {"each": each}


def under_another_name(lab: Lab) -> dict[str, Any]:
    topic = lab.topic()

    def each(batch: DataFrame, _number: int) -> None:
        lab.save(batch, topic=topic, sinkName="other")

    return {"each": each}


@pytest.mark.parametrize("sink", [parquet, ignoring, counting, under_another_name])
def test_a_sink_that_never_commits_is_told_at_the_next_batch(lab: Lab, sink: Any) -> None:
    source, group = lab.topic(), lab.group()
    lab.fill(source, 100)
    name = f"job-{group}"
    stream = lab.stream(source, group=group, transactionalSink=name, maxOffsetsPerTrigger="40")
    with pytest.raises(Exception, match=SAYS):
        lab.copy(stream.select("value"), lab.checkpoint(), **sink(lab))
    # What the first batch left open ends with the next run of that name, not after 15 minutes.
    take_over(lab.protocol, name)
    assert set(lab.positions(group, source).values()) == {None}


@pytest.mark.parametrize("told", [True, False], ids=["with inputGroups", "without"])
def test_a_sink_of_another_producer_is_told_at_the_first_batch(lab: Lab, told: bool) -> None:
    source, topic, group = lab.topic(), lab.topic(), lab.group()
    lab.fill(source, 100)
    stream = lab.stream(source, group=group, transactionalSink=f"one-{group}").select("value")
    options: dict[str, Any] = {"topic": topic, "producer": f"other-{group}"}
    if told:
        options["inputGroups"] = group
    says = rf"`transactionalSink` .*'one-{group}'.*`producer` .*'other-{group}'"
    with pytest.raises(Exception, match=says):
        lab.copy(stream, lab.checkpoint(), **options)
    # Nothing came of it, and nothing stays behind for a quarter of an hour: neither the positions
    # under the one name, nor what was written under the other.
    assert lab.values(topic) == []
    assert set(lab.positions(group, source).values()) == {None}
    assert lab.open_transactions(f"one-{group}") == lab.open_transactions(f"other-{group}") == 0


def test_a_sink_of_another_name_in_foreach_batch_is_told_by_its_groups(lab: Lab) -> None:
    source, topic, group = lab.topic(), lab.topic(), lab.group()
    lab.fill(source, 100)

    def each(batch: DataFrame, _number: int) -> None:
        lab.save(batch, topic=topic, sinkName="other", inputGroups=group)

    stream = lab.stream(source, group=group, transactionalSink=f"job-{group}").select("value")
    with pytest.raises(Exception, match=r"`transactionalSink` .*`producer` "):
        lab.copy(stream, lab.checkpoint(), each=each)
    assert lab.values(topic) == []
    assert set(lab.positions(group, source).values()) == {None}


def test_i21_a_sink_that_forgets_the_group_commits_nothing(lab: Lab) -> None:
    source, topic, group = lab.topic(), lab.topic(), lab.group()
    lab.fill(source, 100)
    stream = lab.stream(source, group=group, transactionalSink="true").select("value")
    with pytest.raises(Exception, match="name its group in the sink's option `inputGroups`"):
        lab.copy(stream, lab.checkpoint(), topic=topic)
    assert lab.values(topic) == []
    assert set(lab.positions(group, source).values()) == {None}


def test_i34_both_faces_of_one_batch_go_on(lab: Lab) -> None:
    """A batch that goes to a foreign sink as well, beside the Oncelog sink that commits it."""
    source, topic, group = lab.topic(), lab.topic(), lab.group()
    lab.fill(source, 100)

    def each(batch: DataFrame, _number: int) -> None:
        assert batch.count() > 0
        lab.save(batch, topic=topic, inputGroups=group, wait="prepared")

    stream = lab.stream(source, group=group, transactionalSink="true", maxOffsetsPerTrigger="60")
    lab.copy(stream.select("value"), lab.checkpoint(), each=each)
    assert sorted(lab.values(topic)) == numbers(100)
    assert lab.positions(group, source) == lab.ends(source)
