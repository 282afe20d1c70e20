"""I21, I22 and I24: what consumer groups have committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from oncelog.checker.facts import OffsetCommit, Place, Transaction, lines_of
from oncelog.checker.history import Operation
from oncelog.checker.report import Finding
from oncelog.checker.rules.case import Case
from oncelog.checker.rules.consumers import passed_over, unread_commits
from oncelog.checker.stored_offsets import Judgement, Verdict, Write


def i21_consumed_exactly_once(case: Case) -> Iterator[Finding]:
    """The transactions of a group that committed cover its input once: no two cover one offset,
    and each starts where another commit, plain or not, ended (none is checked where somebody
    committed `from` any). Where an operator has the group go back, what he takes back is covered
    once more. A plain commit names nobody: its answer says where the group stands, and not who
    brought it there, so it covers nothing. A consumer commits the position where it stands. A
    producer commits one transaction per number of a `commit_seq` scope, and what it is told to have
    committed already it did. Where records say what input they are `of`, a transaction commits the
    input that its records are of, and all input that it commits became records of it, but for what
    was deleted before it was read."""
    for (group, place), writes in sorted(case.stored_offsets.writes().items()):
        if all(write.commit.since != "any" for write in writes if write.possible):
            yield from _chain(group, place, writes)
    for commit, stood, line in unread_commits(case.facts):
        if commit.asked.may_have_applied:
            message = (
                f"{commit.consumer} committed {commit.to} of {commit.place} for group "
                f"{commit.group}; it stood at {stood}"
            )
            yield Finding(message, [line, *commit.asked.lines])
    yield from _commit_seqs(case)
    yield from _outputs(case)


def i22_no_offset_of_an_open_or_aborted_transaction(case: Case) -> Iterator[Finding]:
    """No fetch of a group's offsets returns one that only transactions wrote whose commit was not
    asked for yet, was refused, or that were aborted."""
    for fetch, place, offset, judgement in _judged(case):
        if judgement.verdict is Verdict.NOT_IN_EFFECT:
            message = (
                f"group {fetch.args['group']} has offset {offset} of {place}, of a commit that did "
                "not take effect"
            )
            yield Finding(message, [*judgement.lines, *fetch.lines])


def i24_committed_offsets_survive(case: Case) -> Iterator[Finding]:
    """A fetch of a group's offsets returns what somebody committed, and nothing older than a commit
    that was answered before it began (of a transaction, where the fetch is not stable: that was
    told visible before it began); and no nothing after such a commit."""
    for fetch, place, offset, judgement in _judged(case):
        group = fetch.args["group"]
        if judgement.verdict is Verdict.NOBODY:
            message = f"group {group} has offset {offset} of {place}, which nobody committed"
            yield Finding(message, fetch.lines)
        elif judgement.verdict is Verdict.STALE:
            had = "no offset" if offset is None else f"offset {offset}"
            message = f"group {group} has {had} of {place}; a later commit was answered before"
            yield Finding(message, [*judgement.lines, *fetch.lines])


# ------------------------------------------------------------------------------------------ details


def _judged(case: Case) -> Iterator[tuple[Operation, Place, int | None, Judgement]]:
    for fetch in case.facts.offset_fetches:
        stable = fetch.args.get("stable", True)
        for item in fetch.results["offsets"]:
            place = Place(item["topic"], item["partition"])
            key, offset = (fetch.args["group"], place), item.get("offset")
            when = (fetch.invoked_us, fetch.ended_us)
            judgement = case.stored_offsets.judge(key, offset, *when, stable=stable)
            yield fetch, place, offset, judgement


def _chain(group: str, place: Place, writes: list[Write]) -> Iterator[Finding]:
    certain = _once_each(
        [write for write in writes if write.certain and write.commit.transaction is not None]
    )
    ends = {write.commit.to for write in writes if write.possible}
    resets = [write for write in writes if write.possible and _goes_back(write.commit)]
    starts: dict[int | str, list[Write]] = defaultdict(list)
    for write in certain:
        commit, same = write.commit, starts[write.commit.since]
        if len(same) > _taken_back(resets, commit.since):
            message = f"group {group} committed {place} from {commit.since} twice"
            yield Finding(message, lines_of([same[-1].commit.asked, commit.asked]))
        elif not same and isinstance(commit.since, int) and commit.since not in ends:
            message = f"group {group} committed {place} from {commit.since}, where nobody had ended"
            yield Finding(message, commit.asked.lines)
        same.append(write)
    ranged = [write for write in certain if isinstance(write.commit.since, int)]
    covering: list[Write] = []
    for write in sorted(ranged, key=lambda item: (item.commit.since, item.commit.to)):
        since = write.commit.since
        assert isinstance(since, int), "chosen so"
        covering = [before for before in covering if since < before.commit.to]
        others = [before for before in covering if before.commit.since != since]
        if others and len(covering) > _taken_back(resets, since):
            message = f"group {group} committed offset {since} of {place} twice"
            yield Finding(message, lines_of([others[-1].commit.asked, write.commit.asked]))
        covering.append(write)


def _goes_back(commit: OffsetCommit) -> bool:
    """An operator has the group go back: what it takes back is consumed once more."""
    is_plain = commit.transaction is None
    return is_plain and isinstance(commit.since, int) and commit.to < commit.since


def _taken_back(resets: list[Write], offset: int | str) -> int:
    """How often what was consumed from there on may have been taken back."""
    if not isinstance(offset, int):
        return 0
    return sum(1 for write in resets if write.commit.to <= offset < _since(write.commit))


def _since(commit: OffsetCommit) -> int:
    assert isinstance(commit.since, int), "it went back from there"
    return commit.since


def _once_each(writes: list[Write]) -> list[Write]:
    """A commit that was asked for again is one."""
    found: dict[tuple[object, ...], Write] = {}
    for write in writes:
        owner = None if write.commit.transaction is None else write.commit.transaction.name
        found.setdefault((owner, write.commit.since, write.commit.to), write)
    return list(found.values())


def _commit_seqs(case: Case) -> Iterator[Finding]:
    """One transaction per number; and where it is said that a number was committed, it was."""
    taken: dict[tuple[str, str], dict[int, Transaction]] = defaultdict(dict)
    highest: dict[tuple[str, str], int] = defaultdict(int)
    known: list[tuple[tuple[str, str], int, Operation]] = []
    for transaction in case.facts.transactions.values():
        asked = transaction.asked_to_commit()
        seq = None if asked is None else asked.args.get("commit_seq")
        if seq is None or asked is None or transaction.producer is None:
            continue
        key, number = (transaction.producer, seq[0]), int(seq[1])
        if asked.results.get("already_committed"):
            known.append((key, number, asked))
        if case.outcomes.may_be_committed(transaction):
            highest[key] = max(highest[key], number)
        if not case.outcomes.is_committed(transaction):
            continue
        first = taken[key].setdefault(number, transaction)
        if first is not transaction:
            message = f"{first.name} and {transaction.name} both committed {number} of {seq[0]!r}"
            yield Finding(message, lines_of([first.asked_to_commit(), asked]))
    for key, number, asked in known:
        if highest[key] < number:
            message = f"{number} of {key[1]!r} was told committed already; nobody committed it"
            yield Finding(message, asked.lines)


def _outputs(case: Case) -> Iterator[Finding]:
    """Of transactions that commit input. Only of groups in which some record says what it is of."""
    saying = {
        commit.group
        for transaction in case.facts.transactions.values()
        if any(sent.source is not None for sent in transaction.sends)
        for commit in transaction.offsets
    }
    gaps = passed_over(case.facts)
    for transaction in case.facts.transactions.values():
        ranges = [commit for commit in transaction.offsets if commit.group in saying]
        if not ranges or not case.outcomes.is_committed(transaction):
            continue
        committed = {
            (commit.place, offset): commit
            for commit in ranges
            for offset in range(_base(commit), commit.to)
        }
        made = {sent.source: sent for sent in transaction.sends if sent.source is not None}
        for (place, offset), commit in committed.items():
            was_deleted = any(offset in gap for gap in gaps.get((commit.consumer or "", place), ()))
            if (place, offset) not in made and not was_deleted:
                message = f"{transaction.name} committed offset {offset} of {place} without output"
                yield Finding(message, commit.asked.lines)
                break
        for (place, offset), sent in made.items():
            if (place, offset) not in committed:
                message = (
                    f"record {sent.value!r} is of offset {offset} of {place}, which "
                    f"{transaction.name} did not commit"
                )
                lines = [sent.operation.line, *lines_of([transaction.asked_to_commit()])]
                yield Finding(message, lines)
                break


def _base(commit: OffsetCommit) -> int:
    """Where its input begins."""
    if commit.base is not None:
        return commit.base
    return commit.since if isinstance(commit.since, int) else commit.to
