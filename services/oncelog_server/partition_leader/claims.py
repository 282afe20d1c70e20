"""Who sends as which source of batches: the identity whose batch came first, in this leadership.

A producer id and a TxId are no secrets: readers see them. Who knows them, and may write the topic,
could send the next batch in their owner's name, and the owner's own would then count as its repeat:
acknowledged, and lost. So a source (TxId, producer id, writer) belongs to the identity whose
batch it first took, and another one is refused.

Volatile: it ends with the leadership, and the first to come in the next one is believed. Who then
sends in another's name has that one refused, loudly; only where the leadership ends once more
before the owner comes, could the owner's batch be taken for a repeat (docs/threat_model.md).

Left out: callers without an identity, of whom nothing is known.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from oncelog_server.core.ports import Call
from oncelogpb.ids import show_id

# Sources of a partition after which those that its machine has forgotten are forgotten here, too.
PRUNE_ABOVE: Final = 1_024


class Source(NamedTuple):
    """What numbers its batches by itself."""

    # 0: plain.
    tx_id: int
    producer_id: int
    writer: int


class Claim:
    """Held by one identity."""

    __slots__ = ("identity", "is_proven", "source")

    def __init__(self, source: Source, identity: str) -> None:
        self.source = source
        self.identity = identity
        # A batch of its was taken.
        self.is_proven = False


class _Held:
    """Of one machine: one partition, one leadership."""

    __slots__ = ("claims", "prune_above")

    def __init__(self) -> None:
        self.claims: dict[Source, Claim] = {}
        self.prune_above = PRUNE_ABOVE


class Claims:
    """Of all partitions that this process leads."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[Any, _Held] = WeakKeyDictionary()

    def hold(self, machine: Any, source: Source, call: Call) -> Claim | None:
        """The caller's own, or None where nobody looks. Raises PermissionDenied where the source is
        somebody else's."""
        if not call.identity:
            return None
        held = self._held.get(machine)
        if held is None:
            held = self._held[machine] = _Held()
        claim = held.claims.get(source)
        if claim is None:
            if len(held.claims) >= held.prune_above:
                _prune(held, machine)
            claim = held.claims[source] = Claim(source, call.identity)
        elif claim.identity != call.identity:
            refusal = call.not_yours(claim.identity, show_id(source.producer_id))
            if refusal is not None:
                raise refusal
            return None
        return claim

    def settle(self, machine: Any, claim: Claim | None, *, placed: int) -> None:
        """What became of its batches: so many were taken. One of which none ever was is let go."""
        held = None if claim is None else self._held.get(machine)
        if claim is None or held is None:
            return
        if placed:
            claim.is_proven = True
            held.claims.setdefault(claim.source, claim)
        elif not claim.is_proven and held.claims.get(claim.source) is claim:
            del held.claims[claim.source]


def _prune(held: _Held, machine: Any) -> None:
    """A transaction that has ended here takes no more batches, nor does a plain producer that is
    forgotten, unless from the start."""
    held.claims = {
        source: claim
        for source, claim in held.claims.items()
        if (source.tx_id and source.tx_id in machine.pending.open)
        or (not source.tx_id and source.producer_id in machine.plain)
    }
    held.prune_above = max(PRUNE_ABOVE, 2 * len(held.claims))
