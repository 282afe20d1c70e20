"""Can this machine reach an address, and is it Oncelog that listens there? Step by step, so that
what is wrong has a name: the host, the port, the scheme, a certificate, the program.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oncelog_server.cli.connection import Connection
from oncelog_server.cli.direct import Direct
from oncelog_server.cli.doctor.findings import Finding, fail, ok
from oncelog_server.core.numbers import is_number

if TYPE_CHECKING:
    from oncelogpb.v1 import cluster_pb2

AREA: Final = "connection"
CONNECT_SECONDS: Final = 2.0
# What the TLS library says of somebody who answers in plain text, or hangs up.
_ANSWERS_OF_PLAIN: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"}
)
ANSWER_SECONDS: Final = 2.0


class Unreachable(Exception):
    """Why, and what to do."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(why)
        self.do = do


@dataclass(frozen=True, slots=True)
class Answer:
    """A process that answered."""

    address: str
    metadata: cluster_pb2.GetMetadataReply
    took_ms: float
    # How far its clock is ahead of this machine's, and how uncertain that is; None: it did not say.
    ahead_ms: float | None


def reach(address: str, chosen: Connection, direct: Direct) -> Answer | Finding:
    """What the process says there, or what is wrong."""
    try:
        host, port = _split(address)
        _connect(host, port)
        if chosen.uses_tls:
            _shake_hands(host, port, chosen)
        return _ask(address, direct)
    except Unreachable as error:
        return fail(AREA, f"{address}: {error}", error.do)


def reached(answer: Answer, chosen: Connection) -> Finding:
    how = "TLS" if chosen.uses_tls else "plain"
    return ok(AREA, f"{answer.address} answers in {answer.took_ms:.0f} ms ({how})")


def tls_context(chosen: Connection) -> ssl.SSLContext:
    """As the client's. Raises OSError, ssl.SSLError."""
    settings = chosen.settings
    context = ssl.create_default_context(cafile=settings["tls_ca"].value)
    if settings["tls_cert"].value:
        context.load_cert_chain(settings["tls_cert"].value, settings["tls_key"].value)
    context.set_alpn_protocols(["h2"])
    return context


def server_name(host: str, chosen: Connection) -> str:
    return chosen.settings["tls_server_name"].value or host


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    whole = colon and host and "/" not in host and is_number(port)
    if not whole or not 0 < int(port) < 65_536:
        raise Unreachable(
            "is no HOST:PORT", "write it like log-0.example:7400, without http:// before it"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except socket.gaierror:
        raise Unreachable(
            f"nobody knows the host {host!r}", "look at its spelling, and at DNS"
        ) from None
    except ConnectionRefusedError:
        raise Unreachable(
            "nobody listens on that port",
            "start the process (`oncelog up`, `oncelog serve`), or name its port",
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"no answer within {CONNECT_SECONDS:g} s",
            "the machine is down, or a firewall drops what is sent there",
        ) from None
    except OSError as error:
        raise Unreachable(f"{error.strerror or error}", "look at the network to it") from None


def _shake_hands(host: str, port: int, chosen: Connection) -> None:
    try:
        context = tls_context(chosen)
    except (OSError, ssl.SSLError) as error:
        raise Unreachable(
            f"your certificates cannot be used: {error}", "see the checks of certificates"
        ) from None
    try:
        with (
            socket.create_connection((host, port), CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=server_name(host, chosen)),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(
            f"its certificate is not trusted: {error.verify_message}",
            "give the authority that signed it (--tls-ca), or the name in it (--tls-server-name)",
        ) from None
    except (ssl.SSLError, ConnectionError) as error:
        if _speaks_plain(error):
            raise Unreachable(
                "it speaks without TLS", "leave --tls and --tls-ca out, or turn its TLS on"
            ) from None
        raise Unreachable(f"no TLS with it: {error}", "look at its log") from None
    except OSError as error:
        raise Unreachable(f"no TLS with it: {error}", "look at its log") from None


def _speaks_plain(error: Exception) -> bool:
    reason = getattr(error, "reason", None) or ""
    return reason in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "UNEXPECTED_EOF_WHILE_READING",
    )


def _speaks_tls(address: str) -> bool:
    """To anybody, and whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = _split(address)
    try:
        with (
            socket.create_connection((host, port), CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _ask(address: str, direct: Direct) -> Answer:
    import grpc

    from oncelogpb.v1 import cluster_pb2

    # The first call of a channel connects it: the second one is what calls take, and what tells
    # clocks apart.
    for _ in range(2):
        began, began_ms = time.perf_counter(), time.time() * 1000
        try:
            metadata = direct.ask(
                address,
                "Cluster/GetMetadata",
                cluster_pb2.GetMetadataRequest(),
                cluster_pb2.GetMetadataReply,
                timeout_s=ANSWER_SECONDS,
            )
        except grpc.RpcError as error:
            raise _refused(address, error) from None
    took_ms = (time.perf_counter() - began) * 1000
    ahead_ms = metadata.time_ms - (began_ms + took_ms / 2) if metadata.time_ms else None
    return Answer(address, metadata, took_ms, ahead_ms)


def _refused(address: str, error: Any) -> Unreachable:
    import grpc

    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unreachable("a gRPC server that is not Oncelog", "name the port of a process")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(
            f"it listens, and does not answer within {ANSWER_SECONDS:g} s",
            "the process is stopped or overloaded: look at its log and CPU",
        )
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Unreachable(details, "show a certificate that may: --tls-cert and --tls-key")
    if _speaks_tls(address):
        return Unreachable(
            "it speaks TLS, and wants to see a certificate",
            "give --tls-ca, --tls-cert and --tls-key, or a --profile that has them",
        )
    return Unreachable(f"something else than Oncelog listens there ({details})", "name its port")
