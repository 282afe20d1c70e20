"""Calls of a coordinator's service, as its tests make them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelogpb import records
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import participant_pb2 as participant_pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.harness import ORDERS, Coordinator, FakeCall, apply_all

INSTANCE = b"instance-of-p..."


def run(
    story: Callable[[Coordinator], Awaitable[None]], config: CoordinatorConfig | None = None
) -> None:
    async def told() -> None:
        coordinator = Coordinator(config=config)
        await story(coordinator)
        await coordinator.step_down()

    asyncio.run(told())


async def init(
    c: Coordinator, instance_id: bytes = INSTANCE, name: str = "p", **more: Any
) -> types.Producer:
    request = pb.InitProducerRequest(group="g", name=name, instance_id=instance_id, **more)
    reply: pb.InitProducerReply = await c.service.init_producer(request, FakeCall())
    return reply.producer


async def begin(c: Coordinator, who: types.Producer, request_id: int = 1) -> int:
    request = pb.BeginTransactionRequest(producer=who, request_id=request_id)
    reply: pb.BeginTransactionReply = await c.service.begin_transaction(request, FakeCall())
    assert reply.result == pb.BeginTransactionReply.RESULT_OPEN
    return int(reply.tx_id)


def manifest(*numbers: int, topic_id: bytes = ORDERS) -> types.Manifest:
    topic = types.Manifest.Topic(
        topic_id=topic_id,
        partition=numbers,
        writer=[0] * len(numbers),
        record_count=[1] * len(numbers),
    )
    return types.Manifest(topics=[topic])


async def commit(
    c: Coordinator, who: types.Producer, tx_id: int, **more: Any
) -> pb.CommitTransactionReply:
    request = pb.CommitTransactionRequest(
        tx_id=tx_id, producer=who, manifest=manifest(0, 1), **more
    )
    reply: pb.CommitTransactionReply = await c.service.commit_transaction(request, FakeCall())
    return reply


def batch(number: int = 0, **more: Any) -> types.Batch:
    rows = types.Rows(rows=[types.Row(value=b"v", timestamp_us=5)]).SerializeToString()
    fields: dict[str, Any] = {
        "partition": types.Partition(topic_id=ORDERS, number=number),
        "encoding": types.ENCODING_ROWS,
        "record_count": 1,
        "crc32c": records.checksum(rows),
        "max_timestamp_us": 5,
        "payload": rows,
    }
    return types.Batch(**(fields | more))


def exposing(request: participant_pb.WriteMarkersRequest) -> participant_pb.WriteMarkersReply:
    reply = apply_all(request)
    for group, answer in zip(request.groups, reply.groups, strict=True):
        for result in answer.results:
            result.exposed.add(partition=group.partition, first_offset=40, record_count=1)
    return reply


async def refused(call: Awaitable[Any]) -> str:
    with pytest.raises(OncelogError) as told:
        await call
    return told.value.reason
