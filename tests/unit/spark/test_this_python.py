"""Which Python Spark is told to take, where nobody says: the one that has the format."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from oncelog_spark import this_python
from oncelog_spark.this_python import name_to_spark


@pytest.fixture(autouse=True)
def before_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a test before this one started a session."""
    monkeypatch.setattr(this_python, "_spark_runs", lambda: False)


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """A PATH whose python3 is another one."""
    (tmp_path / "python3").touch(mode=0o755)
    return str(tmp_path)


def test_a_path_that_leads_elsewhere_is_put_right(elsewhere: str) -> None:
    environment = {"PATH": elsewhere}
    name_to_spark(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable


def test_a_path_without_any_python_is_put_right(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path / "empty")}
    name_to_spark(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_what_somebody_said_stays(elsewhere: str, name: str) -> None:
    environment = {"PATH": elsewhere, name: "/theirs"}
    name_to_spark(environment)
    assert environment == {"PATH": elsewhere, name: "/theirs"}


def test_where_spark_finds_this_python_itself_nothing_is_said() -> None:
    """On a cluster every executor then finds its own in the same way."""
    environment = {"PATH": str(Path(sys.executable).parent)}
    name_to_spark(environment)
    assert "PYSPARK_PYTHON" not in environment


def test_a_session_that_is_there_already_is_warned_of(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_python, "_spark_runs", lambda: True)
    environment = {"PATH": elsewhere}
    with pytest.warns(UserWarning, match=r"import oncelog_spark before.*PYSPARK_PYTHON=") as told:
        name_to_spark(environment)
    assert "PYSPARK_PYTHON" not in environment
    assert f"{elsewhere}/python3" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        name_to_spark({"PATH": str(Path(sys.executable).parent)})
