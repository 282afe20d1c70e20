"""spark/jobs/tour.ipynb, executed in Jupyter's kernel as its reader executes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from oncelog.protocol import Protocol
from oncelog_spark.jobs.java import provide_java

pytestmark = pytest.mark.spark

TOUR = Path(__file__).parents[2] / "spark" / "jobs" / "tour.ipynb"
# Of one cell. A bound that only ends a test that would hang.
PATIENCE_S = 900


def tour() -> nbformat.NotebookNode:
    # It has types only in part.
    read: Any = nbformat.read
    notebook: nbformat.NotebookNode = read(TOUR, as_version=nbformat.NO_CONVERT)
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def printed(notebook: nbformat.NotebookNode) -> str:
    return "".join(
        output.text
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = tour()
    nbformat.validate(notebook)
    cells = list(code_cells(notebook))
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells), (
        "clear all outputs before you commit it"
    )


def test_i34_the_notebook_shows_what_it_says(
    bootstrap: str, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide_java(os.environ, tmp_path / "java")
    monkeypatch.setenv("ONCELOG_BOOTSTRAP", bootstrap)
    # As in an activated environment.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for folder in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder.lower()))
    notebook = tour()
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3", resources=where).execute()
    lines = printed(notebook).splitlines()
    told = [line for line in lines if "statistics of" in line]
    assert told == [
        "20 enriched, statistics of 20",
        "60 enriched, statistics of 60",
        "80 enriched, statistics of 80",
    ]
    assert "True" in lines, "the failure is the one that the tour makes"
    assert "80 payments, each enriched once" in lines
    assert "no open transactions" in lines
