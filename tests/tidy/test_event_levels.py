"""Events that docs/operating.md tells operators to act upon are warnings or errors, so that who
reads no more than those misses none. What comes and goes by itself stays information."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "oncelog_server"
# Rows of the tables: `event`, `event` | meaning | what to do |
ROW = re.compile(r"^\| (`[^|]+`) \|[^|]+\| ([^|]+) \|$", re.MULTILINE)
SERIOUS = {"warning", "error"}


def test_what_operators_shall_act_upon_is_at_least_a_warning() -> None:
    told = _levels()
    operating = (ROOT / "docs" / "operating.md").read_text()
    asked = {
        event
        for events, action in ROW.findall(operating)
        for event in re.findall(r"`([^`]+)`", events)
        if event in told and action != "–"
    }
    good_news = {
        "lease regained",
        "disk has room again",
        "snapshots work again",
        "settling goes on",
        "compaction goes on",
    }
    assert len(asked) >= 10, "the tables are found"
    assert {event for event in asked - good_news if told[event] - SERIOUS} == set()
    assert {event for event in good_news if told[event] != {"info"}} == set()


def _levels() -> dict[str, set[str]]:
    """The levels at which each event is said."""
    levels: dict[str, set[str]] = defaultdict(set)
    for path in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "event":
                continue
            if not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            given = [word.value for word in node.keywords if word.arg == "level"]
            level = given[0].value if given and isinstance(given[0], ast.Constant) else "info"
            levels[str(node.args[0].value)].add(str(level))
    return levels
