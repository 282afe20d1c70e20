"""I1 to I7: what is read of a transaction, and what becomes of what was acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from oncelog.checker.coverage import Covered, expected
from oncelog.checker.facts import COMMITTED_VIEW, Place, Seen, Sent, Transaction, lines_of
from oncelog.checker.outcomes import Evidence, Side, Source
from oncelog.checker.report import Finding
from oncelog.checker.rules.case import Case

_FINAL_STATES = ("committed", "aborted")


def i1_nothing_aborted_is_read(case: Case) -> Iterator[Finding]:
    """No committed read returns a record of a transaction that was aborted, looked up as aborted,
    or refused at every commit; nor one of a writer that the commit's manifest does not name."""
    for transaction in case.facts.transactions.values():
        against = _first(case, transaction, Side.NOT_COMMITTED, Source.ANSWER, Source.LOOKUP)
        writers = transaction.writers()
        for sent in transaction.sends:
            for seen in case.facts.positions(sent.value):
                if against is not None:
                    message = f"{_seen(seen)}; it is of {transaction.name}, and {against.why}"
                    yield Finding(message, [*against.lines, seen.line])
                elif writers is not None and sent.writer not in writers:
                    message = (
                        f"{_seen(seen)}; it is of writer {sent.writer}, whom the manifest of "
                        f"{transaction.name} does not name"
                    )
                    asked = lines_of([transaction.asked_to_commit()])
                    yield Finding(message, [sent.operation.line, *asked, seen.line])


def i2_nothing_is_read_before_its_commit_is_asked(case: Case) -> Iterator[Finding]:
    """No committed read that has returned by the time at which a transaction's commit is first
    asked for (or where it never is) holds a record of it."""
    for transaction in case.facts.transactions.values():
        asked = transaction.asked_to_commit()
        if asked is None and (transaction.commits or any(a.is_ok for a in transaction.aborts)):
            continue  # It was refused or aborted: that is I1.
        for sent in transaction.sends:
            for seen in case.facts.positions(sent.value):
                if asked is None or seen.first_us < asked.invoked_us:
                    when = "ever" if asked is None else "until later"
                    message = f"{_seen(seen)}; nobody had asked to commit {transaction.name} {when}"
                    yield Finding(message, [sent.operation.line, seen.line, *lines_of([asked])])


def i3_whole_or_not_at_all(case: Case) -> Iterator[Finding]:
    """Where anything shows that a transaction committed (a record of it, its offsets), all records
    that its commit covers are readable: beside each other in their partition, and in every
    partition once it was told visible or everything had settled. Of no writer are more readable
    than its manifest counts."""
    for transaction in case.facts.transactions.values():
        yield from _uncounted(case, transaction)
        if not case.outcomes.is_committed(transaction):
            continue
        shown = _first(case, transaction, Side.COMMITTED, Source.RECORD, Source.OFFSETS)
        sends = expected(transaction)
        torn = _torn(case, sends)
        if torn is not None:
            yield Finding(f"{transaction.name} is torn: {torn[0]}", torn[1])
            continue
        if shown is None:
            continue  # Nothing of it was seen: if it is lost, that is I5.
        since_us = case.coverage.readable_since(transaction)
        for sent in sends:
            proof = case.coverage.missing(sent, since_us)
            if proof is not None:
                message = (
                    f"{transaction.name} is seen in part: {shown.why}, but record {sent.value!r} "
                    f"({_where(sent)}) is nowhere, and everything was read"
                )
                yield Finding(message, [sent.operation.line, *shown.lines, *proof])
                break


def i4_one_outcome_for_ever(case: Case) -> Iterator[Finding]:
    """All answers about a transaction agree: a lookup never says committed and aborted by turns,
    nor ongoing after it was decided, nor anything but expired after expired; it agrees with the
    answers to commit and abort; a commit that was answered is not refused later as ended. A TxId
    names one transaction."""
    for tx_id, first, second in case.facts.shared_tx_ids:
        lines = [first.tx_ids[tx_id], second.tx_ids[tx_id]]
        yield Finding(f"TxId {tx_id} was given to {first.name} and to {second.name}", lines)
    for transaction in case.facts.transactions.values():
        answers = _first(case, transaction, Side.COMMITTED, Source.ANSWER)
        refusals = _first(case, transaction, Side.NOT_COMMITTED, Source.ANSWER)
        for side, told in ((Side.COMMITTED, answers), (Side.NOT_COMMITTED, refusals)):
            other = Side.NOT_COMMITTED if side is Side.COMMITTED else Side.COMMITTED
            looked_up = _first(case, transaction, other, Source.LOOKUP)
            if told is not None and looked_up is not None:
                message = f"{transaction.name}: {told.why}, but {looked_up.why}"
                yield Finding(message, [*told.lines, *looked_up.lines])
        yield from _lookups_agree(transaction)
        told_commit = transaction.told_committed()
        for commit in transaction.commits:
            if told_commit is None or commit.is_ok or commit.may_have_applied:
                continue
            after = commit.invoked_us > told_commit.ended_us
            if after and commit.results.get("reason") == "TRANSACTION_ENDED":
                message = f"{transaction.name} was committed, and the same commit is refused later"
                yield Finding(message, lines_of([told_commit, commit]))


