"""Whatever happens, a user of the command line reads words, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTY = """
import oncelog_server.cli.__main__ as entry
from oncelog_server.cli.app import oncelog

def fails(ctx):
    raise {error}

oncelog.get_command(None, "topic").commands["list"].invoke = fails
oncelog.get_command(None, "serve").invoke = fails
entry.main({words!r})
"""


def _ran(error: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FAULTY.format(error=error, words=list(words))],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("RuntimeError('what [red] it was')", "RuntimeError: what [red] it was"),
        ("AssertionError()", "AssertionError"),
        ("OSError(13, 'Permission denied', '/some/file')", "/some/file: Permission denied"),
        ("FileNotFoundError(2, 'No such file or directory', 'x')", "x: No such file"),
        ("ConnectionResetError()", "ConnectionResetError"),
        ("RecursionError('deep')", "RecursionError"),
        ("MemoryError()", "MemoryError"),
    ],
)
def test_a_fault_is_told_in_words(error: str, said: str) -> None:
    ran = _ran(error, "topic", "list")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "Traceback" not in ran.stderr
    assert ran.stderr.startswith("failed ")
    assert said in " ".join(ran.stderr.split())


def test_a_fault_that_is_ours_says_how_to_report_it() -> None:
    ran = _ran("KeyError('x')", "topic", "list")
    assert "ONCELOG_TRACEBACK=1" in ran.stderr
    shown = _ran("KeyError('x')", "topic", "list", ONCELOG_TRACEBACK="1")
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr


def test_a_service_keeps_the_traceback_for_its_log() -> None:
    ran = _ran("RuntimeError('x')", "serve", "coordinator")
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr


@pytest.mark.parametrize("error", ["KeyboardInterrupt()", "EOFError()"])
def test_an_interrupt_is_no_fault(error: str) -> None:
    ran = _ran(error, "topic", "list")
    assert ran.returncode == 1
    assert ran.stderr.split() == ["Aborted!"]
