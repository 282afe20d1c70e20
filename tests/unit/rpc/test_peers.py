"""Calls to other processes: streams and unary behind one method, one connection each, TLS."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.rpc import status_pb2

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.rpc.certificates import look, read
from oncelog_server.runtime.rpc.peers import GrpcPeers
from oncelog_server.runtime.rpc.tls import TlsFiles, identity_of
from oncelogpb import calls
from oncelogpb.errors import InvalidArgument, OncelogError, Unavailable
from oncelogpb.v1 import cluster_pb2 as cluster
from oncelogpb.v1 import participant_pb2 as participant
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import outcome_of, run, serving


def address(port: int) -> Address:
    return Address("node", BootId(b"b" * 16), "127.0.0.1", port, 1)


def test_a_peer_is_called_over_one_stream_whoever_asks() -> None:
    streams: set[int] = set()

    async def mark(request: Any, call: Any) -> Any:
        streams.add(call.stream_id)
        return participant.WriteMarkersReply(
            groups=[participant.MarkerGroupResult()] * len(request.groups)
        )

    async def story() -> None:
        async with serving("Participant", write_markers=mark) as (server, _):
            peers = GrpcPeers()
            request = participant.WriteMarkersRequest(groups=[participant.MarkerGroup()] * 2)
            replies = await asyncio.gather(
                *(
                    peers.call(
                        address(server.port), "participant.write_markers", request, timeout_ms=9_000
                    )
                    for _ in range(10)
                )
            )
            assert all(len(reply.groups) == 2 for reply in replies)
            assert len(streams) == 1
            assert 0 not in streams
            await peers.close()

    run(story())


def test_what_is_not_on_a_stream_goes_as_a_unary_call() -> None:
    async def get_metadata(request: Any, call: Any) -> Any:
        assert call.stream_id == 0
        return cluster.GetMetadataReply(etcd_revision=7)

    async def story() -> None:
        async with serving("Cluster", get_metadata=get_metadata) as (server, _):
            peers = GrpcPeers()
            reply = await peers.call(
                address(server.port),
                "cluster.get_metadata",
                cluster.GetMetadataRequest(),
                timeout_ms=9_000,
            )
            assert reply.etcd_revision == 7
            await peers.close()

    run(story())


def test_an_idle_peer_is_hung_up_on_and_called_again() -> None:
    async def story() -> None:
        streams: list[int] = []
        ended = asyncio.Event()

        async def mark(request: Any, call: Any) -> Any:
            streams.append(call.stream_id)
            call.on_stream_end(ended.set)
            return participant.WriteMarkersReply()

        async with serving("Participant", write_markers=mark) as (server, _):
            peers = GrpcPeers(idle_ms=1)
            for _ in range(2):
                ended.clear()
                await peers.call(
                    address(server.port),
                    "participant.write_markers",
                    participant.WriteMarkersRequest(),
                    timeout_ms=9_000,
                )
                await ended.wait()
            assert len(set(streams)) == 2
            await peers.close()

    run(story())


def test_a_peer_that_is_called_now_and_then_is_not_hung_up_on() -> None:
    async def story() -> None:
        streams: set[int] = set()

        async def mark(request: Any, call: Any) -> Any:
            streams.add(call.stream_id)
            return participant.WriteMarkersReply()

        async with serving("Participant", write_markers=mark) as (server, _):
            peers = GrpcPeers(idle_ms=5_000)
            to, request = address(server.port), participant.WriteMarkersRequest()
            for _ in range(3):
                await peers.call(to, "participant.write_markers", request, timeout_ms=9_000)
                # As if so long had passed since the first call, and not since the last one.
                peers._look((to.host, to.port))
            assert len(streams) == 1
            await peers.close()

    run(story())


def test_wrong_and_late_calls_are_refused() -> None:
    async def story() -> None:
        peers = GrpcPeers()
        request = participant.WriteMarkersRequest()

        async def call(method: str) -> Any:
            return await outcome_of(peers.call(address(1), method, request, timeout_ms=2_000))

        assert isinstance(await call("write_markers"), InvalidArgument)
        assert isinstance(await call("nobody.write_markers"), InvalidArgument)
        assert isinstance(await call("participant.dance"), InvalidArgument)
        assert isinstance(await call("participant.write_markers"), Unavailable)
        await peers.close()
        assert isinstance(await call("participant.write_markers"), Unavailable)

    run(story())


# ----------------------------------------------------------------------------------------- TLS


def test_with_tls_the_identity_is_the_certificates_and_strangers_stay_out(tmp_path: Any) -> None:
    async def who_are_you(request: Any, call: Any) -> Any:
        return cluster.GetMetadataReply(cluster_id=call.identity.encode())

    async def mark(request: Any, call: Any) -> Any:
        return participant.WriteMarkersReply(
            groups=[participant.MarkerGroupResult(error=status_pb2.Status(message=call.identity))]
        )

    async def story() -> None:
        ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
        request = cluster.GetMetadataRequest()
        tls = ours.issue("server")
        async with serving("Cluster", tls=tls, get_metadata=who_are_you) as (server, plain):
            to = address(server.port)
            friend = GrpcPeers(read(ours.issue("alice")))
            reply = await friend.call(to, "cluster.get_metadata", request, timeout_ms=9_000)
            assert reply.cluster_id == b"alice"
            # Signed by another authority; and without any certificate.
            stranger = GrpcPeers(read(theirs.issue("mallory")))
            for attempt in (
                stranger.call(to, "cluster.get_metadata", request, timeout_ms=9_000),
                calls.unary(plain, "cluster", "get_metadata", request, 9_000),
            ):
                assert isinstance(await outcome_of(attempt), OncelogError)
            await friend.close()
            await stranger.close()
        async with serving("Participant", tls=tls, write_markers=mark) as (server, _):
            friend = GrpcPeers(read(ours.issue("bob")))
            reply = await friend.call(
                address(server.port),
                "participant.write_markers",
                participant.WriteMarkersRequest(),
                timeout_ms=9_000,
            )
            assert reply.groups[0].error.message == "bob"
            await friend.close()

    run(story())


def test_a_tls_file_that_is_not_there_is_named(tmp_path: Any) -> None:
    with pytest.raises(OSError, match=r"cannot read the TLS file.*absent\.pem"):
        read(TlsFiles(*[str(tmp_path / "absent.pem")] * 3))


def test_the_identity_is_the_most_exact_name_of_a_certificate() -> None:
    common = {"x509_common_name": [b"cn"], "peer_dns": [b"dns"]}
    assert identity_of(common) == "cn"
    assert identity_of({**common, "peer_spiffe_id": [b"spiffe://a/b"]}) == "spiffe://a/b"
    assert identity_of({"peer_dns": [b"dns"]}) == "dns"
    assert identity_of({"transport_security_type": [b"ssl"]}) == ""
    assert identity_of(None) == ""


@pytest.mark.parametrize(
    ("who", "uris"),
    [
        ("admin\0.mallory", ()),
        ("mallory", ("spiffe://prod/admin\0.mallory",)),
        ("spiffe://prod/admin", ()),
        ("SPIFFE://prod/admin", ()),
        ("admin", ("spiffe://prod/mallory", "spiffe://prod/other")),
        ("admin", ("spiffe://prod/mallory", "https://elsewhere")),
    ],
)
def test_a_certificate_that_only_seems_to_carry_a_name_has_no_identity(
    tmp_path: Any, who: str, uris: tuple[str, ...]
) -> None:
    """gRPC shows a name up to its first zero byte, and a common name can say anything."""

    async def mark(request: Any, call: Any) -> Any:
        return participant.WriteMarkersReply(
            groups=[
                participant.MarkerGroupResult(
                    error=status_pb2.Status(code=1, message=call.identity)
                )
            ]
        )

    async def story() -> None:
        ours = Authority(tmp_path)
        tls = ours.issue("server")
        shown = ours.issue("shown", called=who, uris=uris)
        assert look(shown).identity == ""
        async with serving("Participant", tls=tls, write_markers=mark) as (server, _):
            seeming = GrpcPeers(read(shown))
            reply = await seeming.call(
                address(server.port),
                "participant.write_markers",
                participant.WriteMarkersRequest(),
                timeout_ms=9_000,
            )
            assert reply.groups[0].error.message == ""
            await seeming.close()

    run(story())
