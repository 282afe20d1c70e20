"""Certificates: who they say they are, as gRPC sees it, and what becomes of files that change."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from oncelog_server.core.machine import Instant
from oncelog_server.runtime.clock import RealClock
from oncelog_server.runtime.rpc import certificates
from oncelog_server.runtime.rpc.certificates import BrokenPair, CertificateFiles, look, read
from oncelog_server.runtime.rpc.server import RpcServer
from oncelog_server.runtime.rpc.tls import TlsFiles, client_credentials
from oncelogpb import calls
from oncelogpb.v1 import cluster_pb2 as pb
from tests.unit.rpc.authority import Authority
from tests.unit.rpc.harness import Handlers, Recorder, outcome_of, run, serving

DAY_MS = 24 * 3_600_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


async def who_am_i(source: Any, port: int, ca: str) -> Any:
    """The identity that a server sees behind a certificate, or the error."""
    credentials = client_credentials(source)
    channel: Any = grpc.aio.secure_channel(
        f"127.0.0.1:{port}", credentials, options=calls.CHANNEL_OPTIONS
    )
    async with channel:
        reply = await outcome_of(
            calls.unary(channel, "Cluster", "get_config", pb.GetConfigRequest(), 5_000)
        )
    return reply if isinstance(reply, Exception) else reply.values[0].value


async def tell(request: Any, call: Any) -> Any:
    return pb.GetConfigReply(values=[pb.ConfigValue(value=call.identity)])


SPIFFE = "spiffe://prod/enricher"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "alice"),
        ({"uris": [SPIFFE]}, SPIFFE),
        ({"uris": [SPIFFE], "common_name": False}, SPIFFE),
        ({"uris": ["https://alice.example"]}, "alice"),
        ({"uris": ["https://alice.example"], "common_name": False}, "https://alice.example"),
        ({"uris": [SPIFFE, "https://alice.example"]}, ""),
        ({"common_name": False}, "localhost"),
    ],
)
def test_a_certificate_is_read_as_its_peer_reads_it(
    authority: Authority, options: dict[str, Any], expected: str
) -> None:
    """A process knows itself as others know it: its own certificate makes others services."""

    async def story() -> None:
        files = authority.issue("alice", **options)
        assert look(files).identity == expected
        async with serving("Cluster", tls=authority.issue("server"), get_config=tell) as (
            server,
            _,
        ):
            assert await who_am_i(read(files), server.port, files.ca) == expected

    run(story())


def test_a_certificate_without_a_name_has_no_identity(authority: Authority) -> None:
    assert look(authority.issue_nameless()).identity == ""


def test_a_certificate_tells_its_days_and_names_whatever_the_date(authority: Authority) -> None:
    seen = look(authority.issue("alice", valid_from=-9, valid_days=2))
    assert seen.names == ("localhost", "127.0.0.1")
    assert seen.not_after_ms - seen.not_before_ms == 2 * DAY_MS
    assert seen.is_valid(seen.not_before_ms)
    assert not seen.is_valid(seen.not_after_ms)


def test_an_authority_alone_is_no_identity(authority: Authority) -> None:
    """etcd may ask for no certificate."""
    files = TlsFiles(authority.issue("alice").ca, "", "")
    assert look(files).identity == ""
    assert read(files).certificate == b""


@pytest.mark.parametrize("broken", ["ca", "certificate", "key", "other key", "gone"])
def test_what_does_not_fit_together_is_said_with_its_file(
    authority: Authority, broken: str
) -> None:
    files, other = authority.issue("alice"), authority.issue("bob")
    if broken == "other key":
        files = TlsFiles(files.ca, files.certificate, other.key)
    elif broken == "gone":
        os.unlink(files.key)
    else:
        Path(getattr(files, broken)).write_text("no PEM")
    path = {"other key": other.key, "gone": files.key}.get(broken) or getattr(files, broken)
    with pytest.raises(BrokenPair, match=Path(path).name):
        read(files)
        look(files)


# ------------------------------------------------------------------------------- files that change


class Watched:
    """Files that are watched, and what was said of them."""

    def __init__(self, files: TlsFiles, clock: Any = None) -> None:
        self.reporter = Recorder()
        self.files = files
        self.watched = CertificateFiles("node", files, clock or RealClock(), self.reporter)
        self.watched.load()
        self.taken: list[str] = []
        self.watched.on_change(lambda pems, certificate: self.taken.append(certificate.identity))

    def said(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.reporter.events if name == event]

    def put(self, other: TlsFiles) -> None:
        """Another pair in place of this one, as a new version of a secret is."""
        for name in ("ca", "certificate", "key"):
            new = Path(getattr(other, name)).read_bytes()
            temporary = Path(getattr(self.files, name) + ".new")
            temporary.write_bytes(new)
            os.replace(temporary, getattr(self.files, name))

    async def until(self, happened: Any) -> None:
        while not happened():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_EVERY_MS", 20)


def test_a_new_pair_is_taken_and_a_broken_one_is_not(authority: Authority, tmp_path: Path) -> None:
    async def story() -> None:
        one = Watched(authority.issue("first"))
        one.watched.start()
        before = one.watched.pems
        Path(one.files.key).write_bytes(Path(authority.issue("other").key).read_bytes())
        await one.until(lambda: one.said("certificate refused"))
        assert "key values mismatch" in str(one.said("certificate refused")[0]["error"])
        assert one.watched.pems is before
        assert one.taken == []
        one.put(authority.issue("second"))
        await one.until(lambda: one.taken)
        assert one.taken == ["second"]
        assert one.watched.pems.key == Path(one.files.key).read_bytes()
        assert len(one.said("certificate refused")) <= 3, "once per change, not at every look"
        await one.watched.stop()

    run(story())


def test_a_pair_that_has_ended_is_not_taken(authority: Authority) -> None:
    async def story() -> None:
        one = Watched(authority.issue("first"))
        one.watched.start()
        one.put(authority.issue("old", valid_from=-9, valid_days=2))
        await one.until(lambda: one.taken or one.said("certificate refused"))
        assert one.taken == []
        assert "put a new one in its place" in str(one.said("certificate refused")[0]["error"])
        one.put(authority.issue("young", valid_from=2, valid_days=2))
        await one.until(lambda: len(one.said("certificate refused")) > 1)
        assert "look at clocks" in str(one.said("certificate refused")[-1]["error"])
        assert one.taken == []
        await one.watched.stop()

    run(story())


def test_who_starts_with_an_old_certificate_says_so_and_takes_the_new_one(
    authority: Authority,
) -> None:
    async def story() -> None:
        one = Watched(authority.issue("first", valid_from=-9, valid_days=2))
        assert one.said("certificate out of date")
        one.watched.start()
        one.put(authority.issue("second"))
        await one.until(lambda: one.taken)
        await one.watched.stop()

    run(story())


def test_an_end_that_comes_near_is_spoken_of_once_a_day(authority: Authority) -> None:
    class Clock:
        monotonic_ms = 0

        def now(self) -> Instant:
            wall = datetime.datetime.now(datetime.UTC).timestamp() * 1000
            return Instant(self.monotonic_ms, int(wall))

    async def story() -> None:
        clock = Clock()
        one = Watched(authority.issue("first", valid_days=10), clock)
        one.watched.start()
        await one.until(lambda: one.said("certificate ends soon"))
        await asyncio.sleep(0.1)
        assert len(one.said("certificate ends soon")) == 1
        clock.monotonic_ms += DAY_MS
        await one.until(lambda: len(one.said("certificate ends soon")) == 2)
        await one.watched.stop()

    run(story())


def test_a_listener_shows_the_new_certificate_to_new_connections_only(
    authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        theirs = Authority(tmp_path / "theirs")
        source = Watched(authority.issue("server")).watched
        alice, carol = read(authority.issue("alice")), read(theirs.issue("carol"))
        async with serving_source(source) as port:
            standing: Any = grpc.aio.secure_channel(
                f"127.0.0.1:{port}", client_credentials(alice), options=calls.CHANNEL_OPTIONS
            )
            ask = pb.GetConfigRequest()
            assert (await calls.unary(standing, "Cluster", "get_config", ask)).values
            assert isinstance(await who_am_i(carol, port, ""), Exception)
            source.pems = read(theirs.issue("server"))
            assert await who_am_i(carol, port, "") == "carol"
            assert isinstance(await who_am_i(alice, port, ""), Exception)
            again = await calls.unary(standing, "Cluster", "get_config", ask)
            assert again.values[0].value == "alice", "a connection stands as it began"
            await standing.close()

    run(story())


@asynccontextmanager
async def serving_source(source: Any) -> AsyncIterator[int]:
    server = RpcServer(
        {"Cluster": Handlers(get_config=tell)},
        listen="127.0.0.1:0",
        reporter=Recorder(),
        tls=source,
    )
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop(0)
