"""How a client finds who leads what: after silence it asks again, and no question is lost among
others (I29, I31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog._metadata import METADATA_ATTEMPT_MS
from oncelog.errors import CannotConnect
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, on_virtual_time, protocol_over

FETCH = offsets.FetchOffsetsRequest(group="g")
METHOD = "offset_manager.fetch_offsets"


@pytest.mark.parametrize(
    "silence",
    [errors.UnknownOutcome("x"), errors.Unavailable("x")],
    ids=lambda error: error.reason,
)
def test_i29_a_leader_that_is_silent_is_looked_for_elsewhere(silence: errors.OncelogError) -> None:
    async def work() -> list[int]:
        transport = ScriptedTransport(5)

        def dead(to: Endpoint, request: Any) -> Any:
            transport.partitions = [6]
            if to.port == 5:
                raise silence
            return offsets.FetchOffsetsReply()

        transport.handlers[METHOD] = dead
        await protocol_over(transport).call(METHOD, FETCH)
        return [port for method, port in transport.asked if method == METHOD]

    assert on_virtual_time(work)[0] == [5, 6]


def test_i31_one_sending_is_not_waited_for_beyond_the_calls_deadline() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)

        def never(to: Endpoint, request: Any) -> Any:
            return asyncio.sleep(1_000)

        transport.handlers[METHOD] = never
        with pytest.raises(CannotConnect, match="no answer in time"):
            await protocol_over(transport).call(METHOD, FETCH, 3_000)

    assert on_virtual_time(work)[1] <= 3.1


def test_i29_a_machine_that_is_gone_is_not_waited_for_process_by_process() -> None:
    """It refuses nothing, and its processes stand first in the list."""

    async def work() -> set[int]:
        transport = ScriptedTransport(2, 3, 4, 5)
        protocol = protocol_over(transport)
        await protocol.topic("a")

        def metadata(to: Endpoint, request: Any) -> Any:
            if to.port < 5:
                return asyncio.sleep(1_000)
            return transport.metadata(to, request)

        transport.handlers["cluster.get_metadata"] = metadata
        transport.asked.clear()
        await protocol.refresh(topics=["a"])
        return {port for _, port in transport.asked}

    asked, seconds = on_virtual_time(work)
    assert asked == {2, 3, 4, 5}
    assert seconds < METADATA_ATTEMPT_MS / 1000, "each was waited for"


def test_who_asks_while_a_question_is_on_its_way_is_answered_too() -> None:
    async def work() -> bytes:
        transport = ScriptedTransport(5)
        protocol = protocol_over(transport)
        first = asyncio.create_task(protocol.refresh())
        await asyncio.sleep(transport.delay_s / 2)
        topic = await protocol.topic("a")
        await first
        assert transport.count("cluster.get_metadata") == 2
        return topic.topic_id

    assert on_virtual_time(work)[0] == TOPIC_ID


def test_a_topic_that_was_just_made_is_waited_for() -> None:
    async def work() -> bytes:
        transport = ScriptedTransport()
        protocol = protocol_over(transport)
        asking = asyncio.create_task(protocol.topic("a"))
        await asyncio.sleep(0.2)
        transport.partitions = [5]
        return (await asking).topic_id

    assert on_virtual_time(work)[0] == TOPIC_ID


def test_calls_for_any_process_go_to_one_after_the_other() -> None:
    async def work() -> set[int]:
        transport = ScriptedTransport(5, 6)
        transport.handlers["partition_leader.list_topics"] = lambda to, request: (
            leader.ListTopicsReply()
        )
        protocol = protocol_over(transport)
        for _ in range(4):
            await protocol.call("partition_leader.list_topics", leader.ListTopicsRequest())
        return {port for method, port in transport.asked if method.endswith("list_topics")}

    assert on_virtual_time(work)[0] == {5, 6}


def test_a_question_that_comes_after_the_asking_is_asked_itself() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)
        protocol = protocol_over(transport)
        first = asyncio.create_task(protocol.refresh())
        await asyncio.sleep(transport.delay_s / 2)
        await protocol.refresh(topics=["a"])
        assert protocol.directory.topic("a") is not None
        await first

    on_virtual_time(work)


def test_who_asks_is_told_that_nobody_answers() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)

        def silent(to: Endpoint, request: Any) -> Any:
            raise errors.Unavailable("x")

        protocol = protocol_over(transport)
        await protocol.refresh()
        transport.handlers["cluster.get_metadata"] = silent
        with pytest.raises(errors.Unavailable, match="no process answers"):
            await protocol.refresh()

    on_virtual_time(work)
