"""A process did not answer: what else it leads is asked for anew, and what waits for it ends when
the cluster says that it is gone."""

from __future__ import annotations

import asyncio
from typing import Any

from oncelog._core.routing import PartitionKey
from oncelog._metadata import SUSPECT_LOOK_MS, SUSPECT_MS
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.client.scripted import (
    TOPIC_ID,
    ScriptedTransport,
    on_virtual_time,
    place,
    protocol_over,
)

GONE, SUCCESSOR = 5, 6
# When its successor leads, seconds; a call that nobody ends lasts far longer.
ELECTED_S, DEADLINE_MS = 7.0, 60_000


def produce(protocol: AsyncProtocol, number: int) -> Any:
    request = pb.ProduceRequest(batches=[types_pb2.Batch(partition=place(number))])
    return protocol.call("partition_leader.produce", request, timeout_ms=DEADLINE_MS)


def answered(to: Any, request: Any) -> pb.ProduceReply:
    return pb.ProduceReply(results=[pb.BatchResult(offset=1)])


def test_i29_what_waits_for_a_process_ends_when_the_cluster_says_that_it_is_gone() -> None:
    """Its machine is cut off: one call ends by itself, the next would wait for long."""
    transport = ScriptedTransport(GONE, GONE)
    calls = 0

    async def silent(to: Any, request: Any) -> Any:
        nonlocal calls
        if to.port == SUCCESSOR:
            return answered(to, request)
        calls += 1
        if calls == 1:
            return answered(to, request)
        if calls == 2:
            raise errors.UnknownOutcome("pings found nobody")
        return await asyncio.Event().wait()

    async def story() -> None:
        transport.handlers["partition_leader.produce"] = silent
        protocol = protocol_over(transport)
        await produce(protocol, 0)
        waiting = asyncio.create_task(produce(protocol, 0))
        await asyncio.sleep(ELECTED_S)
        assert calls == 3
        transport.partitions[:] = [SUCCESSOR, SUCCESSOR]
        reply = await waiting
        assert [result.offset for result in reply.results] == [1]
        await protocol.close()

    _, took_s = on_virtual_time(story)
    assert took_s < ELECTED_S + 2 * SUSPECT_LOOK_MS / 1000


def test_i29_who_uses_something_else_of_a_silent_process_asks_first_who_leads_it() -> None:
    """Also while nobody has said yet who leads anything now."""
    transport = ScriptedTransport(GONE, GONE)
    told = asyncio.Event()

    def refuses(to: Any, request: Any) -> Any:
        if to.port == GONE:
            raise errors.Unavailable("failed to connect")
        return answered(to, request)

    async def metadata(to: Any, request: Any) -> Any:
        await told.wait()
        return transport.metadata(to, request)

    async def story() -> None:
        transport.handlers["partition_leader.produce"] = answered
        protocol = protocol_over(transport)
        await produce(protocol, 0)
        await produce(protocol, 1)
        transport.handlers |= {
            "partition_leader.produce": refuses,
            "cluster.get_metadata": metadata,
        }
        transport.partitions[:] = [SUCCESSOR, SUCCESSOR]
        refused = asyncio.create_task(produce(protocol, 0))
        await asyncio.sleep(0.1)
        asked_before = len(transport.asked)
        used = asyncio.create_task(produce(protocol, 1))
        await asyncio.sleep(0.1)
        told.set()
        await asyncio.gather(refused, used)
        assert ("partition_leader.produce", GONE) not in transport.asked[asked_before:]
        await protocol.close()

    on_virtual_time(story)


def test_i29_nothing_goes_to_who_is_no_member_any_more() -> None:
    """It was not even noticed that it left: nobody called it meanwhile."""
    transport = ScriptedTransport(GONE, GONE)

    async def story() -> None:
        transport.handlers["partition_leader.produce"] = answered
        protocol = protocol_over(transport)
        await produce(protocol, 0)
        transport.partitions[:] = [SUCCESSOR, SUCCESSOR]
        await protocol.refresh()
        asked_before = len(transport.asked)
        await produce(protocol, 1)
        assert ("partition_leader.produce", GONE) not in transport.asked[asked_before:]
        await protocol.close()

    on_virtual_time(story)


def test_i29_a_late_failure_says_nothing_of_who_leads_by_then() -> None:
    """It comes long after others have found the successor; nor does an item that failed."""
    transport = ScriptedTransport(GONE, GONE)

    async def late(to: Any, request: Any) -> Any:
        if to.port == SUCCESSOR:
            return answered(to, request)
        await asyncio.sleep(1)
        raise errors.UnknownOutcome("pings found nobody")

    def refuses_an_item(to: Any, request: Any) -> Any:
        transport.handlers["partition_leader.produce"] = answered
        error = errors.to_status(errors.Unavailable("it waits for its followers"))
        return pb.ProduceReply(results=[pb.BatchResult(error=error)])

    async def story() -> None:
        transport.handlers["partition_leader.produce"] = answered
        protocol = protocol_over(transport)
        await produce(protocol, 0)
        transport.handlers["partition_leader.produce"] = late
        waiting = asyncio.create_task(produce(protocol, 0))
        await asyncio.sleep(0.1)
        transport.partitions[:] = [SUCCESSOR, SUCCESSOR]
        await protocol.refresh(topics=["a"])
        kept = PartitionKey(TOPIC_ID, 1)
        forgotten = []
        while not waiting.done():
            await asyncio.sleep(0.001)
            forgotten.append(protocol.directory.leader(kept) is None)
        transport.handlers["partition_leader.produce"] = refuses_an_item
        assert not any(forgotten), "its successor is well"
        await produce(protocol, 0)
        assert protocol.directory.leader(kept) is not None, "one partition has trouble"
        await protocol.close()

    on_virtual_time(story)


def test_a_member_that_is_silent_is_looked_after_for_a_while_only() -> None:
    """It may be unreachable for us alone, for days."""
    transport = ScriptedTransport(GONE)

    def once(to: Any, request: Any) -> Any:
        transport.handlers["partition_leader.produce"] = answered
        raise errors.Unavailable("failed to connect")

    async def story() -> None:
        transport.handlers["partition_leader.produce"] = once
        protocol = protocol_over(transport)
        await produce(protocol, 0)
        assert protocol.directory.leader(PartitionKey(TOPIC_ID, 0)) is not None
        await asyncio.sleep(2 * SUSPECT_MS / 1000)
        looked = transport.count("cluster.get_metadata")
        await asyncio.sleep(2 * SUSPECT_MS / 1000)
        assert transport.count("cluster.get_metadata") == looked > 2
        await protocol.close()

    on_virtual_time(story)
