"""What became of each transaction: all that the history says for and against its commit.

Where both sides have something to say, a promise is broken; the rules say which (I1 to I4, I19,
I22). Where neither does, the outcome is unknown, and everything that either outcome allows is
allowed. An unknown commit resolves to what was seen of it: once a record of it, or its offsets,
were read, it is committed, for every reader and every partition.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from typing import NamedTuple

from oncelog.checker.coverage import Coverage, expected
from oncelog.checker.facts import Facts, OffsetCommit, Place, Transaction, lines_of


class Side(Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"


class Source(Enum):
    """Who says so."""

    # The answer to commit or abort.
    ANSWER = "answer"
    # The answer to get_transaction.
    LOOKUP = "lookup"
    # A record of it in a committed read.
    RECORD = "record"
    # Its offsets, fetched, or built upon by a commit that counts.
    OFFSETS = "offsets"
    # It is not where everything was read.
    ABSENCE = "absence"
    # Nobody ever asked for its commit.
    SILENCE = "silence"


class Evidence(NamedTuple):
    side: Side
    source: Source
    why: str
    lines: tuple[int, ...]


class Outcomes:
    """See the module."""

    def __init__(self, facts: Facts, coverage: Coverage) -> None:
        self._facts = facts
        self._coverage = coverage
        self._evidence: dict[str, list[Evidence]] = {
            name: list(self._direct(transaction))
            for name, transaction in facts.transactions.items()
        }
        self._offsets_resolve()

    def evidence(self, transaction: Transaction, side: Side) -> list[Evidence]:
        return [item for item in self._evidence[transaction.name] if item.side is side]

    def is_committed(self, transaction: Transaction) -> bool:
        return bool(self.evidence(transaction, Side.COMMITTED))

    def may_be_committed(self, transaction: Transaction) -> bool:
        """Committed, or nobody knows."""
        return self.is_committed(transaction) or not self.evidence(transaction, Side.NOT_COMMITTED)

    # ------------------------------------------------------------------------------------- inside

    def _direct(self, transaction: Transaction) -> list[Evidence]:
        found: list[Evidence] = []

        def say(side: Side, source: Source, why: str, lines: list[int]) -> None:
            found.append(Evidence(side, source, why, tuple(lines)))

        told = transaction.told_committed()
        if told is not None:
            say(Side.COMMITTED, Source.ANSWER, "its commit was answered", lines_of([told]))
        for abort in transaction.aborts:
            if abort.is_ok:
                say(Side.NOT_COMMITTED, Source.ANSWER, "its abort was answered", lines_of([abort]))
        for answer in transaction.answers:
            if answer.results["state"] in ("committed", "aborted"):
                committed = answer.results["state"] == "committed"
                side = Side.COMMITTED if committed else Side.NOT_COMMITTED
                say(side, Source.LOOKUP, f"a lookup said {side.value}", lines_of([answer]))
        if transaction.asked_to_commit() is None:
            if transaction.commits:
                why, lines = "its commit was refused", lines_of(transaction.commits)
                say(Side.NOT_COMMITTED, Source.ANSWER, why, lines)
            else:
                last = [send.operation for send in transaction.sends[-1:]]
                say(
                    Side.NOT_COMMITTED,
                    Source.SILENCE,
                    "nobody asked for its commit",
                    lines_of(last),
                )
        first = next(
            (s for sent in transaction.sends for s in self._facts.positions(sent.value)), None
        )
        if first is not None:
            why = f"its record {first.value!r} was read at {first.place} offset {first.offset}"
            say(Side.COMMITTED, Source.RECORD, why, [first.line])
        elif told is None and transaction.asked_to_commit() is not None:
            self._say_absence(transaction, found)
        return found

    def _say_absence(self, transaction: Transaction, found: list[Evidence]) -> None:
        """An unknown commit of which everything is provably absent did not happen."""
        since_us = self._coverage.readable_since(transaction)
        for sent in expected(transaction):
            lines = self._coverage.missing(sent, since_us)
            if lines is not None:
                why = f"its record {sent.value!r} is nowhere, and everything was read"
                proof = (sent.operation.line, *lines)
                found.append(Evidence(Side.NOT_COMMITTED, Source.ABSENCE, why, proof))
                return

    def _offsets_resolve(self) -> None:
        """An unknown commit is committed where a group has an offset that only it can have set."""
        fetched: dict[tuple[str, Place], dict[int, int]] = defaultdict(dict)
        for fetch in self._facts.offset_fetches:
            for item in fetch.results["offsets"]:
                if item.get("offset") is not None:
                    key = (fetch.args["group"], Place(item["topic"], item["partition"]))
                    fetched[key].setdefault(item["offset"], fetch.end_line)
        for key, commits in self._facts.offset_commits.items():
            by_end: dict[int, list[OffsetCommit]] = defaultdict(list)
            for commit in commits:
                if self._counts(commit):
                    by_end[commit.to].append(commit)
            for offset, line in fetched.get(key, {}).items():
                self._only(by_end.get(offset, []), "its offset was fetched", line)
            # Later ones first: what a resolved commit was built upon is resolved by it.
            for commit in reversed(commits):
                if isinstance(commit.since, int) and self._surely(commit):
                    before = by_end.get(commit.since, [])
                    self._only(
                        before, "a commit that counts starts at its offset", commit.asked.line
                    )

    def _only(self, candidates: list[OffsetCommit], why: str, line: int) -> None:
        if len(candidates) != 1 or candidates[0].transaction is None:
            return
        transaction = candidates[0].transaction
        if not self.is_committed(transaction):
            lines = (candidates[0].asked.line, line)
            item = Evidence(Side.COMMITTED, Source.OFFSETS, why, lines)
            self._evidence[transaction.name].append(item)

    def _counts(self, commit: OffsetCommit) -> bool:
        """It may have taken effect; what is provably absent may, too: that is the contradiction."""
        if not commit.asked.may_have_applied:
            return False
        if commit.transaction is None:
            return True
        against = self.evidence(commit.transaction, Side.NOT_COMMITTED)
        return all(item.source is Source.ABSENCE for item in against)

    def _surely(self, commit: OffsetCommit) -> bool:
        if commit.transaction is None:
            return commit.asked.is_ok
        return commit.asked.may_have_applied and self.is_committed(commit.transaction)
