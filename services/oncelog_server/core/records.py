"""What a machine remembers, as RECORD frames of tagged msgpack: one codec for every role. PURE.

A role's records are frozen, array-like, tagged structs; their union is what its journal holds
(docs/log_format.md). A field is only ever added at the end, with a default; a change of what
`apply` makes of a record is a new record (docs/adr/0001).
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from oncelog_server.core.frame import Frame, FrameKind

R = TypeVar("R")

_ENCODER: Final = msgspec.msgpack.Encoder()


class RecordCodec(Generic[R]):
    """`decode(encode(record)) == record`."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[R], *, whose: str) -> None:
        self._decoder = decoder
        self._whose = whose

    def encode(self, record: R) -> Frame:
        return Frame(FrameKind.RECORD, _ENCODER.encode(record))

    def decode(self, frame: Frame) -> R:
        """Raises ValueError for a frame of another kind or a payload of another format."""
        if frame.kind is not FrameKind.RECORD:
            raise ValueError(f"a journal of {frame.kind.name} frames is not {self._whose}")
        return self._decoder.decode(frame.payload)
