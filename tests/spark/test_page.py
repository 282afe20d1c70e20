"""spark/README.md's job, pasted word for word and run as its reader runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog_spark.jobs.java import provide_java
from tests.integration.cluster import until
from tests.integration.pages import Terminal, blocks_of, usual_ports, wait_for_line

pytestmark = pytest.mark.spark

# Spark starts, then a micro-batch runs: on a busy machine that takes a while.
PATIENCE_S = 180.0


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    provide_java(os.environ, tmp_path / "java")
    with usual_ports() as free:
        if not free:
            pytest.skip("something listens on 7400 to 7402, where the page says that Oncelog is")
        folder = tmp_path / "terminal"
        folder.mkdir()
        made = Terminal(folder, Path(sys.executable).parents[1])
        try:
            yield made
        finally:
            made.stop()


def test_the_job_of_the_page_word_for_word(terminal: Terminal) -> None:
    (job,) = [
        block
        for block in blocks_of("spark/README.md")
        if block.language == "python" and "SparkSession" in block.text
    ]
    (terminal.folder / "job.py").write_text(job.text)
    terminal.type(". .venv/bin/activate")
    wait_for_line(terminal.start("oncelog up"), "ready:")
    # The page says that they must exist.
    terminal.type("oncelog topic create payments")
    terminal.type("oncelog topic create enriched")
    running = terminal.start("python job.py > job.log 2>&1")

    def enriched() -> list[str]:
        assert running.poll() is None, (terminal.folder / "job.log").read_text()
        return sorted(terminal.type("oncelog consume enriched").splitlines())

    # A stream begins with what comes after its start: more comes until it has begun.
    def some_came() -> bool:
        terminal.type("printf 'a:ten\\nb:twenty\\n' | oncelog produce payments --key-separator :")
        return {"TEN", "TWENTY"} <= set(enriched())

    until(some_came, "the job enriches payments", within_s=PATIENCE_S)

    def as_many_of_each() -> bool:
        ends = enriched()
        return ends.count("TEN") == ends.count("TWENTY")

    # Both were always sent together.
    until(as_many_of_each, "each payment is enriched once", within_s=PATIENCE_S)
