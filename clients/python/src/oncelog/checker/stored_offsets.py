"""What a group can have stored for a partition at a moment: a register with unknown writes.

A write takes effect at one moment between its invocation and its answer (of a transaction: of its
commit), or never, where it was refused or the transaction did not commit. A fetch may return what
was written by a write that had begun when the fetch ended, unless another write that surely took
effect lies wholly between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from oncelog.checker.facts import Facts, OffsetCommit, Place
from oncelog.checker.history import NEVER_US
from oncelog.checker.outcomes import Outcomes

_NONE_YET: Final = -1


@dataclass(slots=True)
class Write:
    """An offset commit as the register sees it. `stable_us`: a stable fetch that begins later must
    see it (it waits for what is pending); `applied_us`: any fetch must. `possible` False: it did
    not take effect. `certain`: it did."""

    commit: OffsetCommit
    begun_us: int
    stable_us: int
    applied_us: int
    possible: bool
    certain: bool


class Verdict(Enum):
    FITS = "fits"
    # Only of commits that did not take effect, or were not asked for yet.
    NOT_IN_EFFECT = "not in effect"
    # Of no commit at all.
    NOBODY = "nobody"
    # A later commit was acknowledged before.
    STALE = "stale"


class Judgement(NamedTuple):
    verdict: Verdict
    # What speaks against it.
    lines: tuple[int, ...] = ()


class StoredOffsets:
    """All groups and partitions. See the module."""

    def __init__(self, facts: Facts, outcomes: Outcomes) -> None:
        self._registers = {
            key: _Register([_write(commit, outcomes) for commit in commits])
            for key, commits in facts.offset_commits.items()
        }

    def writes(self) -> dict[tuple[str, Place], list[Write]]:
        return {key: register.writes for key, register in self._registers.items()}

    def judge(
        self,
        key: tuple[str, Place],
        offset: int | None,
        begun_us: int,
        ended_us: int,
        *,
        stable: bool,
    ) -> Judgement:
        """May a fetch within these moments return this?"""
        register = self._registers.get(key)
        if register is None:
            return Judgement(Verdict.FITS if offset is None else Verdict.NOBODY)
        return register.judge(offset, begun_us, ended_us, stable=stable)

    def may_be_below(
        self, key: tuple[str, Place], offset: int, begun_us: int, ended_us: int
    ) -> bool:
        """May a stable fetch within these moments return something smaller, or nothing?"""
        register = self._registers.get(key)
        if register is None:
            return True
        smaller = [
            None,
            *(write.commit.to for write in register.writes if write.commit.to < offset),
        ]
        return any(
            register.judge(one, begun_us, ended_us, stable=True).verdict is Verdict.FITS
            for one in smaller
        )


class _Register:
    def __init__(self, writes: list[Write]) -> None:
        self.writes = sorted(writes, key=lambda write: write.begun_us)
        self._by_offset: dict[int, list[Write]] = defaultdict(list)
        for write in self.writes:
            self._by_offset[write.commit.to].append(write)
        certain = [write for write in self.writes if write.certain]
        self._begun = [write.begun_us for write in certain]
        # From each on: the one that was over first.
        self._over_stable = _earliest_over([(write.stable_us, write) for write in certain])
        self._over_applied = _earliest_over([(write.applied_us, write) for write in certain])

    def judge(self, offset: int | None, begun_us: int, ended_us: int, *, stable: bool) -> Judgement:
        over = self._over_stable if stable else self._over_applied
        if offset is None:
            return self._unless_overwritten(_NONE_YET, over, begun_us)
        named = self._by_offset.get(offset)
        if named is None:
            return Judgement(Verdict.NOBODY)
        able = [write for write in named if write.possible and write.begun_us <= ended_us]
        if not able:
            lines = [line for write in named for line in write.commit.asked.lines]
            return Judgement(Verdict.NOT_IN_EFFECT, tuple(lines))
        for write in able:
            end_us = write.stable_us if stable else write.applied_us
            judgement = self._unless_overwritten(end_us, over, begun_us)
            if judgement.verdict is Verdict.FITS:
                return judgement
        return judgement

    def _unless_overwritten(
        self, end_us: int, over: list[tuple[int, Write]], begun_us: int
    ) -> Judgement:
        at = bisect_right(self._begun, end_us)
        if at < len(over) and over[at][0] < begun_us:
            return Judgement(Verdict.STALE, over[at][1].commit.asked.lines)
        return Judgement(Verdict.FITS)


def _earliest_over(ends: list[tuple[int, Write]]) -> list[tuple[int, Write]]:
    """At each index: the earliest end from there on."""
    found = list(ends)
    for index in range(len(found) - 2, -1, -1):
        if found[index + 1][0] < found[index][0]:
            found[index] = found[index + 1]
    return found


def _write(commit: OffsetCommit, outcomes: Outcomes) -> Write:
    asked, transaction = commit.asked, commit.transaction
    if transaction is None:
        return Write(
            commit,
            asked.invoked_us,
            asked.ended_us,
            asked.ended_us,
            possible=asked.may_have_applied,
            certain=asked.is_ok,
        )
    ask, told = transaction.asked_to_commit(), transaction.told_committed()
    visible = transaction.told_visible()
    certain = outcomes.is_committed(transaction) and (asked.is_ok or asked.do != "commit_offsets")
    return Write(
        commit,
        NEVER_US if ask is None else ask.invoked_us,
        NEVER_US if told is None else told.ended_us,
        NEVER_US if visible is None else visible.ended_us,
        possible=asked.may_have_applied and outcomes.may_be_committed(transaction),
        certain=certain,
    )
