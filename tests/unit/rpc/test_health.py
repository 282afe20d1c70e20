"""What health checks are told, at the port of the services and at the one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from oncelog_server.runtime.rpc.certificates import read
from oncelog_server.runtime.rpc.health import NOT_SERVING, SERVING, Health, HealthServer
from oncelog_server.runtime.rpc.tls import Asked, client_credentials, server_credentials
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import outcome_of, run, serving

COORDINATOR = "oncelogpb.v1.Coordinator"


async def status(channel: Any, service: str) -> Any:
    """The status, or the gRPC code of the refusal."""
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await outcome_of(
        stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
    )
    return answer.code() if isinstance(answer, grpc.aio.AioRpcError) else answer.status


@asynccontextmanager
async def plain_port(health: Health) -> AsyncIterator[tuple[HealthServer, Any]]:
    server = HealthServer(health, "127.0.0.1:0")
    channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}")
    try:
        yield server, channel
    finally:
        await channel.close()
        await server.stop()


def test_a_process_lives_before_it_is_ready() -> None:
    async def story() -> None:
        health = Health()
        async with plain_port(health) as (_, probe):
            assert await status(probe, "") == SERVING
            assert await status(probe, COORDINATOR) is grpc.StatusCode.NOT_FOUND
            async with serving("Coordinator", health=health) as (_, channel):
                for asked in (probe, channel):
                    assert await status(asked, "") == SERVING
                    assert await status(asked, COORDINATOR) == NOT_SERVING
                await health.ready()
                for asked in (probe, channel):
                    assert await status(asked, COORDINATOR) == SERVING

    run(story())


def test_a_service_that_is_announced_late_is_ready_with_the_others() -> None:
    async def story() -> None:
        health = Health()
        await health.ready()
        await health.announce(["a"])
        async with plain_port(health) as (_, probe):
            assert await status(probe, "a") == SERVING

    run(story())


def test_a_server_without_an_owner_of_its_health_is_ready_at_once() -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            assert await status(channel, "") == SERVING
            assert await status(channel, COORDINATOR) == SERVING

    run(story())


def test_who_drains_says_so_on_every_port_and_takes_nothing_back() -> None:
    async def story() -> None:
        health = Health()
        async with (
            plain_port(health) as (_, probe),
            serving("Coordinator", health=health) as (_, channel),
        ):
            await health.ready()
            await health.drain()
            assert await status(channel, COORDINATOR) == NOT_SERVING
            await health.ready()
            assert await status(probe, COORDINATOR) == NOT_SERVING
            assert await status(probe, "") == NOT_SERVING

    run(story())


def test_with_tls_only_the_port_of_its_own_answers_without_a_certificate(tmp_path: Any) -> None:
    async def story() -> None:
        health = Health()
        tls = Authority(tmp_path / "ours").issue("server")
        async with (
            plain_port(health) as (_, probe),
            serving("Coordinator", health=health, tls=tls) as (_, stranger),
        ):
            await health.ready()
            assert await status(probe, COORDINATOR) == SERVING
            assert await status(stranger, COORDINATOR) is grpc.StatusCode.UNAVAILABLE

    run(story())


@pytest.mark.parametrize("asked", Asked)
def test_the_port_of_its_own_may_be_behind_tls_too(tmp_path: Any, asked: Asked) -> None:
    async def story() -> None:
        authority = Authority(tmp_path / "ours")
        credentials = server_credentials(read(authority.issue("server")), asked)
        server = HealthServer(Health(), "127.0.0.1:0", credentials)
        port = await server.start()
        alice = read(authority.issue("alice"))
        shown: dict[str, Any] = {
            "plain": grpc.aio.insecure_channel(f"127.0.0.1:{port}"),
            "none": grpc.aio.secure_channel(
                f"127.0.0.1:{port}", grpc.ssl_channel_credentials(alice.ca)
            ),
            "alice": grpc.aio.secure_channel(f"127.0.0.1:{port}", client_credentials(alice)),
        }
        answers = {name: await status(channel, "") for name, channel in shown.items()}
        unavailable = grpc.StatusCode.UNAVAILABLE
        assert answers == {
            "plain": unavailable,
            "none": SERVING if asked is Asked.NOTHING else unavailable,
            "alice": SERVING,
        }
        for channel in shown.values():
            await channel.close()
        await server.stop()

    run(story())


def test_a_port_that_is_taken_is_named() -> None:
    async def story() -> None:
        async with plain_port(Health()) as (taken, _):
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken.port}"):
                await HealthServer(Health(), f"127.0.0.1:{taken.port}").start()

    run(story())


def test_a_listener_that_ends_says_nothing_about_a_process_that_tries_again() -> None:
    async def story() -> None:
        health = Health()
        async with plain_port(health) as (_, probe):
            async with serving("Coordinator", health=health):
                pass
            assert await status(probe, "") == SERVING
            async with serving("Coordinator", health=health):
                await health.ready()
                assert await status(probe, COORDINATOR) == SERVING

    run(story())
