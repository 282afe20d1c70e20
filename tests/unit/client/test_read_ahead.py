"""A partition's log, read ahead of one task of a connector: in order, bounded, and over for
whatever reason without a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncelog import read_ahead
from oncelog._core.routing import PartitionKey
from oncelog.protocol import AsyncProtocol, Protocol
from oncelog.read_ahead import ReadAhead
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import TOPIC_ID, Counted, ScriptedTransport, blocking_over

KEY = PartitionKey(TOPIC_ID, 0)
# Seconds: only ends a test that would hang.
PATIENCE_S = 30


def reply(end_offset: int) -> leader.FetchReply:
    return leader.FetchReply(partitions=[leader.FetchedPartition(end_offset=end_offset)])


def failed(error: errors.OncelogError) -> leader.FetchReply:
    return leader.FetchReply(partitions=[leader.FetchedPartition(error=errors.to_status(error))])


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport(7)


@pytest.fixture
def protocol(transport: ScriptedTransport) -> Iterator[Protocol]:
    with blocking_over(transport) as opened:
        yield opened


def taken(ahead: ReadAhead) -> list[int]:
    found: list[int] = []
    while (one := ahead.take(PATIENCE_S)) is not None:
        assert isinstance(one, leader.FetchReply)
        found.append(one.partitions[0].end_offset)
    return found


@pytest.mark.parametrize(
    "end", [None, errors.Unavailable("it stops"), failed(errors.NotLeader("another"))], ids=str
)
def test_replies_come_in_order_until_the_stream_ends(
    transport: ScriptedTransport, protocol: Protocol, end: Any
) -> None:
    transport.streams.append([*(reply(number) for number in range(10)), end])
    with ReadAhead(protocol, KEY, 42) as ahead:
        assert taken(ahead) == list(range(10))
        assert ahead.take(PATIENCE_S) is None
    [request] = transport.requests
    assert request.isolation == leader.ISOLATION_COMMITTED
    assert request.with_offsets
    assert [(part.partition, part.offset) for part in request.partitions] == [(KEY.wire(), 42)]


def test_where_nobody_leads_it_is_over_at_once(
    transport: ScriptedTransport, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "LOCATE_MS", 50)
    transport.partitions = [0]
    with ReadAhead(protocol, KEY, 0) as ahead:
        assert ahead.take(PATIENCE_S) is None


def test_a_silent_stream_is_waited_for_no_longer_than_is_said(
    transport: ScriptedTransport, protocol: Protocol
) -> None:
    transport.streams.append([3_600.0])
    with ReadAhead(protocol, KEY, 0) as ahead:
        assert ahead.take(0.01) is None


def test_what_nobody_takes_is_bounded(transport: ScriptedTransport, protocol: Protocol) -> None:
    replies = Counted(reply(number) for number in range(100))
    transport.streams.append(replies)
    with ReadAhead(protocol, KEY, 0) as ahead:
        assert ahead.take(PATIENCE_S) is not None
        # One that waits for room, those that lie ready, and the one that was taken.
        most = read_ahead.REPLIES_MAX + 2
        _until(lambda: replies.asked >= most)
        time.sleep(0.05)
        assert replies.asked == most
        assert ahead.take(PATIENCE_S) is not None
        _until(lambda: replies.asked == most + 1)


def test_closed_early_it_leaves_nothing_behind(
    transport: ScriptedTransport, protocol: Protocol
) -> None:
    transport.streams.append(reply(number) for number in range(100))
    before = protocol.run(_tasks)
    with ReadAhead(protocol, KEY, 0) as ahead:
        assert ahead.take(PATIENCE_S) is not None
        assert protocol.run(_tasks) == before + 1
    assert protocol.run(_tasks) == before
    ahead.close()


def test_after_the_connection_it_can_still_be_closed(
    transport: ScriptedTransport, protocol: Protocol
) -> None:
    transport.streams.append([reply(0), 3_600.0])
    ahead = ReadAhead(protocol, KEY, 0)
    assert ahead.take(PATIENCE_S) is not None
    protocol.close()
    ahead.close()
    assert ahead.take(0.01) is None


async def _tasks(_protocol: AsyncProtocol) -> int:
    """On the loop, with this one, once those that end have."""
    for _ in range(20):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks())


def _until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.001)
