"""What somebody with a valid certificate, and nothing else, tries. Each attack is told as it would
go, and must leave its victim untouched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oncelog_server.core.ids import journal_partition_of
from oncelogpb import errors
from oncelogpb.v1 import participant_pb2
from tests.access.world import World, refusal_of, running

RECORDS = 100


def test_i1_a_forged_abort_marker_does_not_touch_a_transaction(tmp_path: Path) -> None:
    """An ABORTED marker obeys no order, so one with any prepare_offset would end the victim's
    transaction at that partition: its commit would be told visible, and nothing could be read."""

    async def story() -> None:
        async with running(tmp_path) as world:
            await world.allow(
                "victim create,write,read topic:payments", "victim write producer:enricher"
            )
            log = world.caller("victim").log()
            topic = await log.admin.create_topic("payments", partitions=1)
            producer = await log.transactional_producer("enricher")
            async with producer.transaction(wait="visible") as tx:
                for number in range(RECORDS):
                    await tx.send("payments", b"%d" % number)
                await tx.flush()
                for identity in ("mallory", "victim"):
                    forged = forged_marker(bytes.fromhex(topic.topic_id), tx)
                    for call in ways(world, identity, "Participant", "write_markers", forged):
                        refused = await refusal_of(call)
                        assert isinstance(refused, errors.PermissionDenied)
                        assert refused.metadata["identity"] == identity
            assert await readable(log, "payments") == RECORDS
            await log.close()

    asyncio.run(story())


def forged_marker(topic_id: bytes, tx: Any) -> participant_pb2.WriteMarkersRequest:
    """As a coordinator would send it, from the far future."""
    request = participant_pb2.WriteMarkersRequest()
    group = request.groups.add(journal_partition=journal_partition_of(tx.tx_id))
    group.coordinator_epoch = 1
    group.partition.topic_id = topic_id
    group.markers.add(
        tx_id=tx.tx_id, prepare_offset=1 << 40, kind=participant_pb2.MARKER_KIND_ABORTED
    )
    return request


def ways(world: World, identity: str, service: str, method: str, request: Any) -> list[Any]:
    """The unary call, and the same over a stream."""
    caller = world.caller(identity)
    return [
        caller.call(service, method, request),
        caller.call_on_stream(service, method, request),
    ]


async def readable(log: Any, topic: str) -> int:
    """How many records a committed reader is given."""
    consumer = await log.consumer([topic], start="earliest")
    found = 0
    while found < RECORDS and (batch := await consumer.poll(5.0)) is not None:
        found += len(batch)
    return found


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