def i5_acknowledged_is_durable(case: Case) -> Iterator[Finding]:
    """An acknowledged plain record, and every record of a transaction whose commit was answered, is
    somewhere in its partition (for a transaction: once it was told visible, or everything had
    settled), or was deleted: of these there are no more than deleted offsets that nobody read. The
    end of a partition never goes back."""
    for sent in case.facts.sent.values():
        if sent.transaction is None and sent.operation.is_ok:
            proof = case.coverage.missing(sent, sent.operation.ended_us)
            if proof is not None:
                message = f"record {sent.value!r} ({_where(sent)}) was acknowledged and is nowhere"
                yield Finding(message, [*sent.operation.lines, *proof])
    for transaction in case.facts.transactions.values():
        told = transaction.told_committed()
        sends = expected(transaction)
        if told is None or any(case.facts.positions(sent.value) for sent in sends):
            continue  # Where a part of it is seen, what is missing is I3.
        since_us = case.coverage.readable_since(transaction)
        for sent in sends:
            proof = case.coverage.missing(sent, since_us)
            if proof is not None:
                message = f"{transaction.name} was committed; its record {sent.value!r} is nowhere"
                yield Finding(message, [*told.lines, *proof])
                break
    yield from _more_than_deleted(case)
    yield from _ends_go_back(case)


def i6_no_duplicates_no_phantoms(case: Case) -> Iterator[Finding]:
    """Every record that a read returns was sent and not refused, into the partition where it
    stands, and stands at one position of the view only. What a visible commit says about where its
    records stand is what readers find there."""
    for view, places in case.facts.seen.items():
        first: dict[str, Seen] = {}
        for place in sorted(places):
            for seen in places[place].values():
                before = first.setdefault(seen.value, seen)
                if before is not seen:
                    message = (
                        f"record {seen.value!r} stands twice ({view}): {_at(before)}, {_at(seen)}"
                    )
                    yield Finding(message, [before.line, seen.line])
                wrong = _unsent(case.facts.sent.get(seen.value), seen)
                if wrong is not None:
                    yield wrong
    for transaction in case.facts.transactions.values():
        yield from _exposed_elsewhere(case, transaction)


def i7_one_record_per_position(case: Case) -> Iterator[Finding]:
    """All reads of one position, by whomever and whenever, return the same record."""
    for conflict in case.facts.conflicts:
        seen = conflict.seen
        message = f"{_at(seen)} ({conflict.view}) held {seen.value!r} and {conflict.value!r}"
        yield Finding(message, [seen.line, conflict.line])


# ------------------------------------------------------------------------------------------ details


def _first(case: Case, transaction: Transaction, side: Side, *sources: Source) -> Evidence | None:
    for evidence in case.outcomes.evidence(transaction, side):
        if evidence.source in sources:
            return evidence
    return None


def _seen(seen: Seen) -> str:
    return f"record {seen.value!r} was read at {_at(seen)}"


def _at(seen: Seen) -> str:
    return f"{seen.place} offset {seen.offset}"


def _where(sent: Sent) -> str:
    return sent.topic if sent.partition is None else f"{sent.topic}/{sent.partition}"


def _torn(case: Case, sends: list[Sent]) -> tuple[str, list[int]] | None:
    """A partition where some records of a transaction stand, and others' before and behind them, so
    that what is not there can never come, nor have been deleted between them."""
    by_partition: dict[tuple[str, int], list[Sent]] = {}
    for sent in sends:
        if sent.partition is not None:
            by_partition.setdefault((sent.topic, sent.partition), []).append(sent)
    for wanted in by_partition.values():
        found = [seen for sent in wanted for seen in case.facts.positions(sent.value)]
        if not found or len(found) >= len(wanted):
            continue
        first = min(found, key=lambda seen: seen.offset)
        last = max(found, key=lambda seen: seen.offset)
        known = case.facts.seen[COMMITTED_VIEW][first.place]
        behind = known.get(last.offset + 1)
        unread = len(wanted) - len(found)
        if unread <= _deleted_between(case, first, last):
            continue
        if behind is not None and (first.offset == 0 or first.offset - 1 in known):
            absent = next(sent for sent in wanted if not case.facts.positions(sent.value))
            message = (
                f"record {absent.value!r} is not among its {len(found)} records at {first.place} "
                f"offsets {first.offset} to {last.offset}"
            )
            return message, [absent.operation.line, last.line, behind.line]
    return None


def _deleted_between(case: Case, first: Seen, last: Seen) -> int:
    """How many offsets between two that were read are deleted, and were never read: somebody read
    the front before a start moved in between, and somebody the rest behind it."""
    known = case.facts.seen[COMMITTED_VIEW][first.place]
    between = range(first.offset, min(last.offset, case.facts.deleted_below(first.place)))
    return sum(offset not in known for offset in between)


