"""docs/protocol.md names the tests that show its reasons: they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
STORY = re.compile(r"`((?:coordinator|partition_leader|offset_manager)/[a-z0-9_]+)`")
TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)`")


def test_the_page_names_stories_and_tests_that_are_there() -> None:
    named = [f"tests/golden/{story}.txt" for story in STORY.findall(PAGE)] + TEST.findall(PAGE)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).is_file()] == []
