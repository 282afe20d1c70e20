"""Reporters that feed Prometheus, and the endpoint that it reads.

One registry per process, one reporter per role. A name, label or kind that `catalogue` does not
declare is a programmer's error (UndeclaredMetric): what is not in the docs is not measured.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from oncelog_server.runtime.observe.catalogue import Kind, Metric, metrics_of
from oncelog_server.runtime.observe.logs import Log
from oncelog_server.runtime.rpc.tls import Asked, TlsFiles

# How long a scraper may be silent in the middle of its request, or of its handshake.
SCRAPER_SECONDS_MAX: Final = 30

# Seconds; from a sync on a fast disk to a call's longest deadline.
BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip


class UndeclaredMetric(Exception):
    """A metric that the catalogue does not know in that form."""


class Metrics:
    """The registry of a process."""

    def __init__(self) -> None:
        # A second series per counter and histogram, with its birth time: not in the catalogue.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        # process_*, python_gc_* and python_info: what prometheus_client knows of every process.
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._reporters: dict[str, PrometheusReporter] = {}
        self._endpoint: Any = None
        self._thread: threading.Thread | None = None
        self._files: TlsFiles | None = None
        self._asked = Asked.NOTHING
        # What a connection that begins now is shown.
        self._context: ssl.SSLContext | None = None

    def reporter(self, role: str, log: Log) -> PrometheusReporter:
        """The Reporter of one role, the same one each time."""
        if role not in self._reporters:
            self._reporters[role] = PrometheusReporter(self.registry, role, log)
        return self._reporters[role]

    def serve(
        self, host: str, port: int, files: TlsFiles | None = None, asked: Asked = Asked.NOTHING
    ) -> int:
        """Serves /metrics from a thread of its own; the port. Without `files` it is plain. Raises
        OSError."""
        is_mutual = asked is Asked.CERTIFICATE
        self._endpoint, self._thread = start_http_server(
            port,
            host,
            self.registry,
            certfile=None if files is None else files.certificate,
            keyfile=None if files is None else files.key,
            client_cafile=files.ca if files is not None and is_mutual else None,
            client_auth_required=is_mutual,
        )
        quiet = self._endpoint.RequestHandlerClass
        self._endpoint.RequestHandlerClass = type(
            "Scrape", (quiet,), {"timeout": SCRAPER_SECONDS_MAX}
        )
        if files is not None:
            self._files, self._asked = files, asked
            self._shake_hands()
        return int(self._endpoint.server_port)

    def _shake_hands(self) -> None:
        """In the thread of the request, so that one who connects and says nothing holds up nobody;
        and with the files as they are by then."""
        self.renew()
        listening: Any = self._endpoint.socket
        listening.do_handshake_on_connect = False

        def shown(connection: ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
            assert self._context is not None
            connection.context = self._context

        listening.context.sni_callback = shown

    def renew(self) -> None:
        """New connections are shown what the files hold now. Raises OSError."""
        if self._files is None:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._files.certificate, self._files.key)
        if self._asked is Asked.CERTIFICATE:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cafile=self._files.ca)
        self._context = context

    def close(self) -> None:
        """Ends the endpoint."""
        if self._endpoint is not None and self._thread is not None:
            self._endpoint.shutdown()
            self._endpoint.server_close()
            self._thread.join()


class PrometheusReporter:
    """The Reporter port. All but `event` may be called from any thread."""

    def __init__(self, registry: CollectorRegistry, role: str, log: Log) -> None:
        self._role = role
        self._log = log
        self._metrics = {metric.name: metric for metric in metrics_of(role)}
        self._collectors = {
            name: _collector(metric, role, registry) for name, metric in self._metrics.items()
        }
        # A child's method by (kind, name, labels as given): looking a child up takes a lock.
        self._known: dict[tuple[object, ...], Callable[[float], None]] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self._child(Kind.COUNTER, name, labels)(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._child(Kind.GAUGE, name, labels)(value)

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        """A duration, into a histogram."""
        self._child(Kind.DURATION, name, labels)(value_ms / 1000)

    def forget(self, label: str, value: str) -> None:
        """Drops every series whose only label has this value: they would stand for ever."""
        for name, metric in self._metrics.items():
            if metric.labels == (label,):
                self._known.pop((metric.kind, name, (label, value)), None)
                self._collectors[name].remove(value)

    def event(self, event: str, **fields: object) -> None:
        level = str(fields.pop("level", "info"))
        self._log.line(event, level=level, role=self._role, **fields)

    def _child(self, kind: Kind, name: str, labels: dict[str, str]) -> Callable[[float], None]:
        key = (kind, name, *labels.items())
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._find(kind, name, labels)
        return known

    def _find(self, kind: Kind, name: str, labels: dict[str, str]) -> Callable[[float], None]:
        metric = self._metrics.get(name)
        if metric is None or metric.kind is not kind or set(metric.labels) != set(labels):
            raise UndeclaredMetric(
                f"{kind} {name!r} of {self._role} with labels {sorted(labels)}: declare it in "
                "services/oncelog_server/runtime/observe/catalogue.py"
            )
        collector = self._collectors[name]
        child = collector.labels(**labels) if labels else collector
        method = {Kind.COUNTER: "inc", Kind.GAUGE: "set", Kind.DURATION: "observe"}[kind]
        bound: Callable[[float], None] = getattr(child, method)
        return bound


def _collector(metric: Metric, role: str, registry: CollectorRegistry) -> Any:
    # prometheus_client puts `_total` behind a counter by itself.
    name = metric.full_name(role).removesuffix("_total")
    if metric.kind is Kind.COUNTER:
        return Counter(name, metric.help, metric.labels, registry=registry)
    if metric.kind is Kind.GAUGE:
        return Gauge(name, metric.help, metric.labels, registry=registry)
    return Histogram(name, metric.help, metric.labels, registry=registry, buckets=BUCKETS_S)
