"""What commands, records and state of the coordinator share: small frozen values. PURE."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    PartitionId,
    TopicId,
    control_partition,
)

_ENCODER: Final = msgspec.msgpack.Encoder()


class AbortCause(IntEnum):
    """Why a transaction was aborted. The numbers of oncelogpb.v1.AbortCause."""

    NONE = 0
    PRODUCER = 1
    TIMEOUT = 2
    FENCED = 3
    SESSION = 4
    OPERATOR = 5
    OFFSETS = 6
    CHAIN = 7


class CommitSeq(msgspec.Struct, frozen=True, array_like=True):
    """A number of the producer's own that only grows within its scope."""

    scope: str
    number: int

    def covers(self, asked: CommitSeq | None) -> bool:
        """`asked` was committed before, this being the last one. A new scope starts anew."""
        return asked is not None and asked.scope == self.scope and asked.number <= self.number


class TopicParts(msgspec.Struct, frozen=True, array_like=True):
    """Parts in one topic, as columns: entry i of each describes part i."""

    topic_id: TopicId
    partitions: tuple[int, ...]
    writers: tuple[int, ...]
    counts: tuple[int, ...]


class WriterParts(msgspec.Struct, array_like=True):
    """What the writers of a transaction wrote to one partition, as columns: a million of them must
    not become a million objects, for they are handled in one turn of the loop."""

    writers: list[int] = []
    counts: list[int] = []

    def __len__(self) -> int:
        return len(self.writers)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(writer, record count)."""
        return zip(self.writers, self.counts, strict=True)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All parts of a transaction. Invariant: names each (partition, writer) once (`wire`)."""

    topics: tuple[TopicParts, ...] = ()

    @property
    def parts_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics)

    @property
    def names_each_once(self) -> bool:
        """Each (partition, writer). A topic may stand in several entries."""
        pairs: dict[TopicId, set[tuple[int, int]]] = {}
        for topic in self.topics:
            of_topic = pairs.setdefault(topic.topic_id, set())
            of_topic.update(zip(topic.partitions, topic.writers, strict=True))
        return sum(map(len, pairs.values())) == self.parts_count

    def participants(self) -> set[PartitionId]:
        """Partitions, each once."""
        return {
            PartitionId(topic.topic_id, number)
            for topic in self.topics
            for number in set(topic.partitions)
        }

    def by_participant(self) -> dict[PartitionId, WriterParts]:
        """The parts of each participant in manifest order; none for a partition of
        `__consumer_offsets`, which is named only to say that it takes part."""
        found: dict[PartitionId, WriterParts] = {}
        for topic in self.topics:
            columns = {}
            for number in dict.fromkeys(topic.partitions):
                parts = found.setdefault(PartitionId(topic.topic_id, number), WriterParts())
                columns[number] = (parts.writers.append, parts.counts.append)
            if topic.topic_id == CONSUMER_OFFSETS_ID:
                continue
            for number, writer, count in zip(
                topic.partitions, topic.writers, topic.counts, strict=True
            ):
                append_writer, append_count = columns[number]
                append_writer(writer)
                append_count(count)
        return found

    def encoded(self) -> bytes:
        """As it stands in the journal."""
        return _ENCODER.encode(self)

    def digest(self) -> bytes:
        """Tells two manifests apart when one is no longer kept."""
        return hashlib.blake2b(self.encoded(), digest_size=16).digest()


NO_PARTS: Final = Manifest()


class OneShotBatch(msgspec.Struct, frozen=True, array_like=True):
    """Records of a one-shot transaction for one partition, as the client sent them."""

    partition: PartitionId
    encoding: int
    record_count: int
    crc32c: int
    max_timestamp_us: int
    payload: bytes


class OneShotOffsets(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of one consumer group that commit with a one-shot."""

    group: str
    # oncelogpb.v1.GroupOffsets as the client sent it: only the offset manager reads it.
    request: bytes

    @property
    def participant(self) -> PartitionId:
        return control_partition(CONSUMER_OFFSETS_ID, self.group)


def one_shot_bytes(batches: Sequence[OneShotBatch], offsets: OneShotOffsets | None) -> int:
    """What it holds in memory."""
    offset_bytes = 0 if offsets is None else len(offsets.request)
    return sum(len(batch.payload) for batch in batches) + offset_bytes


def content_digest(
    batches: Sequence[OneShotBatch], offsets: OneShotOffsets | None, commit_seq: CommitSeq | None
) -> bytes:
    """Tells the content of one request number from another one's, payloads by their CRC32C: 16
    bytes. `batches` say their true CRC32Cs; what a client claims may be wrong."""
    columns = [
        (b.partition, b.encoding, b.record_count, b.crc32c, b.max_timestamp_us) for b in batches
    ]
    encoded = _ENCODER.encode((columns, offsets, commit_seq))
    return hashlib.blake2b(encoded, digest_size=16).digest()


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An error that is remembered: a repeated request gets it again."""

    reason: str
    message: str
    metadata: dict[str, str]
