"""TLS, and who a peer is.

Where TLS is configured both sides show a certificate (mTLS); there is no half-way. A peer's
identity is what its certificate says and nothing else: the SPIFFE id, else the common name, else
the first name among its alternative names. What only looks like a name is none: one that a zero
byte cuts short, a SPIFFE id that is not the only URI, a common name that poses as one.
"""

from __future__ import annotations

import binascii
import functools
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, cast

import grpc

# Properties of gRPC's authentication context, in order of precedence.
IDENTITY_PROPERTIES: Final = (
    "peer_spiffe_id",
    "x509_common_name",
    "peer_uri",
    "peer_dns",
    "x509_subject_alternative_name",
)
SPIFFE: Final = "spiffe://"
# Certificates that are remembered to name a peer: who calls again is not judged again.
CERTIFICATES_KEPT: Final = 1_024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one side."""

    # Who signs the other side.
    ca: str
    # What this side shows, and its key.
    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class TlsPems:
    """What stands in them. Its own source: one that never changes."""

    ca: bytes
    certificate: bytes
    key: bytes

    @property
    def pems(self) -> TlsPems:
        return self


class TlsSource(Protocol):
    """Where a connection that is made now finds what it shows and whom it trusts."""

    @property
    def pems(self) -> TlsPems: ...


class Asked(StrEnum):
    """What a listener asks of who connects."""

    # A certificate that our authority signed.
    CERTIFICATE = "mtls"
    # Nothing: it is encrypted, and tells who we are.
    NOTHING = "tls"


def server_credentials(
    source: TlsSource, asked: Asked = Asked.CERTIFICATE
) -> grpc.ServerCredentials:
    """For a listener: the source is asked at every new connection, from threads of gRPC, so what
    it has then is what that connection is shown."""
    given = source.pems

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        now = source.pems
        if now is given:
            return None
        given = now
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(given),
        # The stubs do not know that None means "as it was".
        cast(Any, changed),
        require_client_authentication=asked is Asked.CERTIFICATE,
    )


def _configuration(pems: TlsPems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pems.key, pems.certificate)], root_certificates=pems.ca
    )


def client_credentials(pems: TlsPems) -> grpc.ChannelCredentials:
    """For one channel, as long as it lives."""
    return grpc.ssl_channel_credentials(
        root_certificates=pems.ca, private_key=pems.key, certificate_chain=pems.certificate
    )


def identity_of(auth_context: Mapping[str, Iterable[bytes]] | None) -> str:
    """The peer's identity; "" without TLS, or where the certificate does not say one."""
    context = auth_context or {}
    for name in IDENTITY_PROPERTIES:
        for value in context.get(name, ()):
            if value:
                return _judged(name, value, context)
    return ""


def _judged(name: str, value: bytes, context: Mapping[str, Iterable[bytes]]) -> str:
    """ "" where it only looks like a name."""
    others = () if name == "peer_spiffe_id" else (value, *context.get("peer_uri", ()))
    if any(is_spiffe_id(_text(other)) for other in others):
        return ""
    pem, subject = (
        next(iter(context.get(what, ())), b"") for what in ("x509_pem_cert", "x509_subject")
    )
    return "" if _is_cut(value, pem, subject) else _text(value)


def is_spiffe_id(name: str) -> bool:
    """Or poses as one."""
    return name[: len(SPIFFE)].lower() == SPIFFE


def _text(name: bytes) -> str:
    """ "" where it is none."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return ""


@functools.lru_cache(CERTIFICATES_KEPT)
def _is_cut(name: bytes, pem: bytes, subject: bytes) -> bool:
    """Whether the certificate's own name goes on behind a zero byte: gRPC for Python shows names as
    C's strings, so `admin\\0.mallory` would be `admin`. In the certificate that byte follows the
    name, where else a tag would, which is never zero; a name in two-byte characters is told by the
    subject, which writes the zero out (RFC 4514)."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii")) if pem else b""
    except (ValueError, binascii.Error):
        return True
    return name + b"\0" in der or b"\\00" in subject
