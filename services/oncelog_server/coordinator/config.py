"""Settings of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Each field: meaning, unit, danger."""

    # Idle time after which a transaction is aborted where its Begin says 0, milliseconds.
    transaction_timeout_ms: int = MINUTE_MS
    # The shortest idle time that a Begin may ask for, milliseconds. Danger: a leader tells of the
    # batches that came every 2 seconds (partition_leader.question_again_ms); below about twice
    # that, a transaction that never pauses is aborted.
    transaction_timeout_ms_min: int = 4 * SECOND_MS
    # The longest idle time that a Begin may ask for, milliseconds. Danger: a pending transaction
    # holds back retention and the offsets it locked for that long.
    transaction_timeout_ms_max: int = HOUR_MS
    # No transaction is open for longer, however busy it is, milliseconds.
    transaction_lifetime_ms_max: int = DAY_MS
    # How long a producer whose session's stream ended may take to come back, milliseconds. Danger:
    # too short, and a reconnect aborts its transaction.
    session_grace_ms: int = 10 * SECOND_MS
    # How long the outcome of an ended transaction is told, milliseconds, by the journal's age.
    outcome_retention_ms: int = 7 * DAY_MS
    # How long a replaced instance id is remembered, milliseconds. Danger: too short, and a late
    # duplicate of an old InitProducer fences the living instance.
    replaced_instance_retention_ms: int = 7 * DAY_MS
    # Replaced instance ids of one producer that are remembered.
    replaced_instances_max: int = 1_000
    # An unnamed producer without transactions for so long is forgotten, milliseconds. Named ones
    # are kept: they hold `commit_seq`.
    unnamed_producer_retention_ms: int = 7 * DAY_MS
    # Producers per journal partition. Danger: about 1 KiB of memory each; named ones are kept.
    producers_max: int = 100_000
    # Transactions that are open or staged, per journal partition.
    open_transactions_max: int = 100_000
    # Parts in a manifest. Danger: a manifest is handled in turns of the loop that nobody else
    # shares; at a million they are as long as a lease, and all that this process leads would be
    # lost with it (docs/adr/0005).
    manifest_parts_max: int = 100_000
    # A manifest as it comes, bytes.
    manifest_bytes_max: int = 16 * MIB
    # A one-shot's payload and offsets in all, bytes. Danger: they are held in memory until its
    # markers are out.
    one_shot_bytes_max: int = 1 * MIB
    # Partitions of a one-shot.
    one_shot_partitions_max: int = 64
    # What a compressed batch of a one-shot may become, bytes.
    one_shot_decompressed_bytes_max: int = 4 * MIB
    # Partitions per message of a producer that only names them (Begin's and Abort's hints).
    parts_max: int = 100_000
    # Participants per journal partition, once for each transaction: those that open transactions
    # have named or that asked about them, and those whose markers are not acknowledged. Above, what
    # would add to them is THROTTLED. Danger: about 0.5 KiB of memory each.
    participants_max: int = 1_000_000
    # Markers that may wait for one participant before new one-shots to it are THROTTLED.
    marker_backlog_max: int = 10_000
    # And their payload, bytes. Danger: it stays in memory until it is delivered.
    marker_backlog_bytes_max: int = 64 * MIB
    # One-shot payload of one journal partition that is not delivered yet, bytes, with that, and the
    # offsets, of those that the offset manager has not answered yet.
    one_shot_undelivered_bytes_max: int = 256 * MIB
    # How long a one-shot waits while another transaction holds its offsets, milliseconds. Then that
    # counts as the offset manager's no.
    staged_pending_ms_max: int = 10 * SECOND_MS

    def validate(self) -> None:
        """Raises ValueError naming the field."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"coordinator.{name} must be above 0, not {getattr(self, name)}")
        if self.participants_max < max(self.parts_max, self.manifest_parts_max):
            raise ValueError(
                "coordinator.participants_max must not be below parts_max and manifest_parts_max: "
                "one transaction must find room"
            )
        if self.transaction_timeout_ms > self.transaction_timeout_ms_max:
            raise ValueError(
                "coordinator.transaction_timeout_ms must not be above transaction_timeout_ms_max"
            )
        if self.transaction_timeout_ms < self.transaction_timeout_ms_min:
            raise ValueError(
                "coordinator.transaction_timeout_ms must not be below transaction_timeout_ms_min"
            )
        if self.transaction_timeout_ms_max > self.transaction_lifetime_ms_max:
            raise ValueError(
                "coordinator.transaction_timeout_ms_max must not be above "
                "transaction_lifetime_ms_max"
            )
