"""I16 to I20: who may still act, and what comes after the end of a transaction."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from oncelog.checker.coverage import expected
from oncelog.checker.facts import Place, Registration, Transaction, lines_of
from oncelog.checker.history import Operation
from oncelog.checker.outcomes import Side, Source
from oncelog.checker.report import Finding
from oncelog.checker.rules.case import Case


def i16_an_older_generation_is_fenced(case: Case) -> Iterator[Finding]:
    """After `init_producer` returned a generation, no begin that a server answers and no commit of
    an older generation of that producer, asked for later, succeeds: neither by its answer nor by
    what is read of it. (The same question about what was asked before, and a commit of nothing, may
    be answered.) Nothing of an older generation is looked up as ongoing after it."""
    fences = {
        producer: _Fences(registrations)
        for producer, registrations in case.facts.registrations.items()
    }
    for transaction in case.facts.transactions.values():
        fence = fences.get(transaction.producer or "")
        if fence is None or transaction.generation is None:
            continue
        for operation in _successes(case, transaction):
            newer = fence.newer(transaction.generation, operation.invoked_us)
            if newer is not None:
                message = (
                    f"{operation.do} of {transaction.name} in generation {transaction.generation} "
                    f"had an effect; generation {newer.generation} had been handed out before"
                )
                yield Finding(message, [*newer.operation.lines, *operation.lines])
                break


def i17_generations_are_unique_and_grow(case: Case) -> Iterator[Finding]:
    """No generation of a producer is handed out to two instances, one instance gets one generation,
    and a registration that begins after another was answered gets a larger one (or is of the same
    instance)."""
    for producer, registrations in case.facts.registrations.items():
        by_generation: dict[int, Registration] = {}
        by_instance: dict[str, Registration] = {}
        for registration in registrations:
            instance = registration.instance
            before = by_generation.setdefault(registration.generation, registration)
            lines = [*before.operation.lines, *registration.operation.lines]
            if before is not registration and (instance is None or before.instance != instance):
                message = f"generation {registration.generation} of {producer} went out twice"
                yield Finding(message, lines)
            if instance is not None:
                same = by_instance.setdefault(instance, registration)
                if same.generation != registration.generation:
                    message = f"instance {instance} of {producer} was given two generations"
                    yield Finding(message, [*same.operation.lines, *registration.operation.lines])
        fence = _Fences(registrations)
        for registration in registrations:
            newer = fence.newer(registration.generation, registration.operation.invoked_us)
            known = by_instance.get(registration.instance or "")
            if newer is not None and known is registration:
                message = (
                    f"{producer} was given generation {registration.generation} after "
                    f"{newer.generation} had been handed out"
                )
                yield Finding(message, [*newer.operation.lines, *registration.operation.lines])


def i18_one_leader_per_epoch(case: Case) -> Iterator[Finding]:
    """Where acknowledgements say who gave them (`acks`: topic, partition, epoch, leader, first
    journal offset, count): one leader per partition and epoch, and no journal offset acknowledged
    to two records."""
    leaders: dict[tuple[Place, int], tuple[str, Operation]] = {}
    given: dict[Place, list[tuple[int, int, Operation]]] = defaultdict(list)
    for operation in case.history.operations:
        for ack in operation.results.get("acks", ()) if operation.is_ok else ():
            place = Place(ack["topic"], ack["partition"])
            leader = ack.get("leader")
            if leader is not None:
                before = leaders.setdefault((place, ack["epoch"]), (leader, operation))
                if before[0] != leader:
                    message = (
                        f"{before[0]} and {leader} both acknowledged in {place} "
                        f"epoch {ack['epoch']}"
                    )
                    yield Finding(message, lines_of([before[1], operation]))
            if "first_offset" in ack:
                first = ack["first_offset"]
                given[place].append((first, first + ack.get("count", 1), operation))
    for place in sorted(given):
        yield from _acknowledged_twice(place, given[place])


def i19_no_transaction_has_both_markers(case: Case) -> Iterator[Finding]:
    """No TxId is both committed and aborted: not by the answers to commit and abort, not by the
    markers that RAW reads show, in whatever partitions, and not by an ABORTED marker and a record
    in a committed read."""
    for transaction in case.facts.transactions.values():
        committed = _answer(case, transaction, Side.COMMITTED)
        aborted = _answer(case, transaction, Side.NOT_COMMITTED)
        if committed is not None and aborted is not None:
            message = f"{transaction.name} was told committed and told aborted"
            yield Finding(message, [*committed, *aborted])
    first: dict[str, tuple[str, int]] = {}
    for marker in case.facts.markers:
        before = first.setdefault(marker.tx_id, (marker.outcome, marker.line))
        if before[0] != marker.outcome:
            message = f"TxId {marker.tx_id} has a marker {before[0]} and a marker {marker.outcome}"
            yield Finding(message, [before[1], marker.line])
        transaction_of = case.facts.by_tx_id.get(marker.tx_id)
        if marker.outcome == "aborted" and transaction_of is not None:
            for sent in transaction_of.sends:
                for seen in case.facts.positions(sent.value)[:1]:
                    message = f"TxId {marker.tx_id} has a marker aborted; {seen.value!r} was read"
                    yield Finding(message, [marker.line, seen.line])


def i20_nothing_after_the_marker(case: Case) -> Iterator[Finding]:
    """Nothing that is sent under a TxId after its commit or abort was answered is read. Nothing
    that is sent to a partition of it after its commit was told visible is acknowledged: until then
    its marker may be on its way. In the journal (RAW) no record of a TxId stands behind its
    marker."""
    for transaction in case.facts.transactions.values():
        ended = transaction.told_committed() or next(
            (abort for abort in transaction.aborts if abort.is_ok), None
        )
        marked = transaction.told_visible()
        parts = {(sent.topic, sent.partition) for sent in expected(transaction)}
        for sent in transaction.sends:
            read = case.facts.positions(sent.value)
            taken_after = None
            if ended is not None and read and sent.operation.invoked_us > ended.ended_us:
                taken_after = ended
            elif marked is not None and (sent.topic, sent.partition) in parts:
                late = sent.operation.invoked_us > marked.ended_us
                taken_after = marked if late and sent.operation.is_ok else None
            if taken_after is not None:
                message = f"record {sent.value!r} was taken after the end of {transaction.name}"
                proof = [*taken_after.lines, *sent.operation.lines]
                yield Finding(message, [*proof, *(item.line for item in read[:1])])
    behind = {(marker.place, marker.tx_id): marker for marker in reversed(case.facts.markers)}
    for place, positions in case.facts.seen["journal"].items():
        for seen in positions.values():
            marker = behind.get((place, seen.tx_id or ""))
            if marker is not None and seen.offset > marker.offset:
                message = f"record {seen.value!r} stands at {seen.offset}, behind its marker"
                yield Finding(f"{message} at {marker.offset} of {place}", [marker.line, seen.line])


# ------------------------------------------------------------------------------------------ details


class _Fences:
    """The largest generation that had been answered by a moment."""

    def __init__(self, registrations: list[Registration]) -> None:
        ordered = sorted(registrations, key=lambda item: item.operation.ended_us)
        self._ended = [item.operation.ended_us for item in ordered]
        self._largest: list[Registration] = []
        for item in ordered:
            before = self._largest[-1] if self._largest else item
            self._largest.append(item if item.generation > before.generation else before)

    def newer(self, generation: int, moment_us: int) -> Registration | None:
        """A larger one, answered before the moment."""
        at = bisect_left(self._ended, moment_us)
        if at and self._largest[at - 1].generation > generation:
            return self._largest[at - 1]
        return None


def _successes(case: Case, transaction: Transaction) -> Iterator[Operation]:
    """Operations that had an effect, or an answer that says so."""
    for begin in transaction.begins:
        if begin.is_ok and begin.results.get("tx_id") and begin.results.get("state", "") == "":
            yield begin
    asked = transaction.asked_to_commit()
    writes = bool(transaction.sends or transaction.offsets)
    if asked is not None and writes and case.outcomes.is_committed(transaction):
        yield asked
    for answer in transaction.answers:
        if answer.is_ok and answer.results["state"] == "ongoing":
            yield answer


def _answer(case: Case, transaction: Transaction, side: Side) -> tuple[int, ...] | None:
    for evidence in case.outcomes.evidence(transaction, side):
        if evidence.source is Source.ANSWER:
            return evidence.lines
    return None


def _acknowledged_twice(place: Place, given: list[tuple[int, int, Operation]]) -> Iterator[Finding]:
    given.sort(key=lambda item: item[:2])
    reach: tuple[int, Any] = (0, None)
    for first, end, operation in given:
        if first < reach[0] and operation is not reach[1]:
            message = f"journal offset {first} of {place} was acknowledged twice"
            yield Finding(message, lines_of([reach[1], operation]))
        if end > reach[0]:
            reach = (end, operation)
