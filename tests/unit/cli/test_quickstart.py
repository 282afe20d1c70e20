"""The first thing that a newcomer runs: what it shows is what happened, and it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import oncelog
from tests.unit.cli.scripted import Cluster

Run = Callable[..., Result]
PAID = "alice paid 10, bob paid 20, carol paid 30"
PAYMENTS = "alice 10, bob 20, carol 30"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_what_it_shows_is_what_happened(run: Run, scratch: Path) -> None:
    result = run(Cluster(), "quickstart --json")
    assert result.exit_code == 0, result.output
    *steps, done = map(json.loads, result.stdout.splitlines())
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert done == {"done": True, "bootstrap": None}
    seen = [list(step.get("seen", {}).values()) for step in steps]
    assert seen[2] == ["nothing", PAYMENTS, PAYMENTS]
    assert "mallory 1000000" in seen[3][0]
    assert seen[3][1:] == ["hears its own exception: card refused", PAYMENTS]
    assert seen[4] == ["trips over the second payment", "nothing", "has committed nothing"]
    assert seen[5] == [PAID, PAID, "has 0 payments waiting"]
    assert seen[6][0] in ("0 + 3", "1 + 2", "2 + 1", "3 + 0")
    assert list(scratch.iterdir()) == []
    assert [path.name for path in Path.cwd().iterdir()] == ["scratch"]


def test_it_is_told_to_people_in_words_and_code(run: Run, scratch: Path) -> None:
    shown = run(Cluster(), "quickstart").stdout
    assert "with producer.transaction() as tx:" in shown
    assert "exactly once" in shown
    assert "oncelog up" in shown
    assert all(line == line.rstrip() for line in shown.splitlines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ignored", [False, True], ids=["terminal", "background"])
def test_it_stays_where_one_asks_for_it_and_goes_when_it_is_told(
    number: signal.Signals, ignored: bool, scratch: Path
) -> None:
    """A shell has its background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        _stays_until(number, scratch)
    finally:
        signal.signal(signal.SIGINT, before)


def _stays_until(number: signal.Signals, scratch: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "oncelog_server.cli", "quickstart", "--stay", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    ) as process:
        assert process.stdout is not None
        said: dict[str, Any] = {}
        while "done" not in said:
            said = json.loads(process.stdout.readline())
        with oncelog.connect(said["bootstrap"]) as log:
            assert [topic.name for topic in log.admin.topics()] == ["payments", "receipts"]
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert (process.returncode, errors) == (0, "")
    assert list(scratch.iterdir()) == []
