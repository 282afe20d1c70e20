"""What a comment refers to is in the repository, for whoever reads it there.

A rule is said in words where it is needed, or cited from a page of this repository (docs/, ADRs), a
promise by its number (docs/guarantees.md). A chapter of a paper that is not here says nothing."""

from __future__ import annotations

import re

from tests.tidy.test_tidy import ROOT
from tests.wheels.building import files

# Folders whose texts are held to this.
ROOMS = ("benchmarks/", "clients/", "deploy/", "docs/", "protos/", "services/", "spark/", "tests/")
ELSEWHERE = re.compile(
    r"§\d|\b[Dd]esign(?:\.md)?[: ]+§|\(design\b|\bdesign:"
    r"|\bwhy\.md|\b(perf|spark)_facts|\bfound\.md"
    # Where this copy happens to lie.
    rf"|{re.escape(str(ROOT))}\b"
)
# It speaks of such words.
EXEMPT = ("tests/tidy/test_citations.py",)


def test_what_is_cited_is_here() -> None:
    offenders = {
        f"{path}:{number}": line.strip()[:80]
        for path in files()
        if path.startswith(ROOMS) and path not in EXEMPT
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1)
        if ELSEWHERE.search(line)
    }
    assert not offenders, f"say it in words, or cite a page of docs/: {offenders}"
