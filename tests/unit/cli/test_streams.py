"""Standard streams that are closed or full: an end with words, and nothing printed elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HISTORY = Path(__file__).parents[2] / "checker" / "histories" / "i24_clean.jsonl"


def _run(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("oncelog", f"{sys.executable} -m oncelog_server.cli")
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_fault(closed: str) -> None:
    ran = _run(f"oncelog check {HISTORY} {closed}")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_no_file_takes_the_number_of_a_closed_stream(closed: str) -> None:
    """Else what is printed, and what libraries complain about, would go into it."""
    look = (
        "import oncelog_server.cli.__main__ as entry, sys; "
        "entry.oncelog.main = lambda **_: sys.exit(0 if open('/etc/hosts').fileno() > 2 else 9); "
        "entry.main([])"
    )
    command = f'{sys.executable} -c "{look}" {closed}'
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("options", ["", "--json"])
def test_output_that_cannot_be_written_is_said(options: str) -> None:
    ran = _run(f"oncelog check {HISTORY} {options} > /dev/full")
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == [
        "failed cannot write what there is to print: No space left on device"
    ]
