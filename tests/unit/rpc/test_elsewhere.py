"""What a process does not serve it says in our words, whichever form the call has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from oncelogpb import calls
from oncelogpb.errors import Unsupported
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.rpc.harness import outcome_of, run, serving


@pytest.mark.parametrize(
    ("form", "method"),
    [
        ("unary_unary", "PartitionLeader/Fetch"),
        ("unary_stream", "PartitionLeader/Subscribe"),
        ("stream_stream", "Replication/Follow"),
        ("unary_unary", "PartitionLeader/Nothing"),
        ("unary_unary", "Coordinator/Nothing"),
    ],
)
def test_a_call_of_another_role_is_refused_by_name(form: str, method: str) -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            call = getattr(channel, form)(f"/oncelogpb.v1.{method}")
            began = call(_nothing() if form == "stream_stream" else b"")
            error = calls.from_rpc_error(
                await outcome_of(began if form == "unary_unary" else began.read())
            )
            assert type(error) is Unsupported
            assert "this process serves Coordinator" in error.message

    run(story())


def test_the_client_of_a_unary_call_is_told() -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            error = await outcome_of(
                calls.unary(channel, "partition_leader", "fetch", pb.FetchRequest())
            )
            assert (type(error), error.metadata) == (Unsupported, {"method": "fetch"})

    run(story())


def test_what_is_not_ours_is_left_to_the_transport() -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            error: Any = await outcome_of(channel.unary_unary("/other.Service/Method")(b""))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED

    run(story())


def _nothing() -> Iterator[bytes]:
    return iter(())
