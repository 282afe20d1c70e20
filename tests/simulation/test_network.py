"""The fake network keeps the promises that real connections keep, and breaks those that they do."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.messages import Identity, Produce
from oncelog._core.routing import Endpoint
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, partition_leader_pb2
from tests.simulation.callers import SimTransport
from tests.simulation.fates import Fates
from tests.simulation.marks import Marks
from tests.simulation.network import Network
from tests.simulation.virtual_time import VirtualTimeLoop, run


class Server:
    """Of every service: it writes down what comes."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.delay_s = 0.0

    async def init_producer(self, request: Any, call: Any) -> Any:
        call.on_stream_end(lambda: self.ended.append(request.name))
        return await self._come(request.name, coordinator_pb2.InitProducerReply())

    async def begin_transaction(self, request: Any, call: Any) -> Any:
        reply = coordinator_pb2.BeginTransactionReply()
        return await self._come(str(request.request_id), reply)

    async def produce(self, request: Any, call: Any) -> Any:
        return await self._come("batches", partition_leader_pb2.ProduceReply())

    async def get_metadata(self, request: Any, call: Any) -> Any:
        raise errors.Unavailable("not now")

    async def _come(self, what: str, reply: Any) -> Any:
        self.came.append(what)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
        return reply


Story = Callable[[Network, Server, Endpoint], Awaitable[None]]


def play(story: Story) -> Server:
    async def tell() -> None:
        network = Network(1, lambda line: None, Marks())
        handlers = {"Coordinator": server, "PartitionLeader": server, "Cluster": server}
        port = network.listen("server", handlers, contextvars.copy_context())
        await story(network, server, Endpoint("127.0.0.1", port))

    server = Server()
    run(tell(), VirtualTimeLoop())
    return server


def _begin(number: int) -> Any:
    return coordinator_pb2.BeginTransactionRequest(request_id=number)


def test_calls_of_one_connection_arrive_in_their_order() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network)
        calls = [
            transport.begin(to, "coordinator.begin_transaction", _begin(n), 1_000)
            for n in range(20)
        ]
        await asyncio.gather(*calls)

    assert play(story).came == [str(number) for number in range(20)]


def test_what_hangs_on_a_connection_ends_with_it() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, caller="me")
        heard: list[str] = []
        transport.on_end(to, "coordinator", lambda: heard.append("end"))
        register = coordinator_pb2.InitProducerRequest(name="p")
        await transport.call(to, "coordinator.init_producer", register, 1_000)
        server.delay_s = 5.0
        waiting = transport.begin(to, "coordinator.begin_transaction", _begin(1), 9_000)
        await asyncio.sleep(0.1)
        assert network.reset(caller="me") == 1
        with pytest.raises(errors.UnknownOutcome):
            await waiting
        await asyncio.sleep(0.1)
        assert heard == ["end"]
        assert server.ended == ["p"]
        assert server.cancelled == ["1"]
        # The next call makes another one.
        server.delay_s = 0.0
        await transport.call(to, "coordinator.begin_transaction", _begin(2), 1_000)

    assert play(story).came == ["p", "1", "2"]


def test_an_error_is_told_and_nobody_listens_where_nobody_is() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, caller="me")
        ask = cluster_pb2.GetMetadataRequest()
        with pytest.raises(errors.Unavailable, match="not now"):
            await transport.call(to, "cluster.get_metadata", ask, 1_000)
        network.cut_ways([("me", "server")], noticed_s=0.0)
        with pytest.raises(errors.Unavailable, match="nobody listens"):
            await transport.call(to, "cluster.get_metadata", ask, 1_000)
        network.heal([("me", "server")])
        network.cut(to.port)
        with pytest.raises(errors.Unavailable, match="nobody listens"):
            await transport.call(to, "cluster.get_metadata", ask, 1_000)

    play(story)


def test_a_call_ends_at_its_deadline_and_its_handler_goes_on() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        server.delay_s = 2.0
        with pytest.raises(errors.UnknownOutcome, match="no answer in 500 ms"):
            await SimTransport(network).call(to, "coordinator.begin_transaction", _begin(1), 500)
        await asyncio.sleep(3.0)

    assert play(story).cancelled == []


@pytest.mark.parametrize(
    ("trouble", "came", "told"), [(1.0, 1, 0), (0.0, 1, 1)], ids=["lost", "well"]
)
def test_an_answer_is_lost_with_the_chance_that_is_told(
    trouble: float, came: int, told: int
) -> None:
    answered = 0

    async def story(network: Network, server: Server, to: Endpoint) -> None:
        nonlocal answered
        fates = Fates(random.Random(1), lambda: trouble)
        transport = SimTransport(network, fates=fates)
        try:
            await transport.call(to, "coordinator.begin_transaction", _begin(1), 1_000)
            answered += 1
        except errors.UnknownOutcome:
            await asyncio.sleep(3.0)

    assert len(play(story).came) == came
    assert answered == told


