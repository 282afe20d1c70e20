"""TLS from files, and who a peer is.

Where TLS is configured both sides show a certificate (mTLS); there is no half-way. A peer's
identity is what its certificate says and nothing else: the SPIFFE id, else the common name, else
the first name among its alternative names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Raises OSError naming the file that cannot be read."""
    return grpc.ssl_server_credentials(
        [(_read(files.key), _read(files.certificate))],
        root_certificates=_read(files.ca),
        require_client_auth=True,
    )


def client_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Raises OSError naming the file that cannot be read."""
    return grpc.ssl_channel_credentials(
        root_certificates=_read(files.ca),
        private_key=_read(files.key),
        certificate_chain=_read(files.certificate),
    )


def identity_of(auth_context: Mapping[str, Iterable[bytes]] | None) -> str:
    """The peer's identity; "" without TLS."""
    for name in IDENTITY_PROPERTIES if auth_context else ():
        for value in (auth_context or {}).get(name, ()):
            return value.decode("utf-8", "replace")
    return ""


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OSError(error.errno, f"cannot read the TLS file: {error.strerror}", path) from None
