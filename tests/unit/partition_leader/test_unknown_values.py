"""Values of enums that came with a later version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import FIRST, FakeCall, World
from tests.unit.partition_leader.messages import partition_of


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("fetch", "isolation"),
        ("fetch", "format"),
        ("subscribe", "isolation"),
        ("subscribe", "format"),
        ("list_offsets", "isolation"),
    ],
)
def test_a_way_to_read_that_is_not_known_here_is_refused(method: str, field: str) -> None:
    """It was read as COMMITTED, or as stored: not what its caller had asked for."""
    wanted = [pb.FetchPartition(partition=partition_of(FIRST))]
    requests: dict[str, Any] = {
        "fetch": pb.FetchRequest(partitions=wanted),
        "subscribe": pb.SubscribeRequest(partitions=wanted),
        "list_offsets": pb.ListOffsetsRequest(
            queries=[pb.OffsetQuery(partition=partition_of(FIRST), latest=True)]
        ),
    }
    request = requests[method]
    setattr(request, field, 9)

    async def story() -> None:
        world = World()
        answer = getattr(PartitionLeaderService(world.env, world.config), method)(
            request, FakeCall()
        )
        with pytest.raises(InvalidArgument) as refusal:
            await (anext(answer) if method == "subscribe" else answer)
        assert refusal.value.metadata["field"] == field

    asyncio.run(story())
