"""What a process imports before it serves: each restart waits for it, and each process holds it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Loaded when the first Arrow batch comes; for tables and tracebacks of people; nobody needs it.
NOT_AT_START = ("pyarrow", "numpy", "rich", "pygments", "structlog")
SERVE = "import oncelog_server.cli.app, oncelog_server.cli.serve, oncelog_server.cli.compose"


@pytest.mark.parametrize("library", NOT_AT_START)
def test_a_process_that_serves_does_not_import_what_it_does_not_need_yet(library: str) -> None:
    show = f"{SERVE}, sys; print({library!r} in sys.modules)"
    found = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
