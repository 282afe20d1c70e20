"""What the doctor says of each thing that can be wrong, with real sockets, servers, certificates
and disks."""

from __future__ import annotations

import contextlib
import datetime
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import oncelog
import oncelog.testing
from oncelog_server.cli import connection
from oncelog_server.cli.connection import Connection
from oncelog_server.cli.direct import Direct
from oncelog_server.cli.doctor import certificates, machine, processes, reaching
from oncelog_server.cli.doctor.certificates import Pair
from oncelog_server.cli.doctor.findings import Finding, Status
from oncelog_server.cli.doctor.reaching import Answer
from oncelogpb.v1 import cluster_pb2, types_pb2
from tests.unit.cli.scripted import Cluster, json_of

Run = Callable[..., Result]
DAY = datetime.timedelta(days=1)
MIB = 1 << 20


# ------------------------------------------------------------------------------------ addresses


class Certificates:
    """An authority, and what it issues into files."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.ca = self._write("ca.pem", self._sign(self._name, self._key, constraints, 400 * DAY))

    def issue(self, who: str, *, good_for: datetime.timedelta = 365 * DAY, host: str = "") -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])
        names = x509.SubjectAlternativeName([x509.DNSName(host or "localhost")])
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(
            who,
            self._write(f"{who}.pem", self._sign(subject, key, names, good_for)),
            self._write(f"{who}.key", pem),
        )

    def _sign(self, subject: Any, key: Any, extension: Any, good_for: datetime.timedelta) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 500 * DAY)
            .not_valid_after(now + good_for)
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authority"))


def chosen(**given: Any) -> Connection:
    nothing = {setting.name: None for setting in connection.SETTINGS}
    return connection.resolve(nothing | given, "none", source_of=lambda name: None)


def look(address: str, **given: Any) -> Answer | Finding:
    how = chosen(bootstrap=address, **given)
    with Direct(how) as direct:
        return reaching.reach(address, how, direct)


@contextlib.contextmanager
def serving(*, service: str = "oncelogpb.v1.Cluster", credentials: Any = None) -> Iterator[str]:
    """A process that answers GetMetadata, and nothing else."""
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: cluster_pb2.GetMetadataReply(cluster_id=b"c", etcd_reachable=True),
        request_deserializer=cluster_pb2.GetMetadataRequest.FromString,
        response_serializer=cluster_pb2.GetMetadataReply.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"GetMetadata": handler}),)
    )
    if credentials is None:
        port = server.add_insecure_port("localhost:0")
    else:
        port = server.add_secure_port("localhost:0", credentials)
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(None)


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Something that takes connections, and answers each with these bytes; None: with nothing."""
    with socket.create_server(("localhost", 0)) as listener:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    kept.append(peer)
                    if answer is not None:
                        peer.sendall(answer)
                        peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for peer in kept:
            peer.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(reaching, "ANSWER_SECONDS", 0.5)


def said(found: Answer | Finding) -> str:
    assert isinstance(found, Finding), found
    assert found.status is Status.FAIL
    assert found.do
    return f"{found.what} -> {found.do}"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://localhost:7400", "without http://"),
        ("localhost", "is no HOST:PORT"),
        ("localhost:0", "is no HOST:PORT"),
        ("nowhere.invalid:7400", "nobody knows the host 'nowhere.invalid'"),
        ("127.0.0.1:9", "nobody listens on that port"),
    ],
)
def test_an_address_that_leads_nowhere(address: str, told: str) -> None:
    assert told in said(look(address))


def test_a_process_that_answers() -> None:
    with serving() as address:
        found = look(address)
        assert isinstance(found, Answer)
        assert reaching.reached(found, chosen()).status is Status.OK
        # It says nothing of its time.
        assert found.ahead_ms is None


@pytest.mark.usefixtures("quick")
def test_a_process_that_is_stopped_listens_and_says_nothing() -> None:
    with listening(None) as address:
        assert "does not answer within" in said(look(address))


@pytest.mark.usefixtures("quick")
def test_what_is_not_oncelog_is_told() -> None:
    with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert "something else than Oncelog" in said(look(address))
    with serving(service="etcdserverpb.KV") as address:
        assert "a gRPC server that is not Oncelog" in said(look(address))


def _server(pair: Pair, ca: str | None) -> Any:
    asks = None if ca is None else Path(ca).read_bytes()
    return grpc.ssl_server_credentials(
        [(Path(pair.key).read_bytes(), Path(pair.certificate).read_bytes())],
        root_certificates=asks,
        require_client_auth=ca is not None,
    )


