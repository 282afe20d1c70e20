"""Certificates: can they be read, do they match, are they still good, do they name who shows them?

Read by way of the TLS library itself: a handshake of a certificate with itself, in memory, says
what any peer would say of it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncelog_server.cli.connection import Connection
from oncelog_server.cli.doctor.findings import Finding, fail, ok, warn
from oncelog_server.cli.doctor.reaching import CONNECT_SECONDS, server_name, tls_context
from oncelog_server.cli.output import show_time

AREA: Final = "certificates"
SOON_DAYS: Final = 30
DAY_S: Final = 86_400
# Turns of a handshake; it takes three.
TURNS_MAX: Final = 10


class Pair(NamedTuple):
    """A certificate and its key."""

    # Whose they are, for people.
    what: str
    certificate: str
    key: str


def own(chosen: Connection) -> Iterator[Finding]:
    """What this command shows, and trusts."""
    settings = chosen.settings
    ca, certificate = settings["tls_ca"].value, settings["tls_cert"].value
    if ca:
        yield authority(ca)
    if certificate:
        yield pair(Pair("your certificate", certificate, settings["tls_key"].value))


def authority(path: str) -> Finding:
    """A file of authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        return fail(AREA, f"the authority {path} cannot be read: {error}", "give a PEM file")
    found = context.get_ca_certs()
    if not found:
        return fail(AREA, f"{path} holds no authority", "give the CA's certificate, not another")
    return _by_expiry(f"the authority {path}", min(_ends_s(one) for one in found))


def pair(given: Pair) -> Finding:
    """A certificate with its key."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (given.certificate, given.key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            return fail(AREA, f"{given.what}: {path}: {error.strerror}", "correct the path")
    try:
        server.load_cert_chain(given.certificate, given.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return fail(
                AREA,
                f"{given.what}: {given.key} is not the key of {given.certificate}",
                "name the two that belong together",
            )
        return fail(AREA, f"{given.what}: {error}", "give PEM files, the key without a password")
    try:
        facts = _facts(server, given.certificate)
    except ssl.SSLCertVerificationError as error:
        return fail(AREA, f"{given.what} {given.certificate}: {error.verify_message}", _RENEW)
    except ssl.SSLError as error:
        return fail(AREA, f"{given.what} {given.certificate}: {error}", "give another one")
    return _by_expiry(f"{given.what} {given.certificate}", _ends_s(facts))


def shown_by(addresses: Iterable[str], chosen: Connection) -> Iterator[Finding]:
    """What the processes show. Those whose certificates are not trusted were told before."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            with (
                socket.create_connection((host, int(port)), CONNECT_SECONDS) as plain,
                tls_context(chosen).wrap_socket(
                    plain, server_hostname=server_name(host, chosen)
                ) as secure,
            ):
                facts = secure.getpeercert() or {}
        except (OSError, ssl.SSLError):
            continue
        yield _by_expiry(f"the one that {address} shows", _ends_s(facts))


_RENEW: Final = "issue a new one in its place: running processes take it within seconds"


def _facts(server: ssl.SSLContext, certificate: str) -> Mapping[str, Any]:
    """What a client reads of a server that shows it. Raises ssl.SSLError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cafile=certificate)
    # The certificate itself is trusted: who signed it is another question.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [asking, answering]
    for _ in range(TURNS_MAX):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    return asking.getpeercert() or {}


def _ends_s(facts: Mapping[str, Any]) -> float:
    """Seconds since 1970; 0 where it does not say."""
    return ssl.cert_time_to_seconds(facts["notAfter"]) if "notAfter" in facts else 0.0


def _by_expiry(what: str, ends_s: float) -> Finding:
    left_days = int((ends_s - time.time()) // DAY_S)
    until = show_time(int(ends_s * 1000))
    if not ends_s:
        return warn(AREA, f"{what} does not say how long it is good", "look at it with openssl")
    if left_days < 0:
        return fail(AREA, f"{what} has expired ({until})", _RENEW)
    if left_days < SOON_DAYS:
        return warn(AREA, f"{what} expires in {left_days} days ({until})", _RENEW)
    return ok(AREA, f"{what} is good until {until}")
