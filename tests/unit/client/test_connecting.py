"""A first contact that fails says soon, and precisely, what is wrong: name, port, scheme, TLS,
certificate, or a process that is none of ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import oncelog
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.log import connect
from oncelog.errors import CannotConnect
from oncelog.options import ConnectOptions, Tls, make_options
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, coordinator_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, on_virtual_time, protocol_over
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import run, serving

Greet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def listening(greet: Greet, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server of something else. Its port."""
    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def as_web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with contextlib.suppress(OSError):
        await writer.drain()
    writer.close()


async def as_mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a process that is stopped: the kernel takes the connection."""
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await asyncio.sleep(60)


async def as_rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def told(bootstrap: str | list[str], **options: Any) -> CannotConnect:
    """What a first contact raises. Its time is short here; what does not pass needs none of it."""
    log = connect(bootstrap, connect_timeout_ms=1_500, **options)
    try:
        with pytest.raises(CannotConnect) as caught:
            await log.start()
        assert not caught.value.retriable
        assert not caught.value.may_have_applied
        return caught.value
    finally:
        await log.close()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nobody_listens_there() -> None:
    async def story() -> None:
        port = free_port()
        error = await told(f"127.0.0.1:{port}")
        assert error.metadata == {"problem": "refused", "address": f"127.0.0.1:{port}"}
        assert f"nobody listens at 127.0.0.1:{port}" in error.message
        assert "oncelog up" in error.message

    run(story())


def test_a_name_that_is_not_known() -> None:
    async def story() -> None:
        error = await told("no-such-host.invalid:7400")
        assert error.metadata["problem"] == "address"
        assert "'no-such-host.invalid' is not known" in error.message

    run(story())


@pytest.mark.parametrize(
    ("greet", "problem", "says"),
    [
        (as_web_server, "not_oncelog", "is a web server"),
        (as_rude, "not_oncelog", "no Oncelog process"),
        (as_mute, "silent", "hangs"),
    ],
)
def test_something_that_is_not_oncelog(greet: Greet, problem: str, says: str) -> None:
    async def story() -> None:
        async with listening(greet) as port:
            error = await told(f"127.0.0.1:{port}")
        assert error.metadata["problem"] == problem
        assert says in error.message

    run(story())


def test_a_grpc_service_that_is_none_of_ours() -> None:
    async def story() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            error = await told(f"127.0.0.1:{port}")
        finally:
            await server.stop(0)
        assert error.metadata["problem"] == "not_oncelog"
        assert "speaks gRPC" in error.message

    run(story())


def test_a_server_with_tls_is_not_reached_without(tmp_path: Path) -> None:
    async def story() -> None:
        server = Authority(tmp_path).issue("server")
        async with serving("Cluster", tls=server) as (rpc, _):
            error = await told(f"127.0.0.1:{rpc.port}")
        assert error.metadata["problem"] == "tls_wanted"
        assert "speaks TLS: connect with tls=" in error.message

    run(story())


def test_a_server_without_tls_is_not_reached_with(tmp_path: Path) -> None:
    async def story() -> None:
        tls = Tls(ca_file=Authority(tmp_path).issue("client").ca)
        async with serving("Cluster") as (rpc, _):
            error = await told(f"127.0.0.1:{rpc.port}", tls=tls)
        assert error.metadata["problem"] == "tls_not_spoken"
        assert "does not speak TLS: connect without `tls`" in error.message

    run(story())


def test_a_client_certificate_that_is_missing_or_of_somebody_else(tmp_path: Path) -> None:
    async def story() -> None:
        authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b", "another")
        server, stranger = authority.issue("server"), other.issue("stranger")
        async with serving("Cluster", tls=server) as (rpc, _):
            address = f"127.0.0.1:{rpc.port}"
            error = await told(address, tls={"ca_file": server.ca})
            assert error.metadata["problem"] == "client_certificate"
            assert "wants a client certificate" in error.message
            assert "give tls.certificate_file" in error.message
            error = await told(
                address,
                tls=Tls(
                    ca_file=server.ca,
                    certificate_file=stranger.certificate,
                    key_file=stranger.key,
                ),
            )
            assert error.metadata["problem"] == "client_certificate"
            assert "does not accept the client certificate" in error.message

    run(story())


@pytest.mark.parametrize("why", ["another authority", "another name", "expired"])
def test_a_server_certificate_that_is_not_accepted_says_why(tmp_path: Path, why: str) -> None:
    async def story() -> None:
        authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b", "another")
        expired = why == "expired"
        server = authority.issue("server", valid_from=-9 if expired else -1, valid_days=2)
        client = authority.issue("client")
        tls = Tls(
            ca_file=other.issue("x").ca if why == "another authority" else server.ca,
            certificate_file=client.certificate,
            key_file=client.key,
            server_name="somebody.else" if why == "another name" else None,
        )
        async with serving("Cluster", tls=server) as (rpc, _):
            error = await told(f"127.0.0.1:{rpc.port}", tls=tls)
        assert error.metadata["problem"] == "certificate"
        expected = {
            "another authority": "give the authority that signed it as tls.ca_file",
            "another name": "say that name as tls.server_name",
            "expired": "renew it",
        }
        assert expected[why] in error.message

    run(story())


def test_the_plain_face_says_it_too() -> None:
    with pytest.raises(CannotConnect, match="nobody listens"):
        oncelog.connect(f"127.0.0.1:{free_port()}", connect_timeout_ms=500)


@pytest.mark.parametrize("handed", ["http://localhost:7400", "https://localhost:7400/x"])
def test_an_address_with_a_scheme_is_refused_at_once(handed: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="write 'localhost:7400'"):
        oncelog.connect(handed)


def test_addresses_may_come_as_a_list() -> None:
    with pytest.raises(CannotConnect) as caught:
        oncelog.connect([f"127.0.0.1:{free_port()}", "127.0.0.1:1"], connect_timeout_ms=500)
    assert caught.value.message.count("nobody listens") == 2
    for nothing in ([], [7400], ["localhost"], 7400, None):
        with pytest.raises(errors.InvalidArgument, match=r"bootstrap|host:port"):
            oncelog.connect(nothing)  # type: ignore[arg-type]


def test_tls_may_come_as_a_dict_and_what_is_none_is_refused() -> None:
    assert make_options(ConnectOptions, {"tls": {}}).tls == Tls()
    assert make_options(ConnectOptions, {"tls": {"ca_file": "x"}}).tls == Tls(ca_file="x")
    for wrong in (True, "ca.pem", {"ca": "x"}, {"certificate_file": "x"}):
        with pytest.raises(errors.InvalidArgument):
            make_options(ConnectOptions, {"tls": wrong})
    with pytest.raises(errors.InvalidArgument, match="no-such-file"):
        oncelog.connect("localhost:1", tls={"ca_file": "no-such-file"})


# ------------------------------------------------------------------------------- in virtual time


def test_i31_a_first_contact_ends_within_three_seconds_whatever_the_deadline() -> None:
    """And so does every call of who never reached anybody."""

    async def work() -> None:
        transport = ScriptedTransport(5)

        def silent(to: Endpoint, request: Any) -> Any:
            return asyncio.sleep(60)

        transport.handlers["cluster.get_metadata"] = silent
        transport.handlers["cluster.get_config"] = silent
        protocol = protocol_over(transport, timeout_ms=30_000)
        for method, request in (
            ("partition_leader.list_topics", leader.ListTopicsRequest()),
            ("cluster.get_config", cluster_pb2.GetConfigRequest()),
        ):
            with pytest.raises(CannotConnect):
                await protocol.call(method, request, 30_000)

    assert on_virtual_time(work)[1] <= 6.5


def test_a_process_that_starts_meanwhile_is_waited_for() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)
        up_at_s = asyncio.get_running_loop().time() + 1.5

        def starting(to: Endpoint, request: Any) -> Any:
            if asyncio.get_running_loop().time() < up_at_s:
                raise errors.UnknownOutcome("connection refused")
            return transport.metadata(to, request)

        transport.handlers["cluster.get_metadata"] = starting
        transport.handlers["partition_leader.list_topics"] = lambda to, request: (
            leader.ListTopicsReply()
        )
        protocol = protocol_over(transport)
        await protocol.call("partition_leader.list_topics", leader.ListTopicsRequest())

    on_virtual_time(work)


def test_a_cluster_that_was_reached_is_tried_until_the_deadline() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)
        protocol = protocol_over(transport)
        await protocol.refresh()

        def gone(to: Endpoint, request: Any) -> Any:
            raise errors.UnknownOutcome("connection refused")

        transport.handlers["cluster.get_metadata"] = gone
        transport.handlers["cluster.get_config"] = gone
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.Unavailable):
            await protocol.call("cluster.get_config", cluster_pb2.GetConfigRequest(), 9_000)
        assert asyncio.get_running_loop().time() - began > 7

    on_virtual_time(work)


LIST_TOPICS = leader.ListTopicsRequest()


def without(transport: ScriptedTransport, role: str) -> None:
    """No process of that role is alive."""

    def metadata(to: Endpoint, request: Any) -> Any:
        reply = transport.metadata(to, request)
        for node in reply.nodes:
            node.roles.remove(role)
        return reply

    transport.handlers["cluster.get_metadata"] = metadata


def test_a_role_that_is_stopped_is_told_within_three_seconds() -> None:
    """The rest of the cluster answers: it took the whole deadline."""

    async def work() -> None:
        transport = ScriptedTransport(5)
        without(transport, "partition_leader")
        with pytest.raises(CannotConnect, match="no partition_leader process is alive") as caught:
            await protocol_over(transport).call("partition_leader.list_topics", LIST_TOPICS, 15_000)
        assert caught.value.metadata["problem"] == "role_stopped"

    assert on_virtual_time(work)[1] <= 3.1


def test_a_role_whose_processes_are_silent_is_told_within_three_seconds() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)
        transport.handlers["partition_leader.list_topics"] = lambda to, request: asyncio.sleep(60)
        with pytest.raises(CannotConnect, match="no partition_leader process answers, of boot:5"):
            await protocol_over(transport).call("partition_leader.list_topics", LIST_TOPICS, 15_000)

    assert on_virtual_time(work)[1] <= 3.1


def test_partitions_without_a_process_of_their_role_are_told_within_three_seconds() -> None:
    async def work() -> None:
        transport = ScriptedTransport(0)
        without(transport, "partition_leader")
        request = leader.ListOffsetsRequest()
        request.queries.add(partition=PartitionKey(TOPIC_ID, 0).wire(), latest=True)
        with pytest.raises(CannotConnect, match="no partition_leader process is alive"):
            await protocol_over(transport).call("partition_leader.list_offsets", request, 15_000)

    assert on_virtual_time(work)[1] <= 3.1


def test_a_role_that_was_met_is_waited_for_while_it_restarts() -> None:
    async def work() -> None:
        transport = ScriptedTransport(5)
        transport.handlers["partition_leader.list_topics"] = lambda to, request: (
            leader.ListTopicsReply()
        )
        protocol = protocol_over(transport)
        await protocol.call("partition_leader.list_topics", LIST_TOPICS)

        def away(to: Endpoint, request: Any) -> Any:
            raise errors.Unavailable("connection refused")

        transport.handlers["partition_leader.list_topics"] = away
        with pytest.raises(errors.Unavailable):
            await protocol.call("partition_leader.list_topics", LIST_TOPICS, 15_000)

    assert on_virtual_time(work)[1] > 12


def test_i15_what_was_sent_to_a_role_that_then_is_silent_stays_in_doubt() -> None:
    """That nobody was met is no word about a request whose answer was lost."""

    async def work() -> None:
        transport = ScriptedTransport(5)

        def lost(to: Endpoint, request: Any) -> Any:
            raise errors.UnknownOutcome("the answer was lost")

        transport.handlers["coordinator.init_producer"] = lost
        request = coordinator_pb2.InitProducerRequest(name="p", instance_id=b"i" * 16)
        with pytest.raises(errors.UnknownOutcome):
            await protocol_over(transport).call("coordinator.init_producer", request, 15_000)

    on_virtual_time(work)


def test_i15_a_batch_whose_answer_was_lost_stays_in_doubt_where_its_role_is_away() -> None:
    """Then all processes of the role were gone: it was told as if it had never been sent."""

    async def work() -> None:
        transport = ScriptedTransport(5)

        def lost(to: Endpoint, request: Any) -> Any:
            without(transport, "partition_leader")
            transport.partitions = [0]
            raise errors.UnknownOutcome("the answer was lost")

        transport.handlers["partition_leader.produce"] = lost
        request = leader.ProduceRequest()
        request.batches.add(partition=PartitionKey(TOPIC_ID, 0).wire())
        reply = await protocol_over(transport).call("partition_leader.produce", request, 15_000)
        told = errors.from_status(reply.results[0].error)
        assert isinstance(told, errors.UnknownOutcome), told

    on_virtual_time(work)


def test_services_without_etcd_are_told_as_such() -> None:
    """And not as leaders that are changing."""

    async def work() -> None:
        transport = ScriptedTransport(0)

        def cut_off(to: Endpoint, request: Any) -> Any:
            reply = transport.metadata(to, request)
            reply.etcd_reachable = False
            for group in reply.consumer_groups:
                group.ClearField("leader")
            return reply

        transport.handlers["cluster.get_metadata"] = cut_off
        from oncelogpb.v1 import offset_manager_pb2 as offsets

        with pytest.raises(errors.Unavailable, match="do not reach etcd") as caught:
            await protocol_over(transport).call(
                "offset_manager.fetch_offsets", offsets.FetchOffsetsRequest(group="g"), 5_000
            )
        assert caught.value.metadata["etcd"] == "unreachable"

    on_virtual_time(work)


# ------------------------------------------------------------------------- certificates that change


def serve_cluster(tls: Any) -> Any:
    async def get_metadata(request: Any, call: Any) -> Any:
        return cluster_pb2.GetMetadataReply(cluster_id=call.identity.encode())

    return serving("Cluster", tls=tls, get_metadata=get_metadata)


def test_a_renewed_client_certificate_is_shown_by_new_calls_and_the_old_one_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncelog import _tls
    from oncelog._transport import GrpcTransport

    monkeypatch.setattr(_tls, "LOOK_EVERY_S", 0.0)

    async def story() -> None:
        authority = Authority(tmp_path)
        server = authority.issue("server")
        first, second = authority.issue("first"), authority.issue("second")
        certificate, key = tmp_path / "mine.pem", tmp_path / "mine.key"

        def put(pair: Any) -> None:
            for source, target in ((pair.certificate, certificate), (pair.key, key)):
                (tmp_path / "new").write_bytes(Path(source).read_bytes())
                os.replace(tmp_path / "new", target)

        put(first)
        async with serve_cluster(server) as (rpc, _):
            to = Endpoint("127.0.0.1", rpc.port)
            transport = GrpcTransport(
                Tls(ca_file=server.ca, certificate_file=certificate, key_file=key)
            )

            async def seen() -> str:
                request = cluster_pb2.GetMetadataRequest()
                reply = await transport.call(to, "cluster.get_metadata", request, 5_000)
                return str(reply.cluster_id.decode())

            assert await seen() == "first"
            old = transport._lines[to]
            with old.running_beside():
                put(second)
                assert await seen() == "second"
                assert transport._old == [old], "something runs on it"
            await seen()
            transport.retain([to])
            assert transport._old == []
            # Half of a pair, as while it is being replaced: the one before stays.
            key.write_bytes(Path(first.key).read_bytes())
            with pytest.warns(RuntimeWarning, match="goes on with those before"):
                assert await seen() == "second"
            await transport.close()

    run(story())


def test_a_session_moves_to_the_connection_of_the_renewed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it stays with the old one for ever, and the end of the new stream is heard by nobody."""
    from oncelog import _tls
    from oncelog._transport import GrpcTransport

    monkeypatch.setattr(_tls, "LOOK_EVERY_S", 0.0)

    async def story() -> None:
        authority = Authority(tmp_path)
        server, client = authority.issue("server"), authority.issue("client")
        renewed = authority.issue("renewed")
        pair = [tmp_path / "mine.pem", tmp_path / "mine.key"]
        for target, source in zip(pair, (client.certificate, client.key), strict=True):
            target.write_bytes(Path(source).read_bytes())
        async with serve_cluster(server) as (rpc, _):
            to = Endpoint("127.0.0.1", rpc.port)
            transport = GrpcTransport(
                Tls(ca_file=server.ca, certificate_file=pair[0], key_file=pair[1])
            )
            heard: list[str] = []
            stay = transport.on_end(to, "coordinator", lambda: heard.append("stays"))
            transport.on_end(to, "coordinator", lambda: heard.append("leaves"))()
            await asyncio.sleep(0)
            assert heard == []
            for target, source in zip(pair, (renewed.certificate, renewed.key), strict=True):
                target.write_bytes(Path(source).read_bytes())
            await transport.call(
                to, "cluster.get_metadata", cluster_pb2.GetMetadataRequest(), 5_000
            )
            assert heard == ["stays"]
            assert transport._old == []
            assert not transport._lines[to].is_idle, "it is heard of there"
            stay()
            assert transport._lines[to].is_idle
            await transport.close()

    run(story())