@pytest.mark.usefixtures("quick")
def test_tls_and_plain_do_not_meet_and_say_so(issued: Certificates) -> None:
    with serving() as address:
        assert "it speaks without TLS" in said(look(address, tls_ca=issued.ca))
    with serving(credentials=_server(issued.issue("server"), None)) as address:
        assert "it speaks TLS" in said(look(address))
        assert isinstance(look(address, tls_ca=issued.ca), Answer)


@pytest.mark.usefixtures("quick")
def test_a_certificate_that_is_not_trusted_is_told_with_the_reason(
    issued: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path / "stranger", "another authority")
    with serving(credentials=_server(issued.issue("server"), None)) as address:
        assert "its certificate is not trusted" in said(look(address, tls_ca=stranger.ca))
    with serving(credentials=_server(issued.issue("old", good_for=-DAY), None)) as address:
        assert "has expired" in said(look(address, tls_ca=issued.ca))
    with serving(credentials=_server(issued.issue("far", host="far.example"), None)) as address:
        assert "--tls-server-name" in said(look(address, tls_ca=issued.ca))
        named = look(address, tls_ca=issued.ca, tls_server_name="far.example")
        assert isinstance(named, Answer)


@pytest.mark.usefixtures("quick")
def test_who_shows_no_certificate_where_one_is_wanted_is_told(issued: Certificates) -> None:
    with serving(credentials=_server(issued.issue("server"), issued.ca)) as address:
        assert "--tls-cert" in said(look(address, tls_ca=issued.ca))
        mine = issued.issue("me")
        shown = look(address, tls_ca=issued.ca, tls_cert=mine.certificate, tls_key=mine.key)
        assert isinstance(shown, Answer)


# ---------------------------------------------------------------------------------- certificates


@pytest.mark.parametrize(
    ("good_for", "status", "told"),
    [(-1, Status.FAIL, "expired"), (5, Status.WARN, "in 4 days"), (40, Status.OK, "is good until")],
)
def test_how_long_a_certificate_is_good(
    good_for: int, status: Status, told: str, issued: Certificates
) -> None:
    found = certificates.pair(issued.issue(f"c{good_for}", good_for=good_for * DAY))
    assert (found.status, told in found.what) == (status, True), found


def test_certificates_that_cannot_be_used(issued: Certificates, tmp_path: Path) -> None:
    good, other = issued.issue("good"), issued.issue("other")
    mixed = certificates.pair(good._replace(key=other.key))
    assert "is not the key of" in mixed.what
    absent = certificates.pair(good._replace(key=str(tmp_path / "absent")))
    assert "absent: No such file" in absent.what
    text = tmp_path / "text.pem"
    text.write_text("hello")
    assert certificates.pair(good._replace(certificate=str(text))).status is Status.FAIL
    assert certificates.authority(str(text)).status is Status.FAIL
    assert certificates.authority(good.certificate).status is Status.FAIL
    assert certificates.authority(issued.ca).status is Status.OK


def test_the_certificate_that_a_process_shows(issued: Certificates) -> None:
    pair = issued.issue("soon", good_for=3 * DAY)
    with serving(credentials=_server(pair, None)) as address:
        (found,) = certificates.shown_by([address], chosen(tls_ca=issued.ca))
    assert found.status is Status.WARN
    assert "expires in 2 days" in found.what


# -------------------------------------------------------------------------------------- processes


def answer(address: str, *, ahead_ms: float | None = 0, **metadata: Any) -> Answer:
    told: dict[str, Any] = {"cluster_id": b"c", "etcd_reachable": True} | metadata
    return Answer(address, cluster_pb2.GetMetadataReply(**told), 2.0, ahead_ms)


@pytest.mark.parametrize(
    ("ahead", "status"),
    [
        ([0, 900], Status.OK),
        ([0, -1_500], Status.WARN),
        # All are right among themselves, and this machine is not.
        ([5_000, 5_001], Status.WARN),
        ([0, 70_000], Status.FAIL),
        ([None, None], Status.SKIP),
    ],
)
def test_clocks_are_compared(ahead: list[float | None], status: Status) -> None:
    answers = [answer(f"h:{n}", ahead_ms=value) for n, value in enumerate(ahead)]
    assert processes._clocks(answers).status is status


def node(port: int, *roles: str, version: str = "0.1.0") -> cluster_pb2.Node:
    endpoint = types_pb2.Endpoint(host="127.0.0.1", port=port)
    return cluster_pb2.Node(node_id=f"n{port}", endpoint=endpoint, roles=roles, version=version)


