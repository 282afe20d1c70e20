"""PURE: what the driver makes of its tasks' messages: one transaction, and the parts to expose.

The manifest names exactly the writers in the messages that Spark handed over, so that the batches
of failed and speculative attempts are never exposed, plus the partitions of `__consumer_offsets`
that hold the input positions (I34).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from oncelogpb.v1 import types_pb2 as pb


class Disagreement(RuntimeError):
    """Messages of one job that cannot be of one transaction. Nothing was committed."""


class PartCount(NamedTuple):
    """Records that one writer wrote to one partition."""

    topic_id: bytes
    number: int
    record_count: int


@dataclass(frozen=True, slots=True)
class TransactionKey:
    """What all tasks of a batch, and the driver, name its transaction by."""

    # Name of the producer; "": it has none, and is forgotten when nobody uses it any more.
    producer_name: str
    # UUID of the run, 16 bytes: a new run fences the earlier.
    instance_id: bytes
    # commit_seq: query id (or batch job) and batch id. The number is also Begin's request id.
    scope: str
    number: int
    # Transaction group; "": the producer's name. What has no name is found by group and run.
    group: str = ""
    # The name that a query had before it was named by its own: asked for first (`query_names`).
    # "": `producer_name` is what somebody chose, or all there ever was.
    name_before: str = ""

    @property
    def scope_is_run(self) -> bool:
        """The scope says which run it is: no other has it."""
        return self.scope == str(uuid.UUID(bytes=self.instance_id))

    @property
    def shown(self) -> str:
        """The producer, in messages."""
        return repr(self.producer_name or self.group)


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """What one successful task attempt tells the driver."""

    key: TransactionKey
    # 0: the batch was committed before, the task wrote nothing.
    tx_id: int
    producer_id: int
    generation: int
    # Random number of this attempt.
    writer: int
    parts: tuple[PartCount, ...]


def one_transaction(messages: Sequence[WriterCommitMessage | None]) -> TaskWritten | None:
    """A message that stands for all: same key, same TxId, same generation. None where there are no
    messages. Raises Disagreement."""
    written = [message for message in messages if isinstance(message, TaskWritten)]
    if len(written) != len(messages):
        raise Disagreement(f"{len(messages) - len(written)} of {len(messages)} tasks say nothing")
    if not written:
        return None
    first = written[0]
    for other in written[1:]:
        if _identity(other) != _identity(first):
            raise Disagreement(
                f"tasks of one batch wrote to different transactions: {_identity(first)} and "
                f"{_identity(other)}; nothing was committed, run the batch again"
            )
    writers = [message.writer for message in written if message.tx_id]
    if len(set(writers)) != len(writers):
        raise Disagreement("two task attempts drew the same writer number; run the batch again")
    return first


def build_manifest(
    messages: Iterable[TaskWritten], offset_partitions: Iterable[pb.Partition]
) -> pb.Manifest:
    """The parts of all messages, by topic id, partition and writer, and the offset partitions."""
    entries = {
        (part.topic_id, part.number, message.writer): part.record_count
        for message in messages
        for part in message.parts
        if part.record_count
    }
    for partition in offset_partitions:
        entries[partition.topic_id, partition.number, 0] = 0
    manifest = pb.Manifest()
    topic: pb.Manifest.Topic | None = None
    for topic_id, number, writer in sorted(entries):
        if topic is None or topic.topic_id != topic_id:
            topic = manifest.topics.add(topic_id=topic_id)
        topic.partition.append(number)
        topic.writer.append(writer)
        topic.record_count.append(entries[topic_id, number, writer])
    return manifest


def participants(messages: Iterable[TaskWritten]) -> list[pb.Partition]:
    """The partitions that got records, so that an abort reaches them at once."""
    named = {(part.topic_id, part.number) for message in messages for part in message.parts}
    return [pb.Partition(topic_id=topic_id, number=number) for topic_id, number in sorted(named)]


def _identity(message: TaskWritten) -> tuple[object, ...]:
    return (message.key, message.tx_id, message.producer_id, message.generation)
