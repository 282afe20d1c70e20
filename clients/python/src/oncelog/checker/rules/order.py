"""I8 to I15: one sequence per partition, in commit order, and readers who follow it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from oncelog.checker.exposure import Contradiction, Exposure
from oncelog.checker.facts import Place, Transaction
from oncelog.checker.outcomes import Side
from oncelog.checker.report import Finding
from oncelog.checker.rules.case import Case
from oncelog.checker.rules.consumers import jumps, wrong_resumes


def i8_commit_order_of_plain_records_and_reads(case: Case) -> Iterator[Finding]:
    """A plain record stands at its append: one that was acknowledged before another was sent stands
    before it. And no position is filled behind a reader: nothing that is asked for after a record
    was read stands before that record."""
    for found in case.contradictions:
        kinds = (found.earlier.transaction is None, found.later.transaction is None)
        if kinds == (True, True) or (kinds == (False, False) and not found.later.until_told):
            yield _too_late(found)


def i9_transactions_are_contiguous_in_send_order(case: Case) -> Iterator[Finding]:
    """In a partition, a transaction's records stand together, with nobody else's between them, each
    writer's in the order in which it sent them, writers in the order of the manifest."""
    for sequence in case.exposures.values():
        by_transaction: dict[str, list[Exposure]] = defaultdict(list)
        for exposure in sequence:
            if exposure.transaction is not None:
                by_transaction[exposure.transaction.name].append(exposure)
        for parts in by_transaction.values():
            if len(parts) > 1:
                message = f"{parts[0]} goes on at offset {parts[1].first_offset}, behind others"
                yield Finding(message, [parts[0].seen[0].line, parts[1].seen[0].line])
            else:
                yield from _out_of_send_order(case, parts[0])


def i10_program_order_of_a_producer(case: Case) -> Iterator[Finding]:
    """In every partition, the transactions of one producer stand in the order of their generations
    and, within one, in the order in which their commits were asked for."""
    for sequence in case.exposures.values():
        latest: dict[str, tuple[tuple[int, int, int], Exposure]] = {}
        for exposure in sequence:
            transaction = exposure.transaction
            if transaction is None or transaction.producer is None:
                continue
            asked = transaction.asked_to_commit()
            if asked is None:
                continue
            key = (transaction.generation or 0, asked.invoked_us, asked.line)
            before = latest.get(transaction.producer)
            if before is not None and key < before[0]:
                message = (
                    f"{exposure} stands behind {before[1]}, which its producer committed later"
                )
                yield Finding(message, [asked.line, before[1].from_line, exposure.seen[0].line])
            else:
                latest[transaction.producer] = (key, exposure)
    yield from _built_on_nothing(case)


def _built_on_nothing(case: Case) -> Iterator[Finding]:
    """Of several in flight none is committed whose earlier one is not."""
    for transaction in case.facts.transactions.values():
        asked = transaction.asked_to_commit()
        name = None if asked is None else asked.args.get("builds_on")
        before = None if name is None else case.facts.transactions.get(name)
        if before is None or not case.outcomes.is_committed(transaction):
            continue
        for against in case.outcomes.evidence(before, Side.NOT_COMMITTED)[:1]:
            committed = case.outcomes.evidence(transaction, Side.COMMITTED)[0]
            yield Finding(
                f"transaction {transaction.name} is committed ({committed.why}), and builds on "
                f"{before.name}, which is not: {against.why}",
                [*committed.lines, *against.lines],
            )


