"""What Spark says where a machine is too busy for it: it gives a Python worker of a source ten
seconds to start, whatever is set. No test is about that: whoever starts a query starts it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

# Seconds: only ends a test that would hang.
PATIENCE_S: Final = 900
# So often, at most.
STARTS_MAX: Final = 20
_SAYS: Final = "Python worker failed to connect back"


def is_too_busy(said: object) -> bool:
    """Whether a query failed of that, from its exception or a log."""
    return _SAYS in str(said)


def run_to_its_end(start: Callable[[], StreamingQuery]) -> None:
    """Of a query that ends by itself. Raises what it failed of."""
    for _ in range(STARTS_MAX):
        query = start()
        try:
            assert query.awaitTermination(PATIENCE_S), "the query does not end"
            return
        except Exception as error:
            if not is_too_busy(error):
                raise
        finally:
            query.stop()
    raise AssertionError("this machine is too busy for Spark")


def said_by_job(
    start: Callable[[], Sequence[str | Path]], env: Mapping[str, str] | None = None
) -> list[str]:
    """The lines that a job in a process of its own prints. `start` prepares one and gives the
    arguments of Python for it."""
    for _ in range(STARTS_MAX):
        command = [sys.executable, *start()]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=env, check=False
        )
        if ran.returncode == 0 or not is_too_busy(ran.stderr):
            break
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout.splitlines()
