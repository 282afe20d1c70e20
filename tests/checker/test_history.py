"""What is no history is refused with its place and a reason, never judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oncelog.checker import HistoryError, HistoryWriter, check, check_files

INVOKE: dict[str, Any] = {
    "event": "invoke",
    "op": "1",
    "time_us": 5,
    "do": "produce",
    "topic": "t",
    "values": ["a"],
}
OK: dict[str, Any] = {"event": "ok", "op": "1", "time_us": 9}


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([{**INVOKE, "event": "invoked"}], "events:1: event is 'invoked'"),
        ([{**INVOKE, "do": "fly"}], "events:1: do is 'fly'; allowed: create_topic"),
        ([{"event": "invoke", "op": "1", "time_us": 5}], "events:1: field 'do' is missing"),
        ([{**INVOKE, "values": None}], "line 1: produce is not as"),
        ([{**INVOKE, "time_us": 5.5}], "events:1: time_us is 5.5"),
        ([OK], "events:1: operation '1' ends and was never invoked"),
        ([INVOKE, OK, OK], "events:3: operation '1' ends twice"),
        ([INVOKE, {**OK, "time_us": 4}], "events:2: operation '1' ends before it is invoked"),
        ([INVOKE, INVOKE], "events:2: operation '1' was invoked before"),
        ([INVOKE, {**INVOKE, "op": "2"}], "the value 'a' is sent twice"),
    ],
)
def test_what_is_no_history_is_refused_by_line(events: list[Any], says: str) -> None:
    with pytest.raises(HistoryError) as caught:
        check(events)
    assert says in str(caught.value)


def test_a_writer_that_was_killed_leaves_a_torn_last_line(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(json.dumps(INVOKE) + "\n" + json.dumps(OK)[:20])
    report = check_files([file])
    assert report.clean
    assert report.size.operations == 1
    file.write_text(json.dumps(OK)[:20] + "\n" + json.dumps(INVOKE) + "\n")
    with pytest.raises(HistoryError, match=r"history\.jsonl:1: no JSON"):
        check_files([file])


def test_files_of_several_writers_are_one_history(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    clock = iter(range(1_000))
    with HistoryWriter(one, client="one", now_us=lambda: next(clock)) as writer:
        writer.ok(writer.invoke("produce", topic="t", partition=0, values=[writer.fresh("v")]))
    with HistoryWriter(other, client="other", now_us=lambda: next(clock)) as writer:
        read = writer.invoke("read", isolation="committed")
        records = [[0, "v.one.1"], [1, "nobody's"]]
        writer.ok(read, parts=[{"topic": "t", "partition": 0, "records": records}])
    report = check_files([one, other])
    assert report.invariants() == [6]
    assert report.violations[0].lines == (f"{other}:2",)


def test_an_operation_without_an_end_is_unknown() -> None:
    read = {**INVOKE, "op": "2", "do": "read", "isolation": "committed"}
    part = {"topic": "t", "partition": 0, "records": [[0, "a"]]}
    done = {"event": "ok", "op": "2", "time_us": 9, "parts": [part]}
    assert check([INVOKE, read, done]).clean
