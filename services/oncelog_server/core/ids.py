"""Identities and positions. Every bare number that crosses a function has one of these names.

A TxId and a named producer id carry the journal partition in their top 16 bits, so that whoever
holds one knows whom to ask.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple, NewType

# Position in a partition's journal.
JournalOffset = NewType("JournalOffset", int)
# Position in a partition's committed log; dense from 0.
Offset = NewType("Offset", int)
# Leader epoch that etcd granted; grows by every election of the partition.
LeaderEpoch = NewType("LeaderEpoch", int)
# journal partition (16 bits) << 48 | journal offset of its first record (48). 0 means none.
TxId = NewType("TxId", int)
# named: journal partition (16) << 48 | offset of its first INIT (48); plain: random, top bit set.
ProducerId = NewType("ProducerId", int)
# leader epoch (32) << 32 | counter (32), shown as "epoch.counter".
Generation = NewType("Generation", int)
# A source of batches in a transaction; 0 for an ordinary producer.
Writer = NewType("Writer", int)
# UUIDs, as 16 raw bytes.
TopicId = NewType("TopicId", bytes)
BootId = NewType("BootId", bytes)
Incarnation = NewType("Incarnation", bytes)

CONTROL_PARTITIONS: Final = 16
TRANSACTION_CONTROL: Final = "__transaction_control"
CONSUMER_OFFSETS: Final = "__consumer_offsets"
# The two control topics exist in every cluster under the same ids.
TRANSACTION_CONTROL_ID: Final = TopicId(b"oncelog:txcontrl")
CONSUMER_OFFSETS_ID: Final = TopicId(b"oncelog:offsets0")

OFFSET_BITS: Final = 48
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
COUNTER_BITS: Final = 32
COUNTER_MASK: Final = (1 << COUNTER_BITS) - 1
PLAIN_PRODUCER_BIT: Final = 1 << 63

assert len(TRANSACTION_CONTROL_ID) == 16
assert len(CONSUMER_OFFSETS_ID) == 16
assert CONTROL_PARTITIONS <= 1 << (63 - OFFSET_BITS), "the top bit marks plain producers"

CONTROL_TOPIC_IDS: Final[Mapping[str, TopicId]] = {
    CONSUMER_OFFSETS: CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL: TRANSACTION_CONTROL_ID,
}
_CONTROL_NAMES: Final = {topic_id: name for name, topic_id in CONTROL_TOPIC_IDS.items()}


class PartitionId(NamedTuple):
    """One partition of one topic."""

    topic_id: TopicId
    number: int

    def __str__(self) -> str:
        name = _CONTROL_NAMES.get(self.topic_id) or self.topic_id.hex()
        return f"{name}/{self.number}"


def compose_tx_id(journal_partition: int, offset: int) -> TxId:
    """The TxId of the transaction whose first record stands at `offset`."""
    assert 0 <= journal_partition < CONTROL_PARTITIONS
    assert 0 < offset <= OFFSET_MASK, "offset 0 is always EPOCH_START"
    return TxId(journal_partition << OFFSET_BITS | offset)


def journal_partition_of(identity: int) -> int:
    """The journal partition of a TxId or of a named producer id."""
    return identity >> OFFSET_BITS


def journal_offset_of(identity: int) -> JournalOffset:
    """The journal offset in a TxId or a named producer id."""
    return JournalOffset(identity & OFFSET_MASK)


def can_be_tx_id(number: int) -> bool:
    """Is there a place in a journal that it names?"""
    return journal_partition_of(number) < CONTROL_PARTITIONS and journal_offset_of(number) > 0


def compose_generation(epoch: int, counter: int) -> Generation:
    """The generation that the coordinator of `epoch` grants."""
    assert 0 < epoch <= COUNTER_MASK
    assert 0 < counter <= COUNTER_MASK
    return Generation(epoch << COUNTER_BITS | counter)


def is_plain(producer_id: int) -> bool:
    """True for a producer id that a plain client drew at random."""
    return bool(producer_id & PLAIN_PRODUCER_BIT)


def partition_of_name(name: str) -> int:
    """Control partition of a transaction group or consumer group."""
    return zlib.crc32(name.encode()) % CONTROL_PARTITIONS


def control_partition(topic_id: TopicId, name: str) -> PartitionId:
    """Where the group `name` is led."""
    return PartitionId(topic_id, partition_of_name(name))
