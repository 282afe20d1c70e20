"""What the coordinator remembers; frames by `core.records`. PURE.

A record that decides a transaction says all that its outcome needs: the projection has no memory.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.coordinator.values import (
    AbortCause,
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    Refusal,
)
from oncelog_server.core.age import TimePassed
from oncelog_server.core.ids import Generation, PartitionId, ProducerId, TxId
from oncelog_server.core.records import RecordCodec


class ProducerInitialized(msgspec.Struct, frozen=True, array_like=True, tag="init"):
    """INIT: a producer, or a later instance of it. Fences every generation below."""

    producer_id: ProducerId
    generation: Generation
    group: str
    # "" for an unnamed one.
    name: str
    instance_id: bytes
    # Identity of who registered it, by his certificate; "" without TLS, and in journals that are
    # older than this field.
    owner: str = ""


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """BEGIN. The TxId is this record's place."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    request_id: int
    timeout_ms: int
    commit_seq: CommitSeq | None
    # Partitions known to take part, sorted.
    parts: tuple[PartitionId, ...]


class PreparedCommit(msgspec.Struct, frozen=True, array_like=True, tag="prepare-commit"):
    """PREPARE_COMMIT of an open transaction, or of a staged one-shot (whose manifest is empty: its
    batches say it)."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    begin_ms: int
    timeout_ms: int
    commit_seq: CommitSeq | None
    manifest: Manifest


class PreparedAbort(msgspec.Struct, frozen=True, array_like=True, tag="prepare-abort"):
    """PREPARE_ABORT."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    begin_ms: int
    timeout_ms: int
    cause: AbortCause
    # Partitions known to take part, sorted: they get markers. Others ask.
    parts: tuple[PartitionId, ...]
    # A staged one-shot: what the offset manager said.
    refusal: Refusal | None = None


class OneShotStaged(msgspec.Struct, frozen=True, array_like=True, tag="stage"):
    """A one-shot whose offsets, or whose earlier one-shots, are not decided yet."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    request_number: int
    commit_seq: CommitSeq | None
    batches: tuple[OneShotBatch, ...]
    offsets: OneShotOffsets | None
    # The request number with which its chain begins; 0: of no chain, or journaled before there were
    # any.
    chain_first: int = 0


class OneShotPrepared(msgspec.Struct, frozen=True, array_like=True, tag="one-shot"):
    """BEGIN and PREPARE_COMMIT of a one-shot in one: nothing stands before it."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    request_number: int
    commit_seq: CommitSeq | None
    batches: tuple[OneShotBatch, ...]
    # The request number with which its chain begins; 0: of no chain, or journaled before there were
    # any.
    chain_first: int = 0


class OneShotSkipped(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """A request number that was answered ALREADY_COMMITTED: it is used up."""

    producer_id: ProducerId
    generation: Generation
    request_number: int
    # Of what was asked for (`values.content_digest`); b"" in journals from before it was kept.
    digest: bytes = b""
    chain_first: int = 0


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """Every participant has acknowledged its COMMITTED marker."""

    tx_id: TxId
    # Participants whose log did not match the manifest, sorted.
    damaged: tuple[PartitionId, ...] = ()


class Aborted(msgspec.Struct, frozen=True, array_like=True, tag="aborted"):
    """Every known participant has acknowledged its ABORTED marker."""

    tx_id: TxId


class ProducersForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Unnamed producers that did nothing for long."""

    producer_ids: tuple[ProducerId, ...]


class LogEndProved(msgspec.Struct, frozen=True, array_like=True, tag="prove"):
    """Says nothing. Once it is durable in its own epoch, it has shown that nobody else led when it
    was appended (`unborn`)."""


Record = (
    ProducerInitialized
    | Begun
    | PreparedCommit
    | PreparedAbort
    | OneShotStaged
    | OneShotPrepared
    | OneShotSkipped
    | Committed
    | Aborted
    | ProducersForgotten
    | LogEndProved
    | TimePassed
)

_DECODER: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)
CODEC: Final = RecordCodec(_DECODER, whose="a coordinator's")
