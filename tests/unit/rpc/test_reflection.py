"""Server reflection, by its name of today and by the one that older tools ask for."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as pb

from tests.unit.rpc.harness import run, serving

V1 = "grpc.reflection.v1.ServerReflection"
V1_ALPHA = "grpc.reflection.v1alpha.ServerReflection"


async def ask(channel: Any, service: str, request: pb.ServerReflectionRequest) -> Any:
    """One question and its answer, as bytes that both versions write alike."""
    call = channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )()
    await call.write(request)
    reply = await call.read()
    call.cancel()
    return reply


@pytest.mark.parametrize("service", [V1, V1_ALPHA])
def test_reflection_lists_the_services(service: str) -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            reply = await ask(channel, service, pb.ServerReflectionRequest(list_services=""))
            names = {listed.name for listed in reply.list_services_response.service}
            assert names == {
                "oncelogpb.v1.Coordinator",
                "grpc.health.v1.Health",
                V1,
                V1_ALPHA,
            }

    run(story())


@pytest.mark.parametrize("service", [V1, V1_ALPHA])
@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("oncelogpb.v1.Coordinator", "oncelogpb/v1/coordinator.proto"),
        # What an error carries: tools show it where they know it.
        ("google.rpc.ErrorInfo", "google/rpc/error_details.proto"),
        # Tools describe whatever is listed, themselves included.
        (V1, "grpc/reflection/v1/reflection.proto"),
        ("grpc.reflection.v1.ServerReflectionRequest", "grpc/reflection/v1/reflection.proto"),
        (V1_ALPHA, "grpc_reflection/v1alpha/reflection.proto"),
        ("grpc.health.v1.Health", "grpc_health/v1/health.proto"),
    ],
)
def test_reflection_shows_the_file_of_a_symbol(service: str, symbol: str, file: str) -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            by_symbol = pb.ServerReflectionRequest(file_containing_symbol=symbol)
            by_name = pb.ServerReflectionRequest(file_by_filename=file)
            for request in (by_symbol, by_name):
                reply = await ask(channel, service, request)
                shown = [
                    FileDescriptorProto.FromString(data)
                    for data in reply.file_descriptor_response.file_descriptor_proto
                ]
                assert file in [one.name for one in shown]
                (found,) = [one for one in shown if one.name == file]
                package = symbol.rpartition(".")[0]
                assert found.package == package

    run(story())


def test_reflection_finds_a_method_by_its_full_name() -> None:
    """For `grpcurl describe oncelogpb.v1.Coordinator.Transact`."""

    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            symbol = "oncelogpb.v1.Coordinator.Transact"
            asked = pb.ServerReflectionRequest(file_containing_symbol=symbol)
            reply = await ask(channel, V1, asked)
            shown = reply.file_descriptor_response.file_descriptor_proto
            names = [FileDescriptorProto.FromString(data).name for data in shown]
            assert "oncelogpb/v1/coordinator.proto" in names

            asked = pb.ServerReflectionRequest(file_containing_symbol=f"{symbol}s")
            assert (await ask(channel, V1, asked)).HasField("error_response")

    run(story())


def test_a_symbol_that_nobody_has_is_not_found() -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            for request in (
                pb.ServerReflectionRequest(file_containing_symbol="oncelogpb.v1.Nobody"),
                pb.ServerReflectionRequest(file_by_filename="nobody.proto"),
            ):
                reply = await ask(channel, V1, request)
                assert reply.error_response.error_code == 5

    run(story())
