"""Settings of the partition leader."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class PartitionLeaderConfig:
    """Each field: meaning, unit, danger."""

    # Transactions with batches here that have no marker yet, per partition. Danger: each costs
    # about 1 KiB of memory.
    open_transactions_max: int = 100_000
    # Batches of one writer in one transaction, per partition. Danger: 32 bytes of memory each.
    batches_per_part_max: int = 1_000_000
    # Writers of one transaction, per partition: an ordinary producer is one, each attempt of a
    # Spark task another. Danger: about 1 KiB of memory each.
    writers_per_transaction_max: int = 100_000
    # Producers (plain ones, and ones of transactions) that a partition remembers, each. Danger:
    # about 2 KiB of memory for a plain one.
    producers_max: int = 1_000_000
    # Committed transactions whose batches here do not match their manifests and wait for an
    # operator, per partition: above, no new transaction is taken. Danger: each keeps its memory,
    # and the journal from its first batch on.
    damaged_max: int = 10_000
    # A producer without a frame here for so long is forgotten, milliseconds. Danger: below the
    # longest pause of a plain producer, it gets UNKNOWN_PRODUCER when it goes on.
    producer_expiry_ms: int = 7 * DAY_MS
    # How long a transaction may be open here before its coordinator is asked, milliseconds.
    question_after_ms: int = 1_000
    # And how often again, until it has ended here, milliseconds.
    question_again_ms: int = 2_000
    # Largest payload of a batch, bytes; a topic may set less (`max.batch.bytes`). Danger: a message
    # of the wire holds 32 MiB, so leave room.
    max_batch_bytes: int = 16 * MIB
    # Largest decompressed payload of a batch, bytes.
    decompressed_bytes_max: int = 64 * MIB
    # Batches of one Produce, queries of one ListOffsets, topics of one DescribeTopics, partitions
    # of one DescribeJournals.
    items_per_call_max: int = 10_000
    # Partitions that one DescribeTopics describes, of all its topics.
    described_partitions_max: int = 100_000
    # Partitions of one Fetch or Subscribe.
    fetch_partitions_max: int = 1_000
    # Longest long poll, milliseconds.
    fetch_wait_ms_max: int = 30_000
    # Payload bytes of one reply, where the request says 0.
    fetch_bytes: int = 8 * MIB
    # Payload bytes of one reply, at most.
    fetch_bytes_max: int = 24 * MIB
    # The same for one partition of a request that says 0.
    fetch_partition_bytes: int = 1 * MIB
    # Payload bytes of one reply of a Subscribe that says 0.
    subscribe_bytes: int = 2 * MIB
    # Batches of one partition in one reply.
    fetch_batches_max: int = 2_000
    # Payload bytes of one partition that are converted to rows for one reply (`format=ROWS`).
    rows_bytes_max: int = 1 * MIB
    # Partitions of a topic that is created without a number.
    topic_partitions: int = 3
    # Partitions of a topic, at most.
    topic_partitions_max: int = 10_000

    def validate(self) -> None:
        """Raises ValueError naming the field."""
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                value = getattr(self, field.name)
                raise ValueError(f"partition_leader.{field.name} must be above 0, not {value}")
        if self.max_batch_bytes > self.fetch_bytes_max:
            raise ValueError(
                "partition_leader.max_batch_bytes must not be above fetch_bytes_max: a batch that "
                "fits in no reply can never be read"
            )
