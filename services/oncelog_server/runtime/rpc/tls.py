"""TLS, and who a peer is.

Where TLS is configured both sides show a certificate (mTLS); there is no half-way. A peer's
identity is what its certificate says and nothing else: the SPIFFE id, else the common name, else
the first name among its alternative names.
"""

from __future__ import annotations

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
    """The peer's identity; "" without TLS."""
    for name in IDENTITY_PROPERTIES if auth_context else ():
        for value in (auth_context or {}).get(name, ()):
            if value:
                return value.decode("utf-8", "replace")
    return ""