def _uncounted(case: Case, transaction: Transaction) -> Iterator[Finding]:
    """The first record of a writer in a partition that is one too many for the manifest."""
    asked = transaction.asked_to_commit()
    manifest = None if asked is None else asked.args.get("manifest")
    counts = {tuple(part[:3]): part[3] for part in manifest or () if len(part) > 3}
    found: Counter[tuple[object, ...]] = Counter()
    for sent in transaction.sends:
        part = (sent.topic, sent.partition, sent.writer)
        for seen in case.facts.positions(sent.value)[:1]:
            found[part] += 1
            if part in counts and found[part] == counts[part] + 1:
                message = f"{_seen(seen)}; the manifest of {transaction.name} counts fewer"
                yield Finding(message, [sent.operation.line, *lines_of([asked]), seen.line])


def _lookups_agree(transaction: Transaction) -> Iterator[Finding]:
    """The first answer that contradicts what was decided before it."""
    decided = transaction.told_committed()
    before = "committed"
    for answer in sorted(transaction.answers, key=lambda answer: answer.ended_us):
        state = answer.results["state"]
        if decided is not None:
            later = answer.invoked_us > decided.ended_us
            turned = {before, state} == set(_FINAL_STATES) and decided.do == "get_transaction"
            undone = later and (state == "ongoing" or before == "expired" != state)
            if turned or undone:
                message = f"{transaction.name} was {before}, then {state}"
                yield Finding(message, lines_of([decided, answer]))
                return
        if state != "ongoing":
            decided, before = answer, state


def _unsent(sent: Sent | None, seen: Seen) -> Finding | None:
    if sent is None:
        return Finding(f"{_seen(seen)}; nobody ever sent it", [seen.line])
    if not sent.operation.may_have_applied:
        message = f"{_seen(seen)}; it had been refused"
        return Finding(message, [*sent.operation.lines, seen.line])
    elsewhere = sent.partition is not None and sent.partition != seen.place.partition
    if sent.topic != seen.place.topic or elsewhere:
        message = f"{_seen(seen)}; it was sent to {_where(sent)}"
        return Finding(message, [sent.operation.line, seen.line])
    if sent.transaction is None and seen.first_us < sent.operation.invoked_us:
        return Finding(f"{_seen(seen)} before it was sent", [seen.line, sent.operation.line])
    return None


def _exposed_elsewhere(case: Case, transaction: Transaction) -> Iterator[Finding]:
    told = transaction.told_visible()
    for topic, partition, first_offset, count in told.results.get("exposed", ()) if told else ():
        known = case.facts.seen[COMMITTED_VIEW].get(Place(topic, partition), {})
        for offset in range(first_offset, first_offset + count):
            seen = known.get(offset)
            if seen is not None and case.facts.transaction_of(seen.value) is not transaction:
                message = (
                    f"{transaction.name} was told exposed at {topic}/{partition} offsets "
                    f"{first_offset} to {first_offset + count - 1}; {_seen(seen)}"
                )
                yield Finding(message, [*lines_of([told]), seen.line])
                return


def _more_than_deleted(case: Case) -> Iterator[Finding]:
    """Where more acknowledged records are nowhere than offsets were deleted unread."""
    unfound: dict[Place, list[Sent]] = {}
    holes: dict[Place, Covered] = {}
    for sent, since_us in _acknowledged(case):
        found = case.coverage.unfound(sent, since_us)
        if found is not None:
            holes[found[0]] = found[1]
            unfound.setdefault(found[0], []).append(sent)
    for place, missing in sorted(unfound.items()):
        covered = holes[place]
        if len(missing) > covered.holes:
            message = (
                f"{len(missing)} acknowledged records of {place} are nowhere, {missing[0].value!r} "
                f"the first; only {covered.holes} were deleted before anybody read them"
            )
            yield Finding(message, [missing[0].operation.line, covered.line])


def _acknowledged(case: Case) -> Iterator[tuple[Sent, int]]:
    """Records that must be readable, each with since when."""
    for sent in case.facts.sent.values():
        if sent.transaction is None and sent.operation.is_ok:
            yield sent, sent.operation.ended_us
    for transaction in case.facts.transactions.values():
        if transaction.told_committed() is not None:
            since_us = case.coverage.readable_since(transaction)
            yield from ((sent, since_us) for sent in expected(transaction))


def _ends_go_back(case: Case) -> Iterator[Finding]:
    """In real time: who asks after somebody was told of a position is told of no smaller end."""
    for view, places in case.facts.ends.items():
        for place in sorted(places):
            known = [
                (seen.first_us, seen.offset + 1, seen.line)
                for seen in case.facts.seen[view].get(place, {}).values()
            ]
            known += [(asked.ended_us, end, asked.end_line) for asked, end in places[place]]
            known.sort(reverse=True)
            highest, line = 0, 0
            for asked, end in sorted(places[place], key=lambda item: item[0].invoked_us):
                while known and known[-1][0] < asked.invoked_us:
                    _, offset, seen_line = known.pop()
                    if offset > highest:
                        highest, line = offset, seen_line
                if end < highest:
                    message = f"the end of {place} ({view}) went back from {highest} to {end}"
                    yield Finding(message, [line, asked.end_line])
