"""A query's name is its producer's, and whatever it was called before, nothing comes out twice."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import DataFrame

import oncelog_spark
from oncelog_spark.batch_transaction import take_over
from tests.spark.conftest import Lab, numbers
from tests.spark.test_streaming import forget_commit

pytestmark = pytest.mark.spark


def test_i34_a_query_is_known_by_its_name_and_a_new_checkpoint_goes_on(lab: Lab) -> None:
    source, sink, group = lab.topic(1), lab.topic(), lab.group()
    name = f"query-{group}"
    lab.fill(source, 100)
    stream = lab.stream(source, group=group, transactionalSink="true").select("value")
    seen: list[int] = []

    def each(batch: DataFrame, _number: int) -> None:
        # The source's tasks have opened it by then: operators see it by the query's name.
        batch.count()
        seen.append(lab.open_transactions(name))
        lab.save(batch, topic=sink, inputGroups=group)

    lab.copy(stream, lab.checkpoint(), each=each, queryName=name)
    assert seen == [1]
    lab.fill(source, 20, first=100)
    # The first checkpoint is lost; a stream's own sink finds the name as one in foreachBatch does.
    lab.copy(stream, lab.checkpoint(), topic=sink, inputGroups=group, queryName=name)
    assert sorted(lab.values(sink)) == numbers(120)
    assert lab.positions(group, source) == lab.ends(source)


def told(lab: Lab, *words: str) -> Any:
    """What `oncelog ... --json` prints."""
    command = [sys.executable, "-m", "oncelog_server.cli", *words, "--bootstrap", lab.bootstrap]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_command_line_shows_a_query_by_its_name(lab: Lab) -> None:
    source, sink, name = lab.topic(1), lab.topic(), lab.group()
    lab.fill(source, 100)
    stream = lab.stream(source, group=name, transactionalSink="true", maxOffsetsPerTrigger="60")
    open_now: list[tuple[str, str, str]] = []

    def each(batch: DataFrame, number: int) -> None:
        options = {"bootstrap": lab.bootstrap, "inputGroups": name}
        with oncelog_spark.transaction(batch, number, options) as tx:
            tx.write(batch.select("value"), topic=sink)
            [listed] = told(lab, "tx", "list", "--name", name)["transactions"]
            [offset] = told(lab, "group", "describe", name)["offsets"]
            open_now.append((listed["name"], listed["tx_id"], offset["pending_tx_id"]))

    query = lab.copy(stream, lab.checkpoint(), each=each, queryName=name)
    for producer, tx_id, pending in open_now:
        assert (producer, tx_id) == (name, pending)
    described = told(lab, "group", "describe", name)
    assert [(offset["offset"], offset["lag"]) for offset in described["offsets"]] == [(100, 0)]
    [last] = described["last_commits"]
    assert last["tx_id"] == open_now[1][1]
    batch = told(lab, "tx", "describe", last["tx_id"])
    assert (batch["name"], batch["commit_seq"]) == (name, {"scope": str(query.id), "number": 1})
    assert told(lab, "tx", "list", "--name", name)["transactions"] == []


def test_i34_a_checkpoint_from_before_names_counted_goes_on_under_its_id(lab: Lab) -> None:
    """The query had no name, which is what all queries were: its last batch is run again."""
    source, sink, checkpoint = lab.topic(1), lab.topic(), lab.checkpoint()
    lab.fill(source, 100)
    stream = lab.stream(source).select("value")
    lab.copy(stream, checkpoint, topic=sink)
    forget_commit(checkpoint)
    lab.copy(stream, checkpoint, topic=sink, queryName=f"query-{source}")
    lab.fill(source, 20, first=100)
    lab.copy(stream, checkpoint, topic=sink, queryName=f"query-{source}")
    assert sorted(lab.values(sink)) == numbers(120)


def test_i34_a_renamed_query_and_one_of_two_with_one_name_are_refused(lab: Lab) -> None:
    source, sink, checkpoint = lab.topic(1), lab.topic(), lab.checkpoint()
    lab.fill(source, 60)
    stream = lab.stream(source, maxOffsetsPerTrigger="30").select("value")
    name = f"query-{source}"
    lab.copy(stream, checkpoint, topic=sink, queryName=name)
    forget_commit(checkpoint)
    with pytest.raises(Exception, match="give the sink's option `producer` its earlier name"):
        lab.copy(stream, checkpoint, topic=sink, queryName=f"{name}-renamed")
    # As its message says.
    lab.copy(stream, checkpoint, topic=sink, queryName=f"{name}-renamed", producer=name)
    assert sorted(lab.values(sink)) == numbers(60)
    # Another query of that name, and then the first one again.
    lab.copy(stream, lab.checkpoint(), topic=lab.topic(), queryName=name)
    forget_commit(checkpoint)
    with pytest.raises(Exception, match="two queries have one name"):
        lab.copy(stream, checkpoint, topic=sink, queryName=name)
    assert sorted(lab.values(sink)) == numbers(60)
    take_over(lab.protocol, name)
