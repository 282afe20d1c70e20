"""What one process shows to others, whom it believes, and who may do what with it: certificates,
their renewal, and the guard. Composed here for a real process and for one of a test alike."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from oncelog_server.cli.settings import ServeSettings
from oncelog_server.core.ports import Clock, Reporter
from oncelog_server.runtime.access.audit import FileSink, Sink
from oncelog_server.runtime.access.config import Mode
from oncelog_server.runtime.access.guard import Guard
from oncelog_server.runtime.etcd.client import EtcdClient
from oncelog_server.runtime.etcd.endpoints import EtcdTls
from oncelog_server.runtime.node_config import NodeConfig
from oncelog_server.runtime.observe.logs import Log
from oncelog_server.runtime.observe.metrics import Metrics
from oncelog_server.runtime.rpc.certificates import Certificate, CertificateFiles
from oncelog_server.runtime.rpc.peers import GrpcPeers
from oncelog_server.runtime.rpc.tls import Asked, TlsFiles, TlsPems, server_credentials


class Trust:
    """Of one process. Made on its loop; `start` when all that it feeds is there."""

    def __init__(self, settings: ServeSettings, clock: Clock, reporter: Reporter) -> None:
        """Raises OSError (a file of TLS, the audit log), ConfigError."""
        config = settings.node
        self.mode = settings.mode
        self._authorization = settings.authorization
        self.certificates = _load("node", files_of(config), clock, reporter)
        self._etcd = _load("etcd", _etcd_files_of(config), clock, reporter)
        audit_log = settings.authorization.audit_log
        sink: Sink | None = FileSink(audit_log, reporter, clock) if audit_log else None
        self.guard = Guard(
            self.mode,
            clock=clock,
            reporter=reporter,
            services=settings.authorization.service_patterns,
            operators=settings.authorization.operator_patterns,
            sink=sink,
        )
        if self.certificates is not None:
            self._know(self.certificates.certificate)

    @property
    def etcd_tls(self) -> EtcdTls | None:
        """None: etcd is reached without."""
        return None if self._etcd is None else _etcd_tls(self._etcd.pems)

    def credentials(self, asked: str) -> grpc.ServerCredentials | None:
        """For a listener of which configuration says `off`, `tls` or `mtls`."""
        if asked == "off":
            return None
        assert self.certificates is not None, "NodeConfig.validate"
        return server_credentials(self.certificates, Asked(asked))

    def renew(
        self,
        *,
        peers: GrpcPeers,
        etcd: EtcdClient | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """What is told of every new pair; listeners ask for themselves."""
        if self.certificates is not None:
            self.certificates.on_change(lambda pems, certificate: self._know(certificate))
            self.certificates.on_change(lambda pems, certificate: peers.renew())
            if metrics is not None:
                self.certificates.on_change(lambda pems, certificate: metrics.renew())
        if self._etcd is not None and etcd is not None:
            self._etcd.on_change(lambda pems, certificate: etcd.renew_tls(_etcd_tls(pems)))

    def start(self) -> None:
        for files in self._watched():
            files.start()

    async def stop(self) -> None:
        """Last: what happens before is still written down."""
        for files in self._watched():
            await files.stop()
        self.guard.audit.close()

    def say(self, log: Log, *, is_loopback: bool) -> None:
        """What holds, at the start."""
        if self.mode is Mode.OFF:
            log.line(
                "authorization is off: whoever reaches this process may do everything",
                level="info" if is_loopback else "warning",
                tls=self.certificates is not None,
            )
            return
        assert self.certificates is not None, "without TLS it is off"
        if self.mode is Mode.WARN:
            log.line("authorization only warns: nothing is refused", level="warning")
        if not self._authorization.operators:
            log.line(
                "nobody is an operator, so nobody can add a rule: name one with "
                "authorization.operators=IDENTITY, the name in a certificate",
                level="warning",
            )
        log.line(
            f"authorization is {self.mode}",
            identity=self.certificates.certificate.identity,
            services=",".join(self._authorization.services),
            operators=",".join(self._authorization.operators),
        )

    def _know(self, certificate: Certificate) -> None:
        self.guard.know_self(certificate.identity)

    def _watched(self) -> Iterator[CertificateFiles]:
        yield from (files for files in (self.certificates, self._etcd) if files is not None)


def files_of(config: NodeConfig) -> TlsFiles | None:
    """None without TLS."""
    if not config.tls:
        return None
    return TlsFiles(config.tls_ca, config.tls_certificate, config.tls_key)


def _etcd_files_of(config: NodeConfig) -> TlsFiles | None:
    if not config.etcd_tls_ca:
        return None
    return TlsFiles(config.etcd_tls_ca, config.etcd_tls_certificate, config.etcd_tls_key)


def _etcd_tls(pems: TlsPems) -> EtcdTls:
    return EtcdTls(pems.ca, pems.certificate or None, pems.key or None)


def _load(
    what: str, files: TlsFiles | None, clock: Clock, reporter: Reporter
) -> CertificateFiles | None:
    if files is None:
        return None
    loaded = CertificateFiles(what, files, clock, reporter)
    loaded.load()
    return loaded
