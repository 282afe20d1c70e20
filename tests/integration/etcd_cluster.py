"""Real etcd processes for tests: one plain, or one behind throw-away certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from oncelog_server.runtime.etcd.endpoints import EtcdTls
from oncelog_server.runtime.loopback_ports import free_ports


async def until(predicate: Callable[[], object], *, within_s: float = 30) -> None:
    """Waits until the predicate holds. The bound only ends a test that would hang."""
    end = time.monotonic() + within_s
    while not predicate():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Authority:
    """Signs certificates for one test."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        certificate = _unsigned(name, name, key).add_extension(basic, critical=True)
        return cls(key, certificate.sign(key, hashes.SHA256()))

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Certificate and key for `name` on the loopback, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        where = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        )
        unsigned = _unsigned(subject, self.certificate.subject, key).add_extension(
            where, critical=False
        )
        certificate = unsigned.sign(self.key, hashes.SHA256())
        return _pem(certificate), _key_pem(key)

    def pem(self) -> bytes:
        return _pem(self.certificate)

    def tls(self, name: str | None) -> EtcdTls:
        """What a client named `name` needs; None: one that shows no certificate."""
        if name is None:
            return EtcdTls(self.pem())
        certificate, key = self.issue(name)
        return EtcdTls(self.pem(), certificate, key)


@contextlib.contextmanager
def etcd_with_tls(binary: Path, directory: Path, authority: Authority) -> Iterator[str]:
    """An etcd that wants client certificates; its endpoint."""
    certificate, key = authority.issue("etcd")
    for name, data in (("ca", authority.pem()), ("cert", certificate), ("key", key)):
        (directory / f"{name}.pem").write_bytes(data)
    client, peer = free_ports(2)
    with (directory / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--data-dir={directory / 'member'}",
                f"--listen-client-urls=https://127.0.0.1:{client}",
                f"--advertise-client-urls=https://127.0.0.1:{client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                f"--cert-file={directory / 'cert.pem'}",
                f"--key-file={directory / 'key.pem'}",
                f"--trusted-ca-file={directory / 'ca.pem'}",
                "--client-cert-auth",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"https://127.0.0.1:{client}"
    finally:
        process.kill()
        process.wait()


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
