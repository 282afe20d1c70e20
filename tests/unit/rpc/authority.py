"""Certificates for tests: an authority of its own, which issues them for loopback."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from oncelog_server.runtime.rpc.tls import TlsFiles


class Authority:
    """Signs certificates into files."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        """Of two of one name, who trusts both would try one of them only."""
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        authority = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self._sign(self.name, self.key.public_key(), (authority, True))
        self._write("ca.pem", self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        who: str,
        *,
        uris: Sequence[str] = (),
        common_name: bool = True,
        called: str = "",
        valid_from: float = -1,
        valid_days: float = 2,
    ) -> TlsFiles:
        """A pair in `<who>.pem` and `<who>.key`, in place of one of that name. Its common name is
        `called`, else `who`, unless it is to have none; `valid_from` in days from now."""
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            *map(x509.UniformResourceIdentifier, uris),
        ]
        name = (called or who) if common_name else ""
        return self._issue(who, name, names, valid_from, valid_days)

    def issue_nameless(self) -> TlsFiles:
        """A certificate that says nothing of who shows it."""
        return self._issue("nameless", "", [])

    def _issue(
        self,
        file: str,
        common_name: str,
        names: Sequence[x509.GeneralName],
        valid_from: float = -1,
        valid_days: float = 2,
    ) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        extension = x509.SubjectAlternativeName(names) if names else None
        certificate = self._sign(
            x509.Name(attributes),
            key.public_key(),
            None if extension is None else (extension, False),
            valid_from,
            valid_days,
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return TlsFiles(
            ca=str(self.directory / "ca.pem"),
            certificate=self._write(f"{file}.pem", certificate.public_bytes(pem)),
            key=self._write(f"{file}.key", private),
        )

    def _sign(
        self,
        subject: Any,
        public_key: Any,
        extension: Any,
        valid_from: float = -1,
        valid_days: float = 2,
    ) -> Any:
        begins = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=valid_from)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + datetime.timedelta(days=valid_days))
        )
        if extension is not None:
            builder = builder.add_extension(extension[0], critical=extension[1])
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, data: bytes) -> str:
        (self.directory / name).write_bytes(data)
        return str(self.directory / name)