def test_batches_come_late_and_twice_like_everything_else() -> None:
    """They are no protobuf message where the client sends them."""
    produce = Produce(Identity(0, 1, 0), [])

    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, fates=Fates(random.Random(3), lambda: 0.6))
        told = await asyncio.gather(
            *(transport.begin(to, "partition_leader.produce", produce, 1_000) for _ in range(50)),
            return_exceptions=True,
        )
        assert {type(one) for one in told} == {
            errors.UnknownOutcome,
            partition_leader_pb2.ProduceReply,
        }
        await asyncio.sleep(3.0)

    assert len(play(story).came) > 50


def test_the_dead_are_not_heard_and_what_they_sent_may_arrive() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, fates=Fates(random.Random(1), lambda: 0.0))
        server.delay_s = 0.5
        sent = transport.begin(to, "coordinator.begin_transaction", _begin(1), 1_000)
        await asyncio.sleep(0.1)
        transport.die()
        with pytest.raises(errors.UnknownOutcome):
            await sent
        with pytest.raises(asyncio.CancelledError):
            await transport.call(to, "coordinator.begin_transaction", _begin(2), 1_000)

    assert play(story).came == ["1"]


def test_a_request_that_is_held_back_by_a_cut_arrives_when_it_heals() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, caller="me")
        await transport.call(to, "coordinator.begin_transaction", _begin(0), 1_000)
        way = [("me", "server")]
        network.cut_ways(way, noticed_s=60.0)
        sent = [
            transport.begin(to, "coordinator.begin_transaction", _begin(number), 9_000)
            for number in (1, 2)
        ]
        await asyncio.sleep(3)
        assert server.came == ["0"]
        network.heal(way)
        await asyncio.gather(*sent)

    assert play(story).came == ["0", "1", "2"]


def test_a_reply_that_is_held_back_by_a_cut_is_of_a_request_that_was_served() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, caller="me")
        await transport.call(to, "coordinator.begin_transaction", _begin(0), 1_000)
        network.cut_ways([("server", "me")], noticed_s=2.0)
        with pytest.raises(errors.UnknownOutcome, match="the answer was lost"):
            await transport.call(to, "coordinator.begin_transaction", _begin(1), 9_000)
        # Both sides gave the connection up, and a new one needs both ways.
        with pytest.raises(errors.Unavailable):
            await transport.call(to, "coordinator.begin_transaction", _begin(2), 9_000)

    assert play(story).came == ["0", "1"]


def test_a_call_over_a_cut_way_ends_at_its_deadline() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, caller="me")
        await transport.call(to, "coordinator.begin_transaction", _begin(0), 1_000)
        network.cut_ways([("me", "server")], noticed_s=60.0)
        with pytest.raises(errors.UnknownOutcome, match="no answer in 1000 ms"):
            await transport.call(to, "coordinator.begin_transaction", _begin(1), 1_000)

    assert play(story).came == ["0"]


def test_two_cuts_of_one_way_heal_one_by_one() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        transport = SimTransport(network, caller="me")
        way = [("me", "server")]
        for _ in range(2):
            network.cut_ways(way, noticed_s=0.0)
        network.heal(way)
        with pytest.raises(errors.Unavailable):
            await transport.call(to, "coordinator.begin_transaction", _begin(1), 1_000)
        network.heal(way)
        await transport.call(to, "coordinator.begin_transaction", _begin(2), 1_000)
        # Nobody else was concerned.
        other = SimTransport(network, caller="other")
        network.cut_ways(way, noticed_s=0.0)
        await other.call(to, "coordinator.begin_transaction", _begin(3), 1_000)

    assert play(story).came == ["2", "3"]


def test_a_connection_that_breaks_in_a_call_leaves_its_request_served_or_cancelled() -> None:
    async def story(network: Network, server: Server, to: Endpoint) -> None:
        network.breaking = 1.0
        for number in range(30):
            with pytest.raises(errors.UnknownOutcome):
                await SimTransport(network).call(
                    to, "coordinator.begin_transaction", _begin(number), 1_000
                )
        network.breaking = 0.0
        await SimTransport(network).call(to, "coordinator.begin_transaction", _begin(30), 1_000)

    server = play(story)
    assert server.came == [str(number) for number in range(31)]
