"""Producers: who may, what they asked for, and the answers that a repeated request gets. PURE.

Replicated state.

Invariants:
  * a generation is granted once, and grows (I17);
  * request ids and request numbers belong to a generation: INIT of a later one forgets the first,
    and keeps the answers to the second, for one-shots go on after it and their outcome is a fact;
  * the last 16 of each are kept, those of undecided one-shots always;
  * named producers are never forgotten (they hold `commit_seq`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import msgspec

from oncelog_server.coordinator.commands import BeginAnswer, BeginResult, ProducerIdentity
from oncelog_server.coordinator.values import AbortCause, CommitSeq, Refusal
from oncelog_server.core.ids import Generation, ProducerId, TxId

# Request ids of Begin, and request numbers of one-shots, that are remembered per producer.
REQUESTS_KEPT: Final = 16
# One-shots of one producer that are not decided yet: their answers are all remembered.
ONE_SHOTS_IN_FLIGHT_MAX: Final = REQUESTS_KEPT


class Replaced(msgspec.Struct, frozen=True, array_like=True):
    """An instance that a later one took over from."""

    instance_id: bytes
    # By the journal's age.
    at_ms: int


class BeginRequest(msgspec.Struct, array_like=True):
    """A request id and what became of its transaction."""

    request_id: int
    tx_id: TxId
    # AbortCause where it was aborted; None while it is open.
    committed: bool | None = None
    cause: AbortCause = AbortCause.NONE

    def answer(self) -> BeginAnswer:
        if self.committed is None:
            return BeginAnswer(BeginResult.OPEN, self.tx_id)
        result = BeginResult.COMMITTED if self.committed else BeginResult.ABORTED
        return BeginAnswer(result, self.tx_id, self.cause)


class OneShotState(IntEnum):
    STAGED = 1
    COMMITTED = 2
    ABORTED = 3
    # Answered ALREADY_COMMITTED: there is no transaction.
    SKIPPED = 4


class OneShotRequest(msgspec.Struct, array_like=True):
    """A request number and what became of it."""

    request_number: int
    tx_id: TxId
    state: OneShotState
    # ABORTED: what the client is told.
    refusal: Refusal | None = None
    # Of what was asked for (`values.content_digest`): the number is no other request's. b"" in
    # snapshots from before it was kept.
    digest: bytes = b""


class FormerOneShot(msgspec.Struct, frozen=True, array_like=True):
    """A request of an instance that was replaced."""

    generation: Generation
    request: OneShotRequest


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """One-shots of which each takes effect only where all before it do (ADR 78)."""

    generation: Generation
    # The request number with which it begins: no other chain of the generation has it.
    first: int


NO_CHAIN: Final = Chain(Generation(0), 0)


class LastCommit(msgspec.Struct, frozen=True, array_like=True):
    """The highest commit_seq, and what it was committed with."""

    commit_seq: CommitSeq
    generation: Generation
    # Of the manifest; b"" for a one-shot.
    manifest_digest: bytes


class Producer(msgspec.Struct, array_like=True):
    """One producer. Changed by `apply` only."""

    producer_id: ProducerId
    generation: Generation
    group: str
    # "": unnamed.
    name: str
    instance_id: bytes
    replaced: list[Replaced] = []
    # Of the current generation, oldest first.
    begins: list[BeginRequest] = []
    # The ONGOING transaction; 0: none.
    open_tx: TxId = TxId(0)
    # Of the current generation, consecutive, oldest first.
    one_shots: list[OneShotRequest] = []
    next_request_number: int = 1
    # Undecided one-shots of any generation, in request order.
    staged: list[TxId] = []
    last_committed: TxId = TxId(0)
    last_commit: LastCommit | None = None
    # Place of its last record, and the journal's age there.
    active_offset: int = 0
    active_ms: int = 0
    # Of earlier generations, oldest first. No later one-shot is accepted while one is undecided, so
    # the undecided are always among the last 16.
    former_one_shots: list[FormerOneShot] = []
    # Identity of who registered this instance; "": nobody had one.
    owner: str = ""
    # The highest request of an earlier generation whose answer is forgotten.
    forgotten_generation: Generation = Generation(0)
    forgotten_number: int = 0
    # That of the last request that was accepted.
    chain: Chain = NO_CHAIN
    # The last one of which a one-shot was aborted: those behind it follow. A later chain is staged
    # behind it, so it breaks when all of this one are decided.
    broken_chain: Chain = NO_CHAIN

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.generation)

    @property
    def committed_seq(self) -> CommitSeq | None:
        return None if self.last_commit is None else self.last_commit.commit_seq

    def was_replaced(self, instance_id: bytes) -> bool:
        return any(replaced.instance_id == instance_id for replaced in self.replaced)

    def begin_request(self, request_id: int) -> BeginRequest | None:
        return next((r for r in self.begins if r.request_id == request_id), None)

    def one_shot_request(self, request_number: int) -> OneShotRequest | None:
        if not self.one_shots:
            return None
        index = request_number - self.one_shots[0].request_number
        return self.one_shots[index] if 0 <= index < len(self.one_shots) else None

    def former_one_shot(self, generation: Generation, request_number: int) -> OneShotRequest | None:
        wanted = (generation, request_number)
        return next(
            (
                former.request
                for former in self.former_one_shots
                if (former.generation, former.request.request_number) == wanted
            ),
            None,
        )

    def has_forgotten(self, generation: Generation, request_number: int) -> bool:
        """Of a request that is not remembered: it may have been accepted, and nobody knows."""
        if generation == self.generation:
            return request_number < self.next_request_number
        return (generation, request_number) <= (self.forgotten_generation, self.forgotten_number)

    def oldest_staged_number(self) -> int | None:
        """Of this generation."""
        staged = (r for r in self.one_shots if r.state is OneShotState.STAGED)
        first = next(staged, None)
        return None if first is None else first.request_number

    # --------------------------------------------------------------------- called by `apply` only

    def take_over(
        self,
        generation: Generation,
        instance_id: bytes,
        owner: str,
        *,
        at_ms: int,
        keep_ms: int,
        keep_max: int,
    ) -> None:
        """INIT of a later instance. Of the earlier generation, answers to one-shots are kept."""
        assert generation > self.generation, "a generation is granted once (I17)"
        assert not self.open_tx, "open work of older generations is decided first (I16)"
        self.replaced.append(Replaced(self.instance_id, at_ms))
        young = [r for r in self.replaced if r.at_ms + keep_ms > at_ms]
        self.replaced = young[-keep_max:]
        self._keep_former()
        self.generation = generation
        self.instance_id = instance_id
        self.owner = owner
        self.begins = []
        self.one_shots = []
        self.next_request_number = 1

    def _keep_former(self) -> None:
        """The last answers of all earlier generations, and how far they are forgotten."""
        self.former_one_shots += [FormerOneShot(self.generation, r) for r in self.one_shots]
        dropped = self.former_one_shots[:-REQUESTS_KEPT]
        del self.former_one_shots[:-REQUESTS_KEPT]
        if dropped:
            self.forgotten_generation = dropped[-1].generation
            self.forgotten_number = dropped[-1].request.request_number
        before_the_kept = self.next_request_number - len(self.one_shots) - 1
        if before_the_kept and self.forgotten_generation < self.generation:
            self.forgotten_generation, self.forgotten_number = self.generation, before_the_kept

    def began(self, request_id: int, tx_id: TxId) -> None:
        assert not self.open_tx, "one ONGOING transaction per producer"
        self.open_tx = tx_id
        self.begins.append(BeginRequest(request_id, tx_id))
        del self.begins[:-REQUESTS_KEPT]

    def asked_one_shot(self, request: OneShotRequest, chain_first: int) -> None:
        assert request.request_number == self.next_request_number, "request numbers are consecutive"
        self.next_request_number += 1
        self.chain = Chain(self.generation, chain_first)
        self.one_shots.append(request)
        del self.one_shots[:-REQUESTS_KEPT]

    def check(self) -> None:
        assert len(self.begins) <= REQUESTS_KEPT
        ids = [request.request_id for request in self.begins]
        assert ids == sorted(set(ids)), "request ids grow"
        assert len(self.one_shots) <= REQUESTS_KEPT
        assert len(self.former_one_shots) <= REQUESTS_KEPT
        numbers = [request.request_number for request in self.one_shots]
        assert (
            numbers == list(range(self.next_request_number - len(numbers), numbers[-1] + 1))
            if (numbers)
            else True
        )
        assert self.staged == sorted(self.staged), "staged in request order"
        assert not (self.open_tx and self.staged), "no one-shot beside an open transaction"


class Producers:
    """All of one journal partition."""

    def __init__(self) -> None:
        self._by_id: dict[ProducerId, Producer] = {}
        # A named producer is (group, name); an unnamed one is found by its only instance.
        self._by_key: dict[tuple[str, str, bytes], ProducerId] = {}
        # Unnamed ones, the one that was active last at the end.
        self._unnamed: dict[ProducerId, None] = {}

    def get(self, producer_id: ProducerId) -> Producer | None:
        return self._by_id.get(producer_id)

    def __getitem__(self, producer_id: ProducerId) -> Producer:
        return self._by_id[producer_id]

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, group: str, name: str, instance_id: bytes) -> Producer | None:
        producer_id = self._by_key.get(_key(group, name, instance_id))
        return None if producer_id is None else self._by_id[producer_id]

    def add(self, producer: Producer) -> None:
        self._by_id[producer.producer_id] = producer
        key = _key(producer.group, producer.name, producer.instance_id)
        assert key not in self._by_key
        self._by_key[key] = producer.producer_id
        if not producer.name:
            self._unnamed[producer.producer_id] = None

    def remove(self, producer_id: ProducerId) -> None:
        producer = self._by_id.pop(producer_id)
        del self._by_key[_key(producer.group, producer.name, producer.instance_id)]
        del self._unnamed[producer_id]

    def active(self, producer: Producer, *, offset: int, aged_ms: int) -> None:
        producer.active_offset, producer.active_ms = offset, aged_ms
        if not producer.name:
            del self._unnamed[producer.producer_id]
            self._unnamed[producer.producer_id] = None

    def unnamed(self) -> Iterator[Producer]:
        """Those that are idle longest first."""
        return (self._by_id[producer_id] for producer_id in self._unnamed)

    def restore(self, producers: list[Producer]) -> None:
        for producer in sorted(producers, key=lambda p: p.active_offset):
            self.add(producer)

    def check(self) -> None:
        assert len(self._by_key) == len(self._by_id)
        for producer in self._by_id.values():
            producer.check()
        offsets = [producer.active_offset for producer in self.unnamed()]
        assert offsets == sorted(offsets), "idle longest first"


def _key(group: str, name: str, instance_id: bytes) -> tuple[str, str, bytes]:
    return (group, name, b"") if name else (group, "", instance_id)
