"""`oncelog check`: the report of the checker, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from oncelog_server.cli.app import oncelog

HISTORIES = Path(__file__).parents[2] / "checker" / "histories"


def test_a_clean_history_exits_with_0_and_says_what_was_looked_at() -> None:
    result = CliRunner().invoke(oncelog, ["check", str(HISTORIES / "i03_clean.jsonl")])
    assert result.exit_code == 0, result.output
    assert "clean: 7 operations, 2 records, 2 reads, 1 transactions (1 committed" in result.output


def test_a_broken_promise_exits_with_1_and_names_it_and_its_lines() -> None:
    result = CliRunner().invoke(oncelog, ["check", str(HISTORIES / "i24_broken.jsonl")])
    assert result.exit_code == 1
    assert "I24 group g has offset 5 of in/0" in result.output
    assert "lines 5, 6, 8, 9" in result.output


def test_json_says_the_same() -> None:
    path = str(HISTORIES / "i24_broken.jsonl")
    result = CliRunner().invoke(oncelog, ["check", path, "--json"])
    assert result.exit_code == 1
    said = json.loads(result.output)
    assert said["clean"] is False
    assert [violation["invariant"] for violation in said["violations"]] == ["I24"]
    assert said["violations"][0]["lines"] == ["5", "6", "8", "9"]


def test_what_is_no_history_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"event": "ok", "op": "1", "time_us": 1}\n')
    result = CliRunner().invoke(oncelog, ["check", str(file)])
    assert result.exit_code == 1
    assert f"{file}:1: operation '1' ends and was never invoked" in result.output


def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(b'# a remark\n{"event": "\xff"}\n')
    result = CliRunner().invoke(oncelog, ["check", str(file)])
    assert result.exit_code == 1
    assert f"{file}:2: no JSON" in result.output
