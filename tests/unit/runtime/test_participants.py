"""Participant calls for a process with several roles."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from oncelog_server.core.ids import CONSUMER_OFFSETS_ID
from oncelog_server.core.ports import Call
from oncelog_server.runtime.participants import ParticipantSwitch
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import participant_pb2 as pb
from oncelogpb.v1 import types_pb2


@dataclass
class _Handler:
    status: pb.MarkerResult.Status.ValueType
    calls: list[list[int]] = field(default_factory=list)

    async def write_markers(
        self, request: pb.WriteMarkersRequest, call: Call
    ) -> pb.WriteMarkersReply:
        self.calls.append([group.partition.number for group in request.groups])
        result = pb.MarkerResult(status=self.status)
        return pb.WriteMarkersReply(
            groups=[pb.MarkerGroupResult(results=[result]) for _ in request.groups]
        )


def _group(topic_id: bytes, number: int) -> pb.MarkerGroup:
    return pb.MarkerGroup(partition=types_pb2.Partition(topic_id=topic_id, number=number))


def test_groups_go_to_their_role_and_answers_come_back_in_order() -> None:
    offsets = _Handler(pb.MarkerResult.STATUS_APPLIED)
    data = _Handler(pb.MarkerResult.STATUS_GONE)
    switch = ParticipantSwitch({CONSUMER_OFFSETS_ID: offsets}, otherwise=data)
    topics = [b"t" * 16, CONSUMER_OFFSETS_ID, b"t" * 16, CONSUMER_OFFSETS_ID]
    request = pb.WriteMarkersRequest(groups=[_group(t, i) for i, t in enumerate(topics)])

    reply = asyncio.run(switch.write_markers(request, _NO_CALL))

    assert offsets.calls == [[1, 3]]
    assert data.calls == [[0, 2]]
    assert [group.results[0].status for group in reply.groups] == [
        pb.MarkerResult.STATUS_GONE,
        pb.MarkerResult.STATUS_APPLIED,
        pb.MarkerResult.STATUS_GONE,
        pb.MarkerResult.STATUS_APPLIED,
    ]


class _Call:
    timeout_ms = 1_000
    identity = ""
    peer = ""
    stream_id = 0
    refused: Mapping[int, OncelogError] = {}

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        return None

    def sees(self, need: object) -> bool:
        return True

    def on_stream_end(self, callback: object) -> None:
        raise AssertionError("a unary call has no stream")

    async def room(self, size: int) -> None:
        raise AssertionError("a reply to markers is small")

    def has_room(self, size: int) -> bool:
        return True

    def room_left(self) -> int:
        return 1 << 30

    def holds(self, size: int) -> None: ...


_NO_CALL: Call = _Call()
