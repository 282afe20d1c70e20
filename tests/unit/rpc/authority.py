"""Certificates for tests: an authority of its own, which issues them for loopback."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from oncelog_server.runtime.rpc.tls import TlsFiles


class Authority:
    """Signs certificates into files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        authority = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self._sign(self.name, self.key.public_key(), (authority, True))
        self._write("ca.pem", self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, who: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])
        certificate = self._sign(subject, key.public_key(), (names, False))
        pem = serialization.Encoding.PEM
        return TlsFiles(
            ca=str(self.directory / "ca.pem"),
            certificate=self._write(f"{who}.pem", certificate.public_bytes(pem)),
            key=self._write(
                f"{who}.key",
                key.private_bytes(
                    pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                ),
            ),
        )

    def _sign(self, subject: Any, public_key: Any, extension: Any) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension[0], critical=extension[1])
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, name: str, data: bytes) -> str:
        (self.directory / name).write_bytes(data)
        return str(self.directory / name)