def i11_one_order_of_a_transaction_group(case: Case) -> Iterator[Finding]:
    """The transactions of one transaction group have one order, which every partition keeps: the
    orders of all partitions together have no cycle."""
    following: dict[str, dict[str, Exposure]] = defaultdict(dict)
    waiting: dict[str, int] = defaultdict(int)
    for sequence in case.exposures.values():
        last: dict[str, Exposure] = {}
        for exposure in sequence:
            transaction = exposure.transaction
            if transaction is None or transaction.group is None:
                continue
            before = last.get(transaction.group)
            last[transaction.group] = exposure
            if before is None or before.transaction is None:
                continue
            one, other = before.transaction.name, transaction.name
            if one != other and other not in following[one]:
                following[one][other] = exposure
                waiting[other] += 1
    ready = [name for name in following if not waiting[name]]
    while ready:
        for name in following.get(ready.pop(), ()):
            waiting[name] -= 1
            if not waiting[name]:
                ready.append(name)
    stuck = {name for name, count in waiting.items() if count}
    if stuck:
        cycle = _cycle(following, stuck)
        places = [following[one][other] for one, other in pairwise(cycle)]
        shown = ", then ".join(f"{exposure}" for exposure in places)
        message = f"{len(cycle) - 1} transactions of one group stand in a circle: {shown}"
        yield Finding(message, [exposure.seen[0].line for exposure in places])


def i12_real_time_order_of_visible_commits(case: Case) -> Iterator[Finding]:
    """A transaction that was told visible before the commit of another was asked for stands before
    it in every partition that both wrote, whatever their groups."""
    for found in case.contradictions:
        both = found.earlier.transaction is not None and found.later.transaction is not None
        if both and found.later.until_told:
            yield _too_late(found)


def i13_plain_and_transactional_interleave(case: Case) -> Iterator[Finding]:
    """A plain record that was acknowledged before a commit was asked for stands before that
    transaction; a transaction that was told visible before a plain record was sent stands before
    that record. Whenever the transaction's records were sent: an open one holds back nobody."""
    for found in case.contradictions:
        if (found.earlier.transaction is None) != (found.later.transaction is None):
            yield _too_late(found)


def i14_positions_grow_without_gaps(case: Case) -> Iterator[Finding]:
    """Each read of a consumer goes on where it stood, after its last read, seek or position; in the
    committed view every offset is one more than the one before, in the journal view it is
    larger."""
    for jump in jumps(case.facts):
        message = f"{jump.consumer} got offset {jump.offset} of {jump.place}, not {jump.expected}"
        yield Finding(message, jump.lines)


def i15_resumes_where_it_stopped(case: Case) -> Iterator[Finding]:
    """A consumer that goes back, without a seek, goes to what its group has committed or to where
    its own last commit, seek or position left it; a new consumer of a group begins at what the
    group has committed, where it has. Whose position is deleted goes on where the partition begins,
    or at its end where it wants that, and says so."""
    yield from wrong_resumes(case.facts, case.stored_offsets)


# ------------------------------------------------------------------------------------------ details


def _too_late(found: Contradiction) -> Finding:
    how = "acknowledged" if found.later.until_told else "read"
    message = f"{found.later} was {how} before {found.earlier} was asked for, and stands behind it"
    return Finding(message, found.lines)


def _out_of_send_order(case: Case, exposure: Exposure) -> Iterator[Finding]:
    transaction = exposure.transaction
    assert transaction is not None, "plain records have no parts"
    ranks = {
        writer: rank for rank, writer in enumerate(_manifest_order(transaction, exposure.place))
    }
    before: tuple[int, tuple[int, int, int]] | None = None
    for seen in exposure.seen:
        sent = case.facts.sent[seen.value]
        key = (ranks.get(sent.writer, 0), sent.order)
        if before is not None and key < before:
            message = f"record {seen.value!r} of {exposure} stands behind one that was sent later"
            yield Finding(message, [sent.operation.line, seen.line])
            return
        before = key


def _manifest_order(transaction: Transaction, place: Place) -> list[int | str]:
    asked = transaction.asked_to_commit()
    manifest = () if asked is None else asked.args.get("manifest") or ()
    return [part[2] for part in manifest if len(part) > 2 and tuple(part[:2]) == tuple(place)]


def _cycle(following: dict[str, dict[str, Exposure]], stuck: set[str]) -> list[str]:
    """Some circle among these; its first name is its last."""
    # Everybody who is stuck is waited for by nobody else, or has a stuck predecessor: go backwards.
    before = {
        other: one for one in sorted(stuck) for other in following.get(one, ()) if other in stuck
    }
    name = sorted(stuck)[0]
    path = [name]
    while before[name] not in path:
        name = before[name]
        path.append(name)
    start = path.index(before[name])
    return [before[name], *reversed(path[start:])]
