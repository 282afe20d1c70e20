"""Bugs of the checker of histories: rules that look away, and witnesses that are not heard."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, corner

PASSED_OVER: Final = (
    "tests/checker/test_recorded_deletions.py::"
    "test_i14_i15_a_read_that_passes_over_what_is_deleted_says_so_before_what_it_gives"
)
TRUNCATED: Final = (
    "tests/checker/test_recorded_deletions.py::"
    "test_i32_a_truncation_is_recorded_as_it_goes_out_with_where_the_partition_begins_then"
)

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
    Bug(
        "owned-only-where-it-was-assigned",
        "I23: whose offsets are taken owned their partition since he heard of it",
        (
            Edit(
                "oncelog.checker.ownership:Ownership.claims",
                "Claim(taken.generation, high, taken.member, taken.operation)",
                "Claim(high, high, taken.member, taken.operation)",
            ),
        ),
        {
            corner(
                "groups", "i23 got again, and what was read before is committed"
            ): "assert [] == [23]",
        },
    ),
    Bug(
        "repeat-judged-as-if-it-were-new",
        "I23: what is asked for again may have been taken when it was asked for first",
        (
            Edit(
                "oncelog.checker.ownership:_taken",
                "min(step.operation.invoked_us for step in steps)",
                "max(step.operation.invoked_us for step in steps)",
            ),
        ),
        {corner("groups", "i23 a repeat is told what the first one did"): "assert [23] == []"},
    ),
    Bug(
        "gone-members-are-forgotten",
        "I23: a member id that was refused never comes back",
        (
            Edit(
                "oncelog.checker.ownership:Ownership._hear",
                "if refused and operation.end_line",
                "if False and operation.end_line",
            ),
        ),
        {corner("groups", "i23 of a member that was refused"): "assert [] == [23]"},
    ),
    Bug(
        "nobody-is-nobodys-business",
        "I23: while a group has members, offsets of nobody are not taken",
        (
            Edit(
                "oncelog.checker.rules.groups:_of_nobody",
                "end_us < lives.last.invoked_us",
                "False",
            ),
        ),
        {corner("groups", "i23 of nobody, beside a member"): "assert [] == [23]"},
    ),
    Bug(
        "moved-back-is-committed-twice",
        "I23: who is moved back covers again what is covered, and may",
        (
            Edit(
                "oncelog.checker.rules.groups:_plain_twice",
                "ownership.moved_back.get((group, place), ())",
                "()",
            ),
        ),
        {
            corner(
                "groups", "i23 an operator sets an empty group back, and it is read again"
            ): "assert [23] == []",
        },
    ),
    Bug(
        "records-are-given-to-anybody",
        "I23: nobody is given records of a partition that another one was told it owns",
        (
            Edit(
                "oncelog.checker.rules.groups:_newer",
                "is_other and answer.generation > generation",
                "False",
            ),
        ),
        {corner("groups", "i23 given after another one was told"): "assert [] == [23]"},
    ),
    Bug(
        "age-of-a-send-for-that-of-its-commit",
        "I32: retention counts from the commit",
        (
            Edit(
                "oncelog.checker.deletion:_asked",
                "sent.operation if sent.transaction is None else",
                "sent.operation if True else",
            ),
        ),
        {
            corner(
                "deletion", "i32 a transaction whose commit is young, that nobody read"
            ): "assert [] == [32]"
        },
    ),
    Bug(
        "fast-clock-takes-all",
        "I32: clocks run faster by so much, and no more",
        (
            Edit(
                "oncelog.checker.deletion:Clocks.age_us",
                "(1 + self.faster)",
                "(2 + self.faster)",
            ),
            Edit(
                "oncelog.checker.deletion:Clocks.real_us",
                "(1 + self.faster)",
                "(2 + self.faster)",
            ),
        ),
        {corner("deletion", "i32 a clock that is not"): "assert [] == [32]"},
    ),
    Bug(
        "refused-truncation-deletes",
        "I32: what was refused deletes nothing",
        (
            Edit(
                "oncelog.checker.facts:Facts._take_truncate",
                "if operation.may_have_applied:",
                "if True:",
            ),
        ),
        {corner("deletion", "i32 a truncation that was refused"): "assert [] == [32]"},
    ),
    Bug(
        "later-settings-allow-it",
        "I32: what is set later allows nothing before",
        (
            Edit(
                "oncelog.checker.deletion:Deletions.why_not",
                "item.invoked_us <= start.told_us]",
                "True]",
            ),
        ),
        {
            corner(
                "deletion", "i32 settings that came later allow nothing before"
            ): "assert [] == [32]"
        },
    ),
    Bug(
        "deleted-unread-is-lost",
        "I5: what was deleted before anybody read it is not lost",
        (
            Edit(
                "oncelog.checker.coverage:Coverage.missing",
                "if item.holes and",
                "if False and",
            ),
        ),
        {
            corner(
                "deletion", "i3 a transaction of which a part was deleted unread"
            ): "assert [3] == []"
        },
    ),
    Bug(
        "anything-may-be-among-what-was-deleted",
        "I5: what was asked for behind all that was deleted is not among it",
        (
            Edit(
                "oncelog.checker.coverage:Coverage.missing",
                "_asked_us(sent) <= item.filled_us",
                "True",
            ),
        ),
        {
            corner(
                "deletion", "i5 what is behind all that was deleted unread is missed"
            ): "assert [] == [5]"
        },
    ),
    Bug(
        "skips-whatever-it-likes",
        "I15: who skips stood before what is left",
        (
            Edit(
                "oncelog.checker.rules.consumers:_judge_skip",
                "min(stand.next, stand.base) < start",
                "True",
            ),
        ),
        {corner("deletion", "i15 what it stood at is not deleted"): "assert [] == [15]"},
    ),
    Bug(
        "passed-over-without-a-note",
        "I15: a recorded consumer says what it passed over",
        (
            Edit(
                "oncelog.checker.recorded_consumer:RecordedConsumer._note_passed",
                "self._tell_positions(self._passed_us, [where])",
                "pass",
            ),
        ),
        {PASSED_OVER: "assert [('position',"},
    ),
    Bug(
        "read-noted-before-what-it-passed-over",
        "I14: a read that passes over something gives what is behind it",
        (
            Edit(
                "oncelog.checker.recorded_consumer:RecordedConsumer.poll",
                "max(at_us, self._passed_us)",
                "at_us",
            ),
        ),
        {PASSED_OVER: "assert [('position',"},
    ),
    Bug(
        "truncation-lost-by-the-recorder",
        "I32: what an operator truncates is in the history",
        (
            Edit(
                "oncelog.checker.recorded_transport:RecordedTransport.call",
                "if method == recorded_truncations.TRUNCATE:",
                "if False:",
            ),
        ),
        {TRUNCATED: "assert [] == "},
    ),
)