def test_versions_roles_clusters_and_etcd_as_the_processes_tell_them() -> None:
    mixed = [node(1, version="0.1.0"), node(2, version="0.2.0")]
    assert processes._versions(mixed).status is Status.WARN
    assert "0.2.0: 127.0.0.1:2" in processes._versions(mixed).what
    assert processes._versions([node(1, version="9.9")]).status is Status.WARN
    (missing,) = processes._roles([node(1, "coordinator", "offset_manager")])
    assert "no partition_leader process runs" in missing.what
    two = [answer("a:1"), answer("b:1", cluster_id=b"d")]
    assert processes._one_cluster(two, 2).status is Status.FAIL
    away = processes._etcd_seen([answer("a:1"), answer("b:1", etcd_reachable=False)])
    assert (away.status, "b:1" in away.what) == (Status.FAIL, True)
    (door,) = processes._open_doors(["127.0.0.1:1", "[::1]:1", "localhost:1", "10.0.0.1:7400"])
    assert "10.0.0.1:7400" in door.what
    assert "127.0.0.1" not in door.what


# ---------------------------------------------------------------------------------------- machine


def _disk(directory: Path, floor_bytes: int) -> dict[Status, str]:
    found = machine.disk(directory, floor_bytes=floor_bytes, whose="data in")
    return {finding.status: finding.what for finding in found}


def test_disks(tmp_path: Path) -> None:
    assert Status.FAIL not in _disk(tmp_path, 1)
    assert "data is refused below" in _disk(tmp_path, 1 << 60)[Status.FAIL]
    assert "No such file" in _disk(tmp_path / "absent", 1)[Status.FAIL]
    (tmp_path / "orphans" / "x").mkdir(parents=True)
    assert "1 replicas that etcd does not know" in _disk(tmp_path, 1)[Status.WARN]
    assert [path.name for path in tmp_path.iterdir()] == ["orphans"], "nothing of it is left"


def test_the_file_system_is_that_of_the_longest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\nserver:/x /mnt/with\\040space nfs4 rw 0 0\ntmpfs /mnt tmpfs rw 0 0\n"
    )
    monkeypatch.setattr(machine, "_MOUNTS", mounts)
    assert machine.file_system_of(Path("/mnt/with space/data")) == "nfs4"
    assert machine.file_system_of(Path("/mnt/without")) == "tmpfs"
    assert machine.file_system_of(Path("/mntx")) == "ext4"
    mounts.unlink()
    assert machine.file_system_of(Path("/mntx")) == ""


def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1_000))
    assert machine.open_files().status is Status.WARN
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100_000))
    assert machine.open_files().status is Status.OK


# ---------------------------------------------------------------------------------- the command


def _by_area(told: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for check in told["checks"]:
        found.setdefault(check["area"], set()).add(check["status"])
    return found


def test_without_a_cluster_it_says_what_it_could_not_look_at(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_DEFAULTS", {"bootstrap": "127.0.0.1:9", "timeout": 5.0})
    told = json_of(run(Cluster(), "doctor --json"))
    areas = _by_area(told)
    assert told["well"] is True
    for area in ("connection", "cluster", "etcd", "disk"):
        assert areas[area] == {"SKIP"}
    shown = run(Cluster(), "doctor")
    assert shown.exit_code == 0
    assert "SKIP" in shown.stdout
    # Who names a cluster wants it to be there.
    named = run(Cluster(), "doctor --bootstrap 127.0.0.1:9")
    assert named.exit_code == 1
    assert "nobody listens on that port" in named.stdout


def test_a_cluster_that_is_well(run: Run, tmp_path: Path) -> None:
    with oncelog.testing.cluster() as cluster, oncelog.connect(cluster.bootstrap) as log:
        log.admin.create_topic("payments", partitions=2)
        tx = log.transactional_producer("slow", transaction_timeout_ms=600_000).transaction()
        tx.__enter__()
        tx.send("payments", b"1")
        tx.flush()
        told = json_of(
            run(
                Cluster(),
                f"doctor --json --bootstrap {cluster.bootstrap} --data {tmp_path} "
                "--old-transaction 1",
            )
        )
        tx.abort()
    areas = _by_area(told)
    assert told["well"] is True
    for area in ("connection", "cluster", "versions", "clocks", "partitions", "damage"):
        assert areas[area] == {"OK"}, area
    # It is etcd in memory that the processes reach.
    assert areas["etcd"] == {"OK", "SKIP"}
    assert areas["transactions"] <= {"OK", "WARN"}
    assert "FAIL" not in areas["disk"]
