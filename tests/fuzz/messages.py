"""Makes requests from the descriptors alone: every field of every message gets values that nobody
should send, and often enough ones that somebody would.

A field is absent, zero, its maximum, negative where it is signed, huge, an enum that there is not,
a string or bytes that is empty, too long or odd; a message is absent, empty, or filled down to
`DEPTH_MAX`; a repeated field has none, few or many. Serialized, a message may get an unknown field,
a flipped byte or a cut end. So that the code behind the first checks is reached too, the `Pool`
holds ids of the run: which fields take from it is told by their names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from oncelogpb import records, rpcs
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import types_pb2 as pb

DEPTH_MAX: Final = 6
# Entries of a repeated field: mostly few.
COUNTS: Final = (0, 0, 1, 1, 1, 1, 2, 2, 3, 20)
MANY: Final = 1_500
# How many of a request's fields are odd: most requests are nearly what a client would send, so that
# the code behind the first checks is reached.
ODDNESS: Final = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
# Strings and bytes of this size are rare: each is stored somewhere if it is accepted.
HUGE_BYTES: Final = 100_000
# A request that chance made larger than this is not sent: tests/fuzz/test_bad_input.py has those.
REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024

KEPT_MAX: Final = 30

U32: Final = (0, 1, 2, 15, 16, 255, 256, 65_535, 1 << 31, (1 << 32) - 1)
U64: Final = (0, 1, 2, 255, (1 << 32) - 1, 1 << 48, (1 << 48) - 1, (1 << 63) - 1, 1 << 63)
U64_MAX: Final = (1 << 64) - 1
I64: Final = (0, 1, -1, (1 << 63) - 1, -(1 << 63))
ENUMS_UNKNOWN: Final = (-1, 99, (1 << 31) - 1, -(1 << 31))
STRINGS: Final = ("", "a", "ä\x00☃", "../../etc", "__consumer_offsets", "a" * 249, "b" * 256, " ")


class Pool:
    """What a client of this cluster could know. Grows by the replies."""

    def __init__(self) -> None:
        self.topic_ids: list[bytes] = []
        # Producers and their transactions, some of them over.
        self.transactions: list[tuple[pb.Producer, int]] = []
        self.names: list[str] = []
        self.uuids: list[bytes] = []
        # UUIDs of the cluster, and of the run of its partition leader.
        self.cluster_id = bytes(16)
        self.boot_id = bytes(16)

    def learn(self, request: Any, reply: Any) -> None:
        """Takes in what a reply grants."""
        if reply.DESCRIPTOR.name == "InitProducerReply":
            self._keep(self.transactions, (reply.producer, self.transactions[0][1]))
        elif reply.DESCRIPTOR.name == "BeginTransactionReply" and reply.tx_id:
            self._keep(self.transactions, (request.producer, reply.tx_id))
        elif reply.DESCRIPTOR.name == "CreateTopicReply" and len(reply.topic.topic_id) == 16:
            self._keep(self.topic_ids, reply.topic.topic_id)

    def _keep(self, known: list[Any], new: Any) -> None:
        if new not in known:
            known.append(new)
        if len(known) > KEPT_MAX:
            # Never one of those that the run began with.
            del known[KEPT_MAX // 2]


class Maker:
    """Makes requests from one seed."""

    def __init__(self, chance: random.Random, pool: Pool) -> None:
        self._chance = chance
        self._pool = pool
        self._oddness = 1.0
        # On whose behalf this request is.
        self._producer, self._tx_id = pool.transactions[0]
        self._by_name: dict[str, Callable[[], Any]] = {
            "topic_id": lambda: chance.choice(pool.topic_ids),
            "topic_ids": lambda: chance.choice(pool.topic_ids),
            "tx_id": lambda: self._tx_id,
            "after_tx_id": lambda: chance.choice((0, 0, self._tx_id)),
            "name": lambda: chance.choice(pool.names),
            "names": lambda: chance.choice(pool.names),
            "topic": lambda: chance.choice(pool.names),
            "topics": lambda: chance.choice(pool.names),
            "group": lambda: chance.choice(pool.names),
            "transaction_groups": lambda: chance.choice(pool.names),
            "consumer_groups": lambda: chance.choice(pool.names),
            "scope": lambda: chance.choice(pool.names),
            "instance_id": lambda: chance.choice((*pool.uuids, chance.randbytes(16))),
            "reset_id": lambda: chance.choice((*pool.uuids, chance.randbytes(16))),
            "number": lambda: chance.choice((0, 0, 1, 1, 2)),
            "partition": lambda: chance.choice((0, 0, 1, 1, 2)),
            "writer": lambda: chance.choice((0, 0, 0, 1)),
            "request_id": lambda: chance.randrange(40),
            "request_number": lambda: chance.randrange(1, 12),
            "record_count": lambda: chance.choice((0, 1, 2, 3)),
            "replication_factor": lambda: chance.choice((0, 1)),
            "offset": lambda: chance.choice((0, 0, 1, 2, 5)),
            "from_offset": lambda: chance.choice((0, 1, 2, 5)),
            "to_offset": lambda: chance.choice((0, 1, 2, 5)),
            "metadata": lambda: "note",
            "node_id": lambda: "node",
            "cluster_id": lambda: pool.cluster_id,
            "boot_id": lambda: pool.boot_id,
            "partitions": lambda: chance.choice((0, 1, 2)),
            "max_wait_ms": lambda: chance.choice((0, 0, 10)),
            "generation": lambda: chance.choice((0, 1)),
            "timeout_ms": lambda: chance.choice((0, 100, 60_000)),
            "member_id": lambda: chance.choice(("m1", "m2", "m3")),
            "subscribed_topics": lambda: chance.choice(pool.names),
            "assignor": lambda: chance.choice(("", "uniform", "range")),
            "session_timeout_ms": lambda: chance.choice((0, 1_000, 10_000)),
            "prepare_offset": lambda: chance.randrange(1, 100),
            "coordinator_epoch": lambda: chance.choice((1, 1, 2)),
        }

    def request(self, descriptor: Descriptor) -> Any:
        """A message."""
        self._oddness = self._chance.choice(ODDNESS)
        self._producer, self._tx_id = self._chance.choice(self._pool.transactions)
        message = self._message(descriptor, 0)
        return message if message.ByteSize() <= REQUEST_BYTES_MAX else self.request(descriptor)

    def spoiled(self, data: bytes) -> bytes:
        """The same bytes with something that no encoder makes; mostly as they were."""
        match self._chance.randrange(40):
            case 0:
                # Field 1999, which no message has.
                return data + b"\xfa\x7c" + b"\x03abc"
            case 1 if data:
                position = self._chance.randrange(len(data))
                flipped = data[position] ^ (1 << self._chance.randrange(8))
                return data[:position] + bytes((flipped,)) + data[position + 1 :]
            case 2 if data:
                return data[: self._chance.randrange(len(data))]
            case 3:
                return data + self._chance.randbytes(self._chance.randrange(40))
            case 4:
                # Groups nested into each other: the parsers' recursion limit.
                return b"\x0b" * 5_000
        return data

    # ----------------------------------------------------------------------------------- messages

    def _message(self, descriptor: Descriptor, depth: int) -> Any:
        message = rpcs.message_class(descriptor)()
        if descriptor.full_name == pb.Batch.DESCRIPTOR.full_name:
            self._sound_batch(message)
            if not self._is_odd():
                return message
        if descriptor.full_name == pb.Producer.DESCRIPTOR.full_name and not self._is_odd():
            message.CopyFrom(self._producer)
            return message
        for field in descriptor.fields:
            if self._chance.random() < 0.85:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            for _ in range(self._chance.choice((0, 0, 1, 2))):
                key = self._chance.choice(STRINGS) if self._is_odd() else "max.batch.bytes"
                getattr(message, field.name)[key] = self._chance.choice((*STRINGS, "5000", "-1"))
        elif is_repeated(field):
            count = self._chance.choice(COUNTS)
            if self._chance.random() < self._oddness / 50:
                count = MANY
            one = self._value(field, depth) if count == MANY else None
            for _ in range(count):
                self._append(message, field, self._value(field, depth) if one is None else one)
        elif nested is not None:
            # Mostly commits are standalone: members own little of what is committed here.
            is_commit = message.DESCRIPTOR.full_name == offsets_pb.GroupOffsets.DESCRIPTOR.full_name
            if depth < DEPTH_MAX and (field.name != "member" or not is_commit or self._is_odd()):
                getattr(message, field.name).CopyFrom(self._message(nested, depth + 1))
        else:
            value = self._value(field, depth)
            if value is not None:
                setattr(message, field.name, value)

    def _append(self, message: Any, field: FieldDescriptor, value: Any) -> None:
        if value is not None:
            getattr(message, field.name).append(value)

    def _sound_batch(self, batch: pb.Batch) -> None:
        """As a client makes it, of rows or of Arrow."""
        count = self._chance.choice((1, 1, 2, 20))
        made = records.make_batch([None] * count, [b"fuzzed"] * count, 1_700_000_000_000_000)
        batch.CopyFrom(records.seal(made))
        batch.partition.topic_id = self._chance.choice(self._pool.topic_ids)
        batch.partition.number = self._chance.choice((0, 1))

    # -------------------------------------------------------------------------------------- values

    def _is_odd(self) -> bool:
        return self._chance.random() < self._oddness

    def _value(self, field: FieldDescriptor, depth: int) -> Any:
        if field.message_type is not None:
            return self._message(field.message_type, depth + 1) if depth < DEPTH_MAX else None
        if self._is_odd():
            return self._odd(field)
        known = self._by_name.get(field.name)
        value = known() if known is not None else None
        if isinstance(value, type(field.default_value)):
            return value
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self._chance.choice(field.enum_type.values).number
        return self._chance.random() < 0.2 if field.type == FieldDescriptor.TYPE_BOOL else None

    def _odd(self, field: FieldDescriptor) -> Any:
        chance = self._chance
        match field.type:
            case FieldDescriptor.TYPE_BOOL:
                return chance.random() < 0.5
            case FieldDescriptor.TYPE_ENUM:
                return self._enum(field.enum_type)
            case FieldDescriptor.TYPE_STRING:
                huge = chance.random() < 0.02
                return "x" * HUGE_BYTES if huge else chance.choice(STRINGS)
            case FieldDescriptor.TYPE_BYTES:
                sizes = (0, 1, 15, 16, 16, 17, 200, 5_000)
                huge = chance.random() < 0.02
                return chance.randbytes(HUGE_BYTES if huge else chance.choice(sizes))
            case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
                return chance.choice(U32)
            case FieldDescriptor.TYPE_INT32:
                return chance.choice((0, 1, -1, (1 << 31) - 1, -(1 << 31)))
            case FieldDescriptor.TYPE_INT64:
                return chance.choice(I64)
            case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
                return chance.choice((*U64, U64_MAX))
        raise AssertionError(f"{field.full_name} has a type that the fuzzer does not know")

    def _enum(self, enum: EnumDescriptor) -> int:
        known = [value.number for value in enum.values]
        return int(self._chance.choice((*known, self._chance.choice(ENUMS_UNKNOWN))))


def is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)
