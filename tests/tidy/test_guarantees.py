"""docs/guarantees.md names the tests that hold each promise, all of them and no others."""

from __future__ import annotations

import os
import re
from typing import Final

from tests.tidy.promises import BEGIN, END, LATER, NUMBERS, ROOT, held_by, page, planted_against

PAGE: Final = ROOT / "docs" / "guarantees.md"


def test_the_page_names_the_tests_that_hold_each_promise() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    found, _, after = rest.partition(END)
    if os.environ.get("ONCELOG_REWRITE") == "1":
        PAGE.write_text(before + page() + after)
        return
    named = set(re.findall(r"`(tests/[^`]+)`", found))
    there = {place for places in held_by().values() for place in places}
    assert not named - there, f"gone or renamed; ONCELOG_REWRITE=1 writes the page: {named - there}"
    assert BEGIN + found + END == page(), (
        f"ONCELOG_REWRITE=1 pytest tests/tidy writes what is missing: {sorted(there - named)}"
    )


def test_each_promise_of_this_version_has_tests_and_was_seen_to_fail() -> None:
    tests, bugs = held_by(), planted_against()
    for number in NUMBERS:
        if number not in LATER:
            assert tests[number], f"no test carries the number I{number} in its name"
            assert bugs[number], f"no bug is planted against I{number} (tests/planted)"
