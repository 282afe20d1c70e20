"""Large payloads of Produce calls, and of replies with what was fetched, left in the message that
brought them.

Generated code copies a payload into the parsed message, and out of it each time that it is looked
at. For batches of a MiB that is a tenth of a leader's CPU, and a fifth of a reader's (measured).
Here the wire bytes are walked by hand, the payloads taken out as views, and what is left, a few
hundred bytes, is parsed as ever:

    PartitionLeaderCalls.calls     0A len | Call
    Call.produce                   tag len | ProduceRequest
    ProduceRequest.batches         tag len | Batch
    Batch.payload                  tag len | bytes                   <- taken out

    FetchReply.partitions          tag len | FetchedPartition
    FetchedPartition.batches       tag len | FetchedBatch
    FetchedBatch.payload           tag len | bytes                   <- taken out

Invariants:
- what is not understood in a few steps (malformed, groups, thousands of fields) is left to the
  generated code as it came;
- a view keeps at most VIEW_SHARE times its own size in memory; smaller payloads are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from oncelogpb.bulk import Chunk, varint
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

# Below, generated code is as quick.
MESSAGE_BYTES_MIN: Final = 64 * 1024
# Python works on each field: above, small batches fill the message, and there is nothing to gain.
FIELDS_MAX: Final = 2_000
VIEW_SHARE: Final = 4


class Path(NamedTuple):
    """Where in a message the payloads are."""

    # Field numbers from the message to its batches, one in the other.
    batches: tuple[int, ...]
    # Of the payload in a batch.
    payload: int


PRODUCED: Final = Path(
    (
        pb.PartitionLeaderCalls.CALLS_FIELD_NUMBER,
        pb.PartitionLeaderCall.PRODUCE_FIELD_NUMBER,
        pb.ProduceRequest.BATCHES_FIELD_NUMBER,
    ),
    types_pb2.Batch.PAYLOAD_FIELD_NUMBER,
)
FETCHED: Final = Path(
    (pb.FetchReply.PARTITIONS_FIELD_NUMBER, pb.FetchedPartition.BATCHES_FIELD_NUMBER),
    pb.FetchedBatch.PAYLOAD_FIELD_NUMBER,
)
_VARINT_BITS_MAX: Final = 70


class LiftedProduce(NamedTuple):
    """A ProduceRequest whose batches have their payloads beside them, in order."""

    request: pb.ProduceRequest
    payloads: Sequence[Chunk]


def payload_of(produce: pb.ProduceRequest | LiftedProduce, place: int) -> Chunk:
    """The payload of the batch at that place, wherever it is."""
    if isinstance(produce, LiftedProduce):
        return produce.payloads[place]
    return produce.batches[place].payload


class LiftedFetch(NamedTuple):
    """A FetchReply whose batches have their payloads beside them, in order."""

    reply: pb.FetchReply
    payloads: Sequence[Chunk]


def parse_fetched(data: bytes) -> pb.FetchReply | LiftedFetch:
    """A FetchReply, its payloads beside it where they are large. Raises DecodeError."""
    lifted = lift(data, FETCHED)
    if lifted is not None:
        rest, payloads = lifted
        reply = pb.FetchReply.FromString(rest)
        if sum(len(part.batches) for part in reply.partitions) == len(payloads):
            return LiftedFetch(reply, payloads)
    return pb.FetchReply.FromString(data)


def fetched(
    reply: pb.FetchReply | LiftedFetch,
) -> Iterator[tuple[pb.FetchedPartition, list[tuple[pb.FetchedBatch, Chunk]]]]:
    """Its partitions in order, each with its batches and their payloads, wherever they are."""
    if not isinstance(reply, LiftedFetch):
        for part in reply.partitions:
            yield part, [(batch, batch.payload) for batch in part.batches]
        return
    payloads = iter(reply.payloads)
    for part in reply.reply.partitions:
        yield part, [(batch, next(payloads)) for batch in part.batches]


def lift(data: bytes, path: Path = PRODUCED) -> tuple[bytes, list[Chunk]] | None:
    """The message without the payloads that are on this path, and those in the order of the
    batches; None where it is to be parsed as it is."""
    if len(data) < MESSAGE_BYTES_MIN:
        return None
    walk = _Walk(len(data), path)
    try:
        rest = walk.message(memoryview(data), 0)
    except (IndexError, _GiveUp):
        return None
    return b"".join(rest), walk.payloads


def pair(
    calls: Sequence[pb.PartitionLeaderCall], payloads: Sequence[Chunk]
) -> list[tuple[pb.PartitionLeaderCall, LiftedProduce | None]] | None:
    """The calls that were parsed without `payloads`, each Produce with its own. None where they do
    not fit: the message held a field twice."""
    paired: list[tuple[pb.PartitionLeaderCall, LiftedProduce | None]] = []
    position = 0
    for call in calls:
        if call.WhichOneof("request") != "produce":
            paired.append((call, None))
            continue
        following = position + len(call.produce.batches)
        paired.append((call, LiftedProduce(call.produce, payloads[position:following])))
        position = following
    return paired if position == len(payloads) else None


class _GiveUp(Exception):
    """Left to the generated code."""


class _Walk:
    """One walk over one message."""

    __slots__ = ("_fields_left", "_path", "_view_bytes_min", "payloads")

    def __init__(self, message_bytes: int, path: Path) -> None:
        self.payloads: list[Chunk] = []
        self._path = path
        self._fields_left = FIELDS_MAX
        self._view_bytes_min = message_bytes // VIEW_SHARE

    def message(self, view: memoryview, depth: int) -> list[Chunk]:
        """The message at that depth of the path in pieces, without the payloads in it."""
        is_batch = depth == len(self._path.batches)
        wanted = self._path.payload if is_batch else self._path.batches[depth]
        payload: memoryview | None = None
        kept: list[Chunk] = []
        position = kept_to = 0
        while position < len(view):
            start = position
            tag, position = _varint(view, position)
            body_at, position = self._skip(view, tag & 7, position)
            if tag >> 3 != wanted or tag & 7 != 2:
                continue
            kept.append(view[kept_to:start])
            kept_to = position
            body = view[body_at:position]
            if is_batch:
                payload = body
                continue
            inner = self.message(body, depth + 1)
            kept += (varint(tag), varint(sum(map(len, inner))), *inner)
        kept.append(view[kept_to:])
        if is_batch:
            self._take(payload)
        return kept

    def _skip(self, view: memoryview, wire_type: int, position: int) -> tuple[int, int]:
        """Where the body of a field begins and ends."""
        self._fields_left -= 1
        if self._fields_left < 0:
            raise _GiveUp
        if wire_type == 0:
            return position, _varint(view, position)[1]
        length = {1: 8, 5: 4}.get(wire_type, -1)
        if wire_type == 2:
            length, position = _varint(view, position)
        if length < 0 or position + length > len(view):
            raise _GiveUp
        return position, position + length

    def _take(self, payload: memoryview | None) -> None:
        if payload is None:
            self.payloads.append(b"")
        elif len(payload) >= self._view_bytes_min:
            self.payloads.append(payload)
        else:
            self.payloads.append(bytes(payload))


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    if byte < 0x80:
        return byte, position + 1
    value = shift = 0
    while shift < _VARINT_BITS_MAX:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _GiveUp
