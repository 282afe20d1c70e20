"""What a worker has imported is frozen: in Spark's workers only, and a few times at most."""

from __future__ import annotations

import gc
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from oncelog_spark import worker_memory
from oncelog_spark.worker_memory import FREEZES_MAX, freeze_imports


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(worker_memory, "_frozen_with_modules", [])
    return calls


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)


def test_nothing_is_frozen_in_a_program_of_the_users(freezes: list[str]) -> None:
    freeze_imports()
    assert freezes == []


def test_a_worker_freezes_once_and_again_where_modules_came(
    in_a_worker: None, freezes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze_imports()
    freeze_imports()
    assert freezes == ["collect", "freeze"], "what is garbage is collected first"
    for number in range(9):
        monkeypatch.setitem(sys.modules, f"came-{number}", types.ModuleType("came"))
        freeze_imports()
    assert freezes.count("freeze") == FREEZES_MAX


def test_the_daemon_is_spelt_as_spark_spells_it() -> None:
    """Were it another, nothing would be frozen, and nobody would notice."""
    from pyspark import daemon

    assert daemon.__name__ == worker_memory.DAEMON
    with open(daemon.__file__) as source:
        assert "gc.collect()" in source.read(), "Spark does not collect any more: drop this module"
