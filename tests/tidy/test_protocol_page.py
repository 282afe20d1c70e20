"""docs/protocol.md names the tests that show its reasons: they are there. And no room of the
protocol cites a page that a reader of this repository does not have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
STORY = re.compile(r"`((?:coordinator|partition_leader|offset_manager)/[a-z0-9_]+)`")
TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)`")
# Notes that are no part of the repository, and numbers of their sections.
ELSEWHERE = re.compile(
    r"why\.md|perf_facts|spark_facts|[Dd]esign(?:\.md)?[: ]+§|\(design\b|\bdesign:|§\d"
)
ROOMS = (
    "services/oncelog_server/coordinator",
    "services/oncelog_server/core",
    "services/oncelog_server/offset_manager",
    "services/oncelog_server/participant",
    "services/oncelog_server/partition_leader",
    "tests/golden",
    "tests/unit/coordinator",
    "tests/unit/offset_manager",
    "tests/unit/participant",
    "tests/unit/partition_leader",
)


def test_the_page_names_stories_and_tests_that_are_there() -> None:
    named = [f"tests/golden/{story}.txt" for story in STORY.findall(PAGE)] + TEST.findall(PAGE)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_cited_can_be_read(room: str) -> None:
    cited = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in (".py", ".txt", ".md")
        for line in path.read_text().splitlines()
        if ELSEWHERE.search(line)
    ]
    assert cited == [], (
        "say why in a sentence, or cite docs/protocol.md, docs/adr, docs/log_format.md"
    )
