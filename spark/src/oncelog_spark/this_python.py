"""Which Python Spark looks for data sources with.

Spark asks the Python that PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON names, else the `python3` of
PATH; not the one that runs the program. Where a program is started as `.venv/bin/python job.py` and
that environment is not on PATH, Spark therefore finds no format `oncelog`, and says
DATA_SOURCE_NOT_FOUND under sixty lines of Java. So importing `oncelog_spark` names this Python,
where nobody named one and Spark would take another. The variable counts when Spark starts its JVM.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import MutableMapping
from typing import Final

PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"


def name_to_spark(environment: MutableMapping[str, str]) -> None:
    """Sets PYSPARK_PYTHON, or warns where that comes too late. What somebody set stays, and so does
    a PATH that leads here: on a cluster each machine then finds its own Python in the same way."""
    if environment.get(PYTHON) or environment.get(DRIVER_PYTHON) or not sys.executable:
        return
    found = shutil.which("python3", path=environment.get("PATH"))
    if found is not None and _same_folder(found, sys.executable):
        return
    if not _spark_runs():
        environment[PYTHON] = sys.executable
        return
    warnings.warn(
        f"Spark has started, and takes {found or 'the python3 of PATH'} for data sources, not "
        f"{sys.executable}: where that one lacks oncelog-spark, there is no format 'oncelog'. "
        f"Do import oncelog_spark before the session is made, or set {PYTHON}={sys.executable}",
        stacklevel=3,
    )


def _same_folder(one: str, other: str) -> bool:
    """Of one environment. The programs themselves are links to one file in many environments."""
    try:
        return os.path.samefile(os.path.dirname(one), os.path.dirname(other))
    except OSError:
        return False


def _spark_runs() -> bool:
    """A JVM of this process is there. Imports nothing: Spark's own processes come by here, too."""
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._gateway is not None
