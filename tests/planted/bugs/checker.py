"""Bugs of the checker of histories: rules that look away, and witnesses that are not heard."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, corner

BUGS: Final = (
    Bug(
        "unknown-outcome-is-a-refusal",
        "I1: an unknown commit may have committed",
        (
            Edit(
                "oncelog.checker.history:Operation.may_have_applied",
                "return self.outcome is not Outcome.FAIL",
                "return self.outcome is Outcome.OK",
            ),
        ),
        {
            corner(
                "atomicity", "i1 an abort that nobody answered says nothing"
            ): "assert [1] == []",
        },
    ),
    Bug(
        "lookup-is-no-witness",
        "I1: what was looked up as aborted is not read",
        (
            Edit(
                "oncelog.checker.outcomes:Outcomes._direct",
                'if answer.results["state"] in ("committed", "aborted"):',
                "if False:",
            ),
        ),
        {
            corner("atomicity", "i1 looked up as aborted"): "assert [] == [1]",
        },
    ),
    Bug(
        "torn-only-if-read-to-the-end",
        "I3: a gap between records that were read can never be filled",
        (
            Edit(
                "oncelog.checker.rules.atomicity:i3_whole_or_not_at_all",
                "if torn is not None:",
                "if False:",
            ),
        ),
        {
            corner("atomicity", "i3 torn at the very beginning"): "assert [] == [3]",
        },
    ),
    Bug(
        "first-exposure-bounds-all",
        "I8: each record stands behind all that were readable before it was asked for",
        (
            Edit(
                "oncelog.checker.exposure:contradictions",
                "if latest is None or exposure.from_us > latest.from_us:",
                "if latest is None:",
            ),
        ),
        {
            corner("order", "i8 behind one that is not the first"): "assert [] == [8]",
        },
    ),
    Bug(
        "last-registration-counts",
        "I16: the largest generation that was answered fences",
        (
            Edit(
                "oncelog.checker.rules.fencing:_Fences.__init__",
                "item if item.generation > before.generation else before",
                "item",
            ),
        ),
        {
            corner("fencing", "i16 the largest that was answered counts"): "assert [] == [16]",
        },
    ),
    Bug(
        "aborted-offsets-may-be-fetched",
        "I22: no fetch returns an offset of an aborted transaction",
        (
            Edit(
                "oncelog.checker.stored_offsets:_write",
                "possible=asked.may_have_applied and outcomes.may_be_committed(transaction)",
                "possible=asked.may_have_applied",
            ),
        ),
        {
            corner("offsets", "i22 looked up as aborted"): "assert [] == [22]",
        },
    ),
    Bug(
        "chain-resolves-one-step",
        "I3: what a commit that counts was built upon has committed",
        (
            Edit(
                "oncelog.checker.outcomes:Outcomes._offsets_resolve",
                "for commit in reversed(commits):",
                "for commit in commits:",
            ),
        ),
        {
            corner("offsets", "i3 what a chain is built upon has committed"): "== [3]",
        },
    ),
    Bug(
        "some-partition-read-is-enough",
        "I5: what may stand in a partition that was not read is not missing",
        (
            Edit(
                "oncelog.checker.coverage:Coverage.missing",
                "                return None\n            lines.append(item.line)",
                "                continue\n            lines.append(item.line)",
            ),
        ),
        {
            corner(
                "atomicity", "i5 it may stand in the partition that was not read"
            ): "assert [5] == []",
        },
    ),
    Bug(
        "judge-lets-a-surplus-be-shown",
        "I3: what stands behind the manifest's count is of nothing, and must not be readable",
        (
            Edit(
                "oncelog.checker.rules.atomicity:_uncounted",
                "found[part] == counts[part] + 1",
                "False",
            ),
        ),
        {corner("atomicity", "i3 more is shown than its manifest counts"): "assert [] == [3]"},
    ),
)
