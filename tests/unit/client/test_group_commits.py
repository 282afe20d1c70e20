"""Waiting until a group has committed a transaction: never told too early, and told clearly where
it will never be. In virtual time, against a coordinator and an offset manager that say what a test
wants them to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.admin import Admin
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, types_pb2
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, protocol_over

TX, LATER, EARLIER = (3 << 48) + 50, (3 << 48) + 70, (3 << 48) + 20
PRODUCER = (3 << 48) + 7
# Of `__consumer_offsets`: where the group stands, and another one.
HERE = types_pb2.Partition(topic_id=b"o" * 16, number=4)
ELSEWHERE = types_pb2.Partition(topic_id=b"o" * 16, number=5)
OUTPUT = types_pb2.Partition(topic_id=b"t" * 16, number=0)
ONGOING = types_pb2.TRANSACTION_STATE_ONGOING
COMMITTED = types_pb2.TRANSACTION_STATE_COMMITTED


class World:
    """What a coordinator and an offset manager know of TX."""

    def __init__(self) -> None:
        self.state: types_pb2.TransactionState.ValueType = ONGOING
        self.waits_for: list[types_pb2.Partition] = []
        self.last_commits: dict[int, int] = {}
        self.unknown = False
        transport = ScriptedTransport(5)
        transport.handlers["cluster.get_metadata"] = self._metadata
        transport.handlers["coordinator.get_transaction"] = self._describe
        transport.handlers["offset_manager.fetch_offsets"] = self._fetch
        self.transport = transport

    def committed(self, *waits_for: types_pb2.Partition) -> None:
        self.state, self.waits_for = COMMITTED, list(waits_for)

    def marked(self) -> None:
        """Its marker has come to where the group stands."""
        self.waits_for = [place for place in self.waits_for if place != HERE]
        self.last_commits = {PRODUCER: TX}

    def _metadata(self, to: Endpoint, request: Any) -> Any:
        reply = self.transport.metadata(to, request)
        for route in reply.consumer_groups:
            route.partition.CopyFrom(HERE)
        return reply

    def _describe(self, to: Endpoint, request: Any) -> Any:
        if self.unknown:
            raise errors.UnknownTransaction("there never was one")
        assert request.tx_id == TX
        told = coordinator_pb2.TransactionDescription(
            tx_id=TX, state=self.state, unacknowledged=self.waits_for
        )
        if self.state != types_pb2.TRANSACTION_STATE_EXPIRED:
            told.producer.producer_id = PRODUCER
        return coordinator_pb2.GetTransactionReply(transaction=told)

    def _fetch(self, to: Endpoint, request: Any) -> Any:
        assert request.with_last_commits
        reply = offset_manager_pb2.FetchOffsetsReply()
        for producer_id, tx_id in self.last_commits.items():
            reply.last_commits.add(producer_id=producer_id, tx_id=tx_id)
        return reply


def waiting(world: World, *later: tuple[float, Callable[[], None]], timeout_s: float = 30) -> float:
    """Seconds until it returned. `later`: what happens so long after the start."""

    async def work() -> float:
        loop = asyncio.get_running_loop()
        for seconds, change in later:
            loop.call_later(seconds, change)
        protocol, began = protocol_over(world.transport), loop.time()
        try:
            await Admin(protocol).wait_for_commit("g", TX, timeout_s=timeout_s)
            return loop.time() - began
        finally:
            await protocol.close()

    return on_virtual_time(work)[0]


def test_i22_a_commit_is_not_told_before_its_marker_is_where_the_group_stands() -> None:
    world = World()
    seconds = waiting(
        world, (2, lambda: world.committed(HERE, OUTPUT)), (6, world.marked), timeout_s=30
    )
    assert 6 <= seconds < 7


def test_a_process_that_is_silent_is_not_the_only_one_that_is_asked() -> None:
    world = World()
    world.committed()
    world.last_commits = {PRODUCER: TX}
    metadata, silent = world.transport.handlers["cluster.get_metadata"], True

    def asked(to: Endpoint, request: Any) -> Any:
        nonlocal silent
        if request.consumer_groups and silent:
            silent = False
            return asyncio.sleep(3_600)
        return metadata(to, request)

    world.transport.handlers["cluster.get_metadata"] = asked
    assert waiting(world) < 2


def test_patience_may_be_without_end() -> None:
    world = World()
    steps = (40, lambda: world.committed(HERE)), (60, world.marked)
    assert 60 <= waiting(world, *steps, timeout_s=math.inf) < 62


def test_other_participants_are_not_waited_for() -> None:
    world = World()
    world.committed(ELSEWHERE, OUTPUT)
    world.last_commits = {PRODUCER: TX}
    assert waiting(world) < 1


def test_a_group_that_has_gone_further_has_committed_what_came_before() -> None:
    """One of the same producer: the two were committed in this order."""
    world = World()
    world.committed()
    world.last_commits = {PRODUCER: LATER}
    assert waiting(world) < 1


@pytest.mark.parametrize("last", [{}, {PRODUCER: EARLIER}, {PRODUCER + 1: LATER}])
def test_a_transaction_without_offsets_of_the_group_is_none_that_it_commits(
    last: dict[int, int],
) -> None:
    world = World()
    world.committed()
    world.last_commits = last
    with pytest.raises(errors.NotFound, match="no offsets of group 'g'"):
        waiting(world)


def test_an_aborted_one_is_told_and_not_waited_for() -> None:
    world = World()

    def aborted() -> None:
        world.state = types_pb2.TRANSACTION_STATE_ABORTED

    with pytest.raises(errors.TransactionEnded, match="aborted"):
        waiting(world, (1, aborted))


def test_an_unknown_one_is_told() -> None:
    world = World()
    world.unknown = True
    with pytest.raises(errors.UnknownTransaction):
        waiting(world)


def test_what_is_forgotten_is_known_only_where_the_group_names_it() -> None:
    world = World()
    world.state, world.last_commits = types_pb2.TRANSACTION_STATE_EXPIRED, {PRODUCER: LATER}
    with pytest.raises(errors.UnknownTransaction, match="nobody knows"):
        waiting(world)
    world.last_commits = {PRODUCER: TX}
    assert waiting(world) < 1


@pytest.mark.parametrize(("is_committed", "why"), [(False, "open"), (True, "marker")])
def test_i31_the_end_of_patience_is_told_with_what_is_missing(is_committed: bool, why: str) -> None:
    world = World()
    if is_committed:
        world.committed(HERE)
    with pytest.raises(errors.PendingTransaction, match=why) as told:
        waiting(world, timeout_s=3)
    assert told.value.metadata["group"] == "g"
