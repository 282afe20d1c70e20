"""The judge of a run can say no: of each rule a log that breaks it, beside one that keeps all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.chaos.job import AUDIT, SOURCE, TARGET, results_of
from tests.spark.chaos.keeper import reason
from tests.spark.chaos.traffic import KEYS, PARTITIONS
from tests.spark.chaos.verdict import Counted, Row, judged

RECORDS = 500

Rows = dict[str, list[Row]]


def clean() -> Rows:
    rows: Rows = {SOURCE: [], TARGET: [], AUDIT: []}
    for number in range(RECORDS):
        row = Row(number % PARTITIONS, b"key-%d" % (number % KEYS), b"%d" % number)
        rows[SOURCE].append(row)
        for topic, value in results_of(row.value).items():
            # A key goes elsewhere than where it came from.
            rows[topic].append(Row((row.partition + 1) % PARTITIONS, row.key, value))
    return rows


def lose(rows: Rows) -> None:
    del rows[AUDIT][7]


def repeat(rows: Rows) -> None:
    rows[TARGET].append(rows[TARGET][7])


def invent(rows: Rows) -> None:
    rows[AUDIT].append(Row(0, b"key-1", b"1 done"))


def swap(rows: Rows) -> None:
    of_key = [at for at, row in enumerate(rows[TARGET]) if row.key == b"key-3"]
    first, second = of_key[:2]
    rows[TARGET][first], rows[TARGET][second] = rows[TARGET][second], rows[TARGET][first]


def scatter(rows: Rows) -> None:
    rows[TARGET][7] = rows[TARGET][7]._replace(partition=2)


def alter(rows: Rows) -> None:
    rows[TARGET][7] = rows[TARGET][7]._replace(value=b"7 undone")


def test_a_run_whose_output_is_its_input_transformed_is_clean() -> None:
    counted = judged(clean())
    assert counted == Counted(RECORDS, RECORDS + RECORDS // 5)
    assert "none lost" in str(counted)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lose, r"1 of 100 are lost: \[\(b'key-35', b'35 done'\)\]"),
        (repeat, r"1 came out twice"),
        (invent, r"1 came out twice"),
        (swap, r"the order of b'key-3'"),
        (scatter, r"a key is in two partitions"),
        (alter, r"1 of 500 are lost"),
    ],
)
def test_a_run_that_is_not_clean_is_told(harm: Callable[[Rows], None], says: str) -> None:
    rows = clean()
    harm(rows)
    with pytest.raises(AssertionError, match=says):
        judged(rows)


def test_what_a_query_failed_of_has_its_innermost_name() -> None:
    text = """[PYTHON_DATA_SOURCE_ERROR] Failed to commit: Traceback (most recent call last):
  File "sink.py", line 1, in commit
oncelogpb.errors.ProducerFenced: somebody else is the producer

The above exception was the direct cause of the following exception:

oncelog_spark.transaction.TransactionLost: the transaction ended
"""
    assert reason(text) == "TransactionLost"
    assert reason("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update") == (
        "CONCURRENT_STREAM_LOG_UPDATE"
    )
