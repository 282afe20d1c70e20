"""The process of a query's reader, as Spark ends it: its claim goes with it."""

from __future__ import annotations

import signal
import subprocess
import sys

# What Spark's own worker does, in short. The call says what it is asked, and takes its time.
READER = """
# In a run with a planted bug it is planted here as well.
import tests.planted.plugin

import time
from oncelog_spark.claim import Claim

class Protocol:
    def call(self, method, request, timeout_ms):
        print("releases" if request.release else "claims", flush=True)
        time.sleep(0.3)
        print("heard", flush=True)

claim = Claim(Protocol(), "g", "a query")
try:
    claim.hold()
    print("held", flush=True)
    time.sleep(60)
finally:
    claim.release()
"""


def test_i29_a_query_that_spark_stops_lets_members_join_at_once() -> None:
    """Spark sends SIGTERM, and again while the first one is obeyed."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert [next(lines) for _ in range(3)] == ["claims\n", "heard\n", "held\n"]
        process.send_signal(signal.SIGTERM)
        assert next(lines, "") == "releases\n", "it ends without a word"
        process.send_signal(signal.SIGTERM)
        assert next(lines, "") == "heard\n", "what it has begun it does not end"
