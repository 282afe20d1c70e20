"""Who gives up just before its answer is no event: nothing failed, and nobody is left to tell."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

import grpc.aio
import pytest

from oncelogpb.errors import Throttled
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.rpc.harness import Recorder, run, serving

ROUNDS, AT_ONCE = 20, 50
TIMEOUT_S = 0.05


def at_the_deadline(chance: random.Random, call: Any) -> float:
    """Seconds until a few milliseconds around the moment at which the caller gives up."""
    return max(0.0, float(call.timeout_ms) / 1000 + chance.uniform(-0.004, 0.004))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but for what grpc says of the loops of earlier tests: one poller serves all
    loops of a process, and what it still has for one that was closed is an error of the loop that
    it finds running."""
    return [
        record.getMessage()
        for record in caplog.records
        if not (record.exc_info and str(record.exc_info[1]) == "Event loop is closed")
    ]


@pytest.mark.parametrize("answers", ["with an error", "with a reply"])
def test_a_caller_that_gives_up_before_its_answer_leaves_no_error_in_the_log(
    answers: str, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(1)

    async def fetch(request: Any, call: Any) -> Any:
        await asyncio.sleep(at_the_deadline(chance, call))
        if answers == "with an error":
            raise Throttled("no room", limit="one")
        return pb.FetchReply()

    async def story() -> None:
        reporter = Recorder()
        async with serving("PartitionLeader", reporter=reporter, fetch=fetch) as (_, channel):
            method = channel.unary_unary("/oncelogpb.v1.PartitionLeader/Fetch")
            codes: set[Any] = set()

            async def ask() -> None:
                try:
                    await method(b"", timeout=TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())

            for _ in range(ROUNDS):
                await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            assert grpc.StatusCode.DEADLINE_EXCEEDED in codes, "nobody gave up"
        assert [name for name, _ in reporter.events] == []

    with caplog.at_level(logging.WARNING):
        run(story())
    assert told(caplog) == []


def test_a_subscriber_that_goes_while_it_is_written_to_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def subscribe(request: Any, call: Any) -> Any:
        while True:
            yield pb.FetchReply(partitions=[pb.FetchedPartition(end_offset=1)])

    async def story() -> None:
        reporter = Recorder()
        async with serving("PartitionLeader", reporter=reporter, subscribe=subscribe) as (
            server,
            channel,
        ):
            method = channel.unary_stream("/oncelogpb.v1.PartitionLeader/Subscribe")

            async def listen() -> None:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in method(b"", timeout=TIMEOUT_S):
                        await asyncio.sleep(0)

            for _ in range(5):
                await asyncio.gather(*(listen() for _ in range(10)))
            while server.held()["streams"]:
                await asyncio.sleep(0.01)
        assert reporter.events == []

    with caplog.at_level(logging.WARNING):
        run(story())
    assert told(caplog) == []
