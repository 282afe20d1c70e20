"""Several sinks, several sources and the driver's own records in one transaction of a micro-batch;
and other systems, which count what Oncelog says was committed."""

from __future__ import annotations

import json
import sqlite3

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

import oncelog_spark
from oncelog_spark.outcomes import Outcome
from tests.spark.conftest import Lab, numbers
from tests.spark.test_streaming import forget_commit

pytestmark = pytest.mark.spark


def test_i34_frames_topics_sources_and_metrics_commit_as_one(lab: Lab) -> None:
    left, right, copies, counts = (lab.topic(2) for _ in range(4))
    one, two, name, checkpoint = lab.group(), lab.group(), lab.group(), lab.checkpoint()
    lab.fill(left, 60)
    lab.fill(right, 40, first=60)
    limits = {"transactionalSink": "true", "maxOffsetsPerTrigger": "40"}
    both = lab.stream(left, group=one, **limits).union(lab.stream(right, group=two, **limits))
    replayed: list[bool] = []

    def each(batch: DataFrame, number: int) -> None:
        options = {"bootstrap": lab.bootstrap, "inputGroups": f"{one},{two}"}
        with oncelog_spark.transaction(batch, number, options) as tx:
            replayed.append(tx.replayed)
            seen = Observation()
            values = batch.select("key", "value").observe(seen, F.count(F.lit(1)).alias("rows"))
            tx.write(values, topic=copies)
            tx.send_observed(counts, seen, key=str(number))
            tx.write(batch.selectExpr("'input' as key", "topic as value"), topic=counts)
            # Not one of them is visible before the block ends.
            assert len(lab.values(copies)) == (100 if tx.replayed else 80 * number)

    lab.copy(both, checkpoint, each=each, queryName=name)
    forget_commit(checkpoint)
    lab.copy(both, checkpoint, each=each, queryName=name)
    assert replayed == [False, False, True]
    assert sorted(lab.values(copies)) == numbers(100)
    told = [json.dumps({"rows": 80}), json.dumps({"rows": 20})]
    assert sorted(lab.values(counts)) == sorted(told + 60 * [left] + 40 * [right])
    for group, source in ((one, left), (two, right)):
        assert lab.positions(group, source) == lab.ends(source)
    assert lab.open_transactions(name) == 0


def test_i34_a_block_that_fails_in_the_middle_leaves_nothing(lab: Lab) -> None:
    source, first, second = lab.topic(), lab.topic(), lab.topic()
    group, checkpoint = lab.group(), lab.checkpoint()
    lab.fill(source, 50)
    stream = lab.stream(source, group=group, transactionalSink=group)
    fails = True

    def each(batch: DataFrame, number: int) -> None:
        values = batch.select("value")
        options = {"bootstrap": lab.bootstrap, "producer": group, "inputGroups": group}
        with oncelog_spark.transaction(batch, number, options) as tx:
            tx.write(values, topic=first)
            if fails:
                raise RuntimeError("in the middle")
            tx.write(values, topic=second)

    with pytest.raises(Exception, match="in the middle"):
        lab.copy(stream, checkpoint, each=each)
    assert lab.values(first) == []
    assert lab.open_transactions(group) == 0
    fails = False
    lab.copy(stream, checkpoint, each=each)
    assert sorted(lab.values(first)) == sorted(lab.values(second)) == numbers(50)
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_block_that_forgets_the_group_commits_nothing(lab: Lab) -> None:
    source, sink, group = lab.topic(), lab.topic(), lab.group()
    lab.fill(source, 50)

    def each(batch: DataFrame, number: int) -> None:
        with oncelog_spark.transaction(batch, number, bootstrap=lab.bootstrap) as tx:
            # Asked for before anything is read: the source still says what belongs to it.
            assert tx.tx_id
            tx.write(batch.select("value"), topic=sink)

    stream = lab.stream(source, group=group, transactionalSink="true")
    with pytest.raises(Exception, match="name its group in the sink's option `inputGroups`"):
        lab.copy(stream, lab.checkpoint(), each=each)
    assert lab.values(sink) == []
    assert set(lab.positions(group, source).values()) == {None}


class OtherSystems:
    """The recipe of spark/README.md, for a folder of Parquet and for a database: staged under the
    TxId before the commit, counted by the outcome."""

    def __init__(self, lab: Lab, options: dict[str, str]) -> None:
        self.folder = lab.folder / "parquet"
        self.database = sqlite3.connect(lab.folder / "staged.db", check_same_thread=False)
        self.database.execute("create table if not exists staged (tx_id integer, value text)")
        self.options = options

    def stage(self, batch: DataFrame, tx_id: int) -> None:
        values = batch.selectExpr("cast(value as string) as value")
        values.write.parquet(str(self.folder / f"tx_id={tx_id}"))
        with self.database:
            self.database.executemany(
                "insert into staged values (?, ?)", [(tx_id, row.value) for row in values.collect()]
            )

    def settle(self) -> dict[str, list[str]]:
        """What counts, in each of them, of all that was ever staged."""
        settled: dict[str, list[str]] = {"parquet": [], "database": []}
        for part in self.folder.iterdir():
            if self._committed(int(part.name.partition("=")[2])):
                files = sorted(part.glob("*.parquet"))
                tables = [pq.read_table(file) for file in files]
                for table in tables:
                    settled["parquet"] += table.column("value").to_pylist()
        rows = self.database.execute("select tx_id, value from staged").fetchall()
        counts = {tx_id: self._committed(tx_id) for tx_id in {tx_id for tx_id, _ in rows}}
        settled["database"] = [value for tx_id, value in rows if counts[tx_id]]
        assert False in counts.values(), "the failed batch staged something as well"
        return settled

    def _committed(self, tx_id: int) -> bool:
        found = oncelog_spark.outcome(tx_id, self.options)
        assert found is not Outcome.OPEN
        return found is Outcome.COMMITTED


@pytest.mark.parametrize("fails", ["before the commit", "after the commit"])
def test_i34_other_systems_count_what_the_log_committed(lab: Lab, fails: str) -> None:
    source, group, checkpoint = lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 60)
    options = {"bootstrap": lab.bootstrap, "producer": group, "inputGroups": group}
    others = OtherSystems(lab, options)
    stream = lab.stream(source, group=group, transactionalSink=group, maxOffsetsPerTrigger="30")
    pending = ["before the commit", fails]

    def each(batch: DataFrame, number: int) -> None:
        with oncelog_spark.transaction(batch, number, options) as tx:
            if not tx.replayed:
                others.stage(batch, tx.tx_id)
            if number == 1 and pending and pending[0] == "before the commit":
                raise RuntimeError(pending.pop(0))
        if number == 1 and pending:
            raise RuntimeError(pending.pop(0))

    for _ in (1, 2):
        with pytest.raises(Exception, match="the commit"):
            lab.copy(stream, checkpoint, each=each)
    lab.copy(stream, checkpoint, each=each)
    settled = others.settle()
    assert sorted(settled["parquet"]) == sorted(settled["database"]) == numbers(60)
    assert lab.positions(group, source) == lab.ends(source)
