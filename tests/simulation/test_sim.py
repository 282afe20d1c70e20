"""`make sim` says what failed, how to repeat it, and what was never reached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from oncelog.checker import check
from tests.simulation import branches, sim, workload
from tests.simulation.plan import Plan
from tests.simulation.workload import Told

ROOT: Final = Path(__file__).parents[2]
BAD, DEADLY = 2, 3


def _run_plan(plan: Plan, seed: int) -> Told:
    """Clean, but for one seed that fails and one that takes its process with it."""
    if seed == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    assert seed != BAD, "I99: this one is bad"
    return Told(check([]), [], [], {"fault": set(plan.faults)})


def test_a_seed_that_fails_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workload, "run_plan", _run_plan)
    status = sim.main(["--seeds", "4", "--from", "1", "--jobs", "2", "--without", "slots,hopper"])
    said = capsys.readouterr().out
    assert status == 1
    assert f"seed {BAD}: AssertionError: I99: this one is bad" in said
    assert f"-m tests.simulation.workload {BAD} --without 'slots,hopper'" in said
    assert f"seed {DEADLY}: its process ended with -9" in said
    assert "4 seeds, 2 fail" in said


def test_what_no_seed_reached_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(workload, "run_plan", _run_plan)
    file = tmp_path / "never"
    status = sim.main(["--seeds", "1", "--from", "1", "--without", "slots", "--never", str(file)])
    said = capsys.readouterr().out
    assert status == 0
    assert "runs a minute" in said
    assert "fault: " in said
    assert "application: 0 of " in said
    never = file.read_text().splitlines()
    assert "fault slots" in never
    assert "application feeder" in never
    assert "reason PRODUCER_FENCED" in never


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sim.main(["--seeds", "1", "--without", "powder"])
    assert "no application or fault is called 'powder'" in capsys.readouterr().err


def test_the_seeds_of_a_commit_are_the_same_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sim.fresh_seed() == sim.fresh_seed()
    monkeypatch.setenv("PATH", "")
    assert sim.fresh_seed() == sim.WITHOUT_GIT


def test_an_interrupt_leaves_nobody_behind() -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.simulation", "--seeds", "500", "--from", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert "seeds 1 to 500" in running.stdout.readline()
    time.sleep(3)
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "interrupted" in said
    assert "runs a minute" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


SOURCE: Final = '''\
def judge(number):
    """Says something."""
    if number > 2:
        return "large"
    elif number == 2:
        return "two"
    else:
        number -= 1
    for _ in range(number):
        try:
            int("x")
        except ValueError:
            return "bad"
    return "none"
'''


def test_each_block_of_watched_code_has_a_mark_and_does_what_it_did() -> None:
    tree, names = branches.marked(SOURCE, "judge.py")
    reached: set[str] = set()
    module = {"_oncelog_reached": reached.add}
    exec(compile(tree, "judge.py", "exec"), module)
    judge: Any = module["judge"]
    assert names == sorted(set(names), key=names.index)
    assert {int(name.partition(":")[2]) for name in names} == {2, 4, 6, 8, 10, 13}
    assert judge(3) == "large"
    assert reached == {"judge.py:2", "judge.py:4"}
    assert judge(2) == "two"
    assert judge(0) == "none"
    assert "judge.py:10" not in reached
    assert judge.__doc__ == "Says something."
